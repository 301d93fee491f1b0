"""The plan of a warp-specialised kernel (sm_90a).

It says how the products are made: instructions, buffers, pipelines, roles.

A product becomes `wgmma`, or fused multiply-adds for f32 (`Dot.simt`). The producer warp loads operands to shared
memory, by TMA. A left operand that is computed comes from registers. Some loads arrive together, as the buffers of one
pipeline: the operands of a product, the tiles that threads combine with its accumulator, and the operands of products
that share one of these. Loads in loops run ahead by the pipeline's stages.

    q = load(...)                        pipeline of q, 1 stage
    for k in a..b:
        s = mma(q, load(key, k), 0)      pipeline of key, 2 stages
        acc = mma(f(s), load(value, k), acc)  pipeline of value, 2 stages; f(s) from registers

The producer runs its loads, the scalar code that their indices need, and the loops and branches around them.
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
"""Bytes of a barrier in shared memory (PTX ISA, "Size and alignment of mbarrier object")."""
WARP_ROWS = 16
"""Rows that one warp has of each 64 rows of a result (PTX ISA, "Register Fragments")."""
# The 65536 registers are shared equally among the threads at launch, in multiples of 8: 168 each in three warpgroups,
# 128 in four. The consumers take over the registers that the producer's warpgroup gives up (`setmaxnreg`). In two
# warpgroups every thread has 255 anyway, the most that it can have.
REGISTERS = {1: (0, 0), 2: (40, 232), 3: (32, 160)}
"""Registers of a producer thread and of a consumer thread, by consumer warpgroups; 0 leaves the number as launched."""
# Like (40, 232) these are 504 registers for one thread of each warpgroup, which are launched with 168 each. The
# producer's part was raised with clusters that share operands by multicast. Products of the library spill with neither
# pair, and no page has the times of both.
MAINLOOP_REGISTERS = (56, 224)
"""The same of two consumer warpgroups that share the tiles of a main loop."""
WRITING_REGISTERS = (24, 240)
"""The same of two consumer warpgroups that write an operand: the addresses that they write to take registers."""


@dataclass(frozen=True)
class Written:
    """A left operand that consumers compute, and write to shared memory.

    Attributes:
        value: the computed tile, in the layout of an accumulator.
        smem_layout: its layout in shared memory.
        passed: the transposition between it and the product, if any: `wgmma` reads the same bytes the other way.
    """

    value: Value
    smem_layout: SmemLayout
    passed: tuple[Op, ...]


@dataclass(frozen=True)
class Dot:
    """One product.

    Attributes:
        op: the product.
        left: its left operand, loaded to shared memory; None where it is computed.
        right: its right operand.
        accumulator: the layout of its accumulator.
        fresh: whether the accumulator begins at zero with this product.
        simt: whether f32 is multiplied by fused multiply-adds, in place of the tensor cores.
        a_from_registers: whether the left operand lies across K in shared memory, and is read by threads
            (`accumulators.py`).
        promote_columns: columns of a partial accumulator that is added within each product; 0 for none.
        promote_interval: iterations after which a partial accumulator of all columns is added; 0 for none.
        written: its left operand, where that is computed and goes through shared memory.
        over: the dead sums of another product, whose registers this accumulator takes over; None where it has its own.
        neighbours: columns of a computed left operand that a lane has side by side.
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
        """The operands that are loaded to shared memory."""
        return (self.right,) if self.left is None else (self.left, self.right)

    @property
    def by_warps(self) -> bool:
        """Whether each warp reads its operands by itself."""
        return self.a_from_registers or self.simt

    @property
    def left_k_major(self) -> bool:
        """Whether the left operand is contiguous along K in shared memory."""
        loaded = self.left or self.written
        return loaded is None or loaded.smem_layout.k_major

    @property
    def steps(self) -> int:
        """Instructions along K: each takes 32 bytes of a row."""
        tile = self.op.a.tile
        return tile.shape[1] * tile.dtype.bits // 8 // STEP_BYTES


