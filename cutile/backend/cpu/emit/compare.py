"""Comparisons and selection."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import COMPARE, OR, Expression, Printer, Text, call
from cutile.ir.core import Op
from cutile.ops.compare import Eq, Ge, Gt, Le, Lt, Ne, Select


def _compare(operator: str) -> Expression:
    def emit(printer: Printer, op: Op) -> Text:
        left, right = map(printer.operand, op.operands)
        return Text(f"{left.within(OR)} {operator} {right.within(OR)}", COMPARE)

    return emit


def _select(printer: Printer, op: Select) -> Text:
    return call(printer, "choose", *map(printer.operand, op.operands))


EXPRESSIONS: dict[type[Op], Expression] = {
    Eq: _compare("=="),
    Ne: _compare("!="),
    Lt: _compare("<"),
    Le: _compare("<="),
    Gt: _compare(">"),
    Ge: _compare(">="),
    Select: _select,
}
