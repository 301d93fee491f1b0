"""Conversions of floats to and from few bits by integer arithmetic, as LLVM IR.

They are for machines without an instruction for the conversion. For one element they give the result that
`cutile.conversion` defines. They use nothing but an LLVM builder, so they work with every dialect of LLVM IR.

A number on its way to few bits is first an f32, exact or rounded to odd: if it is inexact, its last bit is 1. The
rounding to few bits that follows is then correct, in every direction.
"""

import importlib
from typing import Any, Final

from cutile.conversion import NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import DTypeLike, FloatFormat

ir: Any = importlib.import_module("llvmlite.ir")

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()

_MANTISSA: Final = 23
"""Bits of an f32's mantissa."""
_BIAS: Final = 127
"""Of an f32's exponent."""
_INFINITY: Final = 0x7F800000
_NAN: Final = 0x7FC00000
_SIGN: Final = 0x80000000
_FRACTION: Final = (1 << _MANTISSA) - 1
"""Bits of an f32: infinity, a quiet NaN, the sign, the mantissa."""


def _c(value: int) -> Any:
    return ir.Constant(_I32, value)


def to_odd(b: Any, x: Any) -> Any:
    """An f64 as an f32 rounded to odd."""
    near = b.fptrunc(x, _F32)
    mask = ir.Constant(_I64, (1 << 63) - 1)  # all bits but the sign: magnitudes compare as their bits do
    back = b.bitcast(b.fpext(near, _F64), _I64)
    exact = b.bitcast(x, _I64)
    bits = b.bitcast(near, _I32)
    beyond = b.icmp_unsigned(">", b.and_(back, mask), b.and_(exact, mask))
    # Where the nearest f32 is larger than x, one less is x rounded toward zero. An inexact one gets its last bit set.
    odd = b.or_(b.select(beyond, b.sub(bits, _c(1)), bits), _c(1))
    return b.bitcast(b.select(b.icmp_unsigned("!=", back, exact), odd, bits), _F32)


def whole_to_odd(b: Any, x: Any, signed: bool) -> Any:
    """An i64 or u64 as an f64 rounded to odd.

    An f64 has 53 bits. The last of them is a sticky bit: it is set if any lower bit is.
    """
    zero = ir.Constant(_I64, 0)
    negative = b.icmp_signed("<", x, zero)
    size = b.select(negative, b.sub(zero, x), x) if signed else x
    low = ir.Constant(_I64, 0x7FF)  # 11 bits: 64 less the 53 of an f64
    lost = b.zext(b.icmp_unsigned("!=", b.and_(size, low), zero), _I64)
    sticky = b.or_(b.and_(size, ir.Constant(_I64, -0x800)), b.shl(lost, ir.Constant(_I64, 11)))
    large = b.icmp_unsigned("!=", b.lshr(size, ir.Constant(_I64, 53)), zero)
    number = b.uitofp(b.select(large, sticky, size), _F64)
    if not signed:
        return number
    sign = b.select(negative, ir.Constant(_I64, -(1 << 63)), zero)
    return b.bitcast(b.or_(b.bitcast(number, _I64), sign), _F64)


def decode(b: Any, dtype: DTypeLike, bits: Any) -> Any:
    """The f32 that has the value of an element of a storage dtype, given by its bits."""
    format = dtype.format
    assert format is not None
    if format.unused:  # tf32: an f32 whose lowest bits are unused
        return b.bitcast(b.and_(bits, _c(-(1 << format.unused))), _F32)
    wide = b.zext(bits, _I32)
    if format.positive:
        return _decode_power(b, wide, format)
    width = format.exponent + format.mantissa
    sign = b.shl(b.and_(wide, _c(1 << width)), _c(31 - width))
    size = b.and_(wide, _c((1 << width) - 1))
    # Moved to the exponent and mantissa of an f16, the bits are the number but for the exponent's bias, subnormals
    # included. The multiplication by a power of two changes the bias.
    half = b.bitcast(b.trunc(b.shl(size, _c(10 - format.mantissa)), _I16), _F16)
    number = b.fmul(b.fpext(half, _F32), ir.Constant(_F32, 2.0 ** (15 - format.bias)))
    value = b.or_(b.bitcast(number, _I32), sign)
    if format.nan is not None and format.exponent < 5:  # with 5 bits, NaN and infinity are those of an f16
        is_nan = b.icmp_unsigned("==", size, _c(format.nan))
        value = b.select(is_nan, _c(_NAN), value)
    return b.bitcast(value, _F32)


