"""Element-wise operations on special values: what each expression is worth in NumPy. Data, no tests.

A case is judged in one of three ways. `numpy` in the dtype itself: the result is that, bit for bit. `wide` in long
double: the result is within the accuracy that the operation states. `side`: the neighbour of the exact rational result
on that side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i32, i64, u8, u16
from tests.samples.row import FLOATS, INTS
from tests.support import exact

Function = Callable[..., Any]
Meaning = Callable[[Any, Any, Any], Any]
"""Over the arrays `x`, `y`, `z`."""
SIGNED = INTS[:4]
_where: Any = np.where


@dataclass(frozen=True)
class Case:
    """One expression over the tiles `x`, `y`, `z`.

    Attributes:
        op: the operation it is about.
        side: "positive_inf", "negative_inf" or "zero", where `exact` names the operation on rationals.
        ftz: f32 below the smallest normal number counts as zero.
        fast: APPROX or FULL: divisors beyond 2**126 are not looked at.
        bound: ulp, where it is not the accuracy that the operation states.
        least: smaller results are judged in ulp of this number, as where a sum cancels.
    """

    op: str
    expression: str
    dtypes: tuple[DTypeLike, ...]
    numpy: Meaning | None = None
    wide: Meaning | None = None
    side: str = ""
    exact: str = ""
    ftz: bool = False
    fast: bool = False
    bound: float = 0
    least: float = 0

    def __str__(self) -> str:
        return self.expression


def _in_f32(function: Function) -> Meaning:
    """16-bit floats by way of f32, rounded once."""

    def apply(*arrays: Any) -> Any:
        wide = np.float32 if arrays[0].dtype.itemsize < 4 and arrays[0].dtype.kind not in "iub" else arrays[0].dtype
        return np.asarray(function(*(each.astype(wide) for each in arrays))).astype(arrays[0].dtype)

    return apply


def _exact(op: str, expression: str, dtypes: tuple[DTypeLike, ...], numpy: Meaning) -> Case:
    return Case(op, expression, dtypes, numpy=_in_f32(numpy))


def _of_zeros(pick: Function, negative_first: bool) -> Meaning:
    """A minimum or maximum with -0 below +0, on which NumPy is silent."""

    def apply(x: Any, y: Any, z: Any) -> Any:
        zero = _where(np.signbit(x) == negative_first, x, y)
        return _where((x == 0) & (y == 0), zero, pick(x, y))

    return apply


def _integers(function: Callable[[int, int, int], int]) -> Meaning:
    """A meaning by Python's integers, which have no width; the result wraps."""

    def apply(x: Any, y: Any, z: Any) -> Any:
        bits = x.dtype.itemsize * 8
        low = -(1 << bits - 1) if x.dtype.kind == "i" else 0
        found = [(function(int(a), int(b), bits) - low) % (1 << bits) + low for a, b in zip(x, y, strict=True)]
        return np.array(found, x.dtype)

    return apply


