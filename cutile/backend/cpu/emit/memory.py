"""Reads and writes of elements. f16 and bf16 are 16 bits in tensors and f32 in scratch memory; bools are bytes."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import (
    CHOICE,
    COMPARE,
    NOT,
    Expression,
    Printer,
    Statement,
    Text,
    call,
    is_small_float,
)
from cutile.backend.cpu.emit.create import number
from cutile.backend.cpu.stage import Read, ReadInside, Size, Stride, Write
from cutile.ir.core import Op, Value

SCRATCH_ALIGNMENT = 64  # what tells scratch memory from tensors, which promise at most 16


def is_scratch(tensor: Value) -> bool:
    """Whether a tensor is a worker's scratch memory."""
    return tensor.tensor.alignment == SCRATCH_ALIGNMENT


def _element(printer: Printer, tensor: Value, at: Value) -> Text:
    place, dtype = f"{printer.name(tensor)}[{printer.operand(at).text}]", tensor.tensor.dtype
    if dtype.kind == "bool":
        return Text(f"{place} != 0", COMPARE)
    if is_small_float(dtype) and not is_scratch(tensor):
        return call(printer, f"{dtype.name}_value", place)
    return Text(place)


def _read(printer: Printer, op: Read) -> Text:
    return _element(printer, op.x, op.at)


def _read_inside(printer: Printer, op: ReadInside) -> Text:
    element, zero = _element(printer, op.x, op.at), number(printer, op.padding, op.x.tensor.dtype)
    return Text(f"{element.within(NOT)} if {printer.operand(op.inside).text} else {zero.text}", CHOICE)


def _write(printer: Printer, op: Write) -> None:
    value, dtype = printer.operand(op.value), op.x.tensor.dtype
    if dtype.kind == "bool":
        value = call(printer, "u8", value)
    elif is_small_float(dtype) and not is_scratch(op.x):
        value = call(printer, f"{dtype.name}_bits", value)
    printer.line(f"{printer.name(op.x)}[{printer.operand(op.at).text}] = {value.text}", op)


def _stride(printer: Printer, op: Stride) -> Text:
    return Text(printer.known(f"{op.x.name}_stride_{op.axis}"))


def _size(printer: Printer, op: Size) -> Text:
    return Text(printer.known(f"{op.x.name}_extent_{op.axis}"))


EXPRESSIONS: dict[type[Op], Expression] = {
    Read: _read,
    ReadInside: _read_inside,
    Stride: _stride,
    Size: _size,
}
STATEMENTS: dict[type[Op], Statement] = {Write: _write}
