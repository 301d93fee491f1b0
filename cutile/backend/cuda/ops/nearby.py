"""Sums of divided turns that meet in the shared memory of a cluster."""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import BARRIERS, SCRATCH
from cutile.ir.core import NUMBER_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import Type


class DealOut(Op, name="cuda.deal_out", effect=Effect.WRITE):
    """Send the sums of a piece to the thread blocks of its cluster, each the parts that it adds up, and wait for what
    this one is sent.

    Of `parts` parts of the columns, thread block `i` of `blocks` adds up number `i`, `i + blocks` and so on. They
    arrive in `place`, and are counted by a barrier of their own.
    """

    intrinsic = Intrinsic("nearby.deal_out", facts=("dtype", "layout", "parts", "blocks"))
    x: Value = operand(NUMBER_TILE)
    place: Value = operand(SCRATCH)
    arrived: Value = operand(BARRIERS)
    parts: int = attribute()
    blocks: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class AddNearby(Op, name="cuda.add_nearby", effect=Effect.READ):
    """The columns of `x` that are part `part` of `parts`, added up over the `blocks` thread blocks of a cluster, in the
    order of the pieces: of what they have dealt out to this one."""

    intrinsic = Intrinsic(
        "nearby.add", facts=("dtype", "source", "parts=", "blocks="), stem="add_nearby", call=("part",)
    )
    x: Value = operand(NUMBER_TILE)
    part: Value = operand(SCALAR_INT)
    place: tuple[Value, ...] = operands(SCRATCH)
    parts: int = attribute()
    blocks: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (self.x.tile.with_shape((rows, columns // self.parts)),)
