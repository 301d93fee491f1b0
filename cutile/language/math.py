"""Functions of floats. f16 and bf16 are computed in f32 and rounded once; the errors are stated with the operations."""

from __future__ import annotations

from cutile.language.declare import operation
from cutile.language.markers import ftz as Ftz
from cutile.language.markers import rounding as Rounding
from cutile.tile import Tile, outside_kernel


@operation
def exp(x: Tile) -> Tile:
    """`e ** x`."""
    outside_kernel("exp")


@operation
def exp2(x: Tile, ftz: Ftz | bool = False) -> Tile:
    """`2 ** x`. With `ftz`, f32 below the smallest normal number is zero, in and out."""
    outside_kernel("exp2")


@operation
def log(x: Tile) -> Tile:
    """The natural logarithm; NaN below zero."""
    outside_kernel("log")


@operation
def log2(x: Tile) -> Tile:
    """The logarithm to base 2; NaN below zero."""
    outside_kernel("log2")


@operation
def sqrt(x: Tile, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """The square root. Another rounding is for f32 and f64; APPROX (within 2 ulp) and `ftz` for f32."""
    outside_kernel("sqrt")


@operation
def rsqrt(x: Tile, ftz: Ftz | bool = False) -> Tile:
    """`1 / sqrt(x)`. With `ftz`, f32 below the smallest normal number is zero."""
    outside_kernel("rsqrt")


@operation
def sin(x: Tile) -> Tile:
    """The sine of radians."""
    outside_kernel("sin")


@operation
def cos(x: Tile) -> Tile:
    """The cosine of radians."""
    outside_kernel("cos")


@operation
def tan(x: Tile) -> Tile:
    """The tangent of radians."""
    outside_kernel("tan")


@operation
def sinh(x: Tile) -> Tile:
    """The hyperbolic sine."""
    outside_kernel("sinh")


@operation
def cosh(x: Tile) -> Tile:
    """The hyperbolic cosine."""
    outside_kernel("cosh")


@operation
def tanh(x: Tile) -> Tile:
    """The hyperbolic tangent."""
    outside_kernel("tanh")


@operation
def floor(x: Tile) -> Tile:
    """The largest whole number not above `x`."""
    outside_kernel("floor")


@operation
def ceil(x: Tile) -> Tile:
    """The smallest whole number not below `x`."""
    outside_kernel("ceil")


@operation
def pow(x: Tile | float, y: Tile | float) -> Tile:
    """`x ** y` of floats."""
    outside_kernel("pow")


@operation
def atan2(x: Tile | float, y: Tile | float) -> Tile:
    """The arctangent of `x / y`, from -pi to pi by the signs of both: the angle of the point (y, x)."""
    outside_kernel("atan2")


__all__ = (
    "atan2",
    "ceil",
    "cos",
    "cosh",
    "exp",
    "exp2",
    "floor",
    "log",
    "log2",
    "pow",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
)
