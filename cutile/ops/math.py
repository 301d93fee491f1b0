"""Functions of one or two float tiles.

f16 and bf16 compute in f32 and round once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir import CORRECT, Accuracy, Type, attribute
from cutile.ops.elementwise import FloatBinary, FloatUnary, flush, rounded

_where: Any = np.where  # untyped: NumPy's stubs leave the types of the results unknown
_zeros_like: Any = np.zeros_like


class Exp(FloatUnary, name="exp", spelled=("exp",), accuracy=Accuracy(f32=2.0, f64=1.0)):
    """`e ** x`."""


class Flushing(FloatUnary):
    """A function that can treat subnormal f32 as zeros, which is faster."""

    ftz: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        if self.ftz and self.x.tile.dtype.name != "f32":
            raise KernelTypeError(
                f"{self.name}: ftz flushes f32, the tile is {self.x.tile.dtype}", remedy="Leave ftz out."
            )
        return super().infer()

    def reference(self, x: Any) -> Any:
        return flush(super().reference(flush(x))) if self.ftz else super().reference(x)


class Exp2(Flushing, name="exp2", spelled=("exp2",), accuracy=Accuracy(f32=2.0, f64=1.0)):
    """`2 ** x`.

    With `ftz`, subnormal f32 operands and results become zeros.
    """


class Log(FloatUnary, name="log", spelled=("log",), accuracy=Accuracy(f32=1.0, f64=1.0)):
    """The natural logarithm; NaN below zero, -inf at zero."""


class Log2(FloatUnary, name="log2", spelled=("log2",), accuracy=Accuracy(f32=1.5, f64=1.5)):
    """The logarithm to base 2; NaN below zero, -inf at zero."""


class Log10(FloatUnary, name="log10", spelled=("log10",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The logarithm to base 10; NaN below zero, -inf at zero."""


class Sqrt(FloatUnary, name="sqrt", spelled=("sqrt",), accuracy=CORRECT):
    """The square root, rounded to nearest; NaN below zero."""

    def reference(self, x: Any) -> Any:
        # NumPy's root of an f64 is rounded once. The inherited way rounds twice: in `longdouble`, then to f64.
        return np.sqrt(x) if x.dtype == np.float64 else super().reference(x)


def _rsqrt(x: Any) -> Any:
    return 1.0 / np.sqrt(x)


class Rsqrt(Flushing, name="rsqrt", spelled=("rsqrt",), accuracy=Accuracy(f32=2.0, f64=1.5)):
    """`1 / sqrt(x)`.

    With `ftz`, subnormal f32 operands become zeros. Results are never subnormal.
    """

    function = staticmethod(_rsqrt)


