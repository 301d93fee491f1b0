"""Operations that only this backend's lowered IR has. Every decision about them stands in their attributes.

Lowered operations of the language keep their classes and carry further attributes: `layout`, the name of the result's
layout, `source`, that of the operand's (for `mma` the two operands'), `vector`, the axis and width of wide accesses,
`offset` and `fence`, the place in shared memory and whether it may still be in use. Names of layouts are looked up in
the function's fact `layouts`.
"""

from __future__ import annotations

from cutile.ir.core import ANY_MUT, ANY_TILE, SCALAR_INT, Op, Value, operand, operands
from cutile.ir.effects import Effect
from cutile.ir.types import Type


class ConvertLayout(Op, name="cuda.convert_layout"):
    """The same tile in another layout: by renaming registers (`how` is "take"), or through shared memory ("move")."""

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Store(Op, name="cuda.store", effect=Effect.WRITE):
    """Write a tile at a tile index; what lies past the edges is dropped."""

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class Barrier(Op, name="cuda.barrier", effect=Effect.WRITE):
    """All threads of the block arrive, and see each other's stores."""

    def infer(self) -> tuple[Type, ...]:
        return ()
