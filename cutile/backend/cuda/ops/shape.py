"""Tiles that change the threads that hold them."""

from __future__ import annotations

from cutile.ir.core import ANY_TILE, Op, Value, operand
from cutile.ir.types import Type


class ConvertLayout(Op, name="cuda.convert_layout"):
    """The same tile in another layout: by renaming registers (`how` is "take"), by shuffles among four lanes
    ("exchange"), or through shared memory ("move")."""

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)
