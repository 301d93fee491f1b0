"""Memory: stores, layouts, barriers, assertions, copies; arithmetic of rows.

Copies are by `cp.async` and by the tensor memory accelerator (TMA). `rows.py` makes the arithmetic of rows.

All threads that hold tiles take part: those of the thread block, or the consumers of a warp-specialised kernel. There
are three exceptions. One thread begins a load by TMA, each warp stores its own rows by TMA, and one thread reports a
failed assertion.

A copy by `cp.async` goes to stage `iteration % stages` of a place in shared memory. The attribute `stage` describes the
place: its first byte, its number of stages, and the bytes from stage to stage. The first byte is counted from the
loop's reservation, whose place the lowering sets (the attribute `offset`).
"""

from cutile.backend.cuda.ops.pipeline import A_BUFFER, A_PIPELINE, PLACE, SCRATCH
from cutile.backend.gpu.emitter import Intrinsic
from cutile.dtypes import DTypeLike, bf16, bool_, i32
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import (
    ANY_MUT,
    ANY_TENSOR,
    ANY_TILE,
    NUMBER_TILE,
    SCALAR_INT,
    Effect,
    Op,
    Value,
    attribute,
    operand,
    operands,
)
from cutile.ir.types import TileType, Type

__all__ = (
    "AddTile",
    "Again",
    "Barrier",
    "ConvertLayout",
    "Failed",
    "FailUnless",
    "NegativeExp",
    "PackPairs",
    "PadEdges",
    "ProductHalf",
    "RowExp",
    "RowExpSum",
    "RowExpUnit",
    "RowQuotient",
    "StageCommit",
    "StagedMma",
    "StagePut",
    "StageRead",
    "StageTile",
    "StageWait",
    "SliceWait",
    "Store",
    "StoreSubtile",
    "TmaLoad",
    "TmaPrefetch",
    "TmaStore",
    "TmaStoreWait",
    "Compact",
    "StoreCompacted",
)


# It writes no memory. By its effect no pass merges it with an equal one, or moves it.
class Again(Op, name="cuda.again", effect=Effect.WRITE):
    """The same tile behind an optimisation barrier: rematerialisation.

    Values that depend on it are computed anew, and occupy no registers until then. An `OptimizationBarrier` hides a
    value from LLVM alone; this barrier hides it from ptxas, too.
    """

    x: Value = operand(ANY_TILE)
    intrinsic = Intrinsic("cast.again", ("dtype", "count"))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class RowQuotient(Op, name="cuda.row_quotient"):
    """`x / y`, rounded to bf16; the elements of a row have the same divisor.

    Attributes:
        packs: whether the architecture has an addition of two u16 in one word, which the division then uses.
    """

    x: Value = operand(ANY_TILE)
    y: Value = operand(ANY_TILE)
    packs: bool = attribute(default=False)
    intrinsic = Intrinsic("arith.row_quotient", ("count",))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bf16, self.x.tile.shape),)


class NegativeExp(Op, name="cuda.negative_exp"):
    """`e ** -x`.

    It is computed fast for groups of elements that are all 0 or more, with results that are normal numbers. Libdevice
    computes the other groups.
    """

    x: Value = operand(ANY_TILE)
    intrinsic = Intrinsic("math.negative_exp", ("count",))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class ProductHalf(Op, name="cuda.product_half"):
    """The lower or the upper half of a product of 32-bit integers.

    Both halves of one product take one multiplication.
    """

    x: Value = operand(ANY_TILE)
    y: Value = operand(ANY_TILE)
    upper: bool = attribute(default=False)
    intrinsic = Intrinsic("arith.product_half", ("dtype", "count"))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class RowExp(Op, name="cuda.row_exp"):
    """`e ** x / 2 ** M`, of f16 or bf16 `x` not above `m`.

    `M` depends on `m` alone, and is mostly 0 (`intrinsics/math.py`, `row_exp_unit`). Groups of elements whose results
    are all normal numbers are computed fast, others by libdevice.
    """

    x: Value = operand(ANY_TILE)
    m: Value = operand(ANY_TILE)
    intrinsic = Intrinsic("math.row_exp", ("dtype", "count"))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (self.m.type,)


