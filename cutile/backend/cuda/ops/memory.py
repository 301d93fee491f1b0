"""Memory: stores, layouts, barriers, assertions, copies by `cp.async` and by TMA.

All threads of a block take part, but for copies by the tensor memory accelerator (TMA), which one thread begins.

Copies by `cp.async` go to stage `iteration % stages` of a place. `stage` says where: its first byte from the begin of
the loop's reservation (the attribute `offset`), its stages, and the bytes from stage to stage.
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
    "Store",
    "StoreSubtile",
    "TmaLoad",
    "TmaPrefetch",
    "TmaStore",
    "TmaStoreWait",
    "Compact",
    "StoreCompacted",
)


class Again(Op, name="cuda.again", effect=Effect.WRITE):
    """The same tile, which the compiler takes for another one.

    So what is computed of it is computed anew.
    """

    x: Value = operand(ANY_TILE)
    intrinsic = Intrinsic("cast.again", ("dtype", "count"))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class RowQuotient(Op, name="cuda.row_quotient"):
    """`x / y`, rounded to bf16. Neighbours have one divisor.

    Attributes:
        packs: whether there is arithmetic on two u16 in one word.
    """

    x: Value = operand(ANY_TILE)
    y: Value = operand(ANY_TILE)
    packs: bool = attribute(default=False)
    intrinsic = Intrinsic("arith.row_quotient", ("count",))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bf16, self.x.tile.shape),)


class NegativeExp(Op, name="cuda.negative_exp"):
    """`e ** -x`, where few elements are below 0 or have no normal result."""

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
    """`e ** x` over a power of 2, of f16 or bf16 not above `m`.

    Few have no normal result. Which power it is depends on `m` alone: mostly 1 (`intrinsics/math.py`, `row_exp_unit`).
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
    """What a sum of `RowExp` times is a sum of `e ** (x - m)`."""

    m: Value = operand(ANY_TILE)
    intrinsic = Intrinsic("math.row_exp_unit", ("count",))
    elementwise = True

    def infer(self) -> tuple[Type, ...]:
        return (self.m.type,)


class Compact(Op, name="cuda.compact", effect=Effect.WRITE):
    """Put the elements of a tile where a mask holds side by side in shared memory.

    How many there are lies behind the tile's room, behind `counts` counts.
    """

    value: Value = operand(ANY_TILE)
    mask: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StoreCompacted(Op, name="cuda.store_compacted", effect=Effect.WRITE):
    """Write what a `Compact` of `extent` elements has put together.

    The first element is written at index `first` of the array at `base`, all at indices from 0 up to `limit` alone.
    """

    base: Value = operand(SCALAR_INT)
    first: Value = operand(SCALAR_INT)
    limit: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    extent: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Store(Op, name="cuda.store", effect=Effect.WRITE):
    """Write a tile at a tile index; what lies past the edges is dropped."""

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class AddTile(Op, name="cuda.add_tile", effect=Effect.WRITE):
    """Add a tile to the elements at a tile index, each atomically.

    Elements past the edges are dropped. Other thread blocks may add there too; nobody reads there during the launch.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    @property
    def starts(self) -> tuple[Value, ...]:
        """The index, as stores of views call it."""
        return self.index

    def infer(self) -> tuple[Type, ...]:
        return ()


class StoreSubtile(Op, name="cuda.store_subtile", effect=Effect.WRITE):
    """Write subtile `part` of `parts` of this block's own tile.

    A subtile is a part of the tile along `axis`. It becomes a store of its own. `number`, if there is one, replaces
    `part`.
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
    """All threads of the block arrive, and see each other's stores."""

    intrinsic = Intrinsic("shape.synchronize")

    def infer(self) -> tuple[Type, ...]:
        return ()


class ConvertLayout(Op, name="cuda.convert_layout"):
    """The same tile in another layout.

    Registers are renamed (`how` is "take"), four lanes shuffle ("exchange"), or shared memory is used: element by
    element ("move"), or in wide accesses ("swizzle").
    """

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Report a failed assertion to the launch, unless the condition holds.

    One `thread` writes the assertion's number `site`, the tile block and some numbers to the launch's report.

    Attributes:
        rest: the tile block's index along three axes, then the numbers that the condition is about.
        leaves: the thread block ends, with all its threads. Else the last of `rest` is a flag in shared memory, which
            is set; all threads go on, so that none waits for one that has left.
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
        """The tile block's index, and what the condition is about."""
        return self.rest if self.leaves else self.rest[:-1]

    @property
    def flag(self) -> Value | None:
        """Where a failure is noted for the other warps; None where all threads leave."""
        return None if self.leaves else self.rest[-1]

    def infer(self) -> tuple[Type, ...]:
        return ()


