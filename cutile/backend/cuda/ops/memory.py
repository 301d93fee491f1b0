"""What all threads of a block do.

Stores of tiles, conversions between layouts, barriers, assertions.
"""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import SCRATCH
from cutile.dtypes import bool_
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import ANY_MUT, ANY_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type


class Store(Op, name="cuda.store", effect=Effect.WRITE):
    """Write a tile at a tile index; what lies past the edges is dropped."""

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class AddTile(Op, name="cuda.add_tile", effect=Effect.WRITE):
    """Add a tile to what lies at a tile index, each element at once.

    What lies past the edges is dropped.

    Other thread blocks may do the same there, and nobody else looks at it.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StoreSubtile(Op, name="cuda.store_subtile", effect=Effect.WRITE):
    """Write the columns that are part `part` of `parts` of this block's own tile.

    Becomes a store of its own.

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


class ConvertLayout(Op, name="cuda.convert_layout"):
    """The same tile in another layout.

    By renaming registers (`how` is "take"), by shuffles among four lanes ("exchange"), or through shared memory
    ("move").
    """

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Report the failure of assertion `site` to the host, unless the condition holds.

    `thread` writes the report: which assertion of the kernel, in which tile block, and some numbers.

    `rest`: the tile block's index along three axes, then the numbers that the condition is about. `leaves`: the
    thread block then ends, with all its threads; else a flag in shared memory, the last operand, says so, and all of
    them go on, so that nobody waits for who has left.
    """

    condition: Value = operand(SCALAR_BOOL)
    rest: tuple[Value, ...] = operands()
    message: str = attribute()
    where: tuple[str, str, int, str] = attribute()
    site: int = attribute()
    thread: int = attribute(0)
    leaves: bool = attribute(True)

    @property
    def numbers(self) -> tuple[Value, ...]:
        """The tile block's index, and what the condition is about."""
        return self.rest if self.leaves else self.rest[:-1]

    @property
    def flag(self) -> Value | None:
        """Where a failure is noted for the other warps; None where all threads leave."""
        return None if self.leaves else self.rest[-1]

    def infer(self) -> tuple[Type, ...]:
        return ()


class Failed(Op, name="cuda.failed", effect=Effect.WRITE):
    """Whether an assertion of this block has failed before the awaited arrivals.

    By `flag`.
    """

    intrinsic = Intrinsic("debug.has_failed", facts=("flag",))
    flag: Value = operand(SCRATCH)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)
