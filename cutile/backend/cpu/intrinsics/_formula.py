"""`Num`: an LLVM float value with operators, so that a polynomial reads like one.

Formulas have no branches, so that loops over them vectorise. Sine and cosine of an f32 of any size are here, too.

Sine and cosine need the argument's position in its quadrant: `x * 2 / pi` without its multiples of 4. Which bits of
2/pi matter for that depends on the exponent of `x` (Payne and Hanek's reduction). A window of 96 bits is cut out of
2/pi, and multiplied with the mantissa in integers, where multiples of 4 overflow and vanish. The rest is computed in
f64 and rounded once. An f64 would need windows of 192 bits: it goes to the C library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutile.backend.cpu.intrinsics._seam import ir, llvm

# By LLVM's type: bits, bits of the mantissa, bias of the exponent.
INT = {"float": 32, "double": 64}
MANTISSA = {"float": 23, "double": 52}
BIAS = {"float": 127, "double": 1023}


class Num:
    """A float or the integer of its bits, and the builder that operators append to."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def kind(self) -> str:
        """`"float"`, `"double"`, `"i32"` or `"i64"`."""
        return str(self.value.type)

    def of(self, value: Any) -> Num:
        """The same builder, another value."""
        return Num(self.builder, value)

    def constant(self, number: float) -> Num:
        """A constant of this type."""
        return self.of(ir.Constant(self.value.type, number))

    def _other(self, other: Num | float) -> Any:
        return other.value if isinstance(other, Num) else self.constant(other).value

    @property
    def _is_float(self) -> bool:
        return self.kind in INT

    def __add__(self, other: Num | float) -> Num:
        method = self.builder.fadd if self._is_float else self.builder.add
        return self.of(method(self.value, self._other(other)))

    def __sub__(self, other: Num | float) -> Num:
        method = self.builder.fsub if self._is_float else self.builder.sub
        return self.of(method(self.value, self._other(other)))

    def __mul__(self, other: Num | float) -> Num:
        method = self.builder.fmul if self._is_float else self.builder.mul
        return self.of(method(self.value, self._other(other)))

    def __truediv__(self, other: Num | float) -> Num:
        return self.of(self.builder.fdiv(self.value, self._other(other)))

    def __rshift__(self, count: int) -> Num:
        return self.of(self.builder.ashr(self.value, ir.Constant(self.value.type, count)))

    def __lshift__(self, count: int) -> Num:
        return self.of(self.builder.shl(self.value, ir.Constant(self.value.type, count)))

    def shifted_left(self, count: Num) -> Num:
        """The bits moved up by a count below the width."""
        return self.of(self.builder.shl(self.value, count.value))

    def shifted_right(self, count: int) -> Num:
        """The bits moved down, zeros coming in."""
        return self.of(self.builder.lshr(self.value, ir.Constant(self.value.type, count)))

    def __and__(self, other: Num | int) -> Num:
        return self.of(self.builder.and_(self.value, self._other(other)))

    def __or__(self, other: Num | int) -> Num:
        return self.of(self.builder.or_(self.value, self._other(other)))

    def __xor__(self, other: Num | int) -> Num:
        return self.of(self.builder.xor(self.value, self._other(other)))

    def compare(self, operator: str, other: Num | float) -> Any:
        """A bit: the comparison's result; false where either is NaN, for `!=` too."""
        method = self.builder.fcmp_ordered if self._is_float else self.builder.icmp_signed
        return method(operator, self.value, self._other(other))

    def is_nan(self) -> Any:
        """A bit: whether it is NaN."""
        return self.builder.fcmp_unordered("uno", self.value, self.value)

    def where(self, bit: Any, other: Num | float) -> Num:
        """`other` where `bit`, else self."""
        return self.of(self.builder.select(bit, self._other(other), self.value))

    def fma(self, factor: Num | float, addend: Num | float) -> Num:
        """`self * factor + addend`, rounded once where the machine has the instruction."""
        return self.of(llvm(self.builder, "fmuladd", self.value, self._other(factor), self._other(addend)))

    def call(self, name: str) -> Num:
        """An LLVM intrinsic of one argument."""
        return self.of(llvm(self.builder, name, self.value))

    def bits(self) -> Num:
        """The integer with the same bits."""
        return self.of(self.builder.bitcast(self.value, ir.IntType(INT[self.kind])))

    def as_float(self) -> Num:
        """The float with the same bits."""
        kind = ir.FloatType() if self.kind == "i32" else ir.DoubleType()
        return self.of(self.builder.bitcast(self.value, kind))

    def to_float(self) -> Num:
        """The float with the same value."""
        kind = ir.FloatType() if self.kind == "i32" else ir.DoubleType()
        return self.of(self.builder.sitofp(self.value, kind))


