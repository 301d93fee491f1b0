"""A stream that records a launch's calls of the runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class Reported:
    """A report without memory.

    Attributes:
        address: a number that stands for its address.
        read: makes an exception of its bytes.
        lasting: whether it is for launches that are repeated.
        expected: how often a launch was enqueued.
    """

    def __init__(self, address: int, read: Callable[[bytes], BaseException], lasting: bool) -> None:
        self.address = address
        self.read = read
        self.lasting = lasting
        self.expected = 0

    def expect(self) -> None:
        self.expected += 1


@dataclass(frozen=True)
class Memory:
    """A workspace without memory; its address is its size, shifted."""

    address: int
    nbytes: int


class Recorder:
    """A stream without a GPU; parameters are read when the driver would copy them.

    Args:
        device: stands for the device.
        sizes: of each parameter, in bytes.

    Attributes:
        loads: image, entry and shared bytes of each function loaded.
        early: for each of them, which launches may start before the work ahead has ended.
        launches: function, grid, block, shared bytes and the parameters' bytes of each launch.
        encoded: what each tensor map was made from. Its bytes begin with the tensor's address and extents as text.
        resident: the answer of `resident_blocks`.
        asked: function, threads, shared bytes and cluster of each call of `resident_blocks`.
        workspaces: that were asked for.
        reports: that were asked for.
    """

    def __init__(self, device: str = "gpu0", sizes: tuple[int, ...] = ()) -> None:
        self.device = device
        self.sizes = sizes
        self.sm_margin = 0
        self.loads: list[tuple[bytes, str, int]] = []
        self.early: list[str] = []
        self.outputs_expected = 0
        self.launches: list[Any] = []
        self.encoded: list[tuple[Any, ...]] = []
        self.resident = 264
        self.asked: list[tuple[Any, ...]] = []
        self.workspaces: list[Memory] = []
        self.reports: list[Reported] = []

    def report(self, read: Callable[[bytes], BaseException], *, lasting: bool = False) -> Reported:
        self.reports.append(Reported(64 * (len(self.reports) + 1), read, lasting))
        return self.reports[-1]

    def resident_blocks(self, function: Any, threads: int, shared_bytes: int, cluster: int) -> int:
        self.asked.append((function, threads, shared_bytes, cluster))
        return self.resident

    def workspace(self, nbytes: int) -> Memory:
        self.workspaces.append(Memory(nbytes << 20, nbytes))
        return self.workspaces[-1]

    def encode_tensor_map(
        self,
        element: str,
        address: int,
        extents: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
        step: int,
    ) -> bytes:
        self.encoded.append((element, address, extents, strides, box, swizzle, step))
        return f"{address} {extents}".encode().ljust(128)

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: str = "never") -> Any:
        self.early.append(early)
        self.loads.append((image, entry, shared_bytes))
        return f"{entry} on {self.device}"

    def expect_output(self) -> None:
        self.outputs_expected += 1

    def launch_function(self, function: Any, grid: Any, block: Any, shared_bytes: int, parameters: int) -> None:
        addresses = (ctypes.c_void_p * len(self.sizes)).from_address(parameters)
        assert all(addresses[i] % 64 == 0 for i, size in enumerate(self.sizes) if size == 128)
        values = [ctypes.string_at(addresses[i], size) for i, size in enumerate(self.sizes)]
        self.launches.append((function, grid, block, shared_bytes, values))

    def launcher(self, function: Any, block: Any, shared_bytes: int) -> Any:
        def launch(stream: Recorder, blocks: int, where: int) -> None:
            stream.launch_function(function, (blocks, 1, 1), block, shared_bytes, where)

        return launch

    def prepare_launch(self, function: Any, grid: Any, block: Any, shared_bytes: int, parameters: int) -> Any:
        return lambda: self.launch_function(function, grid, block, shared_bytes, parameters)

    def parallel_for(self, body: Any, count: int, grain: int) -> None:
        raise AssertionError("a GPU kernel runs on the GPU")
