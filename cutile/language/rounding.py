"""Arithmetic of floats with a chosen rounding.

The operators round to nearest even, which is the default here.
"""

from __future__ import annotations

from cutile.language.declare import FLOATS, operation

# Capitalised: parameters have the markers' own names, and would hide them.
from cutile.language.markers import ftz as Ftz
from cutile.language.markers import rounding as Rounding
from cutile.tile import Tile


@operation(FLOATS)
def addf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x + y` of floats, rounded as `rounding` says.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.
        rounding: which neighbour of the exact result. All but NEAREST_EVEN are for f32 and f64 only.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, rounded once.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit, or the dtype has no such rounding.

    Example:
        >>> run(lambda x, y: ct.addf(x, y, ct.rounding.POSITIVE_INF) - x, [1.0], [2.0**-60])
        [1.1920928955078125e-07]
    """
    ...


@operation(FLOATS)
def subf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x - y` of floats, rounded as `rounding` says.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.
        rounding: which neighbour of the exact result. All but NEAREST_EVEN are for f32 and f64 only.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, rounded once.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit, or the dtype has no such rounding.

    Example:
        >>> run(lambda x, y: x - ct.subf(x, y, ct.rounding.ZERO), [1.0], [2.0**-60])
        [5.960464477539063e-08]
    """
    ...


@operation(FLOATS)
def mulf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x * y` of floats, rounded as `rounding` says.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.
        rounding: which neighbour of the exact result. All but NEAREST_EVEN are for f32 and f64 only.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, rounded once.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit, or the dtype has no such rounding.

    Example:
        >>> run(lambda x, y: ct.mulf(x, y, ftz=True), [1.5, 2.0**-100], [2.0, 2.0**-40])
        [3.0, 0.0]
    """
    ...


@operation(FLOATS)
def divf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x / y` of floats, rounded as `rounding` says.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.
        rounding: which neighbour of the exact result. NEAREST_EVEN is for every float dtype, the directed ones for f32
            and f64. APPROX and FULL, within 2 ulp of the exact result, are for f32. APPROX needs a divisor whose
            magnitude is from 2**-126 to 2**126.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, rounded as `rounding` says.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit, or the dtype has no such rounding.

    Example:
        >>> run(lambda x, y: ct.divf(x, y, ct.rounding.NEGATIVE_INF), [2.0], [3.0])
        [0.6666666269302368]
    """
    ...


@operation(FLOATS)
def true_div(x: Tile | float, y: Tile | float) -> Tile:
    """`x / y` of floats, fast in f32.

    f32 is divided as by `divf` with APPROX and `ftz`; other dtypes round to nearest.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, within 2 ulp in f32.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.true_div(x, y), [1.0, 9.0], [4.0, 3.0])
        [0.25, 3.0]
    """
    ...


@operation(FLOATS)
def fma(
    x: Tile | float,
    y: Tile | float,
    z: Tile | float,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    ftz: Ftz | bool = False,
) -> Tile:
    """`x * y + z`, rounded once, as `rounding` says.

    Args:
        x, y, z: floats of one dtype, tiles or numbers; the shapes broadcast.
        rounding: which neighbour of the exact result. All but NEAREST_EVEN are for f32 and f64 only.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, rounded once.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit, or the dtype has no such rounding.

    Example:
        >>> run(lambda x, y: ct.fma(x, y, x), [1.0, 2.0], [3.0, 4.0])
        [4.0, 10.0]
        >>> run(lambda x, y: ct.fma(x, y, x, ct.rounding.ZERO), [1.0, 2.0], [3.0, 4.0])
        [4.0, 10.0]
    """
    ...


__all__ = (
    "addf",
    "divf",
    "fma",
    "mulf",
    "subf",
    "true_div",
)
