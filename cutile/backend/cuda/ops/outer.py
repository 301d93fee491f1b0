"""Specialised warps: products by fused multiply-adds."""

from __future__ import annotations

from cutile.backend.cuda.ops.pipeline import A_BUFFER
from cutile.ir.core import NUMBER_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand
from cutile.ir.types import Type


class OuterMma(Op, name="cuda.outer_mma", effect=Effect.READ):
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
