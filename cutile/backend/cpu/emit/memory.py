"""Constants, elements of tensors and of scratch memory, and accesses by address.

f16 and bf16 are 16 bits in tensors and f32 in scratch memory; bools are bytes.
"""

import math

import numpy as np

from cutile.backend.cpu.emit._text import (
    ATOM,
    CHOICE,
    COMPARE,
    NOT,
    UNARY,
    Expression,
    Printer,
    Statement,
    Text,
    call,
    element_type,
    machine_type,
)
from cutile.backend.cpu.stage import CopyTransposed, Read, ReadInside, Size, Stride, TensorAt, Write
from cutile.conversion import bits_of, element
from cutile.dtypes import DTypeLike
from cutile.ir import Constant, Op, Value
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress

SCRATCH_ALIGNMENT = 64
"""Bytes. No tensor promises more than 16, and scratch memory in the tensors' format (`Scratch.stored`) promises 32."""


def is_scratch(tensor: Value) -> bool:
    """Whether a tensor is scratch memory whose 16-bit floats take 32 bits."""
    return tensor.tensor.alignment == SCRATCH_ALIGNMENT


def _element(printer: Printer, tensor: Value, at: Value) -> Text:
    place, dtype = f"{printer.name(tensor)}[{printer.operand(at).text}]", tensor.tensor.dtype
    if dtype.is_bool:
        return Text(f"{place} != 0", COMPARE)
    if dtype.is_half and not is_scratch(tensor):
        return call(printer, f"{dtype.name}_value", place)
    return Text(place)


def _read(printer: Printer, op: Read) -> Text:
    return _element(printer, op.x, op.at)


def _read_inside(printer: Printer, op: ReadInside) -> Text:
    element, padding = _element(printer, op.x, op.at), number(printer, op.padding, op.x.tensor.dtype)
    return Text(f"{element.within(NOT)} if {printer.operand(op.inside).text} else {padding.text}", CHOICE)


def _write(printer: Printer, op: Write) -> None:
    value, dtype = printer.operand(op.value), op.x.tensor.dtype
    if dtype.is_bool:
        value = call(printer, "u8", value)
    elif dtype.is_half and not is_scratch(op.x):
        value = call(printer, f"{dtype.name}_bits", value)
    printer.line(f"{printer.name(op.x)}[{printer.operand(op.at).text}] = {value.text}", op)


def _copy_transposed(printer: Printer, op: CopyTransposed) -> None:
    numbers = ", ".join(printer.operand(each).text for each in (op.at, op.stride, op.rows, op.columns))
    call = f"{printer.use('copy_transposed')}({printer.name(op.strip)}, {printer.name(op.x)}, {numbers}, {op.step})"
    printer.line(call, op)


def _stride(printer: Printer, op: Stride) -> Text:
    return Text(printer.own_parameter("stride", op.x, op.axis))


def _size(printer: Printer, op: Size) -> Text:
    return Text(printer.own_parameter("extent", op.x, op.axis))


def number(printer: Printer, value: float, dtype: DTypeLike) -> Text:
    """A literal of a dtype."""
    if not dtype.computes:
        return call(printer, machine_type(dtype), repr(bits_of(value, dtype)))
    if dtype.is_bool:
        return Text(repr(bool(value)))
    if not dtype.is_float:
        wrapped = int(np.asarray(value).astype(dtype.numpy))
        text = Text(repr(wrapped), UNARY if wrapped < 0 else ATOM)
        return text if dtype.name == "i64" else call(printer, dtype.name, text)
    exact = float(element(value, dtype))  # f16 and bf16: rounded, then held as f32
    if math.isnan(exact):
        literal = printer.use("nan")
    elif math.isinf(exact):
        literal = ("-" if exact < 0 else "") + printer.use("inf")
    else:
        literal = repr(exact)
    return call(printer, machine_type(dtype), literal)


def _constant(printer: Printer, op: Constant) -> Text:
    return number(printer, op.value, op.dtype)


def _tensor_at(printer: Printer, op: TensorAt) -> Text:
    """`elements_at(address, f32)`: 16-bit floats as their bits, bools as bytes."""
    kind = printer.use(element_type(op.dtype))
    return Text(f"{printer.use('elements_at')}({printer.operand(op.address).text}, {kind})")


def _as_stored(printer: Printer, value: Text, dtype: DTypeLike) -> Text:
    """A value as an element in memory: a 16-bit float as its bits, a bool as a byte."""
    if dtype.is_half:
        return call(printer, f"{dtype.name}_bits", value)
    return call(printer, "u8", value) if dtype.is_bool else value


def _as_value(printer: Printer, element: Text, dtype: DTypeLike) -> Text:
    """An element of memory as a value."""
    if dtype.is_half:
        return call(printer, f"{dtype.name}_value", element)
    return Text(f"{element.text} != 0", COMPARE) if dtype.is_bool else element


def _load(printer: Printer, op: LoadPointer) -> Text:
    dtype = op.pad.tile.dtype
    pad = _as_stored(printer, printer.operand(op.pad), dtype)
    name = "load_at" if op.order == "weak" else "load_at_acquire"
    return _as_value(printer, call(printer, name, printer.operand(op.pointers), printer.operand(op.mask), pad), dtype)


def _store(printer: Printer, op: StorePointer) -> None:
    value = _as_stored(printer, printer.operand(op.value), op.value.tile.dtype)
    name = "store_at" if op.order == "weak" else "store_at_release"
    printer.line(call(printer, name, printer.operand(op.pointers), printer.operand(op.mask), value).text, op)


def _address(printer: Printer, op: TensorAddress) -> Text:
    return call(printer, "address_of", printer.name(op.x))


def _update(printer: Printer, op: AtomicRmw) -> Text:
    dtype = op.value.tile.dtype
    name = f"atomic_{op.kind}" + (f"_{dtype.name}" if dtype.is_half else "")
    return call(printer, name, *map(printer.operand, (op.pointers, op.mask, op.value)))


def _exchange(printer: Printer, op: AtomicCas) -> Text:
    return call(printer, "atomic_cas", *map(printer.operand, (op.pointers, op.mask, op.expected, op.value)))


EXPRESSIONS: dict[type[Op], Expression] = {
    Read: _read,
    ReadInside: _read_inside,
    Stride: _stride,
    Size: _size,
    Constant: _constant,
    TensorAt: _tensor_at,
    LoadPointer: _load,
    TensorAddress: _address,
    AtomicRmw: _update,
    AtomicCas: _exchange,
}
STATEMENTS: dict[type[Op], Statement] = {
    Write: _write,
    CopyTransposed: _copy_transposed,
    StorePointer: _store,
}
