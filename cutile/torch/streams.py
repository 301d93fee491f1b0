# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch is not among what the tests install)
"""PyTorch's current stream as a `Stream`, and its memory as a `Storage`.

PyTorch's allocator and its streams keep the order of memory uses; nothing is ordered here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from cuda_async import Device, Storage, Stream
from cuda_async.core.report import Report
from cuda_async.core.stream import BorrowedStream
from cuda_async.foreign import LEGACY_STREAM

__all__ = ("Place", "TorchMemory", "TorchStream", "capturing", "current_raw", "place_of", "synchronize")

_WHOLE_MEMORY = 1 << 64  # bytes: every address lies in it

current_raw: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 0)
"""The handle of the current stream of a GPU. A build of PyTorch without CUDA lacks it, and has no tensors on GPUs."""


def capturing() -> bool:
    """Whether PyTorch captures a CUDA graph on the current stream.

    Call it on a GPU only.
    """
    return torch.cuda.is_current_stream_capturing()


class TorchMemory(Storage):
    """All memory that PyTorch has on a device, in the order of its current stream.

    PyTorch's rule holds for kernels as for its own operators: memory is used on the stream that it was allocated for,
    and code that uses it on another one calls `tensor.record_stream(...)`. So a launch neither waits for memory nor
    holds it: memory that is freed after the launch is reused behind it in the stream.
    """

    __slots__ = ()

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream, 0, _WHOLE_MEMORY, owned=False)

    def use(self, stream: Stream, *, write: bool, peer: bool = False, failed: bool = False) -> None:
        """Nothing: the stream is the one that PyTorch uses."""

    def order(self, stream: Stream, write: bool) -> None:
        """Nothing: the stream is the one that PyTorch uses."""


class _TorchWorkspace:
    """A workspace within a graph that PyTorch captures.

    Its memory is the graph's; each replay clears it.
    """

    def __init__(self, nbytes: int, ordinal: int) -> None:
        self.tensor = torch.zeros(nbytes, dtype=torch.uint8, device=f"cuda:{ordinal}")
        self.address = self.tensor.data_ptr()
        self.nbytes = nbytes


class _Unwatched:
    """A watcher that does nothing: `TorchStream` reads its reports itself."""

    def check_behind(self, check: Callable[[], None]) -> None:
        """Nothing."""


class TorchStream(BorrowedStream):
    """A stream of PyTorch.

    It may be capturing a graph, and no code here waits for its end.
    """

    __slots__ = ("_torch_reports",)

    def __init__(self, device: Device, raw: int) -> None:
        super().__init__(device, raw or LEGACY_STREAM, None)
        self._torch_reports: dict[Callable[[bytes], BaseException], Report] = {}

    def workspace(self, nbytes: int) -> Any:
        """A workspace as of any stream; within a capture, of the graph's memory."""
        if capturing():
            return _TorchWorkspace(nbytes, self.device.ordinal)
        return super().workspace(nbytes)

    def report(self, read: Callable[[bytes], BaseException], *, lasting: bool = False) -> Report:
        """The report of all launches of a kernel.

        Raises the failure that an earlier launch has written.
        """
        report = self._torch_reports.get(read)
        if report is None:
            with self.device.driver.unrestricted():
                watcher: Any = _Unwatched()
                report = self._torch_reports[read] = Report(self.device.reports, watcher, read, lasting=True)
        report.check()
        return report

    def raise_failures(self) -> None:
        """Raise what kernels have reported here so far."""
        for report in list(self._torch_reports.values()):
            report.check()


class Place:
    """Where launches on a device go.

    Attributes:
        device: the device.
        memory: PyTorch's memory on it.
        streams: the streams that PyTorch has used, by handle.
        unrestricted: allows what a capture forbids, for a `with` block.
    """

    __slots__ = ("_local", "device", "memory", "on_gpu", "streams", "unrestricted")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.on_gpu = not device.runs_host_code
        self.streams: dict[int, Stream] = {}
        self.unrestricted = device.driver.unrestricted if self.on_gpu else nullcontext
        self._local = threading.local()
        self.memory = TorchMemory(self.stream())

    def stream(self) -> Stream:
        """PyTorch's current stream; on the CPU, a stream of this thread.

        On the CPU operators return when they are done.
        """
        if not self.on_gpu:
            try:
                return self._local.stream
            except AttributeError:
                stream = self._local.stream = self.device.new_stream()
                return stream
        raw = current_raw(self.device.ordinal)
        stream = self.streams.get(raw)
        if stream is None:
            with self.unrestricted():
                stream = self.streams.setdefault(raw, TorchStream(self.device, raw))
        return stream


_places: dict[torch.device, Place] = {}


def place_of(device: torch.device) -> Place:
    """The place of launches over tensors on `device`, the CPU or a numbered GPU."""
    place = _places.get(device)
    if place is None:
        own_device = Device.host() if device.type == "cpu" else Device(device.index or 0)
        place = _places.setdefault(device, Place(own_device))
    return place


def synchronize() -> None:
    """Wait for PyTorch's current stream on each device, and raise reported errors.

    A kernel that fails on a GPU (an `assert`, an index outside of its tensor) is noticed when that kernel is launched
    on the same stream again, or here. On the CPU it fails at once.

    Raises:
        KernelAssertionError: what failed, with its line.

    Example:
        >>> import cutile.torch as ctt
        >>> ctt.synchronize()
    """
    for place in list(_places.values()):
        if place.on_gpu:
            torch.cuda.current_stream(place.device.ordinal).synchronize()
            for stream in list(place.streams.values()):
                if isinstance(stream, TorchStream):
                    stream.raise_failures()