class RowExpSum(Op, name="cuda.row_exp_sum"):
    """The sum of `RowExp` along an axis of which each thread has all elements."""

    x: Value = operand(ANY_TILE)
    m: Value = operand(ANY_TILE)
    axis: int = attribute()
    intrinsic = Intrinsic("math.row_exp_sum", ("dtype", "source", "axis="))

    def infer(self) -> tuple[Type, ...]:
        shape = self.m.tile.shape
        return (self.m.tile.with_shape(shape[: self.axis] + shape[self.axis + 1 :]),)


class RowExpUnit(Op, name="cuda.row_exp_unit"):
    """The factor from a sum of `RowExp` to the sum of `e ** (x - m)`."""

    m: Value = operand(ANY_TILE)
    intrinsic = Intrinsic("math.row_exp_unit", ("count",))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (self.m.type,)


class Compact(Op, name="cuda.compact", effect=Effect.WRITE):
    """Store a tile's selected elements side by side in shared memory.

    Behind the room for the whole tile lie the counts of selected elements, and behind these their sum
    (`intrinsics/compaction.py`).
    """

    value: Value = operand(ANY_TILE)
    mask: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StoreCompacted(Op, name="cuda.store_compacted", effect=Effect.WRITE):
    """Write the elements that a `Compact` has put side by side.

    The first goes to index `first` of the array at `base`. Indices below 0, or from `limit` on, are dropped. `extent`
    is the number of elements of the tile that was compacted.
    """

    base: Value = operand(SCALAR_INT)
    first: Value = operand(SCALAR_INT)
    limit: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    extent: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Store(Op, name="cuda.store", effect=Effect.WRITE):
    """Write a tile at a tile index; elements past the edges are dropped."""

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class AddTile(Op, name="cuda.add_tile", effect=Effect.WRITE):
    """Add a tile to the elements at a tile index, each atomically.

    Elements past the edges are dropped. Other thread blocks may add to the same elements. Nothing else in the kernel
    accesses the tensor (`pipeline/updates.py`).
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    @property
    def starts(self) -> tuple[Value, ...]:
        """The index, under the name that a `store_view` has for it."""
        return self.index

    def infer(self) -> tuple[Type, ...]:
        return ()


class StoreSubtile(Op, name="cuda.store_subtile", effect=Effect.WRITE):
    """Write subtile `part` of `parts` of this block's own tile.

    Subtiles divide the tile along `axis`. `number`, if there is one, is the subtile's number in place of `part`.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    number: tuple[Value, ...] = operands(SCALAR_INT)
    part: int = attribute()
    parts: int = attribute()
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Barrier(Op, name="cuda.barrier", effect=Effect.WRITE):
    """A barrier of all threads that hold tiles: they see each other's stores.

    In a warp-specialised kernel these are the consumers.
    """

    intrinsic = Intrinsic("shape.synchronize")

    def infer(self) -> tuple[Type, ...]:
        return ()


class ConvertLayout(Op, name="cuda.convert_layout"):
    """The same tile in another layout.

    The lowering sets the attribute `how`, the way: by other names for registers ("take"), by shuffles among four lanes
    ("exchange"), or through shared memory, element by element ("move") or in wide accesses ("swizzle").
    """

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Report a failed assertion to the launch, unless the condition holds.

    One `thread` writes the assertion's number `site`, the tile block and some numbers to the launch's report.

    Attributes:
        condition: of the assertion.
        rest: the tile block's index along three axes, then the numbers that the message shows.
        message: of the assertion.
        where: the kernel, the file, the line and its text.
        site: the assertion's number in the kernel.
        thread: that writes the report.
        leaves: whether the thread block ends, with all its threads. If not, `thread` sets a flag in shared memory, the
            last of `rest`. All threads then go on, so that none waits for one that has left.
    """

    condition: Value = operand(SCALAR_BOOL)
    rest: tuple[Value, ...] = operands()
    message: str = attribute()
    where: tuple[str, str, int, str] = attribute()
    site: int = attribute()
    thread: int = attribute(0)
    leaves: bool = attribute(True)

    @property
    def numbers(self) -> tuple[Value, ...]:
        """The tile block's index, and the numbers that the message shows."""
        return self.rest if self.leaves else self.rest[:-1]

    @property
    def flag(self) -> Value | None:
        """The flag of a failure, for the other warps; None if all threads leave."""
        return None if self.leaves else self.rest[-1]

    def infer(self) -> tuple[Type, ...]:
        return ()


