"""Products by warpgroups (`wgmma`), whose operands may come from the buffers of any pipelines, or from registers."""

from __future__ import annotations

from cutile.backend.cuda.ops.pipeline import A_BUFFER
from cutile.dtypes import DTypeLike
from cutile.ir.core import NUMBER_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type


class Dot(Op, name="cuda.dot", effect=Effect.WRITE):
    """Begin to multiply, and to add to sums where there are any.

    `rest` is the left operand and the sums: a buffer and the counter of its stage, or a tile in registers; then the
    sums, unless the product is `fresh`. The result may be read after a `DotWait` alone, and stages and registers that
    it reads be given up likewise.

    `left_k_major` and `right_k_major` say of operands in shared memory whether the axis that is contiguous there is the
    product's K. Two products that read one buffer need not agree on it.
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
    left_k_major: bool = attribute(default=True)
    right_k_major: bool = attribute(default=True)

    @property
    def left(self) -> Value:
        """A buffer, or a tile."""
        return self.rest[0]

    @property
    def left_counter(self) -> Value | None:
        """Of the left operand's stage; None where it comes from registers."""
        return None if self.from_registers else self.rest[1]

    @property
    def acc(self) -> Value | None:
        """The sums; None where there are none yet."""
        return None if self.fresh else self.rest[-1]

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.acc_dtype, self.shape),)


class WriteOperand(Op, name="cuda.write_operand", effect=Effect.WRITE):
    """Write a tile, as 32-bit words of two elements, to a buffer.

    Each warpgroup writes its rows; products that begin behind a barrier of all may read the buffer.
    """

    words: Value = operand(NUMBER_TILE)
    buffer: Value = operand(A_BUFFER)

    def infer(self) -> tuple[Type, ...]:
        return ()


class DotWait(Op, name="cuda.dot_wait", effect=Effect.WRITE):
    """Wait until at most `pending` products that were begun later are under way; what comes out may be read.

    `left` are the registers that the product reads: until here they stay what they are.
    """

    acc: Value = operand(NUMBER_TILE)
    left: tuple[Value, ...] = operands(NUMBER_TILE)
    pending: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)
