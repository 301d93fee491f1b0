"""Specialised warps: products by warp groups (`wgmma`), and the registers that their sums are in."""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import A_BUFFER
from cutile.dtypes import DTypeLike
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import ANY_TILE, NUMBER_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type


class GroupMma(Op, name="cuda.group_mma", effect=Effect.READ):
    """Begin to add the product of a stage's operands to `acc`, by warpgroups (`wgmma`).

    The result may be read after a `GroupWait` alone, and the stage be released likewise. With `promoted`, so many
    columns at a time are multiplied apart from the sums, waited for, and added in f32. `added`, where it is given, says
    whether `acc` is added to; else the product takes its place. `exchanged`: what is multiplied is the transpose of
    `acc`, so that its rows are the columns of the instructions.
    `crosswise`: the left operand lies across K, and is read by threads (`pipeline/a_from_registers.py`).
    """

    acc: Value = operand(NUMBER_TILE)
    left: Value = operand(A_BUFFER)
    right: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)
    added: tuple[Value, ...] = operands(SCALAR_BOOL)
    left_dtype: DTypeLike = attribute()
    right_dtype: DTypeLike = attribute()
    depth: int = attribute()
    promoted: int = attribute(0)
    crosswise: bool = attribute(False)
    exchanged: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class GroupWait(Op, name="cuda.group_wait", effect=Effect.WRITE):
    """Wait until at most `pending` products are under way; with 0, the result may be read.

    `groups`: what a product is begun in.
    """

    acc: Value = operand(NUMBER_TILE)
    pending: int = attribute()
    groups: int = attribute(1)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class Blank(Op, name="cuda.blank", effect=Effect.WRITE):
    """A tile of registers with anything in them: sums that the first product replaces."""

    intrinsic = Intrinsic("group.blank", facts=("dtype", "count"))
    dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.dtype, self.shape),)


class ZeroUnless(Op, name="cuda.zero_unless", effect=Effect.WRITE):
    """The same tile where `condition` holds; zeros where it does not."""

    intrinsic = Intrinsic("group.zero_unless", facts=("dtype", "count"))
    x: Value = operand(ANY_TILE)
    condition: Value = operand(SCALAR_BOOL)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Opaque(Op, name="cuda.opaque", effect=Effect.WRITE):
    """The same tile, whose elements the compiler does not know: an accumulator that is not to be made anew."""

    intrinsic = Intrinsic("group.opaque", facts=("dtype", "count"))
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Part(Op, name="cuda.part"):
    """The columns of a product's sums that are part `part` of `parts`: a choice among each thread's registers."""

    intrinsic = Intrinsic(
        "group.part", facts=("dtype", "source", "layout", "part"), stem="part_{part}", omit=("parts",)
    )
    x: Value = operand(ANY_TILE)
    part: int = attribute()
    parts: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (self.x.tile.with_shape((rows, columns // self.parts)),)