# It writes no memory. By its effect no pass moves it ahead of the wait before it, or merges it with an earlier read.
class Failed(Op, name="cuda.failed", effect=Effect.WRITE):
    """Whether an assertion of this thread block has failed, by `flag`.

    A warp has to wait for the producer first. The flag then covers the assertions that the producer tested ahead of its
    arrival at the barrier of that wait.
    """

    intrinsic = Intrinsic("debug.has_failed", facts=("flag",))
    flag: Value = operand(SCRATCH)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)


Stages = tuple[int, int, int]
"""The first byte, the number of stages, the bytes from stage to stage."""


class StageTile(Op, name="cuda.stage_tile", effect=Effect.WRITE):
    """Begin to copy the tile at a tile index; zeros past the edges.

    Attributes:
        x, index, steps, limited: as of a `load_view`.
        iteration: its stage is the one to which the tile goes.
        shape: of the tile.
        strides: the element at coordinates `c` lies `sum(c * strides)` elements into the stage.
        stage: the place, with all its stages.
        held: the tile is a row that stays for the whole kernel; each of its slices has a stage of its own.
        copies: number of bulk copies of equal size that bring a held row; 0 for copies by `cp.async`.
    """

    x: Value = operand(ANY_TENSOR)
    iteration: Value = operand(SCALAR_INT)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()
    strides: tuple[int, ...] = attribute()
    stage: Stages = attribute()
    steps: tuple[int, ...] = attribute(default=())
    limited: tuple[int, ...] = attribute(default=())
    held: bool = attribute(default=False)
    copies: int = attribute(default=0)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageCommit(Op, name="cuda.stage_commit", effect=Effect.WRITE):
    """Make the copies begun since the last commit one group."""

    intrinsic = Intrinsic("stage.commit")

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageWait(Op, name="cuda.stage_wait", effect=Effect.WRITE):
    """Wait until at most `pending` groups of this thread's copies are under way.

    `meet`: whether a barrier follows, so that all threads see all threads' copies.
    """

    intrinsic = Intrinsic("stage.wait", facts=("pending",), stem="wait_{pending}")
    pending: int = attribute()
    meet: bool = attribute(default=True)

    def infer(self) -> tuple[Type, ...]:
        return ()


class SliceWait(Op, name="cuda.slice_wait", effect=Effect.WRITE):
    """Wait until a slice of a held row is in shared memory.

    Attributes:
        part: the number of the slice.
        later: for copies by `cp.async`: for each slice, the number of groups that are begun behind the slice's group.
        bulk: whether bulk copies bring the row. The lowering then sets the attribute `counter`, the place of the
            slices' barriers.
    """

    part: Value = operand(SCALAR_INT)
    later: tuple[int, ...] = attribute()
    bulk: bool = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageRead(Op, name="cuda.stage_read", effect=Effect.READ):
    """The tile in a stage, in registers.

    Attributes:
        own: each thread reads only elements that it copied itself.
        of: the tensor's name.
    """

    iteration: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute()
    strides: tuple[int, ...] = attribute()
    stage: Stages = attribute()
    own: bool = attribute()
    of: str = attribute(default="")

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.dtype, self.shape),)


class PadEdges(Op, name="cuda.pad_edges"):
    """The tile `value`, with `padding` past the edges of the tensor `x`.

    It was loaded from `x` at `index`, with zeros past the edges. `steps` and `limited` are those of its `load_view`.
    """

    value: Value = operand(ANY_TILE)
    x: Value = operand(ANY_TENSOR)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    steps: tuple[int, ...] = attribute()
    limited: tuple[int, ...] = attribute(())
    padding: str = attribute("zero")

    def infer(self) -> tuple[Type, ...]:
        return (self.value.type,)


