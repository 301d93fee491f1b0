"""Special values of a dtype, and how a result is judged against what it should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from cutile.dtypes import DTypeLike

Array = np.ndarray[Any, Any]
_info: Any = ml_dtypes.finfo


def specials(dtype: DTypeLike) -> Array:
    """Zeros, ones, extremes; for floats also infinities, NaN, subnormals and neighbours of powers of two."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.kind != "float":
        info: Any = np.iinfo(dtype.numpy)
        half = 1 << (dtype.bits // 2)
        near = [0, 1, 2, 3, 5, 7, 100, half - 1, half, half + 1, info.max // 3, info.max - 1, info.max]
        near += [-1, -2, -3, -5, -7, -100, -half, info.min // 3, info.min + 1, info.min] if info.min else []
        return np.array([each for each in near if info.min <= each <= info.max], dtype.numpy)
    info = _info(dtype.numpy)
    tiny, small, eps, top = (float(each) for each in (info.tiny, info.smallest_subnormal, info.eps, info.max))
    near = [0.0, 1.0, 1.0 + eps, 0.5, 1.5, 2.0, 3.0, 10.0, 0.1, 100.25, tiny, small, 3 * small, tiny - small, top]
    near += [top / 2, math.inf, 0.7853981633974483, 3.141592653589793]
    return np.array([*near, *(-each for each in near), math.nan]).astype(dtype.numpy)


def operands(dtype: DTypeLike, count: int, seed: int = 3) -> tuple[Array, Array, Array]:
    """Three arrays: every pair of special values in the first two, then random ones of all sizes."""
    rng = np.random.default_rng(seed)
    special = specials(dtype)
    pairs = len(special) ** 2
    rest = count - pairs
    assert rest >= 0, f"{dtype}: {pairs} pairs of special values"
    x = np.concatenate([np.repeat(special, len(special)), _random(dtype, rest, rng)])
    y = np.concatenate([np.tile(special, len(special)), _random(dtype, rest, rng)])
    return x, y, rng.permutation(np.concatenate([x[: count // 2], _random(dtype, count - count // 2, rng)]))


def _random(dtype: DTypeLike, count: int, rng: np.random.Generator) -> Array:
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    bits: Any = rng.integers(0, 1 << dtype.bits, count, np.uint64) if dtype.bits < 64 else rng.bytes(8 * count)
    if dtype.kind != "float":
        return np.frombuffer(bits, np.uint64).astype(dtype.numpy) if dtype.bits == 64 else bits.astype(dtype.numpy)
    anything = np.frombuffer(bits if dtype.bits == 64 else bits.astype(f"u{dtype.bits // 8}").tobytes(), dtype.numpy)
    ordinary = (rng.standard_normal(count) * 4).astype(dtype.numpy)
    chosen: Any = np.where(rng.random(count) < 0.3, anything, ordinary)
    return chosen.astype(dtype.numpy)


def differences(got: Array, expected: Array) -> Array:
    """Where two arrays are not the same: NaN is NaN, and zeros have signs."""
    same = got == expected
    if got.dtype.kind not in "iub":
        same = (same & (np.signbit(got) == np.signbit(expected))) | (np.isnan(got) & np.isnan(expected))
    return ~same


def ulps_from(got: Array, exact: Array, least: float = 0.0) -> Array:
    """The distance from an exact result in long double, in units in the last place of `got`'s dtype.

    They are units of `least` where the result is smaller.

    Infinite where a NaN, an infinity or the sign of a zero is wrong. Beyond the largest number, the next one counts as
    infinity's value, as rounding has it.
    """
    info = _info(got.dtype)
    rounded = exact.astype(np.float64).astype(got.dtype) if got.dtype.itemsize < 8 else exact.astype(got.dtype)
    limit = np.longdouble(float(info.max)) * (1 + np.longdouble(float(info.eps)) / 2)
    wide = got.astype(np.float64).astype(np.longdouble)
    beyond = np.isinf(wide) & (np.sign(wide) == np.sign(exact)) & (np.abs(exact) >= limit)
    over: Any = np.where(beyond, exact, np.where(np.isinf(wide), np.copysign(limit, wide), wide))
    magnitude = np.maximum(np.abs(exact), np.longdouble(max(float(info.tiny), least)))
    exponent = np.frexp(magnitude)[1] - 1
    unit = np.ldexp(np.longdouble(float(info.eps)), np.clip(exponent, -16400, 16300))
    error = np.abs(over - exact) / unit
    nan = np.isnan(got) | np.isnan(exact)
    error = np.where(nan, np.where(np.isnan(got) & np.isnan(exact), 0, np.inf), error)
    infinite = np.isinf(exact)
    error = np.where(infinite, np.where(wide == exact, 0, np.inf), error)
    zero = (exact == 0) & ~nan
    error = np.where(zero, np.where((got == 0) & (np.signbit(got) == np.signbit(rounded)), 0, np.inf), error)
    return np.asarray(error)


Sign = Callable[[Fraction], int]
"""The sign of an exact result less a number."""


def exact_sign(name: str, *operands: float) -> Sign | None:
    """How an operation's exact result compares with numbers; None where it is none: not finite, or no number."""
    if not all(map(math.isfinite, operands)):
        return None
    x, y, z = (*map(Fraction, operands), Fraction(0), Fraction(0))[:3]
    if name == "sqrt":
        return (lambda v: _sign(x - v * v if v >= 0 else Fraction(1))) if x >= 0 else None
    if name == "div" and not y:
        return None
    exact = {"add": x + y, "sub": x - y, "mul": x * y, "fma": x * y + z}.get(name, x / (y or 1))
    return lambda v: _sign(exact - v)


def _sign(x: Fraction) -> int:
    return (x > 0) - (x < 0)


def zero_is_negative(name: str, side: str, *given: float) -> bool:
    """The sign of an exact zero: of a sum of unlike zeros, or of numbers that cancel, by the side."""
    signs = [math.copysign(1, each) < 0 for each in given]
    if name in ("mul", "div"):
        return signs[0] != signs[1]
    if name == "sqrt":
        return signs[0]
    left, right = (signs[0] != signs[1], signs[2]) if name == "fma" else (signs[0], signs[1] != (name == "sub"))
    return left if left == right else side == "negative_inf"


def is_rounded(value: Any, sign: Sign, side: str) -> bool:
    """Whether a float is what rounding an exact result, which is not 0, to a side gives."""
    kind: Any = value.dtype.type
    info = _info(kind)
    infinity = kind(math.inf)
    number, top = float(value), float(info.max)
    up, down = float(np.nextafter(value, infinity)), float(np.nextafter(value, -infinity))
    if number == 0 and (math.copysign(1, number) < 0) != (sign(Fraction(0)) < 0):
        return False
    if side == "zero":
        side = "negative_inf" if sign(Fraction(0)) > 0 else "positive_inf"
    if side == "negative_inf":
        return sign(Fraction(-top)) < 0 if number == -math.inf else number < math.inf and _between(sign, number, up)
    if side == "positive_inf":
        return (
            sign(Fraction(top)) > 0 if number == math.inf else number > -math.inf and _between(sign, down, number, -1)
        )
    step = Fraction(top) * 2 - Fraction(float(np.nextafter(kind(top), kind(0)))) * 2  # two units at the top
    held = Fraction(number) if math.isfinite(number) else _sign_of(number) * (Fraction(top) + step / 2)
    over = Fraction(up) if math.isfinite(up) else held + step / 2
    under = Fraction(down) if math.isfinite(down) else held - step / 2
    high, low = sign((held + over) / 2), sign((held + under) / 2)
    even = math.isinf(number) or int(value.view(f"u{value.itemsize}")) & 1 == 0
    beyond = math.isinf(number)
    return (high < 0 or (high == 0 and even) or (beyond and number > 0)) and (
        low > 0 or (low == 0 and even) or (beyond and number < 0)
    )


def _sign_of(number: float) -> int:
    return 1 if number > 0 else -1


def _between(sign: Sign, low: float, high: float, closed: int = 1) -> bool:
    """Whether the exact result lies between two neighbours, the bound that is itself one of them included."""
    above_low = math.isinf(low) or sign(Fraction(low)) > 0 or (closed > 0 and sign(Fraction(low)) == 0)
    below_high = math.isinf(high) or sign(Fraction(high)) < 0 or (closed < 0 and sign(Fraction(high)) == 0)
    return above_low and below_high
