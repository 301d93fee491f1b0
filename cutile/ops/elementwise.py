"""Bases of the element-wise operations, and exact results of floats.

This is no family of operations: the operations of several families derive from these classes.

The exact result of an operation on floats is a rational number, except that a square root may be irrational: there,
squares are compared. `directed` starts from results that are rounded to nearest. Where a result lies on the wrong side
of the exact one, `directed` takes its neighbour. This is slow. The reference backend computes this way, and the tests
compare all backends with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir import BITS_TILE, FLOAT_TILE, INT_TILE, NUMBER_TILE, Op, TileType, Type, Value, operand

if TYPE_CHECKING:
    from fractions import Fraction

Array = np.ndarray[Any, Any]
Compare = Callable[..., int]
"""Takes operands and a rounded result, all finite floats. Gives the sign of the exact result minus the rounded one."""


def _exact(x: float) -> Fraction:
    from fractions import Fraction  # imported here: a process that only launches compiled kernels needs no fractions

    return Fraction(x)


def _sign(x: Fraction) -> int:
    return (x > 0) - (x < 0)


def _sum(x: float, y: float, near: float) -> int:
    return _sign(_exact(x) + _exact(y) - _exact(near))


def _difference(x: float, y: float, near: float) -> int:
    return _sign(_exact(x) - _exact(y) - _exact(near))


def _product(x: float, y: float, near: float) -> int:
    return _sign(_exact(x) * _exact(y) - _exact(near))


def _quotient(x: float, y: float, near: float) -> int:
    return _sign(_exact(x) / _exact(y) - _exact(near)) if y else 0  # `x / 0` is infinite or NaN, which is exact


def _fused(x: float, y: float, z: float, near: float) -> int:
    return _sign(_exact(x) * _exact(y) + _exact(z) - _exact(near))


def _root(x: float, near: float) -> int:
    return _sign(_exact(x) - _exact(near) ** 2)


# By `Rounded.exact_name`, except "tanh", whose exact result is no rational number.
COMPARE: dict[str, Compare] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "div": _quotient,
    "fma": _fused,
    "sqrt": _root,
}


def excess(name: str, near: Array, *operands: Array) -> Array:
    """The sign of (exact result - `near`), element by element.

    0 where an operand is no finite number, or the result is NaN.
    """
    compare = COMPARE[name]

    def excess_of(result: float, *operands: float) -> int:
        if not all(map(math.isfinite, operands)) or math.isnan(result):
            return 0
        if math.isinf(result):  # by overflow, so the exact result is nearer to 0; or by a division by 0, which is exact
            return 0 if name == "div" and operands[1] == 0 else int(math.copysign(1, -result))
        return compare(*operands, result)

    columns = [np.ravel(each).tolist() for each in (near, *operands)]
    return np.array([excess_of(*row) for row in zip(*columns, strict=True)], np.int8).reshape(np.shape(near))


def directed(name: str, mode: str, near: Array, *operands: Array) -> Array:
    """`near`, the results rounded to nearest, rounded another way.

    Args:
        name: a key of `COMPARE`.
        mode: "positive_inf", "negative_inf" or "zero".

    Example:
        >>> two, three = np.array([2.0], np.float32), np.array([3.0], np.float32)
        >>> float(directed("div", "zero", two / three, two, three)[0]), float((two / three)[0])
        (0.6666666269302368, 0.6666666865348816)
    """
    signs = excess(name, near, *operands)
    up = mode == "positive_inf"
    down = mode == "negative_inf"
    # Toward zero, a negative result may only rise, and a positive one only fall.
    rise = (signs > 0) & (np.full(near.shape, up) if mode != "zero" else near < 0)
    fall = (signs < 0) & (np.full(near.shape, down) if mode != "zero" else near > 0)
    infinity = near.dtype.type(np.inf)
    moved = np.where(rise, np.nextafter(near, infinity), np.where(fall, np.nextafter(near, -infinity), near))
    if down and name in ("add", "sub", "fma"):  # an exact zero from unlike signs is -0 when rounding down
        moved = np.where((near == 0) & (signs == 0) & _unlike(name, operands), near.dtype.type(-0.0), moved)
    return np.asarray(moved, near.dtype)


def _unlike(name: str, operands: tuple[Array, ...]) -> Array:
    """Whether the two terms of a sum have different signs."""
    if name == "fma":
        x, y, z = map(np.signbit, operands)
        return (x ^ y) != z
    x, y = map(np.signbit, operands)
    return x == y if name == "sub" else x != y


def flush(x: Array) -> Array:
    """Flush to zero: subnormal f32 as zeros of their sign.

    Other dtypes stay as they are.
    """
    if x.dtype != np.float32:
        return x
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def fused(x: Array, y: Array, z: Array) -> Array:
    """`x * y + z` rounded once, to nearest.

    For f32 and narrower floats the product is exact in f64. Its sum with `z` is rounded to odd in f64: an inexact sum
    takes the neighbour whose last bit is set. Rounding that to fewer bits gives the correctly rounded result (Boldo and
    Melquiond, 2008). For f64 the exact rational number is rounded.

    Example:
        >>> x = np.array([1 + 2.0**-12], np.float32)
        >>> float(fused(x, x, -np.array([1 + 2.0**-11], np.float32))[0]) == 2.0**-24
        True
    """
    if x.dtype == np.float64:
        return _fused_rational(x, y, z)
    product = x.astype(np.float64) * y.astype(np.float64)
    wide = _to_odd(*_two_sum(product, z.astype(np.float64)))
    if x.dtype.itemsize == 2:  # to f32 first, again to odd: ml_dtypes itself rounds f64 to bf16 twice, by way of f32
        wide = _odd_f32(wide)
    return wide.astype(x.dtype)


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The rounded sum and its rounding error (Knuth's two-sum)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _to_odd(total: Array, rest: Array) -> Array:
    """The sum of `total` and its rounding error `rest`, rounded to odd in f64."""
    even = (total.view(np.int64) & 1) == 0
    moves = even & np.isfinite(total) & (rest != 0)
    return np.where(moves, np.nextafter(total, np.copysign(np.inf, rest)), total)


def _odd_f32(wide: Array) -> Array:
    """f64 to f32, rounded to odd."""
    near = wide.astype(np.float32)
    back = near.astype(np.float64)
    inexact = np.isfinite(wide) & (back != wide)
    even = (near.view(np.int32) & 1) == 0
    toward = np.where(wide > back, np.float32(np.inf), np.float32(-np.inf))
    return np.where(inexact & even, np.nextafter(near, toward), near)


def _fused_rational(x: Array, y: Array, z: Array) -> Array:
    def fused_of(a: float, b: float, c: float) -> float:
        if not math.isfinite(a) or not math.isfinite(b):
            return a * b + c
        if not math.isfinite(c):  # `a * b` may overflow where the exact product does not
            return c
        exact = _exact(a) * _exact(b) + _exact(c)
        if not exact:  # floats give the sign of a sum of zeros; unlike terms that cancel give +0
            return a * b + c if a * b == 0 or c == 0 else 0.0
        try:
            near = float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf
        return near if near or exact > 0 else -0.0

    rows = zip(*(np.ravel(each).tolist() for each in (x, y, z)), strict=True)
    return np.array([fused_of(*row) for row in rows], np.float64).reshape(np.shape(x))


def require_same(op: str, **values: Value) -> TileType:
    """The one type of several operands.

    Raises:
        KernelTypeError: they differ; names both types.
    """
    (first_name, first), *rest = values.items()
    for name, value in rest:
        if value.type != first.type:
            raise KernelTypeError(
                f"{op}: operands {first_name!r} and {name!r} must have one type, got {first.type} and {value.type}",
                remedy="Convert one with ct.convert_tile, or reshape it so that the shapes broadcast.",
            )
    return first.tile


def rounded(function: Any, *arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`function(*arrays)` in more bits than the arrays have, rounded to their dtype."""
    wide = np.longdouble if arrays[0].dtype.itemsize == 8 else np.float64
    return np.asarray(function(*(each.astype(wide) for each in arrays))).astype(arrays[0].dtype)


