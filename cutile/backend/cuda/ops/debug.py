"""Assertions of numbers: what becomes of a thread block where one does not hold."""

from __future__ import annotations

from cutile.dtypes import bool_
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import SCALAR_INT, Op, Value, attribute, operand, operands
from cutile.ir.effects import Effect
from cutile.ir.types import TileType, Type


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Unless the condition holds, `thread` writes to the launch's report that assertion number `site` of the kernel
    failed, in which tile block, and some numbers.

    `numbers`: the tile block's index along three axes, then the numbers that the condition is about. `leaves`: the
    thread block then ends, with all its threads; else a flag at `flag` in shared memory says so, and all of them go on,
    so that nobody waits for who has left.
    """

    condition: Value = operand(SCALAR_BOOL)
    numbers: tuple[Value, ...] = operands(SCALAR_INT)
    message: str = attribute()
    where: tuple[str, str, int, str] = attribute()
    site: int = attribute()
    thread: int = attribute(0)
    leaves: bool = attribute(True)
    flag: int = attribute(0)

    def infer(self) -> tuple[Type, ...]:
        return ()


class Failed(Op, name="cuda.failed", effect=Effect.WRITE):
    """Whether an assertion of this thread block has failed, before the arrivals that were waited for; by `flag`."""

    flag: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)