def _decode_power(b: Any, wide: Any, format: FloatFormat) -> Any:
    """The power of two with an exponent in f32's bias."""
    power = b.shl(wide, _c(_MANTISSA))
    # The exponent 0 is 2**-127, which is subnormal in f32: the highest bit of the mantissa.
    power = b.select(b.icmp_unsigned("==", wide, _c(0)), _c(1 << (_MANTISSA - 1)), power)
    assert format.nan is not None
    return b.bitcast(b.select(b.icmp_unsigned("==", wide, _c(format.nan)), _c(_NAN), power), _F32)


def _carry(b: Any, rounding: str, sign: Any, upper: Any, rest: Any, half: Any) -> Any:
    """1 where a magnitude is rounded up, else 0.

    Args:
        b: the builder.
        rounding: the direction, as in `cutile.conversion`.
        sign: 0 for a positive number.
        upper: the bits that stay.
        rest: the bits that are cut off.
        half: the `rest` of a tie.
    """
    if rounding == ZERO:
        return _c(0)
    if rounding == NEAREST_EVEN:
        odd = b.and_(upper, _c(1))
        tie = b.icmp_unsigned("==", rest, half)
        return b.select(tie, odd, b.zext(b.icmp_unsigned(">", rest, half), _I32))
    away = b.icmp_unsigned("==" if rounding == POSITIVE_INF else "!=", sign, _c(0))
    inexact = b.icmp_unsigned("!=", rest, _c(0))
    return b.zext(b.and_(away, inexact), _I32)


def _encode_power(b: Any, format: FloatFormat, bits: Any, rounding: str) -> Any:
    """A power of two: the exponent, one more where the mantissa is rounded up."""
    size, sign = b.and_(bits, _c(_INFINITY | _FRACTION)), b.and_(bits, _c(-_SIGN))
    exponent, mantissa = b.lshr(size, _c(_MANTISSA)), b.and_(size, _c(_FRACTION))
    normal = b.icmp_unsigned("!=", exponent, _c(0))
    # A normal number goes up from the middle on (a tie goes up). Rounding upward, it goes up unless it is a power.
    normal_up = b.icmp_unsigned(">=", mantissa, _c(0x400000 if rounding == NEAREST_EVEN else 1))
    # A subnormal number of f32 is below 2**-126. The smallest power, 2**-127, is there the highest bit of the mantissa,
    # 0x400000. So 0x600000 is the middle between the two powers.
    subnormal_up = b.icmp_unsigned(">=", mantissa, _c(0x600000 if rounding == NEAREST_EVEN else 0x400001))
    up = b.select(normal, normal_up, subnormal_up)
    upward = rounding in (NEAREST_EVEN, POSITIVE_INF)
    code = b.add(exponent, b.zext(up, _I32)) if upward else exponent
    top = (1 << format.exponent) - 2  # the exponent above it is NaN
    code = b.select(b.icmp_unsigned(">", code, _c(top)), _c(top), code)
    is_nan = b.icmp_unsigned(">", size, _c(_INFINITY))
    negative = b.and_(b.icmp_unsigned("!=", sign, _c(0)), b.icmp_unsigned("!=", size, _c(0)))  # but -0 is 0
    assert format.nan is not None
    return b.select(b.or_(is_nan, negative), _c(format.nan), code)


