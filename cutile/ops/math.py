"""Functions of one or two float tiles.

f16 and bf16 compute in f32 and round once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir import CORRECT, Accuracy, Type, attribute
from cutile.ops.elementwise import FloatBinary, FloatUnary, flush, rounded


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

    With `ftz`, f32 operands and results below the smallest normal number are zeros.
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

    With `ftz`, f32 operands below the smallest normal number are zeros. Results are never that small.
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
    """`1 - erf(x)`, from 2 to 0, which keeps its precision where it is small."""


# f64: libdevice states 1 ulp; the C library of Linux reaches 3.7 ulp before glibc 2.41.
class Cbrt(FloatUnary, name="cbrt", spelled=("cbrt",), accuracy=Accuracy(f32=1.0, f64=4.0)):
    """The cube root, of negative numbers too."""


# libdevice states 1 ulp in f64 of the rounded result, and reaches 1.2 ulp of the exact one, as near x = 1.
class Log1p(FloatUnary, name="log1p", spelled=("log1p",), accuracy=Accuracy(f32=1.0, f64=2.0)):
    """`log(1 + x)`, which keeps its precision where `x` is small; NaN below -1."""


class Expm1(FloatUnary, name="expm1", spelled=("expm1",), accuracy=Accuracy(f32=1.0, f64=1.0)):
    """`exp(x) - 1`, which keeps its precision where `x` is small."""


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
    """The whole number next to `x` towards zero; the sign of a zero is that of `x`."""


class Round(FloatUnary, name="round", spelled=("round(x)",), accuracy=CORRECT):
    """The nearest whole number; of two that are as near, the even one.

    The sign of a zero stays. Python's own `round`. Integers stay as they are.

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
