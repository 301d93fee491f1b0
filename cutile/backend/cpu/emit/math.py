"""Functions of floats: intrinsics of the same name."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import Expression, Printer, Text, call, rounded
from cutile.ir.core import Op
from cutile.ops.math import (
    Atan2,
    Ceil,
    Cos,
    Cosh,
    Exp,
    Exp2,
    Floor,
    Flushing,
    Log,
    Log2,
    Pow,
    Rsqrt,
    Sin,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
)

NAMES = {"pow": "power"}
"""Where Python has a function of that name."""


def _function(printer: Printer, op: Op) -> Text:
    name = NAMES.get(op.name, op.name)
    return rounded(printer, call(printer, name, *map(printer.operand, op.operands)), op.result.tile.dtype)


def _flushing(printer: Printer, op: Flushing) -> Text:
    if not op.ftz:
        return _function(printer, op)
    return call(printer, "flush", call(printer, op.name, call(printer, "flush", printer.operand(op.x))))


EXPRESSIONS: dict[type[Op], Expression] = {
    **dict.fromkeys((Exp, Log, Log2, Sqrt, Sin, Cos, Tan, Sinh, Cosh, Tanh, Floor, Ceil, Pow, Atan2), _function),
    **dict.fromkeys((Exp2, Rsqrt), _flushing),
}