class Unary(Op):
    """One tile in, the same type out."""

    x: Value = operand(NUMBER_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


def of_name(name: str) -> Any:
    """NumPy's function of a name; failing that, Python's `math`, element by element."""
    return getattr(np, name, None) or np.vectorize(getattr(math, name), otypes=[np.float64])


class FloatUnary(Op):
    """One tile of floats in, the same type out.

    Attributes:
        function: the NumPy meaning; None for the function of the operation's name in NumPy or in Python's `math`.
    """

    function: ClassVar[Any] = None
    x: Value = operand(FLOAT_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)

    def reference(self, x: Any) -> Any:
        return rounded(type(self).function or of_name(self.name), x)


class Binary(Op):
    """Two tiles of one type in, the same type out.

    Attributes:
        function: the NumPy meaning.
    """

    function: ClassVar[Any]
    x: Value = operand(NUMBER_TILE)
    y: Value = operand(NUMBER_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (require_same(self.name, x=self.x, y=self.y),)

    def reference(self, x: Any, y: Any) -> Any:
        return np.asarray(type(self).function(x, y)).astype(x.dtype)


class FloatBinary(Binary):
    """Two tiles of floats in, the same type out."""

    x: Value = operand(FLOAT_TILE)
    y: Value = operand(FLOAT_TILE)


class IntBinary(Binary):
    """Two tiles of integers in, the same type out."""

    x: Value = operand(INT_TILE)
    y: Value = operand(INT_TILE)


class BitsBinary(Binary):
    """Two tiles of integers or bools in, the same type out."""

    x: Value = operand(BITS_TILE)
    y: Value = operand(BITS_TILE)
