"""What kernels of a GPU ask of the stream that they are launched on."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cutile.backend.interface import Grid

__all__ = ("GpuStream", "Report", "Workspace")


class Workspace(Protocol):
    """Memory of a device in which the blocks of one launch hand each other results.

    It is freed when nobody holds it.
    """

    @property
    def address(self) -> int: ...


class Report(Protocol):
    """Memory in which launches tell the host what failed, once they are over."""

    @property
    def address(self) -> int: ...

    def expect(self) -> None:
        """A launch that may write there was enqueued."""
        ...


class GpuStream(Protocol):
    """What a loaded kernel sees of the runtime: `cuda_async.Stream` satisfies it."""

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: bool = False) -> Any:
        """Load a GPU image on the stream's device; the caller keeps the result per device.

        `early`: its launches may begin before the work ahead of them has ended, for which the kernel waits itself.
        """
        ...

    def launch_function(
        self, function: Any, grid: Grid, block: tuple[int, int, int], shared_bytes: int, parameters: Any
    ) -> None:
        """Enqueue a GPU kernel.

        `parameters` is a ctypes array of addresses of the packed values, or its address.
        """
        ...

    def launcher(
        self, function: Any, block: tuple[int, int, int], shared_bytes: int
    ) -> Callable[[Any, int, int], None]:
        """What enqueues a GPU kernel on any stream of this one's device; for `Packed`."""
        ...

    def prepare_launch(
        self, function: Any, grid: Grid, block: tuple[int, int, int], shared_bytes: int, parameters: Any
    ) -> Callable[[], None]:
        """Calls of `launch_function`, with all that can be done once done here."""
        ...

    def expect_output(self) -> None:
        """Kernels launched from here on may print.

        What they print is to come out when they have completed.
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
        """The 128 bytes of a GPU's descriptor of a tensor.

        The axis with stride 1 comes first, as CUDA has it.

        Args:
            element: "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "tf32" or "f64".
            address: of the first element.
            extents: in elements.
            strides: of the axes after the first, in bytes.
            box: extents of one copy, in elements.
            swizzle: 0, 32, 64 or 128.
            step: of so many elements along the second axis, the first is copied.
        """
        ...

    def resident_blocks(self, function: Any, threads: int, shared_bytes: int, cluster: int) -> int:
        """How many blocks of a loaded function a GPU holds at once.

        The number is of whole clusters of `cluster` blocks.
        """
        ...

    def workspace(self, nbytes: int) -> Workspace:
        """Memory that the launches of this stream use one after the other.

        It is all zeros before the first.

        Each leaves the first 4096 bytes as zeros, and the rest as it likes. Who launches once need not hold it; who
        launches again and again does.
        """
        ...

    def report(self, read: Callable[[bytes], BaseException], *, lasting: bool = False) -> Report:
        """Memory of 64 bytes in which a launch of this stream may report a failure.

        It is zeros when the launch begins. Where the first word is 2 once that is over, whatever waits for it fails
        with `read(memory)`; while it is 1, the memory is being written.

        Args:
            read: makes the exception.
            lasting: for launches that are repeated; else for one.
        """
        ...
