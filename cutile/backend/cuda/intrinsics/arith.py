"""Arithmetic and bits on fragments. f16 and bf16 are computed in f32 and rounded after every operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import I16, asm, call, const, float_type, narrow, number, register_type, widen
from cutile.dtypes import DTypeLike, bf16, bool_, f16, f64

Scalar = Callable[[Any, DTypeLike, Any, Any], Any]


def _add(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fadd(x, y) if dtype.kind == "float" else b.add(x, y)


def _sub(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fsub(x, y) if dtype.kind == "float" else b.sub(x, y)


def _mul(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fmul(x, y) if dtype.kind == "float" else b.mul(x, y)


def _div(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.fdiv(x, y)


def _extreme(b: Any, dtype: DTypeLike, x: Any, y: Any, least: bool) -> Any:
    if dtype.kind == "float":  # one NaN is dropped
        name = "minnum" if least else "maxnum"
        return call(b, f"llvm.{name}.{'f64' if dtype is f64 else 'f32'}", x.type, [x, y])
    compare = b.icmp_signed if dtype.kind == "int" else b.icmp_unsigned
    return b.select(compare("<" if least else ">", x, y), x, y)


def _min(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return _extreme(b, dtype, x, y, True)


def _max(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return _extreme(b, dtype, x, y, False)


def _divide(b: Any, dtype: DTypeLike, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Floored quotient, remainder, and whether the divisor is 0. LLVM leaves division by 0 and overflow undefined."""
    zero, one = number(dtype, 0), number(dtype, 1)
    none = b.icmp_unsigned("==", y, zero)
    if dtype.kind == "uint":
        safe = b.select(none, one, y)
        return b.udiv(x, safe), b.urem(x, safe), none
    minus = b.icmp_unsigned("==", y, number(dtype, -1))
    safe = b.select(b.or_(none, minus), one, y)
    quotient, rest = b.sdiv(x, safe), b.srem(x, safe)
    down = b.and_(b.icmp_unsigned("!=", rest, zero), b.icmp_signed("<", b.xor(rest, safe), zero))
    quotient = b.select(down, b.sub(quotient, one), quotient)
    rest = b.select(down, b.add(rest, safe), rest)
    return b.select(minus, b.sub(zero, x), quotient), b.select(minus, zero, rest), none


def _floor_div(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    quotient, _, none = _divide(b, dtype, x, y)
    return b.select(none, number(dtype, 0), quotient)


def _mod(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    _, rest, none = _divide(b, dtype, x, y)
    return b.select(none, number(dtype, 0), rest)


def _and(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.and_(x, y)


def _or(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.or_(x, y)


def _xor(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    return b.xor(x, y)


def _shl(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    inside = b.icmp_unsigned("<", y, number(dtype, dtype.bits))
    return b.select(inside, b.shl(x, b.select(inside, y, number(dtype, 0))), number(dtype, 0))


def _shr(b: Any, dtype: DTypeLike, x: Any, y: Any) -> Any:
    inside = b.icmp_unsigned("<", y, number(dtype, dtype.bits))
    count = b.select(inside, y, number(dtype, dtype.bits - 1))
    if dtype.kind == "int":
        return b.ashr(x, count)
    return b.select(inside, b.lshr(x, count), number(dtype, 0))


BINARY: dict[str, Scalar] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "min": _min,
    "max": _max,
    "floor_div": _floor_div,
    "mod": _mod,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shl": _shl,
    "shr": _shr,
}


def combine(b: Any, name: str, dtype: DTypeLike, x: Any, y: Any) -> Any:
    """One element of a binary operation, computed in f32 and rounded for f16 and bf16."""
    if dtype.kind != "float":
        return BINARY[name](b, dtype, x, y)
    return narrow(b, dtype, BINARY[name](b, dtype, widen(b, dtype, x), widen(b, dtype, y)))


@cache
def binary(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x, y)` for the operation `name` of `cutile.ops.arith`."""

    def one(b: Any, x: Any, y: Any) -> Any:
        return combine(b, name, dtype, x, y)

    return elementwise(name + "_", (dtype, dtype), dtype, n, one)


def _negative(b: Any, dtype: DTypeLike, x: Any) -> Any:
    if dtype in (f16, bf16):
        return b.xor(x, const(I16, 0x8000))
    if dtype.kind == "float":
        return b.fsub(const(register_type(dtype), -0.0), x)
    return b.sub(number(dtype, 0), x)


def _absolute(b: Any, dtype: DTypeLike, x: Any) -> Any:
    if dtype in (f16, bf16):
        return b.and_(x, const(I16, 0x7FFF))
    if dtype.kind == "float":
        return call(b, f"llvm.fabs.{'f64' if dtype is f64 else 'f32'}", x.type, [x])
    if dtype.kind == "uint":
        return x
    return b.select(b.icmp_signed("<", x, number(dtype, 0)), b.sub(number(dtype, 0), x), x)


def _invert(b: Any, dtype: DTypeLike, x: Any) -> Any:
    return b.xor(x, const(x.type, -1) if dtype is not bool_ else number(bool_, True))


UNARY: dict[str, Callable[[Any, DTypeLike, Any], Any]] = {"neg": _negative, "abs": _absolute, "not": _invert}


@cache
def unary(name: str, dtype: DTypeLike, n: int) -> Any:
    """`f(x)` for the operation `name` of `cutile.ops.arith`."""

    def one(b: Any, x: Any) -> Any:
        return UNARY[name](b, dtype, x)

    return elementwise(name + "_", (dtype,), dtype, n, one)


def fused(b: Any, dtype: DTypeLike, x: Any, y: Any, z: Any) -> Any:
    """`x * y + z` with one rounding, for floats as they are computed: f32 or f64."""
    kind = "f64" if dtype is f64 else "f32"
    return call(b, f"llvm.fma.{kind}", float_type(dtype), [x, y, z])


@cache
def fma(dtype: DTypeLike, n: int) -> Any:
    """`f(x, y, z) = x * y + z` with one rounding."""

    def one(b: Any, x: Any, y: Any, z: Any) -> Any:
        if dtype is f16:  # in hardware, and exact: f32 would round twice
            return asm(b, I16, [x, y, z], "fma.rn.f16 $0, $1, $2, $3;", "=h,h,h,h")
        if dtype is bf16:
            return asm(b, I16, [x, y, z], "fma.rn.bf16 $0, $1, $2, $3;", "=h,h,h,h")
        return fused(b, dtype, x, y, z)

    return elementwise("fma", (dtype,) * 3, dtype, n, one)