def _truncated(a: int, b: int, bits: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _ceiled(a: int, b: int, bits: int) -> int:
    return -(-a // b) if b else 0


def _remainder(a: int, b: int, bits: int) -> int:
    return 0 if b == 0 else a - b * _truncated(a, b, bits)


def _clamped(x: Any, y: Any, z: Any) -> Any:
    return np.minimum(np.maximum(x, x.dtype.type(-1)), np.abs(y) + x.dtype.type(0.5))


def _flush(x: Any) -> Any:
    return _where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


INTEGER = (
    Case("add", "ct.addi(x, y)", INTS, _integers(lambda a, b, n: a + b)),
    Case("add", "ct.addi(x, y, ct.overflow.NONE) + 1", INTS, _integers(lambda a, b, n: a + b + 1)),
    Case("sub", "ct.subi(x, y)", INTS, _integers(lambda a, b, n: a - b)),
    Case("mul", "ct.muli(x, y)", INTS, _integers(lambda a, b, n: a * b)),
    Case("div_trunc", "ct.divi(x, y)", INTS, _integers(_truncated)),
    Case("floor_div", "x // y", INTS, _integers(lambda a, b, n: a // b if b else 0)),
    Case("floor_div", "ct.divi(x, y, ct.rounding.NEGATIVE_INF)", INTS, _integers(lambda a, b, n: a // b if b else 0)),
    Case(
        "div_ceil", "ct.divi(x, y, ct.rounding.POSITIVE_INF)", INTS, _integers(lambda a, b, n: -(-a // b) if b else 0)
    ),
    Case("div_ceil", "ct.ceil_div(x, y)", INTS, _integers(_ceiled)),
    Case("mod", "x % y", INTS, _integers(lambda a, b, n: a % b if b else 0)),
    Case("rem", "ct.remi(x, y)", INTS, _integers(_remainder)),
    Case("neg", "ct.negi(x)", INTS, _integers(lambda a, b, n: -a)),
    Case("abs", "ct.absi(x)", INTS, _integers(lambda a, b, n: abs(a))),
    Case("mul_hi", "ct.mulhii(x, y)", INTS, _integers(lambda a, b, n: a * b >> n)),
    Case("max", "ct.maxi(x, y)", INTS, _integers(lambda a, b, n: max(a, b))),
    Case("min", "ct.mini(x, y)", INTS, _integers(lambda a, b, n: min(a, b))),
    Case("and", "ct.andi(x, y)", INTS, _integers(lambda a, b, n: a & b)),
    Case("or", "ct.ori(x, y)", INTS, _integers(lambda a, b, n: a | b)),
    Case("xor", "ct.xori(x, y)", INTS, _integers(lambda a, b, n: a ^ b)),
    Case("not", "ct.noti(x)", INTS, _integers(lambda a, b, n: ~a)),
    Case("round", "round(x)", INTS, lambda x, y, z: x),
    Case("clamp", "ct.clamp(x, 3, y)", INTS, lambda x, y, z: np.minimum(np.maximum(x, x.dtype.type(3)), y)),
    Case("popcount", "ct.popcount(x)", INTS, _integers(lambda a, b, n: (a % (1 << n)).bit_count())),
    Case("shl", "ct.shli(x, y & 63)", INTS, _integers(lambda a, b, n: a << (b & 63))),
    Case("shr", "ct.shri(x, y & 63)", INTS, _integers(lambda a, b, n: a >> (b & 63))),
)

FUNCTIONS = (
    "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "cbrt",
)  # fmt: skip
"""Functions of one float by the names that they have here, and in NumPy or `tests/support/exact.py`."""


def _of_name(name: str) -> Meaning:
    function = getattr(np, name, None) or getattr(exact, name)
    return lambda x, y, z: function(x)


FLOAT = (
    _exact("add", "ct.addf(x, y)", FLOATS, lambda x, y, z: x + y),
    _exact("sub", "ct.subf(x, y)", FLOATS, lambda x, y, z: x - y),
    _exact("mul", "ct.mulf(x, y)", FLOATS, lambda x, y, z: x * y),
    _exact("div", "ct.divf(x, y)", FLOATS, lambda x, y, z: x / y),
    _exact("div", "ct.true_div(x, y)", (f16, bf16, f64), lambda x, y, z: x / y),
    _exact("rem", "ct.remf(x, y)", FLOATS, lambda x, y, z: np.fmod(x, y)),
    _exact("mod", "x % y", FLOATS, lambda x, y, z: np.mod(x, y)),
    _exact("floor_div", "x // y", FLOATS, lambda x, y, z: np.floor_divide(x, y)),
    _exact("neg", "ct.negf(x)", FLOATS, lambda x, y, z: np.negative(x)),
    _exact("abs", "ct.absf(x)", FLOATS, lambda x, y, z: np.abs(x)),
    _exact("max", "ct.max_tile(x, y)", FLOATS, _of_zeros(np.fmax, negative_first=False)),
    _exact("min", "ct.minf(x, y)", FLOATS, _of_zeros(np.fmin, negative_first=True)),
    _exact("max", "ct.maxf(x, y, nan=True)", FLOATS, _of_zeros(np.maximum, negative_first=False)),
    _exact("min", "ct.minf(x, y, ct.nan.ENABLED)", FLOATS, _of_zeros(np.minimum, negative_first=True)),
    _exact("floor", "ct.floor(x)", FLOATS, lambda x, y, z: np.floor(x)),
    _exact("ceil", "ct.ceil(x)", FLOATS, lambda x, y, z: np.ceil(x)),
    _exact("trunc", "ct.trunc(x)", FLOATS, lambda x, y, z: np.trunc(x)),
    _exact("round", "round(x)", FLOATS, lambda x, y, z: np.rint(x)),
    Case("sigmoid", "ct.sigmoid(x)", FLOATS, wide=lambda x, y, z: 1 / (1 + np.exp(-x))),
    _exact("isnan", "ct.select(ct.isnan(x), ct.constant(1, x.shape, x.dtype), 0)", FLOATS, lambda x, y, z: np.isnan(x)),
    _exact("isinf", "ct.select(ct.isinf(x), ct.constant(1, x.shape, x.dtype), 0)", FLOATS, lambda x, y, z: np.isinf(x)),
    _exact(
        "isfinite",
        "ct.select(ct.isfinite(x), ct.constant(1, x.shape, x.dtype), 0)",
        FLOATS,
        lambda x, y, z: np.isfinite(x),
    ),
    Case("clamp", "ct.clamp(x, -1.0, abs(y) + 0.5)", FLOATS, numpy=_in_f32(_clamped)),
    *(Case(name, f"ct.{name}(x)", FLOATS, wide=_of_name(name)) for name in FUNCTIONS),
    Case("rsqrt", "ct.rsqrt(x)", FLOATS, wide=lambda x, y, z: 1 / np.sqrt(x)),
    Case("pow", "ct.pow(x, y)", FLOATS, wide=lambda x, y, z: np.power(x, y)),
    Case("pow", "x ** 0.5", FLOATS, wide=lambda x, y, z: np.power(x, x.dtype.type(0.5))),
    Case("hypot", "ct.hypot(x, y)", FLOATS, wide=lambda x, y, z: np.hypot(x, y)),
    Case("logaddexp", "ct.logaddexp(x, y)", FLOATS, wide=lambda x, y, z: np.logaddexp(x, y), least=1.0),
    Case("lgamma", "ct.lgamma(abs(x))", FLOATS, wide=lambda x, y, z: exact.lgamma(np.abs(x))),
    Case("lgamma", "ct.lgamma(x)", FLOATS, wide=lambda x, y, z: exact.lgamma(x), least=1.0),
    _exact("copysign", "ct.copysign(x, y)", FLOATS, lambda x, y, z: np.copysign(x, y)),
    Case("nextafter", "ct.nextafter(x, y)", FLOATS, lambda x, y, z: _where(x == y, y, np.nextafter(x, y))),
    Case("atan2", "ct.atan2(x, y)", FLOATS, wide=lambda x, y, z: np.arctan2(x, y)),
    Case("fma", "ct.fma(x, y, z)", FLOATS, side="nearest_even", exact="fma"),
)


def _directed() -> tuple[Case, ...]:
    cases: list[Case] = []
    calls = {
        "add": "addf(x, y, {})", "sub": "subf(x, y, {})", "mul": "mulf(x, y, {})", "div": "divf(x, y, {})",
        "fma": "fma(x, y, z, {})", "sqrt": "sqrt(x, {})",
    }  # fmt: skip
    for name, call in calls.items():
        for side in ("positive_inf", "negative_inf", "zero"):
            mode = f"ct.rounding.{side.upper()}"
            cases.append(Case(f"rounded_{name}", "ct." + call.format(mode), (f32, f64), side=side, exact=name))
        flushed = "ct." + call.format("ftz=True")
        cases.append(Case(f"rounded_{name}", flushed, (f32,), side="nearest_even", exact=name, ftz=True))
    return tuple(cases)


ROUNDED = (
    *_directed(),
    Case("rounded_div", "ct.true_div(x, y)", (f32,), wide=lambda x, y, z: x / y, ftz=True, fast=True),
    Case("rounded_div", "ct.divf(x, y, ct.rounding.FULL)", (f32,), wide=lambda x, y, z: x / y, fast=True),
    Case("rounded_sqrt", "ct.sqrt(x, ct.rounding.APPROX)", (f32,), wide=lambda x, y, z: np.sqrt(x)),
    Case("rounded_tanh", "ct.tanh(x, ct.rounding.APPROX)", (f32,), wide=lambda x, y, z: np.tanh(x), bound=8192),
    Case("exp2", "ct.exp2(x, ftz=True)", (f32,), wide=lambda x, y, z: np.exp2(x), ftz=True),
    Case("rsqrt", "ct.rsqrt(x, ct.ftz.ENABLED)", (f32,), wide=lambda x, y, z: 1 / np.sqrt(x), ftz=True),
    Case("max", "ct.maxf(x, y, ftz=True)", (f32,),
         numpy=lambda x, y, z: _of_zeros(np.fmax, negative_first=False)(_flush(x), _flush(y), z)),
    Case("min", "ct.minf(x, y, nan=True, ftz=True)", (f32,),
         numpy=lambda x, y, z: _of_zeros(np.minimum, negative_first=True)(_flush(x), _flush(y), z)),
)  # fmt: skip


def _comparisons() -> tuple[Case, ...]:
    """As numbers: 1 where true, so that they are stored beside the others."""
    cases: list[Case] = []
    both = FLOATS + INTS
    functions: dict[str, tuple[str, Function, str, str]] = {
        "eq": ("==", np.equal, "EQUAL", "eq_tile"),
        "ne": ("!=", np.not_equal, "NOT_EQUAL", "ne_tile"),
        "lt": ("<", np.less, "LESS_THAN", "lt_tile"),
        "le": ("<=", np.less_equal, "LESS_THAN_OR_EQUAL", "le_tile"),
        "gt": (">", np.greater, "GREATER_THAN", "gt_tile"),
        "ge": (">=", np.greater_equal, "GREATER_THAN_OR_EQUAL", "ge_tile"),
    }
    for name, (operator, function, predicate, ordered_name) in functions.items():
        flag = "ct.select({}, ct.constant(1, x.shape, x.dtype), 0)"

        def plain(x: Any, y: Any, z: Any, f: Function = function) -> Any:
            return f(x, y).astype(x.dtype)

        def ordered(x: Any, y: Any, z: Any, f: Function = function) -> Any:
            return (f(x, y) & (x == x) & (y == y)).astype(x.dtype)

        def unordered(x: Any, y: Any, z: Any, f: Function = function) -> Any:
            return (f(x, y) | (x != x) | (y != y)).astype(x.dtype)

        marker = f"ct.predicate.{predicate}"
        cases += [
            Case(name, flag.format(f"x {operator} y"), both, plain),
            Case(name, flag.format(f"ct.{ordered_name}(x, y)"), (*FLOATS, i32, u8), ordered),
            Case(name, flag.format(f"ct.cmpi(x, y, {marker})"), (i64, u16), plain),
            Case(name, flag.format(f"ct.cmpf(x, y, {marker})"), FLOATS, ordered),
            Case(name, flag.format(f"ct.cmpf(x, y, {marker}, ct.cmp_ordering.UNORDERED)"), FLOATS, unordered),
        ]
    cases.append(Case("select", "ct.select(x < y, x, z)", both, lambda x, y, z: _where(x < y, x, z)))
    return tuple(cases)


CASES = (*INTEGER, *FLOAT, *ROUNDED, *_comparisons())
