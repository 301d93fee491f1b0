"""Arithmetic and bits, element by element.

Integers wrap. f16 and bf16 compute in f32, and each operation rounds. Floats round to nearest even here; the other
roundings are in `rounding.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir import BITS_TILE, FLOAT_TILE, INT_TILE, Op, Type, Value, attribute, operand
from cutile.ops import elementwise
from cutile.ops.elementwise import Binary, BitsBinary, FloatBinary, IntBinary, Unary, require_same


class Add(Binary, name="add", spelled=("x + y", "addi", "addf")):
    """`x + y`.

    Examples:
        >>> run(lambda x, y: x + y, [1.0, 2.0], [3.0, 4.0])
        [4.0, 6.0]
    """

    function = staticmethod(np.add)


class Sub(Binary, name="sub", spelled=("x - y", "subi", "subf")):
    """`x - y`.

    Examples:
        >>> run(lambda x, y: x - y, [1.0, 2.0], [3.0, 5.0])
        [-2.0, -3.0]
    """

    function = staticmethod(np.subtract)


class Mul(Binary, name="mul", spelled=("x * y", "muli", "mulf")):
    """`x * y`.

    Examples:
        >>> run(lambda x, y: x * y, [1.0, 2.0], [3.0, 4.0])
        [3.0, 8.0]
    """

    function = staticmethod(np.multiply)


class Div(FloatBinary, name="div", spelled=("x / y", "divf", "true_div")):
    """`x / y` for floats, rounded to nearest.

    Examples:
        >>> run(lambda x, y: x / y, [1.0, 9.0], [4.0, 3.0])
        [0.25, 3.0]
    """

    function = staticmethod(np.divide)


def _wide(x: Any) -> Any:
    """16-bit floats as f32, in which they are computed."""
    # Not `kind == "f"`: that of ml_dtypes' bfloat16 is "V".
    return x.astype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "iub" else x


def _floor_divide(x: Any, y: Any) -> Any:
    """NumPy's `//`: of integers, 0 for a zero divisor, and INT_MIN // -1 wraps."""
    with np.errstate(all="ignore"):
        return np.floor_divide(_wide(x), _wide(y))


def _mod(x: Any, y: Any) -> Any:
    """NumPy's `%`: the sign of `y`; 0 for a zero divisor of integers."""
    with np.errstate(all="ignore"):
        return np.mod(_wide(x), _wide(y))


class FloorDiv(Binary, name="floor_div", spelled=("x // y", "divi")):
    """`x // y`, rounded down as in Python.

    A zero divisor gives 0 for integers, as in NumPy.

    For floats it is `(x - x % y) / y`, a whole number. That is not the floor of the rounded quotient: `1.0 // 0.1` is
    9, since 0.1 is a little more than a tenth. For a zero divisor it is infinite or NaN, as `x / y` is.

    Examples:
        >>> run(lambda x, y: x // y, [7, -7], [2, 2], dtype="i32")
        [3, -4]
        >>> run(lambda x, y: x // y, [1.0, -1.0], [0.1, 0.1], dtype="f64")
        [9.0, -10.0]
    """

    function = staticmethod(_floor_divide)


class Mod(Binary, name="mod", spelled=("x % y",)):
    """`x % y`, with the sign of `y` as in Python.

    A zero divisor gives 0 for integers, NaN for floats, as in NumPy.

    Examples:
        >>> run(lambda x, y: x % y, [7, -7], [3, 3], dtype="i32")
        [1, 2]
        >>> run(lambda x, y: x % y, [7.5, -7.5], [2.0, 2.0])
        [1.5, 0.5]
    """

    function = staticmethod(_mod)


def _truncated_divide(x: Any, y: Any) -> Any:
    """The quotient rounded toward zero.

    0 for a zero divisor; the smallest integer over -1 wraps.
    """
    quotient = _floor_divide(x, y)
    # The smallest integer over -1 wraps, and so does the product with -1: it is `x` again, so no inexact quotient.
    inexact = (quotient * y != x) & (y != 0)
    return quotient + (inexact & (quotient < 0)).astype(x.dtype)


