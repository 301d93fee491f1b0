"""`Stream` and `Device` of the awaited interface; how operations get onto streams."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cuda_async.async_cuda_core.runtime import Call, Started
from cuda_async.combinators import value
from cuda_async.core import device as devices
from cuda_async.core import stream as streams
from cuda_async.core.run import Run
from cuda_async.errors import ArgumentTypeError, as_text
from cuda_async.locks import new_lock
from cuda_async.op import DeviceOp

__all__ = ("Device", "MemoryInfo", "Stream", "current_device", "enqueue", "num_devices")

T = TypeVar("T")


class _Runtime(threading.local):
    """The device that `Device.set` chose on the runtime thread; None on other threads."""

    device: devices.Device | None = None


_runtime = _Runtime()
_null_streams: weakref.WeakKeyDictionary[devices.Device, Stream] = weakref.WeakKeyDictionary()
_null_lock = new_lock()


def current_device() -> devices.Device:
    """The device of calls that name no stream: the one that was set, else the default.

    Calls run in a copy of the caller's context (`contextvars`), so that the default is the caller's.
    """
    return _runtime.device or devices.default_device()


class Stream:
    """An ordered queue of work.

    Made by `await Stream.new()`; `Stream.null()` is the default stream of its device.

    Attributes:
        inner: the stream of `cuda_async`, for its operations.
    """

    def __init__(self, inner: streams.Stream) -> None:
        self.inner = inner
        self._unwaited: list[Run[Any]] = []

    @classmethod
    def new(cls) -> Call[Stream]:
        """A new stream of the current device."""
        return Call("Stream.new", lambda: cls(current_device().new_stream()))

    @classmethod
    def null(cls, device: devices.Device | None = None) -> Stream:
        """The default stream of a device: the same object at each call.

        Unlike CUDA's legacy default stream, it does not wait for other streams, and they do not wait for it.
        """
        where = device or devices.default_device()
        with _null_lock:
            stream = _null_streams.get(where)
            if stream is None:
                stream = _null_streams[where] = cls(where.new_stream())
            return stream

    def synchronize(self) -> Call[None]:
        """Wait for everything enqueued so far.

        Raises:
            DeviceError: (when awaited) work failed for which nobody has waited.
        """

        def start() -> Started[None]:
            unwaited, self._unwaited = self._unwaited, []
            return Started(_submit(self, value(None))[0], *unwaited)

        return Call("Stream.synchronize", start)

    def keep(self, run: Run[Any]) -> None:
        """Keep a run that nobody waits for until `synchronize`. On the runtime thread."""
        # A failed run stays: `synchronize` raises its failure.
        self._unwaited = [unwaited for unwaited in self._unwaited if not unwaited.done or unwaited.failed]
        self._unwaited.append(run)

    def __repr__(self) -> str:
        return f"<async_cuda_core.Stream on {self.inner.device}>"


def _submit(stream: Stream, op: DeviceOp[T]) -> tuple[Run[T], T | None]:
    """The run of an operation, and the handles."""
    run = Run(op, stream.inner)
    handles = run.submit()
    run.watch()
    return run, handles


def enqueue(name: str, stream: Stream, make: Callable[[], DeviceOp[T]], *, wait: bool) -> Call[T]:
    """A call that enqueues the operation that `make` makes.

    Args:
        name: the name of the call, for errors.
        stream: the stream on which the operation runs.
        make: called on the runtime thread, which lends the operation its arguments.
        wait: whether the call ends only when the device is done. If not, it returns handles once all is enqueued.
    """

    def start() -> Any:
        run, handles = _submit(stream, make())
        if wait or run.submission_failed:  # a failure is raised by this call, and not by `synchronize`
            return Started[T](run)
        stream.keep(run)
        return handles

    return Call(name, start)


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory: those that are free, and all."""

    free: int
    total: int


class Device:
    """The current device of the runtime thread. All methods are static."""

    @staticmethod
    def get() -> Call[int]:
        """The number of the current device."""
        return Call("Device.get", lambda: current_device().ordinal)

    @staticmethod
    def set(device: int | devices.Device | None) -> Call[None]:
        """Make a device the current one, for all calls from now on.

        Args:
            device: its number among those of the current one's kind; or a device of `cuda_async`; or None for
                the device that is the default where the call is awaited.

        Raises:
            TypeError: `device` is none of these.
            NoDeviceError: (when awaited) there is none of this number.
        """
        target = device
        if device is not None and not isinstance(device, devices.Device):
            try:
                target = operator.index(device)
            except TypeError:  # raised now: else every later call would fail
                raise ArgumentTypeError(
                    f"Device.set: expected a device, its number or None, got {type(device).__name__}: {as_text(device)}"
                ) from None

        def change() -> None:
            _runtime.device = (
                devices.Device.of_kind(current_device().kind, target) if isinstance(target, int) else target
            )

        return Call("Device.set", change)

    @staticmethod
    def synchronize() -> Call[None]:
        """Wait for the null stream and the default policy's streams of this device."""

        def start() -> Started[None]:
            from cuda_async.core.policy import policy_streams

            device = current_device()
            inner = [Stream.null(device).inner, *policy_streams(device)]
            return Started(*(_submit(Stream(stream), value(None))[0] for stream in inner))

        return Call("Device.synchronize", start)

    @staticmethod
    def memory_info() -> Call[MemoryInfo]:
        """The memory of the current device."""

        def ask() -> MemoryInfo:
            info = current_device().memory_info()
            return MemoryInfo(info.free, info.total)

        return Call("Device.memory_info", ask)


def num_devices() -> Call[int]:
    """How many devices of the current one's kind there are (1 for a simulated one)."""

    def count() -> int:
        kind = current_device().kind
        return 1 if kind == "sim" else devices.device_count(kind)

    return Call("num_devices", count)
