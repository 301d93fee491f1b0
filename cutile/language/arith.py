"""Arithmetic by the names of upstream, the cuTile crates for Rust.

The operators (`+`, `//`, `&`, ...) are the usual spelling. Some functions have no operator: the truncated quotient, the
upper half of a product, a minimum that propagates NaN. A plain number takes the dtype of the tile beside
it, and shapes broadcast.
"""

from __future__ import annotations

from cutile.language.declare import BITS, FLOATS, INTEGERS, composition, operation

# Capitalised: parameters have the markers' own names, and would hide them.
from cutile.language.markers import ftz as Ftz
from cutile.language.markers import nan as Nan
from cutile.language.markers import overflow as Overflow
from cutile.language.markers import rounding as Rounding
from cutile.tile import Tile


@operation(INTEGERS)
def addi(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x + y` of integers; wraps.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.
        overflow: a promise that the exact result fits. It is neither checked nor used: results wrap in any case.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.addi(x, y), [1, 2**31 - 1], [2, 1], dtype="i32")
        [3, -2147483648]
    """
    ...


@operation(INTEGERS)
def subi(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x - y` of integers; wraps.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.
        overflow: a promise that the exact result fits. It is neither checked nor used: results wrap in any case.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.subi(x, y), [1, -(2**31)], [2, 1], dtype="i32")
        [-1, 2147483647]
    """
    ...


@operation(INTEGERS)
def muli(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x * y` of integers; wraps.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.
        overflow: a promise that the exact result fits. It is neither checked nor used: results wrap in any case.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.muli(x, y), [3, 2**30], [5, 5], dtype="i32")
        [15, 1073741824]
    """
    ...


@operation(INTEGERS)
def divi(x: Tile | int, y: Tile | int, rounding: Rounding = Rounding.ZERO) -> Tile:
    """`x / y` of integers, rounded as `rounding` says; 0 for a zero divisor.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.
        rounding: ZERO (as in C), NEGATIVE_INF (as `//`) or POSITIVE_INF.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit, or integers have no such
            rounding.

    Example:
        >>> run(lambda x, y: ct.divi(x, y), [7, -7], [2, 2], dtype="i32")
        [3, -3]
        >>> run(lambda x, y: ct.divi(x, y, ct.rounding.POSITIVE_INF), [7, -7], [2, 2], dtype="i32")
        [4, -3]
    """
    ...


@operation(INTEGERS)
def remi(x: Tile | int, y: Tile | int) -> Tile:
    """Remainder of the truncated division of integers, as `%` in C.

    It has the sign of `x`; the result of the operator `%` has the sign of `y`. 0 for a zero divisor.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.remi(x, y), [7, -7], [3, 3], dtype="i32")
        [1, -1]
    """
    ...


