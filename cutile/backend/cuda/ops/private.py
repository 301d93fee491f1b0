"""Sums that a thread block keeps in shared memory until its end.

`extent` is how many elements there are; whether they fit is found out when the kernel runs.
"""

from __future__ import annotations

from cutile.ir.core import ANY_TILE, INT_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import Type


class PrivateStart(Op, name="cuda.private_start", effect=Effect.WRITE):
    """Set the block's sums to zero, if they fit; all threads see that."""

    extent: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class PrivateUpdate(Op, name="cuda.private_update", effect=Effect.WRITE):
    """Add to the block's sums, or to the elements themselves where sums do not fit.

    Lanes whose index is no element's add nothing. `base` is the address of the first element. Of `conditions` the first
    is, where it is `limited`, how many of the tile's first lanes add; the others are masks.
    """

    index: Value = operand(INT_TILE)
    value: Value = operand(ANY_TILE)
    base: Value = operand(SCALAR_INT)
    extent: Value = operand(SCALAR_INT)
    conditions: tuple[Value, ...] = operands(ANY_TILE)
    limited: bool = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class PrivateEnd(Op, name="cuda.private_end", effect=Effect.WRITE):
    """Add the block's sums to the elements."""

    base: Value = operand(SCALAR_INT)
    extent: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()
