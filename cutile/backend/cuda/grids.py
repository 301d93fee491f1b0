"""Launches: the runtime that they see, their thread blocks, their split-K.

A launch has one thread block per tile block, or as many as fit on the device at once. Facts of an executable say which:

    cluster                 thread blocks of a cluster; a launch has whole clusters, so its last thread blocks may have
                            no tile block
    persistent              0, or the pieces of a tile block: no more thread blocks are launched than the device holds
                            at once, and each takes its pieces in turn
    workspace               bytes of device memory in which the thread blocks of a launch exchange data: the first
                            `COUNTERS` words are found as zeros, and left as zeros; the rest may hold anything
    workspace_per_block     further bytes for each thread block launched
    division                split-K by launches: the pieces that pay, by tile blocks and iterations
                            (`pipeline/split_k.py`); a launch only looks them up
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from cutile.backend.interface import Change, Grid
from cutile.errors import LaunchError

# The runtime: stream, workspace, report.


class Workspace(Protocol):
    """Device memory in which the thread blocks of a launch exchange results.

    It is freed when nobody holds it.
    """

    @property
    def address(self) -> int: ...


class Report(Protocol):
    """Memory in which a launch reports a failure to the host."""

    @property
    def address(self) -> int: ...

    def expect(self) -> None:
        """Note that a launch that may write there was enqueued. Its launcher calls it."""
        ...


class GpuStream(Protocol):
    """The part of the runtime that a loaded kernel sees. `cuda_async.Stream` has it."""

    sm_margin: int
    """Multiprocessors that kernels with a persistent grid leave free."""

    @property
    def device(self) -> Any:
        """The stream's device: the key by which a kernel keeps its loaded function."""
        ...

    def load_function(
        self, image: bytes, entry: str, shared_bytes: int, *, early: Literal["never", "in graphs", "always"] = "never"
    ) -> Any:
        """Load a GPU image on the stream's device; the caller keeps the result per device.

        `early`: programmatic dependent launch. Its launches, or those that a graph records, may begin before the kernel
        ahead of them in the stream has ended. The kernel itself waits for that one (`griddepcontrol.wait`).
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

        The grid and the function are read once, here. The memory behind `parameters` is read at each call.
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

        Multiprocessors that the stream leaves free (`sm_margin`) do not count. The number is a multiple of `cluster`.
        """
        ...

    def workspace(self, nbytes: int) -> Workspace:
        """Memory that the launches of this stream use one after the other.

        Each launch finds zeros in the first 4096 bytes, the room for its counters, and leaves zeros there. So no launch
        has to clear them. The other bytes may hold anything.

        The stream holds the memory for a single launch. A launch that is repeated holds it itself.
        """
        ...

    def report(self, read: Callable[[bytes], BaseException], *, lasting: bool = False) -> Report:
        """Memory of 64 bytes in which a launch of this stream may report a failure.

        It holds zeros when the launch begins. The first word is 1 while the launch writes there, and 2 afterwards. If
        it is 2 when the launch is over, waits for the launch raise `read(memory)`.

        Args:
            read: makes the exception from the bytes.
            lasting: whether the launch is repeated, so that the memory is kept for all repetitions.
        """
        ...


# Thread blocks.

Division = tuple[int, int, int]
"""`(tiles, iterations, pieces)`: the pieces for launches of up to `tiles` tile blocks, each of at least
`iterations`."""


