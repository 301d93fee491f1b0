"""The runtime as launches of the GPU backend see it: stream, workspace, report."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cutile.backend.interface import Grid

__all__ = ("GpuStream", "Report", "Workspace")


class Workspace(Protocol):
    """Device memory in which the thread blocks of a launch exchange results.

    It is freed when nobody holds it.
    """

    @property
    def address(self) -> int: ...


class Report(Protocol):
    """Memory in which launches tell the host what failed, once they are over."""

    @property
    def address(self) -> int: ...

    def expect(self) -> None:
        """Note that a launch that may write there was enqueued. Its launcher calls it."""
        ...


class GpuStream(Protocol):
    """What a loaded kernel sees of the runtime: `cuda_async.Stream` satisfies it."""

    sm_margin: int
    """Multiprocessors that kernels with a persistent grid leave free."""

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: bool = False) -> Any:
        """Load a GPU image on the stream's device; the caller keeps the result per device.

        `early`: programmatic dependent launch. Its launches may begin before the kernel ahead of them in the stream has
        ended. The kernel itself waits for that one (`griddepcontrol.wait`).
        """
        ...

    def launch_function(
        self, function: Any, grid: Grid, block: tuple[int, int, int], shared_bytes: int, parameters: Any
    ) -> None:
        """Enqueue a GPU kernel.

        `parameters` is a ctypes array with the address of each value, or the address of such an array.
        """
        ...

    def launcher(
        self, function: Any, block: tuple[int, int, int], shared_bytes: int
    ) -> Callable[[Any, int, int], None]:
        """A function `launch(stream, blocks, parameters)` that enqueues a GPU kernel.

        `stream` is the driver's, of any stream of the device; the grid has one axis. `Packed` (`interface.py`) has it.
        """
        ...

    def prepare_launch(
        self, function: Any, grid: Grid, block: tuple[int, int, int], shared_bytes: int, parameters: Any
    ) -> Callable[[], None]:
        """A function that enqueues the launch at each call.

        The grid and the function are looked at once, here. The memory behind `parameters` is read at each call.
        """
        ...

    def expect_output(self) -> None:
        """Note that kernels launched from here on may print.

        The runtime writes their output when they have completed.
        """
        ...

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
        """The 128 bytes of a tensor map (`CUtensorMap`).

        Axes are in CUDA's order: the one with stride 1 is the first.

        Args:
            element: "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "tf32" or "f64".
            address: of the first element.
            extents: in elements.
            strides: of the axes after the first, in bytes.
            box: extents of one copy, in elements.
            swizzle: bytes of a row over which shared memory is swizzled: 32, 64 or 128; 0 for none.
            step: the traversal stride of the second axis: TMA copies every `step`-th element along it.
        """
        ...

    def resident_blocks(self, function: Any, threads: int, shared_bytes: int, cluster: int) -> int:
        """Thread blocks of a function that the GPU holds at once.

        On the multiprocessors that the stream does not leave free. The number is a multiple of `cluster`.
        """
        ...

    def workspace(self, nbytes: int) -> Workspace:
        """Memory that the launches of this stream use one after the other.

        Each launch finds zeros in the first 4096 bytes, the room for its counters, and leaves zeros there. So no launch
        has to clear them. The other bytes are anything.

        The stream holds it for a single launch. A launch that is repeated holds it itself.
        """
        ...

    def report(self, read: Callable[[bytes], BaseException], *, lasting: bool = False) -> Report:
        """Memory of 64 bytes in which a launch of this stream may report a failure.

        It is zeros when the launch begins. The first word is 1 while the launch writes there, and 2 behind that. If it
        is 2 when the launch is over, waits for the launch raise `read(memory)`.

        Args:
            read: makes the exception from the bytes.
            lasting: whether the launch is repeated, and the memory kept for all repetitions.
        """
        ...
