"""Functions of one float: intrinsics of the same name."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import Expression, Printer, Text, call, rounded
from cutile.ir.core import Op
from cutile.ops.math import Ceil, Cos, Exp, Exp2, Floor, Log, Log2, Rsqrt, Sin, Sqrt, Tanh


def _function(printer: Printer, op: Op) -> Text:
    return rounded(printer, call(printer, op.name, printer.operand(op.operands[0])), op.result.tile.dtype)


EXPRESSIONS: dict[type[Op], Expression] = dict.fromkeys(
    (Exp, Exp2, Log, Log2, Sqrt, Rsqrt, Sin, Cos, Tanh, Floor, Ceil), _function
)