class Sin(FloatUnary, name="sin", spelled=("sin",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The sine of `x` radians."""


class Cos(FloatUnary, name="cos", spelled=("cos",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The cosine of `x` radians."""


class Tan(FloatUnary, name="tan", spelled=("tan",), accuracy=Accuracy(f32=4.0, f64=2.0)):
    """The tangent of `x` radians."""


class Sinh(FloatUnary, name="sinh", spelled=("sinh",), accuracy=Accuracy(f32=3.0, f64=2.0)):
    """The hyperbolic sine."""


class Cosh(FloatUnary, name="cosh", spelled=("cosh",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The hyperbolic cosine."""


class Tanh(FloatUnary, name="tanh", spelled=("tanh",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The hyperbolic tangent."""


class Erf(FloatUnary, name="erf", spelled=("erf",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The error function: from -1 to 1, odd."""


class Erfc(FloatUnary, name="erfc", spelled=("erfc",), accuracy=Accuracy(f32=4.0, f64=5.0)):
    """`1 - erf(x)`, from 2 to 0, precise also where the result is small."""


def _erfinv(x: Any) -> Any:
    """Halley's method on Python's error functions, in f64."""
    erf, erfc = (np.vectorize(function, otypes=[np.float64]) for function in (math.erf, math.erfc))
    magnitude = np.abs(x).astype(np.float64)
    inner = _where(magnitude < 1, magnitude, 0.0)
    # To start with, Winitzki's approximation from 1/2 on, and the first term of the Taylor series for smaller numbers.
    w = np.log1p(-inner) + np.log1p(inner)
    half = 2 / (np.pi * 0.147) + w / 2
    y = _where(inner < 0.5, inner * (np.sqrt(np.pi) / 2), np.sqrt(np.sqrt(half * half - w / 0.147) - half))
    for _ in range(4):  # each step triples the number of correct digits, of which the start has at least one
        rest = _where(inner < 0.5, erf(y) - inner, (1 - inner) - erfc(y))
        step = rest * np.exp(y * y) * (np.sqrt(np.pi) / 2)
        y = y - step / (1 + y * step)
    y = _where(magnitude < 1, y, _where(magnitude == 1, np.inf, np.nan))
    return np.copysign(y, x)


class Erfinv(FloatUnary, name="erfinv", spelled=("erfinv",), accuracy=Accuracy(f32=2.0, f64=5.0)):
    """The number whose error function is `x`: infinite at -1 and 1, NaN beyond."""

    function = staticmethod(_erfinv)


@functools.cache
def _zeta_less_one() -> Any:
    """Riemann's `zeta(k) - 1` for k from 2 to 40.

    The sum of the terms `i ** -k` for i from 2 to 63, and the rest by the formula of Euler and Maclaurin.
    """
    k, n = np.arange(2, 41, dtype=np.longdouble)[:, np.newaxis], np.longdouble(64)
    terms = np.arange(2, 64, dtype=np.longdouble) ** -k
    k, first_omitted = k[:, 0], n ** -k[:, 0]
    corrections = k / 12 / n - k * (k + 1) * (k + 2) / 720 / n**3
    corrections += k * (k + 1) * (k + 2) * (k + 3) * (k + 4) / 30240 / n**5
    return terms[:, ::-1].sum(axis=1) + first_omitted * (n / (k - 1) + 0.5 + corrections)  # small terms first


def _lgamma_near_two(t: Any) -> Any:
    """`lgamma(2 + t)` for t from -1/2 to 1/2, precise also near 0."""
    euler = np.longdouble("0.57721566490153286060651209008240243")
    zetas = _zeta_less_one()
    total = _zeros_like(t)
    for k in range(len(zetas) + 1, 1, -1):
        total = (zetas[k - 2] / k - total) * t
    return (1 - euler + total) * t


STIRLING = ((1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360), (1, 156), (-3617, 122400))
"""Coefficients of 1 / x, 1 / x**3 and so on in Stirling's series of lgamma: numerators and denominators."""


def _lgamma_of_positive(x: Any) -> Any:
    # Up to 2.5: `lgamma(2 + t)`, less the logarithms of the factors by which gamma grows from x to 2 + t.
    small = np.clip(x, 0, 2.5)
    t = _where(small < 0.5, small, _where(small < 1.5, small - 1, small - 2))
    factors = _where(small < 0.5, np.log(small) + np.log1p(small), _where(small < 1.5, np.log1p(t), 0))
    near = _lgamma_near_two(t) - factors
    # Beyond: Stirling's series of z = x + n, less the logarithm of the n factors.
    z, product = np.maximum(x, 2.5), np.ones_like(x)
    for _ in range(14):  # to 16 and more, where the series has all bits of a long double
        product, z = _where(z < 16, product * z, product), _where(z < 16, z + 1, z)
    series = _zeros_like(z)
    for numerator, denominator in STIRLING[::-1]:
        series = series / (z * z) + numerator / (np.longdouble(denominator) * z)
    half_log = np.longdouble("0.91893853320467274178032973640561764")  # log(2 * pi) / 2
    far = (z - 0.5) * (np.log(z) - 1) - 0.5 + half_log + series - np.log(product)
    return _where(x < 2.5, near, _where(np.isinf(x), x, far))


def _lgamma(x: Any) -> Any:
    """`lgamma` in long double.

    By a series up to 2.5, which is precise near the zeros at 1 and 2, by Stirling's series beyond, and by Euler's
    reflection below 0.
    """
    x = x.astype(np.longdouble)
    magnitude = np.abs(x)
    positive = _lgamma_of_positive(magnitude)
    rest = _where(np.isinf(magnitude), 0, magnitude - np.round(magnitude))
    pi = np.longdouble("3.14159265358979323846264338327950288")
    reflected = np.log(pi / (magnitude * np.abs(np.sin(pi * rest)))) - positive
    return _where(np.signbit(x) & (magnitude > 0), _where(rest == 0, np.inf, reflected), positive)


# Below 0 lgamma has zeros that no float hits exactly. Near them results cancel.
_OF_LGAMMA = Accuracy(f32=6.0, f64=5.0, note="of 1 where x is negative and the result below 1")


class Lgamma(FloatUnary, name="lgamma", spelled=("lgamma",), accuracy=_OF_LGAMMA):
    """The logarithm of the absolute value of the gamma function."""

    function = staticmethod(_lgamma)


# f64: libdevice states 1 ulp; the C library of Linux reaches 3.7 ulp before glibc 2.41.
class Cbrt(FloatUnary, name="cbrt", spelled=("cbrt",), accuracy=Accuracy(f32=1.0, f64=4.0)):
    """The cube root, of negative numbers too."""


# f64: libdevice states 1 ulp of the correctly rounded result. From the exact one it is up to 1.2 ulp off, near x = 1.
class Log1p(FloatUnary, name="log1p", spelled=("log1p",), accuracy=Accuracy(f32=1.0, f64=2.0)):
    """`log(1 + x)`, precise also where `x` is small; NaN below -1."""


class Expm1(FloatUnary, name="expm1", spelled=("expm1",), accuracy=Accuracy(f32=1.0, f64=1.0)):
    """`exp(x) - 1`, precise also where `x` is small."""


class Asin(FloatUnary, name="asin", spelled=("asin",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The angle, in radians, whose sine is `x`; NaN beyond -1 and 1."""


class Acos(FloatUnary, name="acos", spelled=("acos",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The angle, in radians, whose cosine is `x`; NaN beyond -1 and 1."""


class Atan(FloatUnary, name="atan", spelled=("atan",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The angle, in radians, whose tangent is `x`."""


class Asinh(FloatUnary, name="asinh", spelled=("asinh",), accuracy=Accuracy(f32=3.0, f64=3.0)):
    """The number whose hyperbolic sine is `x`."""


class Acosh(FloatUnary, name="acosh", spelled=("acosh",), accuracy=Accuracy(f32=4.0, f64=3.0)):
    """The number, at least 0, whose hyperbolic cosine is `x`; NaN below 1."""


class Atanh(FloatUnary, name="atanh", spelled=("atanh",), accuracy=Accuracy(f32=3.0, f64=2.0)):
    """The number whose hyperbolic tangent is `x`; NaN beyond -1 and 1."""


class Floor(FloatUnary, name="floor", spelled=("floor",), accuracy=CORRECT):
    """The largest whole number that is not above `x`."""


class Ceil(FloatUnary, name="ceil", spelled=("ceil",), accuracy=CORRECT):
    """The smallest whole number that is not below `x`."""


class Trunc(FloatUnary, name="trunc", spelled=("trunc",), accuracy=CORRECT):
    """`x` without its fraction, towards zero; a result of zero has the sign of `x`."""


class Round(FloatUnary, name="round", spelled=("round(x)",), accuracy=CORRECT):
    """The nearest whole number; of two equally near ones, the even one.

    A result of zero has the sign of `x`. Kernels call it by Python's own `round`, which leaves integers as they are.

    Examples:
        >>> run(lambda x: round(x), [0.5, 1.5, -2.6])
        [0.0, 2.0, -3.0]
    """

    function = staticmethod(np.rint)


class FloatFunction(FloatBinary):
    """A function of two floats; f16 and bf16 compute in f32 and round once."""

    def reference(self, x: Any, y: Any) -> Any:
        return rounded(type(self).function, x, y)


class Pow(FloatFunction, name="pow", spelled=("pow", "x ** y"), accuracy=Accuracy(f32=4.0, f64=2.0)):
    """`x ** y`; NaN for a negative base and an exponent that is no whole number.

    Examples:
        >>> run(lambda x, y: x ** y, [2.0], [-1.0])
        [0.5]
    """

    function = staticmethod(np.power)


class Atan2(FloatFunction, name="atan2", spelled=("atan2",), accuracy=Accuracy(f32=3.0, f64=2.0)):
    """The angle of a point in radians, from -pi to pi.

    In `atan2(x, y)` the first operand is the point's ordinate, and the second its abscissa, as in NumPy and C. It is
    the arctangent of `x / y`, in the point's quadrant.
    """

    function = staticmethod(np.arctan2)


class Hypot(FloatFunction, name="hypot", spelled=("hypot",), accuracy=Accuracy(f32=3.0, f64=2.0)):
    """`sqrt(x * x + y * y)`, also where a square overflows or vanishes.

    Infinite where an operand is infinite, even if the other one is NaN.
    """

    function = staticmethod(np.hypot)
