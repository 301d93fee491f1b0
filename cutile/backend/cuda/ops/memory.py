"""Stores of tiles, and of parts of them, by threads; where threads wait for each other's."""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.ir.core import ANY_MUT, ANY_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import Type


class Store(Op, name="cuda.store", effect=Effect.WRITE):
    """Write a tile at a tile index; what lies past the edges is dropped."""

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class AddTile(Op, name="cuda.add_tile", effect=Effect.WRITE):
    """Add a tile to what lies at a tile index, each element at once; what lies past the edges is dropped.

    Other thread blocks may do the same there, and nobody else looks at it.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StorePart(Op, name="cuda.store_part", effect=Effect.WRITE):
    """Write the columns that are part `part` of `parts` of this block's own tile. Becomes a store of its own.

    `number`, where it is given, says which part it is, in place of `part`.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    number: tuple[Value, ...] = operands(SCALAR_INT)
    part: int = attribute()
    parts: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Barrier(Op, name="cuda.barrier", effect=Effect.WRITE):
    """All threads of the block arrive, and see each other's stores."""

    intrinsic = Intrinsic("shape.synchronize")

    def infer(self) -> tuple[Type, ...]:
        return ()
