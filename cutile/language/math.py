"""Functions of floats: powers, roots, logarithms, error functions, neighbours.

f16 and bf16 are computed in f32 and rounded once. Each function states its largest error, in units in the last place
(ulp). Functions of angles are in `trigonometry.py`.
"""

from __future__ import annotations

from cutile.language.declare import FLOATS, composition, operation

# Capitalised: parameters have the markers' own names, and would hide them.
from cutile.language.markers import ftz as Ftz
from cutile.language.markers import rounding as Rounding
from cutile.tile import Tile


@operation(FLOATS)
def exp(x: Tile | float) -> Tile:
    """`e ** x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 1 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.exp(x), [0.0, float("-inf")])
        [1.0, 0.0]
    """
    ...


@operation(FLOATS)
def exp2(x: Tile | float, ftz: Ftz | bool = False) -> Tile:
    """`2 ** x`.

    Args:
        x: floats; a tile or a number.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 1 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float, or `ftz` is asked of another dtype than f32.

    Example:
        >>> run(lambda x: ct.exp2(x), [0.0, 1.0, 3.0])
        [1.0, 2.0, 8.0]
        >>> run(lambda x: ct.exp2(x, ftz=True), [3.0, -140.0])
        [8.0, 0.0]
    """
    ...


@operation(FLOATS)
def log(x: Tile | float) -> Tile:
    """The natural logarithm; NaN below zero, -inf at zero.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 1 ulp in f32 and 1 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.log(x), [1.0, 0.0])
        [0.0, -inf]
    """
    ...


@operation(FLOATS)
def log2(x: Tile | float) -> Tile:
    """The logarithm to base 2; NaN below zero, -inf at zero.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 1.5 ulp in f32 and 1.5 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.log2(x), [1.0, 8.0])
        [0.0, 3.0]
    """
    ...


@operation(FLOATS)
def log10(x: Tile | float) -> Tile:
    """The logarithm to base 10; NaN below zero, -inf at zero.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.log10(x), [1.0, 1000.0])
        [0.0, 3.0]
    """
    ...


