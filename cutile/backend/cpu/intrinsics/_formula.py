"""`Num`: an LLVM float value with operators, so that a polynomial reads like one.

Not for values of the user's program, and it emits no control flow: every formula here vectorises.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from cutile.backend.cpu.intrinsics._seam import ir, llvm

INT = {"float": 32, "double": 64}
MANTISSA = {"float": 23, "double": 52}
BIAS = {"float": 127, "double": 1023}


class Num:
    """A float (or the integer of its bits) and the builder that operators append to."""

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
        """A bit; false where either is NaN (also for `!=`: use `is_nan`)."""
        method = self.builder.fcmp_ordered if self._is_float else self.builder.icmp_signed
        return method(operator, self.value, self._other(other))

    def is_nan(self) -> Any:
        """A bit."""
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


def round_to_int(x: Num) -> tuple[Num, Num]:
    """The nearest whole number, as a float and as an integer, for |x| < 2**21.

    Adding 1.5 * 2**mantissa leaves the integer in the low bits. Unlike a conversion this is defined for NaN.
    """
    magic = 1.5 * 2.0 ** MANTISSA[x.kind]
    pattern = (
        struct.unpack("<i", struct.pack("<f", magic))
        if x.kind == "float"
        else struct.unpack("<q", struct.pack("<d", magic))
    )
    shifted = x + magic
    return shifted - magic, shifted.bits() - pattern[0]


def power_of_two(n: Num, kind: str) -> Num:
    """`2.0 ** n` for an integer n within the range of normal exponents."""
    return ((n + BIAS[kind]) << MANTISSA[kind]).as_float()


def scale(x: Num, n: Num) -> Num:
    """`x * 2.0 ** n` in two steps.

    So it is right where the result is subnormal or overflows, too.
    """
    half = n >> 1
    return x * power_of_two(half, x.kind) * power_of_two(n - half, x.kind)
