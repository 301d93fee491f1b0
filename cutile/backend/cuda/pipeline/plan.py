"""The plan of a warp-specialised kernel (sm_90a).

How its products are made: instructions, buffers, pipelines, roles.

Every product becomes `wgmma`. What the tensor cores read from shared memory is loaded by TMA, in the producer warp; a
left operand that is computed comes from registers. The loads of one product, of what threads combine its sums with, and
of products beside it that share one of them, arrive together: they are the buffers of one pipeline. Loads in loops run
ahead by the pipeline's stages.

    q = load(...)                        pipeline of q, 1 stage
    for k in a..b:
        s = mma(q, load(key, k), 0)      pipeline of key, 2 stages
        acc = mma(f(s), load(value, k), acc)  pipeline of value, 2 stages; f(s) from registers

The producer runs what the indices of its loads and the control around them are computed from, and no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutile.backend.cuda.ops import AddTile
from cutile.backend.cuda.pipeline.accumulators import cluster_bytes
from cutile.backend.cuda.pipeline.operand import Operand, loads_of
from cutile.backend.cuda.pipeline.schedule import Cooperative, PingPong, SplitK, Tiles
from cutile.backend.cuda.pipeline.slice import Slice
from cutile.backend.cuda.smem_layout import STEP_BYTES, WARPGROUP, SmemLayout
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.backend.gpu.layout import Layout
from cutile.ir import For, Op, Value
from cutile.ops.matmul import Mma
from cutile.ops.memory import StoreMut
from cutile.ops.view import StoreView

BARRIER_BYTES = 8
WARP_ROWS = 16
"""Rows of a result that one warp has of every 64."""
REGISTERS = {1: (0, 0), 2: (40, 232), 3: (32, 160)}
"""Registers of a producer and of a consumer thread by consumer warpgroups: 65536 hold them all; 0 leaves the number."""
MAINLOOP_REGISTERS = (56, 224)
"""The same of two warpgroups that share the tiles of a main loop."""
WRITING_REGISTERS = (24, 240)
"""The same of two warpgroups that write an operand: the addresses of where it goes take some more."""


@dataclass(frozen=True)
class Written:
    """A left operand that consumers compute, and write to shared memory.

    Attributes:
        value: what is computed, in the layout of sums.
        smem_layout: how it lies there.
        passed: the exchange of its axes, which is another way to read it.
    """

    value: Value
    smem_layout: SmemLayout
    passed: tuple[Op, ...]


@dataclass(frozen=True)
class Dot:
    """One product.

    Attributes:
        op: the product.
        left: its left operand as it is loaded to shared memory; None where it is computed.
        right: its right operand.
        accumulator: the layout of its sums.
        fresh: whether the sums begin at zero with this product.
        simt: whether it is made of f32 by fused multiply-adds, in place of the tensor cores.
        a_from_registers: whether the left operand lies across K, and is read by threads (`accumulators.py`).
        promote_columns: columns whose products are added in f32 at once; 0 where the tensor cores add them to the sums.
        promote_interval: iterations whose products the tensor cores add up before they are added in f32; 0 for all.
        written: its left operand, where that is computed and goes through shared memory.
        over: the sums of another product, which nobody reads any more, and whose registers its own take; None for none.
        neighbours: columns of its left operand, where that is computed, that a lane has side by side.
    """

    op: Mma
    left: Operand | None
    right: Operand
    accumulator: Layout
    fresh: bool
    simt: bool = False
    a_from_registers: bool = False
    promote_columns: int = 0
    promote_interval: int = 0
    written: Written | None = None
    over: Value | None = None
    neighbours: int = 2

    @property
    def in_registers(self) -> bool:
        """Whether the left operand comes from registers."""
        return self.left is None and self.written is None

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those that are loaded to shared memory."""
        return (self.right,) if self.left is None else (self.left, self.right)

    @property
    def by_warps(self) -> bool:
        """Whether each warp reads its operands by itself."""
        return self.a_from_registers or self.simt

    @property
    def left_k_major(self) -> bool:
        """Whether the axis of the left operand that is contiguous in shared memory is K."""
        loaded = self.left or self.written
        return loaded is None or loaded.smem_layout.k_major

    @property
    def steps(self) -> int:
        """Instructions that go through the depth of the product."""
        tile = self.op.a.tile
        return tile.shape[1] * tile.dtype.bits // 8 // STEP_BYTES


