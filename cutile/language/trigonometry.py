"""Functions of angles, hyperbolic functions, and their inverses.

f16 and bf16 are computed in f32 and rounded once. Each function states its largest error, in units in the last place
(ulp).
"""

from __future__ import annotations

from cutile.language.declare import FLOATS, operation

# Capitalised: a parameter has the marker's own name, and would hide it.
from cutile.language.markers import rounding as Rounding
from cutile.tile import Tile


@operation(FLOATS)
def sin(x: Tile | float) -> Tile:
    """The sine of radians.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.sin(x), [0.0])
        [0.0]
    """
    ...


@operation(FLOATS)
def cos(x: Tile | float) -> Tile:
    """The cosine of radians.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.cos(x), [0.0])
        [1.0]
    """
    ...


@operation(FLOATS)
def tan(x: Tile | float) -> Tile:
    """The tangent of radians.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 4 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.tan(x), [0.0])
        [0.0]
    """
    ...


@operation(FLOATS)
def sinh(x: Tile | float) -> Tile:
    """The hyperbolic sine.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 3 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.sinh(x), [0.0, float("inf")])
        [0.0, inf]
    """
    ...


@operation(FLOATS)
def cosh(x: Tile | float) -> Tile:
    """The hyperbolic cosine.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.cosh(x), [0.0, float("-inf")])
        [1.0, inf]
    """
    ...


@operation(FLOATS)
def tanh(x: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN) -> Tile:
    """The hyperbolic tangent.

    Args:
        x: floats; a tile or a number.
        rounding: NEAREST_EVEN; or APPROX, for f32, which is one instruction of a GPU. Its relative error is at most
            2**-11.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float, or the dtype has no such rounding.

    Example:
        >>> run(lambda x: ct.tanh(x), [0.0, float("inf")])
        [0.0, 1.0]
        >>> run(lambda x: ct.tanh(x, ct.rounding.APPROX), [0.0, float("inf")])
        [0.0, 1.0]
    """
    ...


@operation(FLOATS)
def asin(x: Tile | float) -> Tile:
    """The angle in radians, from -pi/2 to pi/2, whose sine is `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.
            NaN where `x` is not between -1 and 1.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.asin(x), [0.0, 2.0])
        [0.0, nan]
    """
    ...


@operation(FLOATS)
def acos(x: Tile | float) -> Tile:
    """The angle in radians, from 0 to pi, whose cosine is `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.
            NaN where `x` is not between -1 and 1.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.acos(x), [1.0, 2.0])
        [0.0, nan]
    """
    ...


@operation(FLOATS)
def atan(x: Tile | float) -> Tile:
    """The angle in radians, from -pi/2 to pi/2, whose tangent is `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.atan(x), [0.0, -0.0])
        [0.0, -0.0]
    """
    ...


@operation(FLOATS)
def asinh(x: Tile | float) -> Tile:
    """The number whose hyperbolic sine is `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 3 ulp in f32 and 3 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.asinh(x), [0.0, float("inf")])
        [0.0, inf]
    """
    ...


@operation(FLOATS)
def acosh(x: Tile | float) -> Tile:
    """The number, at least 0, whose hyperbolic cosine is `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 4 ulp in f32 and 3 ulp in f64. NaN below 1.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.acosh(x), [1.0, 0.5])
        [0.0, nan]
    """
    ...


@operation(FLOATS)
def atanh(x: Tile | float) -> Tile:
    """The number whose hyperbolic tangent is `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 3 ulp in f32 and 2 ulp in f64.
            Infinite at -1 and 1, NaN beyond.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.atanh(x), [0.0, 1.0, 2.0])
        [0.0, inf, nan]
    """
    ...


@operation(FLOATS)
def atan2(x: Tile | float, y: Tile | float) -> Tile:
    """The angle of the point (y, x) in radians, from -pi to pi.

    It is the arctangent of `x / y`, in the quadrant that the signs of both give.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape. The error is at most 3 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.atan2(x, y), [0.0, 1.0], [1.0, 0.0])
        [0.0, 1.5707963705062866]
    """
    ...


__all__ = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh",
)  # fmt: skip
