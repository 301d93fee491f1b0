"""Conversions between element types. f16 and bf16 values are f32 values already: widening them costs nothing."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import COMPARE, OR, Expression, Printer, Text, call, is_small_float, narrowed
from cutile.ir.core import Op
from cutile.ops.cast import Convert


def _convert(printer: Printer, op: Convert) -> Text:
    x, source, dtype = printer.operand(op.x), op.x.tile.dtype, op.dtype
    if source is dtype:
        return x
    if dtype.kind == "bool":
        return Text(f"{x.within(OR)} != 0", COMPARE)
    if not is_small_float(dtype):
        held_alike = is_small_float(source) and dtype.name == "f32"
        return x if held_alike else call(printer, dtype.name, x)
    if source.kind != "float":
        x = call(printer, "f32", x)
    elif source.bits == 64:
        return narrowed(printer, x, dtype)
    return call(printer, f"{dtype.name}_round", x)


EXPRESSIONS: dict[type[Op], Expression] = {Convert: _convert}