@dataclass(frozen=True)
class Group:
    """Loads of one block of the kernel that arrive together.

    Attributes:
        operands: the loaded operands, in the order of the products.
        pipeline: the number of the pipeline.
        within: whether all their readers stand in the same block as the loads.
        first, last: the first and the last load, in the order of the program.
        ahead: whether the producer begins all loads where the first one stands, ahead of the block's other operations.
    """

    operands: tuple[Operand, ...]
    pipeline: int
    within: bool
    first: Op
    last: Op
    ahead: bool


@dataclass(frozen=True)
class TmaStore:
    """A store by TMA, through shared memory.

    Each warp stores some columns of its rows at a time.

    Attributes:
        op: the store.
        value: the stored tile, as a matrix.
        box: the box that one warp stores at a time, in the tensor's axes: some columns of 16 rows of the matrix.
        passed: the reshape of the matrix's rows to several axes of the tensor, if any. It needs no instruction.
        layout: the layout of the matrix.
        buffers: buffers of a warp in shared memory.
        transposed: whether the matrix is a transposed accumulator, so that a warp has 16 of its columns.
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
        """The tile's shape, if the matrix's rows are several axes of it; else empty."""
        shape = self.op.value.tile.shape
        return () if shape == self.value.tile.shape else shape

    @property
    def adds(self) -> bool:
        """Whether the matrix is added to the tensor's elements."""
        return isinstance(self.op, AddTile)

    @property
    def span(self) -> int:
        """Columns that a warp stores at a time; for a transposed matrix, rows."""
        return self.box[0] if self.transposed else self.box[-1]

    @property
    def smem_layout(self) -> SmemLayout:
        """The shared-memory layout of one buffer: a box of the matrix."""
        size = self.value.tile.dtype.bits // 8
        return SmemLayout(self.box[-1], self.box[0] if self.transposed else WARP_ROWS, size, k_major=False)

    @property
    def map(self) -> TensorMap:
        """The tensor map by which TMA stores it."""
        return TensorMap(self.box, self.smem_layout.swizzle, tuple(range(len(self.box))))