class SplitKVariants:
    """The fact `division` of a kernel, in which launches look up their pieces.

    Args:
        count: the expression for the iterations of a tile block, as data (`launch/compiled_kernel.py` evaluates it).
        divisions: the divisions; a launch takes the first that holds for it.

    Attributes:
        count: as above.
        max_blocks: tile blocks of the largest launch that any division holds for.

    Example:
        >>> variants = SplitKVariants(100, ((8, 200, 16), (30, 64, 4), (66, 32, 2)))
        >>> [variants.choose(tiles, 100) for tiles in (8, 66, 67)]
        [(('num_pieces', 4),), (('num_pieces', 2),), ()]
    """

    __slots__ = ("_changes", "count", "max_blocks")

    def __init__(self, count: Any, divisions: Sequence[Division]) -> None:
        self.count = count
        self.max_blocks = max(tiles for tiles, _, _ in divisions)
        self._changes = tuple((tiles, iterations, (("num_pieces", pieces),)) for tiles, iterations, pieces in divisions)

    def choose(self, blocks: int, count: int) -> Change:
        """The compile options that a launch changes; empty where nothing is divided.

        Args:
            blocks: the launch's tile blocks.
            count: the iterations of each.
        """
        for max_blocks, min_count, change in self._changes:
            if blocks <= max_blocks and count >= min_count:
                return change
        return ()


MAX_GRID_BLOCKS = 2**31 - 1
"""Thread blocks of a launch at most, along the first axis of a grid (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability")."""
COUNTERS = 1024
"""Words of 4 bytes at the start of a workspace, in which the thread blocks of a launch count."""


def launch_blocks(grid: Grid) -> int:
    """Thread blocks of a launch that has one for each tile block.

    Raises:
        LaunchError: that is more than a launch may have.
    """
    blocks = grid[0] * grid[1] * grid[2]
    if not 1 <= blocks <= MAX_GRID_BLOCKS:
        raise LaunchError(f"the grid {grid} has {blocks} tile blocks; a launch takes 1 to {MAX_GRID_BLOCKS}")
    return blocks


class PersistentGrid:
    """The shape and the workspace of a kernel's launches.

    Args:
        facts: the executable's.

    Attributes:
        plain: whether a launch has one thread block for each tile block, and no workspace.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._threads = int(facts["threads"])
        self._shared = int(facts["shared_bytes"])
        self._cluster = int(facts.get("cluster", 1))
        self._persistent = int(facts.get("persistent", 0))
        self._blocks_per_tile = int(facts.get("blocks_per_tile", 1))
        self._workspace = int(facts.get("workspace", 0))
        self._workspace_per_block = int(facts.get("workspace_per_block", 0))
        self._pieces_are_clusters = self._persistent == self._cluster > 1
        has_workspace = self._workspace > 0 or self._workspace_per_block > 0
        self.plain = self._cluster == 1 and not self._persistent and not has_workspace

    def blocks(self, tiles: int, limit: int) -> int:
        """Thread blocks of a launch.

        If the pieces of a tile block are a cluster, tile blocks are divided where that takes less time. The device runs
        thread blocks in rounds of `limit`. With `n` pieces, a round of whole tile blocks takes `n` times as long.

        Args:
            tiles: the launch's tile blocks.
            limit: thread blocks that the device holds at once: the result of the method `limit`.
        """
        if self._pieces_are_clusters and -(-tiles * self._persistent // limit) < self._persistent * -(-tiles // limit):
            return tiles * self._persistent
        work = min(tiles * self._persistent, limit) if self._persistent else tiles * self._blocks_per_tile
        return -(-work // self._cluster) * self._cluster

    def limit(self, function: Any, stream: GpuStream) -> int:
        """Thread blocks of a loaded function that the device holds at once.

        0 for a grid that is not persistent, whose size does not depend on it.

        Raises:
            LaunchError: not even one fits.
        """
        if not self._persistent:
            return 0
        blocks = stream.resident_blocks(function, self._threads, self._shared, self._cluster)
        if blocks < self._cluster:
            raise LaunchError(
                f"no multiprocessor holds a block of {self._threads} threads with {self._shared} bytes of shared "
                f"memory, in clusters of {self._cluster}; compile with smaller tiles"
            )
        return blocks

    def workspace(self, blocks: int) -> int:
        """Bytes of workspace of a launch of `blocks` thread blocks."""
        return self._workspace + self._workspace_per_block * blocks
