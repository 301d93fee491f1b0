"""Arithmetic by upstream's names: integers, floats with a chosen rounding, bits.

The operators are the usual spelling; these functions are for what operators cannot say. Numbers take the dtype of the
tile beside them, and shapes broadcast.
"""

from __future__ import annotations

from cutile.language.declare import operation
from cutile.language.markers import ftz as Ftz
from cutile.language.markers import nan as Nan
from cutile.language.markers import overflow as Overflow
from cutile.language.markers import rounding as Rounding
from cutile.tile import Tile, outside_kernel


@operation
def addi(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x + y` of integers; wraps. `overflow` promises that it does not.

    Example:
        >>> run(lambda x, y: ct.addi(x, y), [1, 2**31 - 1], [2, 1], dtype="i32")
        [3, -2147483648]
    """
    outside_kernel("addi")


@operation
def subi(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x - y` of integers; wraps. `overflow` promises that it does not.

    Example:
        >>> run(lambda x, y: ct.subi(x, y), [1, -(2**31)], [2, 1], dtype="i32")
        [-1, 2147483647]
    """
    outside_kernel("subi")


@operation
def muli(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x * y` of integers; wraps. `overflow` promises that it does not.

    Example:
        >>> run(lambda x, y: ct.muli(x, y), [3, 2**30], [5, 5], dtype="i32")
        [15, 1073741824]
    """
    outside_kernel("muli")


@operation
def divi(x: Tile | int, y: Tile | int, rounding: Rounding = Rounding.ZERO) -> Tile:
    """`x / y` of integers, rounded to ZERO (as in C), NEGATIVE_INF (as `//`) or POSITIVE_INF; 0 for a zero divisor."""
    outside_kernel("divi")


@operation
def remi(x: Tile | int, y: Tile | int) -> Tile:
    """What the truncated quotient of integers leaves: with the sign of `x`, not of `y` as `%`; 0 for a zero divisor."""
    outside_kernel("remi")


@operation
def negi(x: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`-x` of integers; wraps. `overflow` promises that it does not.

    Example:
        >>> run(lambda x: ct.negi(x), [5, -(2**31)], dtype="i32")
        [-5, -2147483648]
    """
    outside_kernel("negi")


@operation
def absi(x: Tile | int) -> Tile:
    """The absolute value of integers; the smallest one stays itself.

    Example:
        >>> run(lambda x: ct.absi(x), [-7, -(2**31)], dtype="i32")
        [7, -2147483648]
    """
    outside_kernel("absi")


@operation
def mulhii(x: Tile | int, y: Tile | int) -> Tile:
    """The upper half of the product of integers, which has twice the bits."""
    outside_kernel("mulhii")


@operation
def maxi(x: Tile | int, y: Tile | int) -> Tile:
    """The larger integer.

    Example:
        >>> run(lambda x, y: ct.maxi(x, y), [1, 255], [2, 3], dtype="u8")
        [2, 255]
    """
    outside_kernel("maxi")


@operation
def mini(x: Tile | int, y: Tile | int) -> Tile:
    """The smaller integer.

    Example:
        >>> run(lambda x, y: ct.mini(x, y), [1, -1], [2, 3], dtype="i8")
        [1, -1]
    """
    outside_kernel("mini")


@operation
def addf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x + y` of floats. Another rounding is for f32 and f64, `ftz` for f32."""
    outside_kernel("addf")


@operation
def subf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x - y` of floats. Another rounding is for f32 and f64, `ftz` for f32."""
    outside_kernel("subf")


@operation
def mulf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x * y` of floats. Another rounding is for f32 and f64, `ftz` for f32."""
    outside_kernel("mulf")


@operation
def divf(x: Tile | float, y: Tile | float, rounding: Rounding = Rounding.NEAREST_EVEN, ftz: Ftz | bool = False) -> Tile:
    """`x / y` of floats. Another rounding is for f32 and f64; APPROX, FULL (within 2 ulp) and `ftz` for f32."""
    outside_kernel("divf")


@operation
def true_div(x: Tile | float, y: Tile | float) -> Tile:
    """`x / y` of floats, the fast way: for f32 APPROX with `ftz`, else rounded to nearest."""
    outside_kernel("true_div")


@operation
def remf(x: Tile | float, y: Tile | float) -> Tile:
    """What the truncated quotient of floats leaves, with the sign of `x`. Exact. `%` has the sign of `y`."""
    outside_kernel("remf")


@operation
def negf(x: Tile | float) -> Tile:
    """`-x` of floats: the sign bit flipped, also of zeros.

    Example:
        >>> run(lambda x: ct.negf(x), [1.5, 0.0])
        [-1.5, -0.0]
    """
    outside_kernel("negf")


@operation
def absf(x: Tile | float) -> Tile:
    """The absolute value of floats.

    Example:
        >>> run(lambda x: ct.absf(x), [-1.5, -0.0])
        [1.5, 0.0]
    """
    outside_kernel("absf")


@operation
def fma(
    x: Tile | float,
    y: Tile | float,
    z: Tile | float,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    ftz: Ftz | bool = False,
) -> Tile:
    """`x * y + z` with one rounding. Another rounding is for f32 and f64, `ftz` for f32."""
    outside_kernel("fma")


@operation
def maxf(x: Tile | float, y: Tile | float, nan: Nan | bool = False, ftz: Ftz | bool = False) -> Tile:
    """The larger float, -0 below +0. A NaN is dropped where the other is a number; with `nan` it propagates."""
    outside_kernel("maxf")


@operation
def minf(x: Tile | float, y: Tile | float, nan: Nan | bool = False, ftz: Ftz | bool = False) -> Tile:
    """The smaller float, -0 below +0. A NaN is dropped where the other is a number; with `nan` it propagates."""
    outside_kernel("minf")


@operation
def min_tile(x: Tile | float, y: Tile | float) -> Tile:
    """The smaller, element by element; a NaN is dropped where the other is a number."""
    outside_kernel("min_tile")


@operation
def max_tile(x: Tile | float, y: Tile | float) -> Tile:
    """The larger, element by element; a NaN is dropped where the other is a number."""
    outside_kernel("max_tile")


@operation
def andi(x: Tile | int, y: Tile | int) -> Tile:
    """`x & y`: bits of integers, or bools.

    Example:
        >>> run(lambda x, y: ct.andi(x, y), [6, 3], [3, 1], dtype="i32")
        [2, 1]
    """
    outside_kernel("andi")


@operation
def ori(x: Tile | int, y: Tile | int) -> Tile:
    """`x | y`: bits of integers, or bools.

    Example:
        >>> run(lambda x, y: ct.ori(x, y), [6, 3], [3, 1], dtype="i32")
        [7, 3]
    """
    outside_kernel("ori")


@operation
def xori(x: Tile | int, y: Tile | int) -> Tile:
    """`x ^ y`: bits of integers, or bools.

    Example:
        >>> run(lambda x, y: ct.xori(x, y), [6, 3], [3, 1], dtype="i32")
        [5, 2]
    """
    outside_kernel("xori")


@operation
def noti(x: Tile | int) -> Tile:
    """`~x`: bits of integers, or bools.

    Example:
        >>> run(lambda x: ct.noti(x), [0, 5], dtype="i32")
        [-1, -6]
    """
    outside_kernel("noti")


@operation
def shli(x: Tile | int, y: Tile | int, overflow: Overflow = Overflow.NONE) -> Tile:
    """`x << y`; 0 for a count of at least the width. `overflow` promises that nothing is shifted out.

    Example:
        >>> run(lambda x, y: ct.shli(x, y), [1, 3], [4, 1], dtype="i32")
        [16, 6]
    """
    outside_kernel("shli")


@operation
def shri(x: Tile | int, y: Tile | int) -> Tile:
    """`x >> y`: the sign is kept where the dtype has one.

    Example:
        >>> run(lambda x, y: ct.shri(x, y), [-16, 16], [2, 2], dtype="i8")
        [-4, 4]
        >>> run(lambda x, y: ct.shri(x, y), [240], [2], dtype="u8")
        [60]
    """
    outside_kernel("shri")


@operation
def ceil_div(a: int | Tile, b: int | Tile) -> int:
    """`a / b` rounded up, for integers.

    Example:
        >>> run(lambda x: x + ct.ceil_div(7, 2), [1.0])
        [5.0]
    """
    outside_kernel("ceil_div")


__all__ = (
    "absf",
    "absi",
    "addf",
    "addi",
    "andi",
    "ceil_div",
    "divf",
    "divi",
    "fma",
    "max_tile",
    "maxf",
    "maxi",
    "min_tile",
    "minf",
    "mini",
    "mulf",
    "mulhii",
    "muli",
    "negf",
    "negi",
    "noti",
    "ori",
    "remf",
    "remi",
    "shli",
    "shri",
    "subf",
    "subi",
    "true_div",
    "xori",
)
