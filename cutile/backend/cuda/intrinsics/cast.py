"""Conversions between element types: floats round to nearest even, float to integer truncates, integers wrap."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import F16, F32, F64, I16, I64, const, narrow, number, register_type, widen
from cutile.dtypes import DTypeLike, bool_, f16, f32, f64


def converted(b: Any, source: DTypeLike, target: DTypeLike, x: Any) -> Any:
    """One element of `source` as `target`."""
    if source is target:
        return x
    if source.kind == "float":
        return _from_float(b, source, target, x)
    if target is bool_:
        return b.icmp_unsigned("!=", x, number(source, 0))
    if target.kind == "float":
        return _to_float(b, source, target, x)
    if source.kind != "bool" and target.bits < source.bits:
        return b.trunc(x, register_type(target))
    if source.kind != "bool" and target.bits == source.bits:
        return x
    return (b.sext if source.kind == "int" else b.zext)(x, register_type(target))


def _from_float(b: Any, source: DTypeLike, target: DTypeLike, x: Any) -> Any:
    wide = widen(b, source, x)
    if target is bool_:
        return b.fcmp_unordered("!=", wide, const(wide.type, 0.0))
    if target.kind == "int":
        return b.fptosi(wide, register_type(target))
    if target.kind == "uint":
        # as NumPy: a negative value wraps, so go through a signed type that holds it
        if target.bits < 64:
            return b.trunc(b.fptosi(wide, I64), register_type(target))
        return b.fptoui(wide, register_type(target))
    if target is f64:
        return b.fpext(wide, F64)
    if source is not f64:
        return narrow(b, target, wide)
    if target is f16:  # one rounding, not two
        return b.bitcast(b.fptrunc(wide, F16), I16)
    return narrow(b, target, b.fptrunc(wide, F32))


def _to_float(b: Any, source: DTypeLike, target: DTypeLike, x: Any) -> Any:
    made = (b.sitofp if source.kind == "int" else b.uitofp)(x, F64 if target is f64 else F32)
    return made if target in (f32, f64) else narrow(b, target, made)


@cache
def convert(source: DTypeLike, target: DTypeLike, n: int) -> Any:
    """`f(x)`: the elements as `target`."""

    def one(b: Any, x: Any) -> Any:
        return converted(b, source, target, x)

    return elementwise("convert", (source,), target, n, one)
