"""Conversions between element types.

Values of f16 and bf16 are f32 values already: to widen them costs nothing. Values of types that are only stored are
their bits. They are converted by way of the f32 that the bits stand for, which is exact.
"""

from cutile.backend.cpu.emit._text import (
    AND,
    COMPARE,
    OR,
    SUFFIXES,
    Expression,
    Printer,
    Text,
    call,
    infix,
    machine_type,
)
from cutile.backend.cpu.stage import Truncate
from cutile.conversion import MEANING, NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import DTypeLike, f32, f64
from cutile.ir.core import Op
from cutile.ops.cast import Bitcast, Convert

WHOLE = {NEAREST_EVEN: "nearest", POSITIVE_INF: "ceil", NEGATIVE_INF: "floor", ZERO: "truncated"}
EXACT_IN_F32 = 16
"""Bits of the widest integer dtype of which an f32 holds every number."""


def _float(printer: Printer, x: Text, source: DTypeLike) -> Text:
    """A float as the f32 or f64 of the same value."""
    return call(printer, f"{source.name}_value", x) if not source.computes else x


def _single(printer: Printer, x: Text, source: DTypeLike) -> Text:
    """A value as an f32 that may be rounded to a narrower float.

    It is exact, or rounded to odd.
    """
    if source.format is not None and source is not f64:
        return _float(printer, x, source)
    if source.kind in ("int", "uint", "bool"):
        if source.bits <= EXACT_IN_F32:
            return call(printer, "f32", x)
        if source.bits == 64:
            x = call(printer, "whole_to_odd" if source.is_signed else "whole_to_odd_unsigned", x)
        else:
            x = call(printer, "f64", x)
    return call(printer, "to_odd", x)


def _to_float(printer: Printer, x: Text, source: DTypeLike, target: DTypeLike, rounding: str) -> Text:
    suffix = SUFFIXES[rounding]
    if not target.computes:
        return call(printer, f"{target.name}_bits{suffix}", _single(printer, x, source))
    if target.is_half:
        return call(printer, f"{target.name}_round{suffix}", _single(printer, x, source))
    if source.format is not None:
        if source is f64:
            return call(printer, f"f32{suffix}", x)
        wide = _float(printer, x, source)
        return wide if target is f32 else call(printer, "f64", wide)
    # Integers: rounded to nearest, or exact, by Numba's own conversion.
    if not suffix or source.bits <= EXACT_IN_F32 or (target is f64 and source.bits <= 32):
        return call(printer, target.name, x)
    unsigned = "_unsigned" if source.kind == "uint" else ""
    if target is f64:
        return call(printer, f"f64{suffix}{unsigned}", x)
    wide = call(printer, f"whole_to_odd{unsigned}", x) if source.bits == 64 else call(printer, "f64", x)
    return call(printer, f"f32{suffix}", wide)


def _convert(printer: Printer, op: Convert) -> Text:
    x, source, dtype = printer.operand(op.x), op.x.tile.dtype, op.dtype
    if source is dtype:
        return x
    if dtype.is_bool:
        return Text(f"{_float(printer, x, source).within(OR)} != 0", COMPARE)
    if dtype.format is not None:
        return _to_float(printer, x, source, dtype, op.rounding or NEAREST_EVEN)
    if source.format is not None:
        whole = _float(printer, x, source)
        if (op.rounding or ZERO) != ZERO:
            whole = call(printer, WHOLE[op.rounding or ZERO], whole)
        return call(printer, f"saturated_{dtype.name}", whole)
    return call(printer, dtype.name, x)


def _truncate(printer: Printer, op: Truncate) -> Text:
    whole = printer.operand(op.x)
    if (op.rounding or ZERO) != ZERO:
        whole = call(printer, WHOLE[op.rounding or ZERO], whole)
    return call(printer, f"truncated_{op.dtype.name}", whole)


def _bitcast(printer: Printer, op: Bitcast) -> Text:
    x, source, dtype = printer.operand(op.x), op.x.tile.dtype, op.dtype
    machine = machine_type(source)
    if source in MEANING:  # the other bits mean nothing, and are 0 in the result
        x = call(printer, machine, infix(x, "&", Text(hex(MEANING[source])), AND))
    elif source.is_half:
        x, machine = call(printer, f"{source.name}_bits", x), "u16"
    if dtype.is_half:
        return call(printer, f"{dtype.name}_value", x if machine == "u16" else call(printer, "as_u16", x))
    return x if machine == machine_type(dtype) else call(printer, f"as_{machine_type(dtype)}", x)


EXPRESSIONS: dict[type[Op], Expression] = {Convert: _convert, Truncate: _truncate, Bitcast: _bitcast}