def polynomial(x: Num, coefficients: Sequence[float]) -> Num:
    """Horner's scheme; the constant term first."""
    total = x.constant(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total.fma(x, coefficient)
    return total


def round_to_int(x: Num, factor: float = 1.0) -> tuple[Num, Num]:
    """The whole number nearest to `x * factor`, below 2**21, as a float and as bits.

    Adding 1.5 * 2**mantissa leaves the number in the low bits of the sum. The bits above them stay in the result:
    `scale` shifts them out. Unlike a conversion this is defined for NaN.
    """
    magic = 1.5 * 2.0 ** MANTISSA[x.kind]
    shifted = x.fma(factor, magic) if factor != 1.0 else x + magic
    return shifted - magic, shifted.bits()


def _power_of_two(n: Num, kind: str) -> Num:
    """`2.0 ** n` for an n within the range of normal exponents.

    Bits of n above the exponent's are shifted out.
    """
    return ((n + BIAS[kind]) << MANTISSA[kind]).as_float()


def scale(x: Num, n: Num) -> Num:
    """`x * 2.0 ** n`, for the bits `n` of `round_to_int`.

    In two factors, each of which is a normal number also where the result is subnormal or overflows.
    """
    half = n >> 1
    return x * _power_of_two(half, x.kind) * _power_of_two(n - half, x.kind)


HALF_PI = 1.5707963267948966
QUARTER_PI = 0.7853981633974483
SMALLEST = 126  # the biased exponent of 0.5: no smaller number is above pi/4, up to which nothing is reduced
STEPS = 5  # words of 32 bits at which the window may begin: exponents of f32 go to 254, which is 128 more than SMALLEST

# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in r**2, on |r| <= pi/4
SIN = (-0.1666666666381575, 0.008333331858811688, -0.00019840077985062635, 2.724877802434287e-06)
COS = (0.041666666664287526, -0.0013888887658551454, 2.4800592989276236e-05, -2.72999921024382e-07)


def _arctan_of_inverse(n: int, bits: int) -> int:
    """`arctan(1 / n) * 2**bits`, by its series."""
    term = total = (1 << bits) // n
    k, sign = 1, -1
    while term:
        term //= n * n
        k += 2
        total += sign * (term // k)
        sign = -sign
    return total


def _words() -> list[int]:
    """2/pi in words of 32 bits, behind the leading zeros for the smallest exponent."""
    bits = 400  # more than the words have: the last ones of the series are not exact
    pi = 4 * (4 * _arctan_of_inverse(5, bits) - _arctan_of_inverse(239, bits))  # Machin's formula
    two_over_pi = (2 << (2 * bits)) // pi  # * 2**bits
    leading = 2 + (150 - SMALLEST)  # two bits for the quadrant; x == mantissa * 2**(exponent - 150)
    count = STEPS + 3
    window = two_over_pi >> (bits - (32 * count - leading))
    return [(window >> (32 * (count - 1 - at))) & 0xFFFFFFFF for at in range(count)]


WORDS = _words()


def _window(exponent: Num) -> tuple[Num, Num]:
    """The 64 bits of 2/pi that matter at an exponent, and the 32 behind them, as i64."""
    place = exponent - SMALLEST
    step, rest = place >> 5, place & 31
    words: list[Num] = []
    for offset in range(4):
        word = step.constant(WORDS[offset])
        for at in range(1, STEPS):
            word = word.where(step.compare("==", at), WORDS[at + offset])
        words.append(word)
    a, b, c, d = words
    high = ((a << 32) | b).shifted_left(rest) | c.shifted_left(rest).shifted_right(32)
    low = ((c << 32) | d).shifted_left(rest).shifted_right(32) & 0xFFFFFFFF
    return high, low


def _reduced(x: Num) -> tuple[Num, Num, Num]:
    """Sine and cosine, in f64, of |x| less whole quarter turns, and their number.

    The angle that is left lies between -pi/4 and pi/4.
    """
    builder: Any = x.builder
    double, wide = ir.DoubleType(), ir.IntType(64)
    bits = x.of(builder.zext((x.bits() & 0x7FFFFFFF).value, wide))
    exponent = bits >> 23
    high, low = _window(exponent)
    mantissa = (bits & 0x7FFFFF) | 0x800000
    turns = mantissa * high + (mantissa * low).shifted_right(32)  # in units of 2**-62 quarter turns; wraps
    quadrant = (turns + (1 << 61)).shifted_right(62)
    rest = turns - (quadrant << 62)
    reduced = rest.to_float() * (HALF_PI * 2.0**-62)

    magnitude = x.of(builder.fpext(x.call("fabs").value, double))
    is_small = magnitude.compare("<=", QUARTER_PI)
    r = reduced.where(is_small, magnitude)
    quadrant = quadrant.where(is_small, 0)
    r2 = r * r
    sine = polynomial(r2, SIN).fma(r2 * r, r)
    cosine = polynomial(r2, COS).fma(r2 * r2, r2.fma(-0.5, 1.0))
    return sine, cosine, quadrant


def _rounded(x: Num, value: Num) -> Num:
    """An f64 result as an f32; NaN where `x` is infinite or NaN."""
    rounded = x.of(x.builder.fptrunc(value.value, ir.FloatType()))
    return rounded.where((x - x).is_nan(), float("nan"))


def sin_cos(x: Num, quarter_turns: int) -> Num:
    """`sin(x + quarter_turns * pi / 2)` for an f32: 0 is the sine, 1 the cosine.

    At most 0.55 ulp.
    """
    builder: Any = x.builder
    wide = ir.IntType(64)
    sine, cosine, quadrant = _reduced(x)
    if quarter_turns == 0:
        negative = x.of(builder.zext(x.bits().shifted_right(31).value, wide))
        quadrant = quadrant + negative * 2  # sin(-x) == -sin(x): half a turn on
    else:
        quadrant = quadrant + quarter_turns
    value = sine.where((quadrant & 1).compare("==", 1), cosine)
    flipped = (value.bits() ^ ((quadrant & 2) << 62)).as_float()  # the sign is that of the quadrant's bit 1
    return _rounded(x, flipped)


def tangent(x: Num) -> Num:
    """`tan(x)` for an f32: in odd quarter turns `-cos / sin` of the rest.

    At most 0.6 ulp.
    """
    sine, cosine, quadrant = _reduced(x)
    odd = (quadrant & 1).compare("==", 1)
    quotient = sine.where(odd, cosine * -1.0) / cosine.where(odd, sine)
    wide = x.of(x.builder.fpext(x.value, ir.DoubleType()))
    signed = quotient.of(quotient.builder.select(wide.compare("<", 0.0), (quotient * -1.0).value, quotient.value))
    result = _rounded(x, signed)
    return x.of(x.builder.select(x.compare("==", 0.0), x.value, result.value))  # -0.0 stays