class StagePut(Op, name="cuda.stage_put", effect=Effect.WRITE):
    """Write an operand of a `staged_mma` from registers to a stage.

    `right` says which operand it is; the other attributes are the product's.
    """

    value: Value = operand(ANY_TILE)
    iteration: Value = operand(SCALAR_INT)
    right: bool = attribute()
    dtype: DTypeLike = attribute()
    other: DTypeLike = attribute()
    swaps: tuple[bool, bool] = attribute()
    stage: Stages = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class StagedMma(Op, name="cuda.staged_mma", effect=Effect.READ):
    """`acc` plus the product of the operands in an iteration's stages.

    Attributes:
        acc: the sums.
        iteration: its stages have the operands.
        dtype, other: the dtypes of the left and of the right operand.
        depth: elements along K.
        swaps: whether the left, and whether the right operand lies transposed.
        left, right: the operands' places.
        rounds: the operands are f32, to be rounded to tf32.
    """

    acc: Value = operand(NUMBER_TILE)
    iteration: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    other: DTypeLike = attribute()
    depth: int = attribute()
    swaps: tuple[bool, bool] = attribute()
    left: Stages = attribute()
    right: Stages = attribute()
    rounds: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class TmaPrefetch(Op, name="cuda.tma_prefetch", effect=Effect.WRITE):
    """Bring a tensor map into TMA's cache, ahead of the first copy."""

    intrinsic = Intrinsic("tma.prefetch", call=("map",))
    x: Value = operand(ANY_TENSOR)
    map: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaLoad(Op, name="cuda.tma_load", effect=Effect.WRITE):
    """Begin to load the tile at a tile index into a stage of a buffer.

    Elements past the edges are zeros. The bytes arrive on the stage's barrier `full`. The tile lies in the stage as
    panels, one after the other, each as wide as the swizzle along the contiguous `axis`. One copy loads one panel.

    Attributes:
        map: the parameter that has the tensor map.
        axis: the contiguous one.
        cluster: blocks that share the tile. Each loads a part for all of them: some panels, or some rows of each.
        steps: elements from tile to tile along each axis, if tiles do not lie side by side.
        shape: the tile's shape, if the buffer was reserved for another shape with the same layout in shared memory.
        shared_along: axes of the grid along which tile blocks load the same tile. If the grid has one tile block along
            each of them, the tile is read only once, and the L2 cache evicts it first. None: no hint to the cache.
    """

    x: Value = operand(ANY_TENSOR)
    buffer: Value = operand(A_BUFFER)
    pipeline: Value = operand(A_PIPELINE)
    counter: Value = operand(SCALAR_INT)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    map: str = attribute()
    axis: int = attribute()
    cluster: int = attribute(default=1)
    steps: tuple[int, ...] = attribute(default=())
    shape: tuple[int, ...] = attribute(default=())
    shared_along: tuple[int, ...] | None = attribute(default=None)

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaStore(Op, name="cuda.tma_store", effect=Effect.WRITE):
    """Write a tile at a tile index through shared memory.

    Elements past the edges are dropped. Each warp writes its own rows to shared memory, `span` columns at a time, and
    TMA stores them. A warp's `buffers` places in `through` take turns: the warp waits only before it writes to a place
    again. The lowering sets `span` and `buffers`. It also sets `piece`, the number of the first `span` columns within
    the tile, `first`, the number of their place, and `begins`: whether the warp waits for all places first.

    Attributes:
        map: the parameter that has the tensor map.
        packed: the value is words of two elements each.
        dropped: whether to store nothing if the first index is below zero.
        shape: the tile's shape in the tensor, if the value's rows are several axes there.
        transposed: whether the value is a transposed accumulator. A warp then has 16 of its columns, and stores `span`
            rows of them at a time.
        adds: the elements, f32, are added to the tensor's elements, each atomically.
        part: for an addition in two operations: "write" writes to shared memory, "begin" is the fence and TMA's
            addition. Empty for one operation.
    """

    x: Value = operand(ANY_TENSOR)
    value: Value = operand(ANY_TILE)
    through: Value = operand(PLACE)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    map: str = attribute()
    packed: bool = attribute(default=False)
    dropped: bool = attribute(default=False)
    shape: tuple[int, ...] = attribute(default=())
    transposed: bool = attribute(default=False)
    adds: bool = attribute(default=False)
    part: str = attribute(default="")

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaStoreWait(Op, name="cuda.tma_store_wait", effect=Effect.WRITE):
    """Wait until TMA has read all places from which it stores.

    A block that ended earlier would give up its shared memory while TMA reads it. The writes to global memory need no
    wait: they are complete at the kernel's end.
    """

    intrinsic = Intrinsic("tma.store_wait")

    def infer(self) -> tuple[Type, ...]:
        return ()


# It writes no memory. By its effect no pass merges it with an equal one: the registers are its own.
class PackPairs(Op, name="cuda.pack_pairs", effect=Effect.WRITE):
    """A tile of 16-bit elements, two to a word, in registers of its own.

    It is a computed left operand (`pipeline/products.py`), or a result whose store is delayed (`pipeline/epilogue.py`).
    """

    intrinsic = Intrinsic("tma.pack_pairs", facts=("dtype", "count"), stem="pack")
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (TileType(i32, (rows, columns // 2)),)
