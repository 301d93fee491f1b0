"""Functions of floats: intrinsics of the same name."""

from cutile.backend.cpu.emit._text import FUNCTIONS, Expression, Printer, Text, call, rounded
from cutile.ir.core import Op
from cutile.ops.math import Flushing
from cutile.ops.registry import OPS


def _function(printer: Printer, op: Op) -> Text:
    return rounded(printer, call(printer, FUNCTIONS[op.name], *map(printer.operand, op.operands)), op.result.tile.dtype)


def _flushing(printer: Printer, op: Flushing) -> Text:
    if not op.ftz:
        return _function(printer, op)
    return call(printer, "flush", call(printer, op.name, call(printer, "flush", printer.operand(op.x))))


EXPRESSIONS: dict[type[Op], Expression] = {
    OPS[name]: _flushing if issubclass(OPS[name], Flushing) else _function for name in FUNCTIONS
}
