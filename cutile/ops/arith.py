"""Arithmetic and bits, element by element. Integers wrap; f16 and bf16 compute in f32 and round each time."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.ir.core import BITS_TILE, FLOAT_TILE, Op, Value, operand
from cutile.ir.types import Type
from cutile.ops.elementwise import Binary, BitsBinary, FloatBinary, IntBinary, Unary, require_same


class Add(Binary, name="add", spelled=("x + y",)):
    """`x + y`.

    Examples:
        >>> run(lambda x, y: x + y, [1.0, 2.0], [3.0, 4.0])
        [4.0, 6.0]
    """

    function = staticmethod(np.add)


class Sub(Binary, name="sub", spelled=("x - y",)):
    """`x - y`.

    Examples:
        >>> run(lambda x, y: x - y, [1.0, 2.0], [3.0, 5.0])
        [-2.0, -3.0]
    """

    function = staticmethod(np.subtract)


class Mul(Binary, name="mul", spelled=("x * y",)):
    """`x * y`.

    Examples:
        >>> run(lambda x, y: x * y, [1.0, 2.0], [3.0, 4.0])
        [3.0, 8.0]
    """

    function = staticmethod(np.multiply)


class Div(FloatBinary, name="div", spelled=("x / y",)):
    """`x / y` for floats, rounded to nearest.

    Examples:
        >>> run(lambda x, y: x / y, [1.0, 9.0], [4.0, 3.0])
        [0.25, 3.0]
    """

    function = staticmethod(np.divide)


def _floor_divide(x: Any, y: Any) -> Any:
    """NumPy's `//`; division by zero gives 0 and INT_MIN // -1 wraps, as NumPy has it."""
    with np.errstate(all="ignore"):
        return np.floor_divide(x, y)


def _mod(x: Any, y: Any) -> Any:
    """NumPy's `%`: the sign of `y`; 0 for a zero divisor."""
    with np.errstate(all="ignore"):
        return np.mod(x, y)


class FloorDiv(IntBinary, name="floor_div", spelled=("x // y", "ceil_div")):
    """`x // y` for integers, rounded down as in Python. A zero divisor gives 0, as in NumPy.

    Examples:
        >>> run(lambda x, y: x // y, [7, -7], [2, 2], dtype="i32")
        [3, -4]
    """

    function = staticmethod(_floor_divide)


class Mod(IntBinary, name="mod", spelled=("x % y",)):
    """`x % y` for integers, with the sign of `y` as in Python. A zero divisor gives 0, as in NumPy.

    Examples:
        >>> run(lambda x, y: x % y, [7, -7], [3, 3], dtype="i32")
        [1, 2]
    """

    function = staticmethod(_mod)


class Min(Binary, name="min", spelled=("min_tile", "min(x, y)")):
    """The smaller of `x` and `y`; a NaN is dropped where the other is a number.

    Examples:
        >>> run(lambda x, y: ct.min_tile(x, y), [1.0, 5.0], [3.0, 4.0])
        [1.0, 4.0]
    """

    function = staticmethod(np.fmin)


class Max(Binary, name="max", spelled=("max_tile", "max(x, y)")):
    """The larger of `x` and `y`; a NaN is dropped where the other is a number.

    Examples:
        >>> run(lambda x, y: ct.max_tile(x, y), [1.0, 5.0], [3.0, 4.0])
        [3.0, 5.0]
    """

    function = staticmethod(np.fmax)


class Neg(Unary, name="neg", spelled=("-x",)):
    """`-x`.

    Examples:
        >>> run(lambda x: -x, [1.0, -2.0])
        [-1.0, 2.0]
    """

    def reference(self, x: Any) -> Any:
        return np.negative(x)


class Abs(Unary, name="abs", spelled=("abs(x)",)):
    """The absolute value; the smallest signed integer stays itself.

    Examples:
        >>> run(lambda x: abs(x), [1.0, -2.0])
        [1.0, 2.0]
    """

    def reference(self, x: Any) -> Any:
        return np.abs(x)


class Fma(Op, name="fma", spelled=("fma",)):
    """`x * y + z` with one rounding.

    Examples:
        >>> run(lambda x, y: ct.fma(x, y, x), [1.0, 2.0], [3.0, 4.0])
        [4.0, 10.0]
    """

    x: Value = operand(FLOAT_TILE)
    y: Value = operand(FLOAT_TILE)
    z: Value = operand(FLOAT_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (require_same(self.name, x=self.x, y=self.y, z=self.z),)

    def reference(self, x: Any, y: Any, z: Any) -> Any:
        # exact for f16, bf16 and f32 up to the double rounding of float64; f64 goes through long double
        wide = np.longdouble if x.dtype.itemsize == 8 else np.float64
        return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(x.dtype)


class And(BitsBinary, name="and", spelled=("x & y",)):
    """`x & y`, bit by bit; logical for bools.

    Examples:
        >>> run(lambda x, y: x & y, [6, 3], [3, 1], dtype="i32")
        [2, 1]
    """

    function = staticmethod(np.bitwise_and)


class Or(BitsBinary, name="or", spelled=("x | y",)):
    """`x | y`, bit by bit; logical for bools.

    Examples:
        >>> run(lambda x, y: x | y, [6, 3], [3, 1], dtype="i32")
        [7, 3]
    """

    function = staticmethod(np.bitwise_or)


class Xor(BitsBinary, name="xor", spelled=("x ^ y",)):
    """`x ^ y`, bit by bit; logical for bools.

    Examples:
        >>> run(lambda x, y: x ^ y, [6, 3], [3, 1], dtype="i32")
        [5, 2]
    """

    function = staticmethod(np.bitwise_xor)


class Not(Op, name="not", spelled=("~x",)):
    """`~x`, bit by bit; logical for bools.

    Examples:
        >>> run(lambda x: ~x, [0, 5], dtype="i32")
        [-1, -6]
    """

    x: Value = operand(BITS_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)

    def reference(self, x: Any) -> Any:
        return np.invert(x)


def _shift_left(x: Any, y: Any) -> Any:
    """NumPy's `<<`: a count of at least the width gives 0."""
    return np.left_shift(x, y)


class Shl(IntBinary, name="shl", spelled=("x << y",)):
    """`x << y`; a count of at least the width gives 0, as in NumPy. Negative counts are unspecified.

    Examples:
        >>> run(lambda x, y: x << y, [1, 3], [4, 1], dtype="i32")
        [16, 6]
    """

    function = staticmethod(_shift_left)


class Shr(IntBinary, name="shr", spelled=("x >> y",)):
    """`x >> y`; signed values keep their sign; a count of at least the width gives 0 or -1, as in NumPy.

    Examples:
        >>> run(lambda x, y: x >> y, [16, -8], [2, 1], dtype="i32")
        [4, -4]
    """

    function = staticmethod(np.right_shift)