class DivTrunc(IntBinary, name="div_trunc", spelled=("divi",)):
    """`x / y` for integers, rounded toward zero as in C. A zero divisor gives 0."""

    function = staticmethod(_truncated_divide)


def _ceiled_divide(x: Any, y: Any) -> Any:
    """The quotient rounded up; 0 for a zero divisor."""
    quotient = _floor_divide(x, y)
    return quotient + ((quotient * y != x) & (y != 0)).astype(x.dtype)


class DivCeil(IntBinary, name="div_ceil", spelled=("divi", "ceil_div")):
    """`x / y` for integers, rounded up. A zero divisor gives 0."""

    function = staticmethod(_ceiled_divide)


def _remainder(x: Any, y: Any) -> Any:
    """NumPy's fmod: the sign of `x`; 0 for a zero divisor of integers."""
    with np.errstate(all="ignore"):
        return np.fmod(_wide(x), _wide(y))  # exact: a remainder fits the dtype of its operands


class Rem(Binary, name="rem", spelled=("remi", "remf")):
    """Remainder of the truncated division: it has the sign of `x`, as in C.

    It is exact. A zero divisor gives 0 for integers, and NaN for floats, as does an infinite `x`.
    """

    function = staticmethod(_remainder)


def _high_product(x: Any, y: Any) -> Any:
    """The upper half of the product's bits.

    For 64-bit operands by Python's integers: NumPy has none of 128 bits.
    """
    bits = x.dtype.itemsize * 8
    if bits < 64:
        wide = np.uint64 if x.dtype.kind == "u" else np.int64
        return x.astype(wide) * y.astype(wide) >> wide(bits)
    product = np.asarray(x.astype(object) * y.astype(object))
    return np.asarray(product // (1 << 64), object).astype(x.dtype)


class MulHi(IntBinary, name="mul_hi", spelled=("mulhii",)):
    """Upper half of the bits of the exact product, which has twice as many.

    The product is signed where the dtype is.
    """

    function = staticmethod(_high_product)


_choose: Any = np.where  # untyped: NumPy's stubs leave the type of the result unknown


class Extreme(Binary):
    """The smaller or the larger of two numbers; -0 is below +0.

    Attributes:
        nan: whether NaN propagates. If not, the result is the other operand.
        ftz: whether subnormal f32 operands count as zeros of their sign.
    """

    nan: bool = attribute(default=False)
    ftz: bool = attribute(default=False)
    propagating: ClassVar[Any]

    def infer(self) -> tuple[Type, ...]:
        result = super().infer()
        if self.ftz and self.x.tile.dtype.name != "f32":
            raise KernelTypeError(
                f"{self.name}: ftz flushes f32, the tiles are {self.x.tile.dtype}", remedy="Leave ftz out."
            )
        return result

    def reference(self, x: Any, y: Any) -> Any:
        if x.dtype.kind in "iu":  # neither NaN nor -0
            return np.asarray(type(self).function(x, y))
        if self.ftz:
            x, y = elementwise.flush(x), elementwise.flush(y)
        picked = (type(self).propagating if self.nan else type(self).function)(x, y)
        return _choose((x == 0) & (y == 0), self._of_zeros(x, y), picked).astype(x.dtype)

    def _of_zeros(self, x: Any, y: Any) -> Any:
        """The extreme of two zeros, of which NumPy may return either."""
        raise NotImplementedError


class Min(Extreme, name="min", spelled=("min_tile", "minf", "mini", "min(x, y)")):
    """The smaller of `x` and `y`, -0 below +0.

    Where one operand is NaN, the result is the other, unless `nan` is set.

    Examples:
        >>> run(lambda x, y: min(x, y), [1.0, 5.0], [3.0, 4.0])
        [1.0, 4.0]
    """

    function = staticmethod(np.fmin)
    propagating = staticmethod(np.minimum)

    def _of_zeros(self, x: Any, y: Any) -> Any:
        return _choose(np.signbit(x), x, y)


class Max(Extreme, name="max", spelled=("max_tile", "maxf", "maxi", "max(x, y)")):
    """The larger of `x` and `y`, -0 below +0.

    Where one operand is NaN, the result is the other, unless `nan` is set.

    Examples:
        >>> run(lambda x, y: max(x, y), [1.0, 5.0], [3.0, 4.0])
        [3.0, 5.0]
    """

    function = staticmethod(np.fmax)
    propagating = staticmethod(np.maximum)

    def _of_zeros(self, x: Any, y: Any) -> Any:
        return _choose(np.signbit(x), y, x)


class Neg(Unary, name="neg", spelled=("-x", "negi", "negf")):
    """`-x`.

    Examples:
        >>> run(lambda x: -x, [1.0, -2.0])
        [-1.0, 2.0]
    """

    def reference(self, x: Any) -> Any:
        return np.negative(x)


class Abs(Unary, name="abs", spelled=("abs(x)", "absi", "absf")):
    """The absolute value; the smallest signed integer stays itself.

    Examples:
        >>> run(lambda x: abs(x), [1.0, -2.0])
        [1.0, 2.0]
    """

    def reference(self, x: Any) -> Any:
        return np.abs(x)


class Fma(Op, name="fma", spelled=("fma",)):
    """`x * y + z` with one rounding."""

    x: Value = operand(FLOAT_TILE)
    y: Value = operand(FLOAT_TILE)
    z: Value = operand(FLOAT_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (require_same(self.name, x=self.x, y=self.y, z=self.z),)

    def reference(self, x: Any, y: Any, z: Any) -> Any:
        return elementwise.fused(x, y, z)


class And(BitsBinary, name="and", spelled=("x & y", "andi")):
    """`x & y`, bit by bit; logical for bools.

    Examples:
        >>> run(lambda x, y: x & y, [6, 3], [3, 1], dtype="i32")
        [2, 1]
    """

    function = staticmethod(np.bitwise_and)


class Or(BitsBinary, name="or", spelled=("x | y", "ori")):
    """`x | y`, bit by bit; logical for bools.

    Examples:
        >>> run(lambda x, y: x | y, [6, 3], [3, 1], dtype="i32")
        [7, 3]
    """

    function = staticmethod(np.bitwise_or)


class Xor(BitsBinary, name="xor", spelled=("x ^ y", "xori")):
    """`x ^ y`, bit by bit; logical for bools.

    Examples:
        >>> run(lambda x, y: x ^ y, [6, 3], [3, 1], dtype="i32")
        [5, 2]
    """

    function = staticmethod(np.bitwise_xor)


class Not(Op, name="not", spelled=("~x", "noti")):
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


class Popcount(Unary, name="popcount", spelled=("popcount",)):
    """How many bits of the two's complement are 1."""

    x: Value = operand(INT_TILE)

    def reference(self, x: Any) -> Any:
        return np.bitwise_count(x.astype(f"u{x.dtype.itemsize}")).astype(x.dtype)


class Shl(IntBinary, name="shl", spelled=("x << y", "shli")):
    """`x << y`; a count of at least the width gives 0, as in NumPy.

    Negative counts are unspecified.

    Examples:
        >>> run(lambda x, y: x << y, [1, 3], [4, 1], dtype="i32")
        [16, 6]
    """

    function = staticmethod(np.left_shift)


class Shr(IntBinary, name="shr", spelled=("x >> y", "shri")):
    """`x >> y`.

    Signed values keep their sign. A count of at least the width gives -1 for negative values and 0 for all others, as
    in NumPy. Negative counts are unspecified.

    Examples:
        >>> run(lambda x, y: x >> y, [16, -8], [2, 1], dtype="i32")
        [4, -4]
    """

    function = staticmethod(np.right_shift)