@operation(INTEGERS)
def negi(x: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`-x` of integers; wraps.

    Args:
        x: integers; a tile or a number.
        overflow: a promise that the exact result fits. It is neither checked nor used: results wrap in any case.

    Returns:
        A tile of the dtype and shape of `x`.

    Raises:
        KernelTypeError: `x` is no integer.

    Example:
        >>> run(lambda x: ct.negi(x), [5, -(2**31)], dtype="i32")
        [-5, -2147483648]
    """
    ...


@operation(INTEGERS)
def absi(x: Tile | int) -> Tile:
    """Absolute value of integers; the smallest signed integer stays itself.

    Args:
        x: integers; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`.

    Raises:
        KernelTypeError: `x` is no integer.

    Example:
        >>> run(lambda x: ct.absi(x), [-7, -(2**31)], dtype="i32")
        [7, -2147483648]
    """
    ...


@operation(INTEGERS)
def mulhii(x: Tile | int, y: Tile | int) -> Tile:
    """Upper half of the bits of the exact product of two integers.

    The product has twice the bits of the dtype, and is signed where the dtype is.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.mulhii(x, y), [2**30, -1], [8, 1], dtype="i32")
        [2, -1]
    """
    ...


@operation(INTEGERS)
def maxi(x: Tile | int, y: Tile | int) -> Tile:
    """Larger of two integers, element by element.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.maxi(x, y), [1, 255], [2, 3], dtype="u8")
        [2, 255]
    """
    ...


@operation(INTEGERS)
def mini(x: Tile | int, y: Tile | int) -> Tile:
    """Smaller of two integers, element by element.

    Args:
        x, y: integers of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.mini(x, y), [1, -1], [2, 3], dtype="i8")
        [1, -1]
    """
    ...


@operation(FLOATS)
def remf(x: Tile | float, y: Tile | float) -> Tile:
    """Remainder of the truncated division of floats, as `fmod` in C.

    It is exact and has the sign of `x`; the result of the operator `%` has the sign of `y`. NaN for a zero divisor and
    for an infinite `x`.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, exact.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.remf(x, y), [7.5, -7.5], [2.0, 2.0])
        [1.5, -1.5]
    """
    ...


@operation(FLOATS)
def negf(x: Tile | float) -> Tile:
    """`-x` of floats: the sign bit flipped, also for zeros and NaNs.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, exact.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.negf(x), [1.5, 0.0])
        [-1.5, -0.0]
    """
    ...


@operation(FLOATS)
def absf(x: Tile | float) -> Tile:
    """The absolute value of floats.

    Args:
        x: floats; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, exact.

    Raises:
        KernelTypeError: `x` is no float.

    Example:
        >>> run(lambda x: ct.absf(x), [-1.5, -0.0])
        [1.5, 0.0]
    """
    ...


@operation(FLOATS)
def maxf(x: Tile | float, y: Tile | float, nan: Nan | bool = False, ftz: Ftz | bool = False) -> Tile:
    """Larger of two floats, element by element; -0 is below +0.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.
        nan: whether the result is NaN where one operand is NaN. If not, the result is the other operand.
        ftz: whether subnormal f32 operands count as zeros of their sign.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, exact.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit, or `ftz` is asked of another dtype
            than f32.

    Example:
        >>> run(lambda x, y: ct.maxf(x, y, nan=True), [1.0, float("nan")], [3.0, 4.0])
        [3.0, nan]
    """
    ...


@operation(FLOATS)
def minf(x: Tile | float, y: Tile | float, nan: Nan | bool = False, ftz: Ftz | bool = False) -> Tile:
    """Smaller of two floats, element by element; -0 is below +0.

    Args:
        x, y: floats of one dtype, tiles or numbers; the shapes broadcast.
        nan: whether the result is NaN where one operand is NaN. If not, the result is the other operand.
        ftz: whether subnormal f32 operands count as zeros of their sign.

    Returns:
        A tile of the operands' dtype, of their broadcast shape, exact.

    Raises:
        KernelTypeError: an operand is no float, or the dtypes or shapes do not fit, or `ftz` is asked of another dtype
            than f32.

    Example:
        >>> run(lambda x, y: ct.minf(x, y, nan=True), [1.0, float("nan")], [3.0, 4.0])
        [1.0, nan]
    """
    ...


@operation
def min_tile(x: Tile | float, y: Tile | float) -> Tile:
    """Smaller of two numbers, element by element.

    Where one operand is NaN, the result is the other. -0 is below +0.

    Args:
        x, y: integers or floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.min_tile(x, y), [1.0, 5.0], [3.0, 4.0])
        [1.0, 4.0]
    """
    ...


@operation
def max_tile(x: Tile | float, y: Tile | float) -> Tile:
    """Larger of two numbers, element by element.

    Where one operand is NaN, the result is the other. -0 is below +0.

    Args:
        x, y: integers or floats of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.max_tile(x, y), [1.0, 5.0], [3.0, 4.0])
        [3.0, 5.0]
    """
    ...


@operation(BITS)
def andi(x: Tile | int, y: Tile | int) -> Tile:
    """`x & y`: bits of integers, or bools.

    Args:
        x, y: integers or bools of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is neither integer nor bool, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.andi(x, y), [6, 3], [3, 1], dtype="i32")
        [2, 1]
    """
    ...


@operation(BITS)
def ori(x: Tile | int, y: Tile | int) -> Tile:
    """`x | y`: bits of integers, or bools.

    Args:
        x, y: integers or bools of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is neither integer nor bool, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.ori(x, y), [6, 3], [3, 1], dtype="i32")
        [7, 3]
    """
    ...


@operation(BITS)
def xori(x: Tile | int, y: Tile | int) -> Tile:
    """`x ^ y`: bits of integers, or bools.

    Args:
        x, y: integers or bools of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is neither integer nor bool, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.xori(x, y), [6, 3], [3, 1], dtype="i32")
        [5, 2]
    """
    ...


@operation(BITS)
def noti(x: Tile | int) -> Tile:
    """`~x`: bits of integers, or bools.

    Args:
        x: integers or bools; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`.

    Raises:
        KernelTypeError: `x` is neither integer nor bool.

    Example:
        >>> run(lambda x: ct.noti(x), [0, 5], dtype="i32")
        [-1, -6]
    """
    ...


@operation(INTEGERS)
def popcount(x: Tile | int) -> Tile:
    """How many bits of an integer are 1.

    For a negative number these are the bits of its two's complement. NumPy's `bitwise_count` counts those of `abs(x)`.

    Args:
        x: integers; a tile or a number.

    Returns:
        A tile of the dtype and shape of `x`, exact.

    Raises:
        KernelTypeError: `x` is no integer.

    Example:
        >>> run(lambda x: ct.popcount(x), [0, 255, -1], dtype="i32")
        [0, 8, 32]
    """
    ...


@operation(INTEGERS)
def shli(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x << y`; 0 for a count of at least the width.

    Args:
        x: integers; a tile or a number.
        y: the counts, in bits, of the dtype of `x`; the shapes broadcast. A negative count is unspecified.
        overflow: a promise that the exact result fits. It is neither checked nor used: results wrap in any case.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.shli(x, y), [1, 3], [4, 1], dtype="i32")
        [16, 6]
    """
    ...


@operation(INTEGERS)
def shri(x: Tile | int, y: Tile | int) -> Tile:
    """`x >> y`: signed integers fill with the sign bit, unsigned ones with zeros.

    Args:
        x: integers; a tile or a number.
        y: the counts, in bits, of the dtype of `x`; the shapes broadcast. A count of at least the width gives -1 for a
            negative `x`, else 0. A negative count is unspecified.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: an operand is no integer, or the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x, y: ct.shri(x, y), [-16, 16], [2, 2], dtype="i8")
        [-4, 4]
        >>> run(lambda x, y: ct.shri(x, y), [-16, 16], [8, 8], dtype="i8")
        [-1, 0]
        >>> run(lambda x, y: ct.shri(x, y), [240], [2], dtype="u8")
        [60]
    """
    ...


@operation
def ceil_div(a: int | Tile, b: int | Tile) -> int:
    """`a / b` of integers, rounded up; 0 for a zero divisor at run time.

    Args:
        a, b: integers of one dtype, tiles or numbers; the shapes broadcast.

    Returns:
        A constant for two constants, a plain number for plain numbers, else a tile of the operands' dtype.

    Raises:
        KernelTypeError: an operand is no integer, the dtypes or shapes do not fit, or both operands are constants and
            `b` is 0.

    Example:
        >>> run(lambda x: x + ct.ceil_div(7, 2), [1.0])
        [5.0]
    """
    ...


@composition()
def clamp(x: Tile | float, low: Tile | float, high: Tile | float) -> Tile:
    """`min(max(x, low), high)`, element by element.

    The result is `high` where `low` exceeds `high`, and NaN where an operand is NaN, as in NumPy's `clip`.

    Args:
        x: a tile, or a number.
        low, high: the bounds, of the dtype of `x`; tiles or numbers. The shapes broadcast.

    Returns:
        A tile of the operands' dtype, of their broadcast shape.

    Raises:
        KernelTypeError: the dtypes or shapes do not fit.

    Example:
        >>> run(lambda x: ct.clamp(x, 0.0, 6.0), [-1.0, 2.0, 7.0, float("nan")])
        [0.0, 2.0, 6.0, nan]
    """
    ...


__all__ = (
    "absf", "absi", "addi", "andi", "ceil_div", "clamp", "divi", "max_tile", "maxf", "maxi", "min_tile", "minf",
    "mini", "mulhii", "muli", "negf", "negi", "noti", "ori", "popcount", "remf", "remi", "shli", "shri", "subi",
    "xori",
)  # fmt: skip
