"""Products by warpgroups (`wgmma`) or fused multiply-adds, and accumulators."""

from cutile.backend.cuda.ops.pipeline import A_BUFFER
from cutile.backend.gpu.emitter import Intrinsic
from cutile.dtypes import DTypeLike, i32
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import ANY_TILE, NUMBER_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type

__all__ = (
    "Dot",
    "DotWait",
    "OptimizationBarrier",
    "PackQuads",
    "SimtMma",
    "Subtile",
    "SumLanes",
    "Undef",
    "WriteOperand",
    "ZeroUnless",
)


class Undef(Op, name="cuda.undef", effect=Effect.WRITE):
    """A tile in registers with any values: sums that the first product replaces.

    Its effect keeps passes from merging two of them, which are different registers.
    """

    intrinsic = Intrinsic("wgmma.undef", facts=("dtype", "count"))
    dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.dtype, self.shape),)


class ZeroUnless(Op, name="cuda.zero_unless", effect=Effect.WRITE):
    """The same tile where `condition` holds; zeros where it does not."""

    intrinsic = Intrinsic("wgmma.zero_unless", facts=("dtype", "count"))
    x: Value = operand(ANY_TILE)
    condition: Value = operand(SCALAR_BOOL)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class OptimizationBarrier(Op, name="cuda.optimization_barrier", effect=Effect.WRITE):
    """The same tile, which the compiler cannot recompute: its origin is hidden."""

    intrinsic = Intrinsic("wgmma.optimization_barrier", facts=("dtype", "count"))
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class SumLanes(Op, name="cuda.sum_lanes"):
    """The sums of rows of which each lane has a part (`lane_sums.py`).

    `lanes`: the bits of a lane's number in which the lanes of a row differ.
    """

    intrinsic = Intrinsic("reduce.sum_lanes", facts=("dtype", "count"))
    x: Value = operand(ANY_TILE)
    lanes: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Subtile(Op, name="cuda.subtile"):
    """Subtile `part` of `parts` of an accumulator: some of its columns.

    No element moves: each thread takes some of its registers.
    """

    intrinsic = Intrinsic(
        "wgmma.subtile", facts=("dtype", "source", "layout", "part"), stem="subtile_{part}", omit=("parts",)
    )
    x: Value = operand(ANY_TILE)
    part: int = attribute()
    parts: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (self.x.tile.with_shape((rows, columns // self.parts)),)


class Dot(Op, name="cuda.dot", effect=Effect.WRITE):
    """Begin to multiply by warpgroups (`wgmma`), and to add to sums, if any.

    The result may be read, the stages released and the registers written only behind a `DotWait`.

    Attributes:
        right: the right operand's buffer.
        counter: of its stage.
        rest: the left operand: a buffer and the counter of its stage, or a tile in registers. Then the sums, unless the
            product is `fresh`. Then, if it `replaces`, a bool: true to add to the sums, false to replace them.
        left_dtype, right_dtype, acc_dtype: of the operands and of the sums.
        shape: of the sums.
        depth: elements along K.
        from_registers: the left operand is a tile in registers.
        fresh: there are no sums to add to.
        replaces: a flag decides whether the product adds to the sums or replaces them.
        left_k_major, right_k_major: whether an operand in shared memory is contiguous along the product's K. Two
            products that read the same buffer may differ in this.
        left_first, right_first: the element along K of each operand's tile at which the product begins.
        promote_columns: columns of a partial accumulator, which is waited for and added in f32; 0 for none.
        a_from_registers: the left operand lies across K, and threads read it (`pipeline/accumulators.py`).
    """

    right: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)
    rest: tuple[Value, ...] = operands()
    left_dtype: DTypeLike = attribute()
    right_dtype: DTypeLike = attribute()
    acc_dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute()
    depth: int = attribute()
    from_registers: bool = attribute(default=False)
    fresh: bool = attribute(default=False)
    replaces: bool = attribute(default=False)
    left_k_major: bool = attribute(default=True)
    right_k_major: bool = attribute(default=True)
    left_first: int = attribute(default=0)
    right_first: int = attribute(default=0)
    promote_columns: int = attribute(default=0)
    a_from_registers: bool = attribute(default=False)

    @property
    def left(self) -> Value:
        """The left operand: a buffer, or a tile in registers."""
        return self.rest[0]

    @property
    def left_counter(self) -> Value | None:
        """The counter of the left operand's stage; None if it is in registers."""
        return None if self.from_registers else self.rest[1]

    @property
    def sums(self) -> tuple[Value, ...]:
        """The sums, if there are any, and then the flag, if there is one."""
        return self.rest[1 if self.from_registers else 2 :]

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.acc_dtype, self.shape),)


class PackQuads(Op, name="cuda.pack_quads", effect=Effect.WRITE):
    """A tile of 8-bit elements, as words of four, for a product's left operand.

    The tile has the layout of a product's sums, or of a left operand. The words have the layout that a product takes.
    """

    intrinsic = Intrinsic("dot.pack_quads", facts=("dtype", "source"), stem="pack")
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (TileType(i32, (rows, columns // 4)),)


class WriteOperand(Op, name="cuda.write_operand", effect=Effect.WRITE):
    """Write a tile, as 32-bit words of two elements, to a stage of a buffer.

    Each warpgroup writes its rows. Products may read the buffer behind a barrier of all warpgroups.
    """

    words: Value = operand(NUMBER_TILE)
    buffer: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class DotWait(Op, name="cuda.dot_wait", effect=Effect.WRITE):
    """Wait until at most `pending` products that began later are under way.

    Attributes:
        acc: the product's result. The result of the wait is the same tile, which may be read.
        left: the registers that the product reads: they are not changed until here.
        pending: number of products.
        groups: number of groups (`wgmma.commit_group`) of each product.
        goes_on: a later product adds to the result. So the result must not be read yet, but stages may be released.
    """

    acc: Value = operand(NUMBER_TILE)
    left: tuple[Value, ...] = operands(NUMBER_TILE)
    pending: int = attribute()
    groups: int = attribute(default=1)
    goes_on: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class SimtMma(Op, name="cuda.simt_mma", effect=Effect.READ):
    """Add the product of a stage's operands to `acc`, by fused multiply-adds of f32.

    When it is over, a warp has read all elements that it needs of the stage.
    """

    acc: Value = operand(NUMBER_TILE)
    left: Value = operand(A_BUFFER)
    right: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)
    depth: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)
