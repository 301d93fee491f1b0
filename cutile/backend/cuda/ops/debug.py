"""Assertions of numbers, by one thread."""

from __future__ import annotations

from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import SCALAR_INT, Op, Value, attribute, operand, operands
from cutile.ir.effects import Effect
from cutile.ir.types import Type


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Unless the condition holds, `thread` says that the assertion failed, in which tile block, and traps."""

    condition: Value = operand(SCALAR_BOOL)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    message: str = attribute()
    where: tuple[str, str, int, str] = attribute()
    thread: int = attribute(0)

    def infer(self) -> tuple[Type, ...]:
        return ()