def encode(b: Any, dtype: DTypeLike, x: Any, rounding: str = NEAREST_EVEN) -> Any:
    """The bits of the float of `dtype` that an f32 is rounded to, as an integer.

    `x` is exact, or rounded to odd.
    """
    format = dtype.format
    assert format is not None
    result = ir.IntType(dtype.bits)
    bits = b.bitcast(x, _I32)
    if format.positive:
        return b.trunc(_encode_power(b, format, bits, rounding), result)
    size, sign = b.and_(bits, _c(_INFINITY | _FRACTION)), b.and_(bits, _c(-_SIGN))
    cut = _MANTISSA - format.mantissa
    if format.exponent == 8:  # the exponents of f32, so the upper bits of the f32, rounded
        upper, rest = b.lshr(size, _c(cut)), b.and_(size, _c((1 << cut) - 1))
        code = b.add(upper, _carry(b, rounding, sign, upper, rest, _c(1 << (cut - 1))))
    else:
        code = _encode_short(b, format, size, sign, rounding)
    width = format.exponent + format.mantissa
    sign = b.lshr(sign, _c(31 - width - format.unused))
    code = b.or_(b.shl(code, _c(format.unused)) if format.unused else code, sign)
    is_nan = b.icmp_unsigned(">", size, _c(_INFINITY))
    nan = _code(format.largest, format) if format.nan is None else format.nan
    code = b.select(is_nan, _c(nan), code)
    return code if dtype.bits == 32 else b.trunc(code, result)


def _code(number: float, format: FloatFormat) -> int:
    """The bits of a positive normal number that the format holds."""
    # Such as "0x1.8p+3": the hexadecimal digits of the fraction, and the exponent.
    mantissa, exponent = float(number).hex().removeprefix("0x1.").split("p")
    fraction = int(mantissa, 16) << 52 - 4 * len(mantissa)
    return (int(exponent) + format.bias) << format.mantissa | fraction >> 52 - format.mantissa


def _encode_short(b: Any, format: FloatFormat, size: Any, sign: Any, rounding: str) -> Any:
    """The bits of a magnitude in a format with fewer exponents than f32.

    The magnitude may be subnormal there, or too large.
    """
    least = format.least_exponent + _BIAS
    exponent = b.lshr(size, _c(_MANTISSA))
    leading = b.select(b.icmp_unsigned("==", exponent, _c(0)), _c(0), _c(1 << _MANTISSA))
    mantissa = b.or_(b.and_(size, _c(_FRACTION)), leading)
    small = b.icmp_unsigned("<", exponent, _c(least))
    missing = b.select(small, b.sub(_c(least), exponent), _c(0))
    shift = b.add(_c(_MANTISSA - format.mantissa), missing)
    shift = b.select(b.icmp_unsigned(">", shift, _c(31)), _c(31), shift)  # a shift by 32 or more is poison in LLVM
    upper = b.lshr(mantissa, shift)
    rest = b.sub(mantissa, b.shl(upper, shift))
    half = b.shl(_c(1), b.sub(shift, _c(1)))
    above = b.select(small, _c(0), b.sub(exponent, _c(least)))
    code = b.add(b.add(b.shl(above, _c(format.mantissa)), upper), _carry(b, rounding, sign, upper, rest, half))
    largest = _code(format.largest, format)
    over = b.icmp_unsigned(">", code, _c(largest))
    if format.saturates:
        return b.select(over, _c(largest), code)
    return b.select(over, _beyond(b, format, size, sign, rounding, largest), code)


def _beyond(b: Any, format: FloatFormat, size: Any, sign: Any, rounding: str, largest: int) -> Any:
    """The bits of a magnitude that is too large: infinity or the largest number."""
    infinity = _c(((1 << format.exponent) - 1) << format.mantissa)
    if rounding == NEAREST_EVEN:
        return infinity
    away: Any = b.icmp_unsigned("==", size, _c(_INFINITY))  # infinity stays infinity
    if rounding in (POSITIVE_INF, NEGATIVE_INF):
        side = b.icmp_unsigned("==" if rounding == POSITIVE_INF else "!=", sign, _c(0))
        away = b.or_(away, side)
    return b.select(away, infinity, _c(largest))
