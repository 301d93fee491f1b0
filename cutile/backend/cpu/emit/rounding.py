"""Arithmetic with another rounding: calls by operation and mode. What may be fast is simply rounded to nearest."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import PRODUCT, SUM, Expression, Printer, Text, call, infix
from cutile.ir.core import Op
from cutile.ops.rounding import (
    Rounded,
    RoundedAdd,
    RoundedDiv,
    RoundedFma,
    RoundedMul,
    RoundedSqrt,
    RoundedSub,
)

MODES = {"positive_inf": "upward", "negative_inf": "downward", "zero": "to_zero"}
OPERATORS = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}


def _rounded(printer: Printer, op: Rounded) -> Text:
    operands = [printer.operand(each) for each in op.operands]
    if op.ftz:
        operands = [call(printer, "flush", each) for each in operands]
    name = op.exact_name
    if op.rounding in MODES:
        result = call(printer, f"{name}_{MODES[op.rounding]}", *operands)
    elif name in OPERATORS:
        operator, binds = OPERATORS[name]
        result = infix(operands[0], operator, operands[1], binds)
    else:
        result = call(printer, name, *operands)
    return call(printer, "flush", result) if op.ftz else result


EXPRESSIONS: dict[type[Op], Expression] = dict.fromkeys(
    (RoundedAdd, RoundedSub, RoundedMul, RoundedDiv, RoundedFma, RoundedSqrt), _rounded
)