class Failed(Op, name="cuda.failed", effect=Effect.WRITE):
    """Whether an assertion of this thread block has failed, by `flag`.

    It knows of assertions ahead of the arrivals that were waited for.
    """

    intrinsic = Intrinsic("debug.has_failed", facts=("flag",))
    flag: Value = operand(SCRATCH)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)


Stages = tuple[int, int, int]
"""The first byte, the stages, the bytes from stage to stage."""


class StageTile(Op, name="cuda.stage_tile", effect=Effect.WRITE):
    """Begin to copy the tile at a tile index; zeros past the edges.

    `index`, `steps` and `limited` are those of a `load_view`. Element `c` of the tile lies `sum(c * strides)` elements
    into the stage. `held`: it stays for the whole kernel, and the number of stages is that of its slices. `whole`: of
    those, all at once, and it is there behind the operation.
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
    whole: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageCommit(Op, name="cuda.stage_commit", effect=Effect.WRITE):
    """What was begun since the last commit is one group."""

    intrinsic = Intrinsic("stage.commit")

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageWait(Op, name="cuda.stage_wait", effect=Effect.WRITE):
    """Wait until at most `pending` groups of this thread's copies are under way.

    `meet`: wait for all threads too; then all see what has arrived.
    """

    intrinsic = Intrinsic("stage.wait", facts=("pending",), stem="wait_{pending}")
    pending: int = attribute()
    meet: bool = attribute(default=True)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageRead(Op, name="cuda.stage_read", effect=Effect.READ):
    """The tile in a stage, in registers.

    Attributes:
        own: each thread reads the elements that it copied.
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
    """A tile of `x`, as `load_view` would load it.

    `padding` is in place of what lies past the edges.
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
    """`acc` plus the product of the operands in their stages of this iteration.

    `dtype` and `other` are the operands' types, `swaps` says which of them lie transposed, `rounds` that they are f32
    to be rounded to tf32.
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
    """Bring a tensor's descriptor into TMA's cache, ahead of the first copy."""

    intrinsic = Intrinsic("tma.prefetch", call=("map",))
    x: Value = operand(ANY_TENSOR)
    map: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaLoad(Op, name="cuda.tma_load", effect=Effect.WRITE):
    """Begin to load the tile at a tile index into a stage of a buffer.

    Zeros past the edges. Its bytes arrive on the stage's barrier `full`. The tile lies there as panels one after the
    other, each as wide as the swizzle along the contiguous `axis`; one copy loads one panel.

    Attributes:
        map: the parameter that has the tensor's descriptor.
        axis: the contiguous one.
        cluster: blocks that share the tile: each loads its part for all, some of the panels or some of each panel's
            rows.
        steps: elements from tile to tile along each axis, if tiles do not lie side by side.
        shape: the tile's, if the buffer was reserved for tiles of another shape that lie there alike.
        shared_along: axes of the grid along which tile blocks load the same tile. Where the grid has one tile block
            along each of them, the tile is read once by all, and the L2 cache lets go of it first; None asks nothing
            of the cache.
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

    Elements past the edges are dropped. Each warp writes its own rows to shared memory, `span` columns at a time, to
    `buffers` places of `through` in turn, and TMA stores them. It waits only before it writes to a place again.

    Attributes:
        map: the parameter that has the tensor's descriptor.
        packed: the value is words of two elements each.
        dropped: a tile whose first index is below zero is not stored.
        shape: the tile's in the tensor, if the value's rows are several axes there.
        transposed: a warp has 16 columns, of which `span` rows at a time are stored.
        adds: the elements, of f32, are added to those that are there, each atomically.
        part: of what adds, `write` only writes to shared memory, `begin` is the rest: the fence, and TMA's part.
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
    """Wait until TMA has read all that it is to store.

    Shared memory must live until then.
    """

    intrinsic = Intrinsic("tma.store_wait")

    def infer(self) -> tuple[Type, ...]:
        return ()


class PackPairs(Op, name="cuda.pack_pairs", effect=Effect.WRITE):
    """A tile of 16-bit elements, two to a word, in registers of its own.

    For a result whose store is delayed (`pipeline/epilogue.py`).
    """

    intrinsic = Intrinsic("tma.pack_pairs", facts=("dtype", "count"), stem="pack")
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (TileType(i32, (rows, columns // 2)),)
