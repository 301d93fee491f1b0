"""One step of a reduction."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import Expression, Printer, Text, call
from cutile.backend.cpu.stage import Step
from cutile.ir.core import Op

STEPS = {
    "reduce_sum": "sum_step",
    "reduce_prod": "product_step",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_max_or_nan": "maximum_or_nan",
    "reduce_min_or_nan": "minimum_or_nan",
}


def _step(printer: Printer, op: Step) -> Text:
    ordered = op.kind in ("reduce_max", "reduce_min")
    suffix = "_unsigned" if ordered and op.acc.tile.dtype.kind == "uint" else ""
    return call(printer, STEPS[op.kind] + suffix, printer.operand(op.acc), printer.operand(op.x))


EXPRESSIONS: dict[type[Op], Expression] = {Step: _step}
