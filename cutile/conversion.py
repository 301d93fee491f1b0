"""Conversions between element types, on NumPy arrays.

Every backend gives the same results, bit by bit.

To a float: the value is rounded once, by default to nearest even. Out of range, f16, bf16, tf32, f32 and f64 give
infinity, or their largest number if the rounding goes towards zero. The 8- and 4-bit floats saturate, also for
infinities. NaN stays NaN if the type has one.
To an integer: a float is truncated and saturated, and NaN gives 0; an integer or a bool wraps to the low bits.
To bool: false for 0, true for anything else, NaN included.

This module is a leaf, so that constants, launch arguments and host arrays convert as kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from cutile.dtypes import DTypeLike, FloatFormat, bf16, f4e2m1fn, f4e2m1fnx2, f16, f32, f64, i32, i64, tf32, u64
from cutile.errors import as_text

Array = np.ndarray[Any, np.dtype[Any]]

NEAREST_EVEN: Final = "nearest_even"
POSITIVE_INF: Final = "positive_inf"
NEGATIVE_INF: Final = "negative_inf"
ZERO: Final = "zero"

ROUNDINGS: Final[dict[str, Callable[[Array], Array]]] = {
    NEAREST_EVEN: np.rint,
    POSITIVE_INF: np.ceil,
    NEGATIVE_INF: np.floor,
    ZERO: np.trunc,
}
"""Roundings to whole numbers, by their words in the IR."""

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

MEANING: Final[dict[DTypeLike, int]] = {tf32: 0xFFFFE000, f4e2m1fn: 0x0F}
"""The mask of the bits that have a meaning, for types in which not all have one."""


def is_float(dtype: DTypeLike) -> bool:
    """Whether the elements are floats, computed with or only stored."""
    return dtype.format is not None


def bits(x: Any, source: DTypeLike) -> Array:
    """The bits of elements as unsigned integers; bits without a meaning are 0."""
    array = np.asarray(x)
    carrier = np.dtype(_UNSIGNED[source.bits // 8])
    # `reshape`: `ascontiguousarray` makes an array of one axis of a scalar.
    raw = np.ascontiguousarray(array).reshape(array.shape).view(carrier)
    return raw & carrier.type(MEANING[source]) if source in MEANING else raw


def exact(x: Any, source: DTypeLike) -> Array:
    """The numbers in a type that holds each exactly.

    The type is float64, or long double for integers of 64 bits.
    """
    array = np.asarray(x)
    if source in MEANING:
        array = bits(array, source).view(source.numpy)
    wide = np.longdouble if source.is_integer and source.bits == 64 else np.float64
    with np.errstate(invalid="ignore"):  # a signalling NaN raises the flag
        return array.astype(wide)


def _beyond(x: Array, format: FloatFormat, rounding: str) -> Array:
    """The signed results for numbers beyond the largest: infinity, or the largest."""
    if format.saturates or rounding == ZERO:
        return np.copysign(format.largest, x)
    if rounding == NEAREST_EVEN:
        return np.copysign(np.inf, x)
    away = x > 0 if rounding == POSITIVE_INF else x < 0
    return np.where(away, np.copysign(np.inf, x), np.copysign(format.largest, x))


def round_to(x: Array, target: DTypeLike, rounding: str = NEAREST_EVEN) -> Array:
    """Numbers of float64 or long double as a float type's elements, each rounded once."""
    format = target.format
    assert format is not None
    if rounding == NEAREST_EVEN and x.dtype == np.float64:
        if target in (f16, f32, f64):
            return x.astype(target.numpy)
        if target is bf16:
            return _to_bf16(x)
    nan = np.isnan(x)
    finite = np.where(np.isfinite(x), x, 0)
    _, exponent = np.frexp(finite)
    quantum_exponent = np.maximum(exponent - 1, format.least_exponent) - format.mantissa
    # In units of the last bit, rounding makes whole numbers. Both scalings, by powers of two, are exact.
    whole = ROUNDINGS[rounding](np.ldexp(finite, -quantum_exponent))
    rounded = np.copysign(np.ldexp(whole, quantum_exponent), x)
    if format.positive:
        rounded = np.maximum(rounded, 2.0**format.least_exponent)
        nan = nan | (x < 0)
    over = (np.abs(rounded) > format.largest) & np.isfinite(x)
    rounded = np.where(over, _beyond(x, format, rounding), rounded)
    rounded = np.where(np.isinf(x), np.copysign(format.largest, x) if format.saturates else x, rounded)
    result = np.asarray(np.where(nan, 1, rounded)).astype(target.numpy)
    if format.nan is None:
        return np.where(nan, np.asarray(format.largest).astype(target.numpy), result)  # pyright: ignore[reportUnknownVariableType]
    bits = result.view(_UNSIGNED[target.bits // 8])
    return np.where(nan, bits.dtype.type(format.nan), bits).view(target.numpy)


def _to_bf16(x: Array) -> Array:
    """Numbers of float64 as bf16, each rounded once to nearest even.

    It takes a twentieth of the time of `round_to`'s general way. ml_dtypes rounds float32 to bf16. Before that, the
    numbers are rounded to odd float32: towards zero, and the last bit becomes 1 if that lost something. A float32 has
    16 bits more than a bf16, so that a number just off the midpoint of two bf16 stays off it.
    """
    near = np.asarray(x.astype(np.float32))
    raw = near.view(np.uint32)
    raw -= np.abs(near) > np.abs(x)  # the float32 next to it, towards zero
    raw |= raw.view(np.float32) != x
    rounded = raw.view(np.float32).astype(bf16.numpy)
    assert bf16.format is not None
    return np.where(np.isnan(x), np.uint16(bf16.format.nan or 0), rounded.view(np.uint16)).view(bf16.numpy)


def _to_int(x: Array, target: DTypeLike, rounding: str) -> Array:
    info = np.iinfo(target.numpy)
    whole = ROUNDINGS[rounding](np.where(np.isnan(x), 0, x))
    low, high = whole <= float(info.min), whole >= float(info.max)  # 2**63 - 1 rounds up to 2**63: still right with >=
    inside = np.where(low | high, 0, whole).astype(target.numpy)
    return np.where(high, target.numpy.type(info.max), np.where(low, target.numpy.type(info.min), inside))


def convert(x: Any, source: DTypeLike, target: DTypeLike, rounding: str | None = None) -> Array:
    """Elements of one type as another.

    Args:
        x: an array of `source.numpy`.
        rounding: of `ROUNDINGS`; None is truncation to integers and nearest even to floats.

    Example:
        >>> from cutile.dtypes import f32, f8e4m3fn, i8
        >>> [float(each) for each in convert(np.float32([0.3, 1000, -1000]), f32, f8e4m3fn)]
        [0.3125, 448.0, -448.0]
        >>> convert(np.float32([2.9, 300, float("nan")]), f32, i8)
        array([  2, 127,   0], dtype=int8)
    """
    array = np.asarray(x)
    if f4e2m1fnx2 in (source, target) and source is not target:
        raise TypeError("f4e2m1fnx2 holds pairs: pack and unpack convert them, not convert")
    if source is target:
        return array
    with np.errstate(all="ignore"):
        if target.is_bool:
            return exact(array, source) != 0
        if target in (f32, f64) and source.is_integer and (rounding or NEAREST_EVEN) == NEAREST_EVEN:
            return array.astype(target.numpy)  # rounded once, to nearest even, by the processor
        if is_float(target):
            return round_to(exact(array, source), target, rounding or NEAREST_EVEN)
        if is_float(source):
            return _to_int(exact(array, source), target, rounding or ZERO)
        return array.astype(target.numpy)


def holds(target: DTypeLike, source: DTypeLike) -> bool:
    """Whether `target` has every number of `source`, so that conversions lose nothing.

    False for every target that saturates, even if `source` has no infinities that it would lose.

    Example:
        >>> from cutile.dtypes import bf16, f16, f32, i16
        >>> holds(f32, bf16), holds(f32, i16), holds(f16, bf16)
        (True, True, False)
    """
    to, of = target.format, source.format
    if to is not None and of is not None:
        reaches_smallest = (
            to.least_exponent - to.mantissa <= of.least_exponent - of.mantissa
        )  # the smallest denormal number
        return reaches_smallest and to.mantissa >= of.mantissa and to.largest >= of.largest and not to.saturates
    if of is not None or f4e2m1fnx2 in (source, target):
        return source is target
    digits = source.bits - (source.is_signed) if not source.is_bool else 1
    if to is not None:
        return digits <= to.mantissa + 1 and not to.saturates
    room = target.bits - (target.is_signed) if not target.is_bool else 1
    return digits <= room and not (source.is_signed and target.kind == "uint")


def element(value: Any, dtype: DTypeLike) -> Array:
    """A Python number as an element: an array without axes."""
    if dtype is f4e2m1fnx2:
        return np.asarray(value).astype(np.uint8)
    if not is_float(dtype):
        return np.asarray(value).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        return round_to(np.asarray(value, np.float64), dtype)


def fits(value: float, dtype: DTypeLike) -> bool:
    """Whether a number stays finite as an element of a float dtype.

    True for dtypes that saturate, and for other kinds.
    """
    if dtype.kind not in ("float", "storage"):
        return True
    try:
        exact = float(value)
    except OverflowError:  # of an integer of more than 1024 bits
        return False
    if not dtype.computes or not math.isfinite(exact) or abs(exact) <= dtype.max:
        return True
    return bool(np.isfinite(element(exact, dtype)))  # a number just above the largest one is rounded to it


def wider(value: float, element: DTypeLike | None = None) -> DTypeLike | None:
    """The narrowest dtype for a number and all numbers of `element`, to recommend.

    A float of 32 or 64 bits if `element` is a float, else an integer of 32 bits or more; None if there is none.

    Example:
        >>> from cutile.dtypes import f16, u8, u32
        >>> wider(300, u8), wider(-1, u32), wider(70000.0, f16), wider(1e39, f16), wider(2**64, u8)
        (i32, i64, f32, f64, None)
    """
    if element is not None and element.is_float:
        return next((each for each in (f32, f64) if holds(each, element) and fits(value, each)), None)
    wholes = (each for each in (i32, i64, u64) if element is None or holds(each, element))
    return next((each for each in wholes if each.min <= value <= each.max), None)


def short(value: float) -> str:
    """A number as text, without the hundreds of digits that an integer may have."""
    text = as_text(value)
    return text if len(text) <= 24 or text.startswith("<") else f"{text[:8]}... ({len(text)} digits)"


def bits_of(value: Any, dtype: DTypeLike) -> int:
    """The bits of a number as an element."""
    return int(bits(element(value, dtype), dtype))
