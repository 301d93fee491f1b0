"""What all threads of a block do: stores, layouts, barriers, assertions."""

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
    """Add a tile to the elements at a tile index, each atomically.

    Elements past the edges are dropped. Other thread blocks may add there too; nobody reads there during the launch.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StoreSubtile(Op, name="cuda.store_subtile", effect=Effect.WRITE):
    """Write subtile `part` of `parts` of this block's own tile.

    A subtile is some of the columns. It becomes a store of its own. `number`, if there is one, replaces `part`.
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

    Registers are renamed (`how` is "take"), four lanes shuffle ("exchange"), or shared memory is used ("move").
    """

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Report a failed assertion to the launch, unless the condition holds.

    One `thread` writes the assertion's number `site`, the tile block and some numbers to the launch's report.

    Attributes:
        rest: the tile block's index along three axes, then the numbers that the condition is about.
        leaves: the thread block ends, with all its threads. Else the last of `rest` is a flag in shared memory, which
            is set; all threads go on, so that none waits for one that has left.
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
    """Whether an assertion of this thread block has failed, by `flag`.

    It knows of assertions ahead of the arrivals that were waited for.
    """

    intrinsic = Intrinsic("debug.has_failed", facts=("flag",))
    flag: Value = operand(SCRATCH)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)