@dataclass(frozen=True)
class Plan:
    """A kernel's products by specialised warps.

    Attributes:
        warpgroups: the number of consumer warpgroups, which share the rows of every product.
        dots: the products, by operation.
        groups: the groups of loads, by each load.
        stages: the number of stages of each pipeline.
        operands: the operands of each pipeline, one for each of its buffers.
        reads: the loads whose stages threads read, each with its layout in a stage.
        kept: operations between a load and a product whose results threads read too.
        anchors: operations whose results have an accumulator's layout, each with that layout.
        slice: the operations that the producer runs.
        guards: assertions, and branches around nothing else: the producer alone runs them.
        limited: whether waits that last too long end the kernel.
        stores: the stores that TMA does, by operation.
        occupancy: thread blocks that are to fit on a multiprocessor.
        tiles: the schedule of tile blocks.
        mainloop: the loop with the only product of the kernel; None for plans of `rules.py`.
        runs: whether the main loop certainly has an iteration. A piece of it may have none (`split`).
        summing: the loop that split-K may divide, since it carries only an accumulator; None where there is none.
        subtile: columns of a subtile of the epilogue; 0 for all at once.
        narrow: whether subtiles are narrower than usual, for want of registers.
        written_stages: stages of each operand that consumers write.
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
    runs: bool = False
    summing: For | None = None
    subtile: int = 0
    narrow: bool = False
    written_stages: int = 1

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
        """The number of the pipeline that tells consumers of failed assertions.

        It follows the pipelines of loads. None where nothing is asserted. None also for a main loop that always has an
        iteration: its assertions are tested ahead of its loads, so a full stage implies that they were tested.
        """
        return len(self.operands) if self.guards and (self.split is not None or not self.runs) else None

    @property
    def asks_at_stores(self) -> bool:
        """Whether consumers ask for failed assertions ahead of each store.

        With a main loop they ask once, behind it.
        """
        return bool(self.guards) and self.mainloop is None

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer and of a consumer thread; 0 leaves them as launched."""
        if self.occupancy > 1:  # thread blocks share the registers, in equal parts
            return 0, 0
        if self.written and self.warpgroups == 2:
            return WRITING_REGISTERS
        # Consumers with an accumulator, a partial one and a left operand in registers get the larger number.
        crowded = self.dot.a_from_registers and self.dot.promote_interval
        if self.mainloop is None or self.warpgroups != 2 or self.pingpong or crowded:
            return REGISTERS[self.warpgroups]
        return MAINLOOP_REGISTERS

    def readers(self, pipeline: int) -> int:
        """The number of arrivals that release a stage of a pipeline.

        There is one for each warpgroup, or for each warp where warps read by themselves. In a ping-pong kernel there is
        one in all, since one warpgroup reads a stage.
        """
        return 1 if self.pingpong else self.warpgroups * (4 if pipeline in self.by_warps else 1)

    @property
    def clustered(self) -> bool:
        """Whether thread blocks of a cluster share operands or add up their accumulators."""
        return self.tiles.cluster > 1 or self.parts > 0

    @property
    def more_barriers(self) -> int:
        """The number of barriers that belong to no pipeline.

        A ping-pong kernel has an order barrier for each warpgroup. A cluster that divides iterations has one barrier,
        which counts the bytes of accumulators that arrive.
        """
        return self.warpgroups if self.pingpong else int(self.parts > 0)

    @property
    def staging_bytes(self) -> int:
        """Bytes of shared memory for results to be stored and for a cluster's sums.

        Both have the same offset: a thread block has read the accumulators before it stores the result.
        """
        warp = max((store.buffers * store.smem_layout.nbytes for store in self.stores.values()), default=0)
        stored, split = 4 * self.warpgroups * warp, self.split
        if split is None or not split.parts:
            return stored
        return max(stored, cluster_bytes(self.dot.accumulator, split.parts, split.pieces))

    @property
    def threads(self) -> int:
        """Threads of a thread block: the consumers, and the producer's warpgroup."""
        return WARPGROUP * (self.warpgroups + 1)

    def stage_bytes(self, pipeline: int) -> int:
        """Bytes of one stage of a pipeline."""
        return sum(operand.smem_layout.place_bytes for operand in self.operands[pipeline])

    @property
    def written(self) -> dict[SmemLayout, Written]:
        """The operands that consumers write, by layout: one for each buffer.

        Operands of one layout share a buffer: no two are read at a time.
        """
        operands = [dot.written for dot in self.dots.values() if dot.written is not None]
        # Reversed, so that the first product's operand stands for its layout.
        return {written.smem_layout: written for written in reversed(operands)}

    @property
    def written_counters(self) -> dict[Op, int]:
        """The counter of the left operand that consumers write, by product.

        These counters are the last ones. Their numbers are negative, from the end: -1 and so on.
        """
        numbers = {smem_layout: -1 - place for place, smem_layout in enumerate(self.written)}
        return {op: numbers[dot.written.smem_layout] for op, dot in self.dots.items() if dot.written}

    @property
    def skipped(self) -> frozenset[Op]:
        """Operations without an instruction of their own.

        They are loads into stages, and operations that only view a stored or loaded tile in another way.
        """
        passed = {op for store in self.stores.values() for op in store.passed}
        passed.update(op for dot in self.dots.values() for operand in dot.operands for op in operand.passed)
        passed.update(op for dot in self.dots.values() if dot.written is not None for op in dot.written.passed)
        return frozenset(passed - self.kept) | self.groups.keys()

    @property
    def multiplied(self) -> set[int]:
        """The pipelines with operands of products."""
        return {self.groups[operand.load].pipeline for dot in self.dots.values() for operand in dot.operands}

    @property
    def by_warps(self) -> frozenset[int]:
        """The pipelines whose stages each warp releases for itself.

        Threads read their stages, or there may be no product between the wait for a stage and its release. With a
        product, one release for all warps is enough: it ends in no warp of a warpgroup before all its warps have begun
        it, and so have waited for the stage. Without a product, one release might let the producer fill the stage twice
        before a late warp waits: that warp would never see the phase that it waits for.
        """
        read = loads_of(operand for dot in self.dots.values() if dot.by_warps for operand in dot.operands)
        read.update(load for load, group in self.groups.items() if load in self.reads or not group.within)
        verdict = set[int]() if self.verdict is None else {self.verdict}
        return frozenset(verdict.union(self.groups[load].pipeline for load in read))
