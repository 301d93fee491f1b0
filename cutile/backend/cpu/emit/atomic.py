"""Atomic updates by address. Each is a statement of its own, whether or not what was there before is used."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import Expression, Printer, Text, call, is_small_float
from cutile.ir.core import Op
from cutile.ops.atomic import AtomicCas, AtomicRmw


def _update(printer: Printer, op: AtomicRmw) -> Text:
    dtype = op.value.tile.dtype
    name = f"atomic_{op.kind}" + (f"_{dtype.name}" if is_small_float(dtype) else "")
    return call(printer, name, *map(printer.operand, (op.pointers, op.mask, op.value)))


def _exchange(printer: Printer, op: AtomicCas) -> Text:
    return call(printer, "atomic_cas", *map(printer.operand, (op.pointers, op.mask, op.expected, op.value)))


EXPRESSIONS: dict[type[Op], Expression] = {AtomicRmw: _update, AtomicCas: _exchange}
