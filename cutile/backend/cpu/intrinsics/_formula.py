"""`Num`: an LLVM float value with operators, so that a polynomial reads like one.

Formulas have no branches, so that loops over them vectorise. Sine and cosine of an f32 of any size are here, too.

Sine and cosine need the argument's quadrant and its position there: `x * 2 / pi` without multiples of 4. Which bits of
2/pi matter for that depends on the exponent of `x` (Payne and Hanek's reduction). Tables have these bits by exponent,
in three parts whose products with `x` are exact in f64. The rest is computed in f64 and rounded once. An f64 would need
factors of 200 bits: it goes to the C library.
"""

from __future__ import annotations

import math
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

    def shifted_right(self, count: int) -> Num:
        """The bits shifted right; zeros are shifted in."""
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
    """The whole number nearest to `x * factor`, as a float and as bits; below 2**21.

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

    By two factors, each of which is a normal number even where the result is subnormal or overflows.
    """
    half = n >> 1
    return x * _power_of_two(half, x.kind) * _power_of_two(n - half, x.kind)


HALF_PI = 1.5707963267948966
QUARTER_PI = 0.7853981633974483
SMALLEST = 126  # the biased exponent of 0.5: all smaller numbers are below pi/4, where nothing is reduced
INFINITE = 255  # the biased exponent of infinity and NaN
PART_BITS = 29  # of a part of a factor: its product with the 24 bits of an f32 is exact in f64

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


def _factors() -> tuple[tuple[float, ...], ...]:
    """Factors that give the quarter turns of an f32, without multiples of 4.

    The place in a table is the biased exponent of the f32. The three factors have 87 bits together. No f32 is closer
    than 2**-30 to a whole number of quarter turns: even its distance has 30 correct bits.
    """
    bits = 400  # more than are read, since the last bits of the series are not exact
    pi = 4 * (4 * _arctan_of_inverse(5, bits) - _arctan_of_inverse(239, bits))  # Machin's formula
    two_over_pi = (2 << (2 * bits)) // pi  # * 2**bits
    tables: tuple[list[float], ...] = ([], [], [])
    for exponent in range(INFINITE + 1):
        factors = [0.0] * 3
        if SMALLEST <= exponent < INFINITE:
            unit = exponent - 150  # an f32 is a whole number times 2**unit
            turns = two_over_pi << unit if unit >= 0 else two_over_pi >> -unit
            turns &= (4 << bits) - 1
            for part in range(3):
                place = bits + 2 - PART_BITS * (part + 1)  # 2 bits before the point
                factors[part] = math.ldexp(turns >> place & (1 << PART_BITS) - 1, place - bits - unit)
        for table, factor in zip(tables, factors, strict=True):
            table.append(factor)
    return tuple(map(tuple, tables))


FACTORS = _factors()


def _looked_up(index: Num, part: int) -> Num:
    """The entry of a table of `FACTORS`. Loops load several at once, by a gather."""
    builder: Any = index.builder
    name, kind = f"cutile.quarter_turns.{part}", ir.ArrayType(ir.DoubleType(), len(FACTORS[part]))
    table = builder.module.globals.get(name)
    if table is None:
        table = ir.GlobalVariable(builder.module, kind, name)
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(kind, FACTORS[part])
    place = builder.gep(table, [ir.Constant(ir.IntType(64), 0), index.value], inbounds=True)
    return index.of(builder.load(place))


def _reduced(x: Num) -> tuple[Num, Num, Num]:
    """Sine and cosine, in f64, of |x| less whole quarter turns; the number of turns.

    The angle that is left lies between -pi/4 and pi/4.
    """
    builder: Any = x.builder
    exponent = x.of(builder.zext((x.bits() & 0x7FFFFFFF).shifted_right(23).value, ir.IntType(64)))
    magnitude = x.of(builder.fpext(x.call("fabs").value, ir.DoubleType()))
    high, middle, low = (magnitude * _looked_up(exponent, part) for part in range(3))
    # All exact: `high` has 53 bits at most. So has `rest` where it is small, since the upper bits have cancelled.
    whole, quadrant = round_to_int(high)
    rest = high - whole + middle
    whole, more = round_to_int(rest)
    reduced = (rest - whole + low) * HALF_PI

    is_small = magnitude.compare("<=", QUARTER_PI)
    r = reduced.where(is_small, magnitude)
    quadrant = (quadrant + more).where(is_small, 0)
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

    At most 0.51 ulp.
    """
    builder: Any = x.builder
    wide = ir.IntType(64)
    sine, cosine, quadrant = _reduced(x)
    if quarter_turns == 0:
        negative = x.of(builder.zext(x.bits().shifted_right(31).value, wide))
        quadrant = quadrant + negative * 2  # sin(-x) == -sin(x), which is the sine half a turn further
    else:
        quadrant = quadrant + quarter_turns
    value = sine.where((quadrant & 1).compare("==", 1), cosine)
    flipped = (value.bits() ^ ((quadrant & 2) << 62)).as_float()  # the sign is that of the quadrant's bit 1
    return _rounded(x, flipped)


def tangent(x: Num) -> Num:
    """`tan(x)` for an f32: after an odd number of quarter turns, `-cos / sin`.

    At most 0.51 ulp.
    """
    sine, cosine, quadrant = _reduced(x)
    odd = (quadrant & 1).compare("==", 1)
    quotient = sine.where(odd, cosine * -1.0) / cosine.where(odd, sine)
    wide = x.of(x.builder.fpext(x.value, ir.DoubleType()))
    signed = quotient.of(quotient.builder.select(wide.compare("<", 0.0), (quotient * -1.0).value, quotient.value))
    result = _rounded(x, signed)
    return x.of(x.builder.select(x.compare("==", 0.0), x.value, result.value))  # -0.0 stays