@dataclass(frozen=True)
class Group:
    """Loads of one block of the kernel that arrive together.

    Attributes:
        operands: in the order of the products.
        pipeline: the number of the pipeline.
        within: whether all products that read them are in the same block.
        first, last: of the loads.
        ahead: whether the producer begins all where the first one stands, ahead of what else is in the block.
    """

    operands: tuple[Operand, ...]
    pipeline: int
    within: bool
    first: Op
    last: Op
    ahead: bool


@dataclass(frozen=True)
class TmaStore:
    """A store that TMA does, by way of shared memory.

    Each warp stores some columns of its rows at a time.

    Attributes:
        op: the store.
        value: what is stored, as a matrix.
        box: what one warp stores at a time, in the tensor's axes: some columns of 16 of the matrix's rows.
        passed: what makes the tensor's axes of the matrix's rows, and needs no instruction.
        layout: of the matrix.
        buffers: places of a warp in which columns wait.
        transposed: whether the matrix's columns lie as the rows of a product's sums do, so that a warp has 16 columns.
    """

    op: StoreMut | StoreView | AddTile
    value: Value
    box: tuple[int, ...]
    passed: tuple[Op, ...]
    layout: Layout
    buffers: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The tile's shape in the tensor, if the matrix's rows are several axes there.

        Else empty.
        """
        shape = self.op.value.tile.shape
        return () if shape == self.value.tile.shape else shape

    @property
    def adds(self) -> bool:
        """Whether the matrix is added to what is there."""
        return isinstance(self.op, AddTile)

    @property
    def span(self) -> int:
        """Columns at a time; rows, of a transposed matrix."""
        return self.box[0] if self.transposed else self.box[-1]

    @property
    def smem_layout(self) -> SmemLayout:
        """That part of the matrix, as a tile in panels."""
        size = self.value.tile.dtype.bits // 8
        return SmemLayout(self.box[-1], self.box[0] if self.transposed else WARP_ROWS, size, k_major=False)

    @property
    def map(self) -> TensorMap:
        """How TMA stores it."""
        return TensorMap(self.box, self.smem_layout.swizzle, tuple(range(len(self.box))))


@dataclass(frozen=True)
class Plan:
    """A kernel's products by specialised warps.

    Attributes:
        warpgroups: that consume; the rows of every product are shared among them.
        dots: by operation.
        groups: by each of their loads.
        stages: of each pipeline.
        operands: of each pipeline, one for each buffer.
        reads: the loads of which threads read the stage, each with how it lies there.
        kept: what happens to operands of products on their way, and is needed by threads too.
        anchors: operations whose results lie as the products' sums do, each with that layout.
        slice: what the producer runs.
        guards: what asserts, and branches around nothing else: the producer alone runs it.
        limited: whether waits that last too long end the kernel.
        stores: those that TMA does, by way of shared memory.
        occupancy: thread blocks that are to fit on a multiprocessor.
        tiles: how tile blocks are gone through.
        mainloop: the loop whose product's sums are all that the kernel multiplies; None where it has others.
        summing: the loop that may be divided, since sums are all that it carries; None where there is none.
        subtile: columns for which what follows the main loop is done at a time; 0 for all.
        narrow: whether these are fewer than usual, for want of registers.
        places: in turn, of each operand that consumers write.
    """

    warpgroups: int
    dots: Mapping[Op, Dot]
    groups: Mapping[Op, Group]
    stages: tuple[int, ...]
    operands: tuple[tuple[Operand, ...], ...]
    slice: Slice
    guards: frozenset[Op]
    limited: bool
    stores: Mapping[Op, TmaStore] = field(default_factory=dict[Op, TmaStore])
    occupancy: int = 1
    reads: Mapping[Op, Operand] = field(default_factory=dict[Op, Operand])
    kept: frozenset[Op] = frozenset()
    anchors: tuple[tuple[Op, Layout], ...] = ()
    tiles: Tiles = field(default_factory=Tiles)
    mainloop: For | None = None
    summing: For | None = None
    subtile: int = 0
    narrow: bool = False
    places: int = 1

    @property
    def dot(self) -> Dot:
        """The first product; of a main loop the only one."""
        return next(iter(self.dots.values()))

    @property
    def store(self) -> TmaStore | None:
        """The first store by TMA; of a main loop the only one."""
        return next(iter(self.stores.values()), None)

    @property
    def pingpong(self) -> bool:
        """Whether each warpgroup has tile blocks of its own."""
        return isinstance(self.tiles.schedule, PingPong)

    @property
    def split(self) -> SplitK | None:
        """How iterations are divided among thread blocks; None where they are not."""
        return self.tiles.schedule if isinstance(self.tiles.schedule, SplitK) else None

    @property
    def delayed(self) -> bool:
        """Whether a result is stored under the next tile block's products."""
        return isinstance(self.tiles.schedule, Cooperative) and self.tiles.schedule.delayed

    @property
    def parts(self) -> int:
        """Parts of a tile's columns that the thread blocks of a cluster add up.

        0 where there is no such cluster.
        """
        return self.split.parts if self.split is not None else 0

    @property
    def verdict(self) -> int | None:
        """The pipeline by which consumers know of failed assertions, or None.

        It is behind those of loads. None where nothing is asserted, or all of it ahead of a main loop, by whose own
        stages they know.
        """
        return len(self.operands) if self.guards and self.mainloop is None else None

    @property
    def registers(self) -> tuple[int, int]:
        """Of a producer and of a consumer thread; 0 leaves the number alone."""
        if self.occupancy > 1:
            return 0, 0
        if self.written and self.warpgroups == 2:
            return WRITING_REGISTERS
        held_twice = self.dot.a_from_registers and self.dot.promote_interval
        if self.mainloop is None or self.warpgroups != 2 or self.pingpong or held_twice:
            return REGISTERS[self.warpgroups]
        return MAINLOOP_REGISTERS

    def readers(self, pipeline: int) -> int:
        """How many arrivals say that a stage has been read.

        One of each warpgroup; of each warp, where warps read by themselves; one in all, where warpgroups have tile
        blocks of their own.
        """
        return 1 if self.pingpong else self.warpgroups * (4 if pipeline in self.by_warps else 1)

    @property
    def clustered(self) -> bool:
        """Whether thread blocks of a cluster speak with each other."""
        return self.tiles.cluster > 1 or self.parts > 0

    @property
    def more_barriers(self) -> int:
        """The number of barriers besides those of pipelines.

        Warpgroups with tile blocks of their own take turns by one each; or the sums of a cluster's pieces arrive on
        one.
        """
        return self.warpgroups if self.pingpong else int(self.parts > 0)

    @property
    def staging_bytes(self) -> int:
        """Shared memory through which results are stored, and a cluster's sums sent.

        The two share a place.
        """
        warp = max((store.buffers * store.smem_layout.nbytes for store in self.stores.values()), default=0)
        stored, split = 4 * self.warpgroups * warp, self.split
        if split is None or not split.parts:
            return stored
        return max(stored, cluster_bytes(self.dot.accumulator, split.parts, split.pieces))

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARPGROUP * (self.warpgroups + 1)

    def stage_bytes(self, pipeline: int) -> int:
        """Bytes of one stage of a pipeline."""
        return sum(operand.smem_layout.place_bytes for operand in self.operands[pipeline])

    @property
    def written(self) -> dict[SmemLayout, Written]:
        """The operands that consumers write.

        Those that lie alike share a buffer: no two are read at a time.
        """
        operands = [dot.written for dot in self.dots.values() if dot.written is not None]
        return {written.smem_layout: written for written in reversed(operands)}

    @property
    def written_counters(self) -> dict[Op, int]:
        """By product, the number of the counter of what consumers write for it.

        They are the last of all counters.
        """
        numbers = {smem_layout: -1 - place for place, smem_layout in enumerate(self.written)}
        return {op: numbers[dot.written.smem_layout] for op, dot in self.dots.items() if dot.written}

    @property
    def skipped(self) -> frozenset[Op]:
        """What needs no instruction of its own.

        The loads into stages, and what happens to operands on their way.
        """
        passed = {op for store in self.stores.values() for op in store.passed}
        passed.update(op for dot in self.dots.values() for operand in dot.operands for op in operand.passed)
        passed.update(op for dot in self.dots.values() if dot.written is not None for op in dot.written.passed)
        return frozenset(passed - self.kept) | self.groups.keys()

    @property
    def aside(self) -> frozenset[int]:
        """The pipelines that no product reads: of what threads alone do, and the verdict."""
        read = {self.groups[operand.load].pipeline for dot in self.dots.values() for operand in dot.operands}
        return frozenset(range(len(self.operands) + (self.verdict is not None))) - read

    @property
    def by_warps(self) -> frozenset[int]:
        """The pipelines whose stages each warp releases for itself.

        Threads read them; or there may be no product between the wait and the release: a product is what no warp of a
        warpgroup is over with before all have begun it, and so have waited. Else a stage might be filled twice more
        before a late warp waits for it, which then never sees the phase that it waits for.
        """
        read = loads_of(operand for dot in self.dots.values() if dot.by_warps for operand in dot.operands)
        read.update(load for load, group in self.groups.items() if load in self.reads or not group.within)
        verdict = set[int]() if self.verdict is None else {self.verdict}
        return frozenset(verdict.union(self.groups[load].pipeline for load in read))
