"""Assertions of numbers: what becomes of a thread block where one does not hold."""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import SCRATCH
from cutile.dtypes import bool_
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Unless the condition holds, `thread` writes to the launch's report that assertion number `site` of the kernel
    failed, in which tile block, and some numbers.

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
    """Whether an assertion of this thread block has failed, before the arrivals that were waited for; by `flag`."""

    intrinsic = Intrinsic("debug.has_failed", facts=("flag",))
    flag: Value = operand(SCRATCH)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)
