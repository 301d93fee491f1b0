"""Elements by address."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import COMPARE, Expression, Printer, Statement, Text, call, is_small_float
from cutile.dtypes import DTypeLike
from cutile.ir.core import Op
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress


def stored(printer: Printer, value: Text, dtype: DTypeLike) -> Text:
    """A value as it is in memory: 16-bit floats and bools are held otherwise."""
    if is_small_float(dtype):
        return call(printer, f"{dtype.name}_bits", value)
    return call(printer, "u8", value) if dtype.kind == "bool" else value


def held(printer: Printer, element: Text, dtype: DTypeLike) -> Text:
    """An element of memory as a value."""
    if is_small_float(dtype):
        return call(printer, f"{dtype.name}_value", element)
    return Text(f"{element.text} != 0", COMPARE) if dtype.kind == "bool" else element


def _load(printer: Printer, op: LoadPointer) -> Text:
    dtype = op.pad.tile.dtype
    pad = stored(printer, printer.operand(op.pad), dtype)
    name = "load_at" if op.order == "weak" else "load_at_acquire"
    return held(printer, call(printer, name, printer.operand(op.pointers), printer.operand(op.mask), pad), dtype)


def _store(printer: Printer, op: StorePointer) -> None:
    value = stored(printer, printer.operand(op.value), op.value.tile.dtype)
    name = "store_at" if op.order == "weak" else "store_at_release"
    printer.line(call(printer, name, printer.operand(op.pointers), printer.operand(op.mask), value).text, op)


def _address(printer: Printer, op: TensorAddress) -> Text:
    return call(printer, "address_of", printer.name(op.x))


EXPRESSIONS: dict[type[Op], Expression] = {LoadPointer: _load, TensorAddress: _address}
STATEMENTS: dict[type[Op], Statement] = {StorePointer: _store}