@operation(FLOATS)
def sqrt(x: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """The square root, rounded as `rounding` says; NaN below zero.

    Args:
        x: floats; a tile or a number.
        rounding: which neighbour of the exact result. NEAREST_EVEN is for every float dtype, the directed ones for f32
            and f64. APPROX, within 2 ulp of the exact result, is for f32.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the dtype and shape of `x`, rounded as `rounding` says.

    Raises:
        KernelTypeError: `x` is no float, or the dtype has no such rounding.

    Example:
        >>> run(lambda x: ct.sqrt(x), [4.0, 9.0])
        [2.0, 3.0]
    """
    ...


@operation(FLOATS)
def rsqrt(x: Tile | float, ftz: Ftz | bool = False) -> Tile:
    """`1 / sqrt(x)`.

    Args:
        x: floats; a tile or a number.
        ftz: whether subnormal f32 operands and results become zeros of their sign.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 1.5 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float, or `ftz` is asked of another dtype than f32.

    Example:
        >>> run(lambda x: ct.rsqrt(x), [4.0, 16.0])
        [0.5, 0.25]
    """
    ...


@operation(FLOATS)
def cbrt(x: Tile | float) -> Tile:
    """The cube root, of negative numbers too.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, with the sign of `x`. The error is at most 1 ulp in f32 and 4 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.cbrt(x), [27.0, -8.0])
        [3.0, -2.0]
    """
    ...


@operation(FLOATS)
def erf(x: Tile | float) -> Tile:
    """The error function.

    `2 / sqrt(pi)` times the integral of `exp(-t * t)` from 0 to `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, from -1 to 1. The error is at most 2 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.erf(x), [0.0, float("-inf")])
        [0.0, -1.0]
        >>> run(lambda x: 0.5 * x * (1.0 + ct.erf(x * 0.5**0.5)), [0.0, 10.0, -10.0])      # GELU
        [0.0, 10.0, -0.0]
    """
    ...


@operation(FLOATS)
def erfc(x: Tile | float) -> Tile:
    """`1 - erf(x)`, precise also where the result is small.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, from 2 to 0. The error is at most 4 ulp in f32 and 5 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.erfc(x), [0.0, float("-inf"), float("inf")])
        [1.0, 2.0, 0.0]
    """
    ...


@operation(FLOATS)
def erfinv(x: Tile | float) -> Tile:
    """The number whose error function is `x`.

    Infinite at -1 and 1, NaN beyond. `2**0.5 * erfinv(2.0 * p - 1.0)` is the normal distribution's quantile of `p`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 2 ulp in f32 and 5 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.erfinv(x), [0.0, 1.0, -1.0, 2.0])
        [0.0, inf, -inf, nan]
        >>> run(lambda x: ct.erf(ct.erfinv(x)), [0.25, -0.5])
        [0.25, -0.5]
    """
    ...


@operation(FLOATS)
def log1p(x: Tile | float) -> Tile:
    """The natural logarithm of `1 + x`, precise also where `x` is small.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 1 ulp in f32 and 2 ulp in f64.
            NaN below -1, -inf at -1.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.log1p(x), [0.0, -1.0, 1e-20])
        [0.0, -inf, 9.999999682655225e-21]
    """
    ...


@operation(FLOATS)
def expm1(x: Tile | float) -> Tile:
    """`e ** x - 1`, precise also where `x` is small.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 1 ulp in f32 and 1 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.expm1(x), [0.0, float("-inf"), 1e-20])
        [0.0, -1.0, 9.999999682655225e-21]
    """
    ...


@composition(FLOATS, f32=4.0, f64=3.0)
def sigmoid(x: Tile | float) -> Tile:
    """`1 / (1 + exp(-x))`, precise also where the result is small.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, from 0 to 1. The error is at most 4 ulp in f32 and 3 ulp in f64.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.sigmoid(x), [0.0, float("inf"), float("-inf")])
        [0.5, 1.0, 0.0]
    """
    ...


@operation(FLOATS)
def floor(x: Tile | float) -> Tile:
    """The largest whole number not above `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, exact.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.floor(x), [1.5, -1.5])
        [1.0, -2.0]
    """
    ...


@operation(FLOATS)
def ceil(x: Tile | float) -> Tile:
    """The smallest whole number not below `x`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, exact.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.ceil(x), [1.5, -1.5])
        [2.0, -1.0]
    """
    ...


@operation(FLOATS)
def trunc(x: Tile | float) -> Tile:
    """`x` without its fraction: the next whole number towards zero.

    A result of zero has the sign of `x`. Infinities and NaN stay as they are.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, exact.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.trunc(x), [1.5, -1.5, -0.25])
        [1.0, -1.0, -0.0]
    """
    ...


@operation(FLOATS)
def pow(x: Tile | float, y: Tile | float) -> Tile:
    """`x ** y` of floats; NaN for a negative base and a fractional exponent.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape. The error is at most 4 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.pow(x, y), [2.0, 9.0], [10.0, 0.5])
        [1024.0, 3.0]
    """
    ...


@operation(FLOATS)
def hypot(x: Tile | float, y: Tile | float) -> Tile:
    """`sqrt(x * x + y * y)`, also where a square overflows or vanishes.

    Infinite where an operand is infinite, even if the other one is NaN.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape. The error is at most 3 ulp in f32 and 2 ulp in f64.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.hypot(x, y), [3.0, 3.0 * 2.0**125, float("inf")], [-4.0, 2.0**127, float("nan")])
        [5.0, 2.1267647932558654e+38, inf]
    """
    ...


@composition(FLOATS, f32=2.0, f64=2.0, note="of 1 where the result is below 1")
def logaddexp(x: Tile | float, y: Tile | float) -> Tile:
    """`log(exp(x) + exp(y))`, also where an exponential overflows or vanishes.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape. The error is at most 2 ulp in f32 and 2 ulp in f64.
            Where the result is below 1 these are ulp of 1, since the sum cancels near 0.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.logaddexp(x, y), [1000.0, float("-inf"), float("inf")], [0.0, 2.0, float("inf")])
        [1000.0, 2.0, inf]
    """
    ...


@operation(FLOATS)
def lgamma(x: Tile | float) -> Tile:
    """The natural logarithm of the absolute value of the gamma function.

    Infinite at 0, at negative whole numbers and at both infinities. `exp(lgamma(n + 1))` is the factorial of `n`.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`. The error is at most 6 ulp in f32 and 5 ulp in f64. Where `x` is
            negative and the result below 1 these are ulp of 1, since the result cancels near 0.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.lgamma(x), [1.0, 2.0, 0.0, -3.0])
        [0.0, 0.0, inf, inf]
    """
    ...


@composition(FLOATS)
def copysign(x: Tile | float, y: Tile | float) -> Tile:
    """The absolute value of `x` with the sign of `y`.

    The sign is a bit, which zeros and NaNs have as well.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, exact.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.copysign(x, y), [1.5, -2.0, float("inf")], [-0.0, 3.0, float("-inf")])
        [-1.5, 2.0, -inf]
    """
    ...


@composition(FLOATS)
def nextafter(x: Tile | float, y: Tile | float) -> Tile:
    """The number of the dtype next to `x` in the direction of `y`.

    The result is `y` where the two are equal, as in C, and NaN where one of them is NaN. After the largest number comes
    infinity.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, exact.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.nextafter(x, y), [1.0, 0.0, 2.0], [2.0, -1.0, 2.0])
        [1.0000001192092896, -1.401298464324817e-45, 2.0]
        >>> run(lambda x, y: ct.nextafter(x, y), [1.0, 65504.0], [2.0, float("inf")], dtype="f16")
        [1.0009765625, inf]
    """
    ...


__all__ = (
    "cbrt", "ceil", "copysign", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "hypot", "lgamma", "log",
    "log10", "log1p", "log2", "logaddexp", "nextafter", "pow", "rsqrt", "sigmoid", "sqrt", "trunc",
)  # fmt: skip
