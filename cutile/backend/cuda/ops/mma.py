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
    "Undef",
    "WriteOperand",
    "ZeroUnless",
)


class Undef(Op, name="cuda.undef", effect=Effect.WRITE):
    """A tile of registers with anything in them: sums that the first product replaces."""

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
    """The same tile, hidden from the compiler: it does not compute it anew."""

    intrinsic = Intrinsic("wgmma.optimization_barrier", facts=("dtype", "count"))
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Subtile(Op, name="cuda.subtile"):
    """Subtile `part` of `parts` of an accumulator: some of its columns.

    A choice among each thread's registers.
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

    `rest` is the left operand and the sums: a buffer and the counter of its stage, or a tile in registers; then the
    sums, unless the product is `fresh`; then, if it `replaces` them, whether they are added to or replaced. The result
    may be read after a `DotWait` alone, and stages and registers that it reads be given up likewise.

    `left_k_major` and `right_k_major` say of operands in shared memory whether the axis that is contiguous there is the
    product's K. Two products that read one buffer need not agree on it. `left_first` and `right_first` say at which
    depth of theirs the product begins.

    Attributes:
        depth: elements along K.
        promote_columns: columns that are multiplied apart, waited for, and added in f32; 0 adds to the sums themselves.
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
        """A buffer, or a tile."""
        return self.rest[0]

    @property
    def left_counter(self) -> Value | None:
        """Of the left operand's stage; None where it comes from registers."""
        return None if self.from_registers else self.rest[1]

    @property
    def sums(self) -> tuple[Value, ...]:
        """The sums, unless there are none yet, and whether they are added to."""
        return self.rest[1 if self.from_registers else 2 :]

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.acc_dtype, self.shape),)


class PackQuads(Op, name="cuda.pack_quads", effect=Effect.WRITE):
    """A tile of 8-bit elements, as words of four of a left operand.

    The tile lies as a product's sums do, or as a left operand; the words as a product takes them.
    """

    intrinsic = Intrinsic("dot.pack_quads", facts=("dtype", "source"), stem="pack")
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (TileType(i32, (rows, columns // 4)),)


class WriteOperand(Op, name="cuda.write_operand", effect=Effect.WRITE):
    """Write a tile, as 32-bit words of two elements, to a stage of a buffer.

    Each warpgroup writes its rows; products that begin behind a barrier of all may read the buffer.
    """

    words: Value = operand(NUMBER_TILE)
    buffer: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class DotWait(Op, name="cuda.dot_wait", effect=Effect.WRITE):
    """Wait until at most `pending` products that began later are under way.

    The result may be read, unless it `goes_on`: then a later product adds to it, and stages alone are given up. `left`
    are the registers that the product reads: until here they stay what they are.

    Attributes:
        groups: groups in which one product is begun.
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

    When it is over, a warp has read all that it needs of the stage.
    """

    acc: Value = operand(NUMBER_TILE)
    left: Value = operand(A_BUFFER)
    right: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)
    depth: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)
