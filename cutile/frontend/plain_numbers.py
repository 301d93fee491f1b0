"""Plain numbers: scalars that are mere numbers in Python, and their intervals.

Extents, counts, block indices and variables of `range` are *weak*, and so are results of arithmetic on them. Beside a
tile of another dtype they take that dtype, as a number does: `total / x.shape[1]` divides floats. A parameter `n: i32`
or the element of a tile is strong: its author gave it a dtype, and it is converted only where the kernel says so.

A weak integer may become a float, i32 or i64. A weak f32 is the result of weak integers and a Python float, or of a
division of weak integers. It may become f16 or bf16, but not f64, for which it is too coarse.

A weak integer has an interval. It is an i32 in the IR where the interval fits 32 bits, else an i64. An operation is
computed in 32 bits where its operands and its result fit, else in 64. Past 64 bits it wraps. A variable cannot be a
weak i64 on one path and a strong i32 on another (`narrows`).

    x.shape[0]                          1 .. the largest extent that a launch takes
    64 * ct.get_tile_block_id()[0]      0 .. 64 * the largest index, by the tiles of a `Mut` along that axis
    x.shape[0] * x.shape[1]             more than 32 bits hold

Operations on intervals follow Python's on whole numbers, but division by zero gives 0, as in kernels (`FloorDiv` in
`ops/arith.py`). If a result lies beyond 64 bits, `computed` takes `I64` for it, since integers in kernels wrap.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from cutile.conversion import fits, short, wider
from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i32, i64, u64
from cutile.frontend.values import converted, is_tile, noun
from cutile.ir import Constant, Op, Value
from cutile.ops.cast import Convert

if TYPE_CHECKING:
    from cutile.frontend.frame import Frame


@dataclass(frozen=True)
class Interval:
    """The whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    @staticmethod
    def of(dtype: DTypeLike) -> Interval:
        """The numbers that an integer dtype holds."""
        signed = dtype.is_signed
        return Interval(-(2 ** (dtype.bits - 1)) if signed else 0, 2 ** (dtype.bits - signed) - 1)

    def within(self, other: Interval) -> bool:
        """Whether the other one holds all of these numbers."""
        return other.low <= self.low and self.high <= other.high

    def fits(self, dtype: DTypeLike) -> bool:
        """Whether an integer dtype holds all of these numbers."""
        return self.within(Interval.of(dtype))

    def meet(self, other: Interval) -> Interval:
        """The numbers in both; this one where they have none in common.

        That is no error. The other interval is an assumption, of the author's or of the dtype. If it contradicts this
        one, the code never runs with a number that keeps it.
        """
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high) if low <= high else self

    def join(self, other: Interval) -> Interval:
        """The numbers in either, and those between."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


I32 = Interval.of(i32)
I64 = Interval.of(i64)


def _hull(numbers: Iterable[int]) -> Interval:
    ends = list(numbers)
    return Interval(min(ends), max(ends))


def _corners(function: Callable[[int, int], int], x: Interval, y: Interval) -> Interval:
    return _hull(function(a, b) for a, b in product((x.low, x.high), (y.low, y.high)))


def _divided(x: Interval, y: Interval, function: Callable[[int, int], int]) -> Interval:
    """The quotients of numbers in `x` and `y`.

    For divisors of one sign, the extremes are at corners. The divisor 0 is apart from both: it gives 0.
    """
    sides = [Interval(max(y.low, 1), y.high), Interval(y.low, min(y.high, -1))]
    parts = [_corners(function, x, side) for side in sides if side.low <= side.high]
    if y.low <= 0 <= y.high:
        parts.append(Interval(0, 0))
    return _hull(end for part in parts for end in (part.low, part.high))


def _floor_divided(x: Interval, y: Interval) -> Interval:
    return _divided(x, y, lambda a, b: a // b)


def ceil_divided(x: Interval, y: Interval) -> Interval:
    """The quotient rounded up."""
    return _divided(x, y, lambda a, b: -(-a // b))


def _remainder(x: Interval, y: Interval) -> Interval:
    """The remainders of numbers in `x` by numbers in `y`.

    They have the sign of the divisor, as in Python, and are smaller in magnitude. The divisor 0 gives 0.
    """
    high = max(y.high - 1, 0)
    if x.low >= 0 and y.low > 0:
        high = min(high, x.high)
    return Interval(min(y.low + 1, 0), high)


def _bitwise(x: Interval, y: Interval) -> Interval:
    """The result of `&`, `|` or `^`, which is at most as wide as the wider operand."""
    # One bit more than needed if the extreme is a negative power of 2. An interval may be too wide.
    most = max(map(abs, (x.low, x.high, y.low, y.high)))
    high = 2 ** most.bit_length() - 1
    return Interval(0 if x.low >= 0 and y.low >= 0 else -high - 1, high)


def _shifted_left(x: Interval, y: Interval) -> Interval:
    # A shift by more than 63 gives 0 (`Shl`), and the result of a negative count is unspecified.
    return _corners(lambda a, b: a << b, x, y) if y.within(Interval(0, 63)) else I64


def _shifted_right(x: Interval, y: Interval) -> Interval:
    # Operands fit 64 bits: `weak` limits the interval of a scalar, and `whole` refuses larger constants. So a shift by
    # 64 leaves 0 or -1, as any longer one does.
    return _corners(lambda a, b: a >> min(b, 64), x, y) if y.low >= 0 else I64


def negated(x: Interval) -> Interval:
    """`-x`."""
    return Interval(-x.high, -x.low)


def magnitude(x: Interval) -> Interval:
    """`abs(x)`."""
    ends = abs(x.low), abs(x.high)
    return Interval(0 if x.low <= 0 <= x.high else min(ends), max(ends))


def inverted(x: Interval) -> Interval:
    """`~x`."""
    return Interval(-x.high - 1, -x.low - 1)


def least(x: Interval, y: Interval) -> Interval:
    """The smaller of two numbers."""
    return Interval(min(x.low, y.low), min(x.high, y.high))


def largest(x: Interval, y: Interval) -> Interval:
    """The larger of two numbers."""
    return Interval(max(x.low, y.low), max(x.high, y.high))


def length_of(start: int, stop: int, step: int) -> int:
    """The number of items of a range.

    `len(range(...))` would raise above `sys.maxsize`.
    """
    return max(0, (stop - start + step - (1 if step > 0 else -1)) // step)


def counted(start: Interval, stop: Interval, step: Interval) -> Interval:
    """The values of the variable of `range(start, stop, step)`.

    A step of 0 gives no values, since a range is empty then in a kernel. So the interval of either direction holds.
    """
    up = Interval(start.low, max(stop.high - 1, start.low))
    down = Interval(min(stop.low + 1, start.high), start.high)
    if step.low > 0:
        return up
    return down if step.high < 0 else up.join(down)


BINARY: dict[type[ast.AST], Callable[[Interval, Interval], Interval]] = {
    ast.Add: lambda x, y: Interval(x.low + y.low, x.high + y.high),
    ast.Sub: lambda x, y: Interval(x.low - y.high, x.high - y.low),
    ast.Mult: lambda x, y: _corners(lambda a, b: a * b, x, y),
    ast.FloorDiv: _floor_divided,
    ast.Mod: _remainder,
    ast.BitAnd: _bitwise,
    ast.BitOr: _bitwise,
    ast.BitXor: _bitwise,
    ast.LShift: _shifted_left,
    ast.RShift: _shifted_right,
}
"""The interval of each operator's result, of the operands' intervals."""


# Weak scalars

# The dtypes that a weak scalar takes beside a tile, by its own dtype. Other integers are not among them: they may not
# hold the number, which is known only when the kernel runs. An i32 takes an i64's low bits: operations that need the
# other bits are done in i64 (`widened` in `operators.py`).
_WEAK_TARGETS: dict[DTypeLike, tuple[DTypeLike, ...]] = {
    i32: (i64, f16, bf16, f32, f64),
    i64: (i32, f16, bf16, f32, f64),
    f32: (f16, bf16),
}


def weak(frame: Frame, value: Value, interval: Interval | None = None) -> Value:
    """Note that a value is a plain number, with its interval if it is whole.

    The value may be a tile of one number, broadcast. A later note replaces an earlier one. If `interval` is None, it is
    that of the dtype.
    """
    dtype = value.tile.dtype
    if dtype.is_signed:  # a weak f32 has no interval
        interval = Interval.of(dtype) if interval is None else interval.meet(Interval.of(dtype))
    frame.compilation.weak[value] = interval
    return value


def is_weak(frame: Frame, value: Any) -> bool:
    """Whether a value is a plain number, known now or when the kernel runs."""
    return isinstance(value, bool | int | float) or (isinstance(value, Value) and value in frame.compilation.weak)


def is_whole(frame: Frame, value: Any) -> bool:
    """Whether a value is a plain whole number, known now or when the kernel runs."""
    if isinstance(value, Value):
        # A plain number that was broadcast is weak, too, but operations on it are those of tiles (`unify`).
        return frame.compilation.weak.get(value) is not None and value.tile.is_scalar
    # No bool: a variable that is True in one branch and False in the other is a bool, and no i32.
    return isinstance(value, int) and not isinstance(value, bool)


def of_weak(frame: Frame, result: Any, *operands: Any) -> Any:
    """A result, noted as a plain number if all its operands are plain numbers."""
    if is_tile(result) and result.tile.dtype in _WEAK_TARGETS and all(is_weak(frame, operand) for operand in operands):
        weak(frame, result)
    return result


def adapted(frame: Frame, value: Any, dtype: DTypeLike) -> Any:
    """Convert a plain number to `dtype` if it may become that dtype.

    Any other value is returned as it is.

    Raises:
        KernelTypeError: the value is a constant that `dtype` cannot hold.
    """
    if not is_tile(value) or value not in frame.compilation.weak or value.tile.dtype is dtype:
        return value
    # An f32 becomes an f64 only if the kernel can compute it anew in f64 (`Bare`): the f32 itself is too coarse.
    converts = dtype in _WEAK_TARGETS.get(value.tile.dtype, ()) or frame.compilation.bare.becomes(value, dtype)
    if not converts:
        return value
    interval = frame.compilation.weak[value]
    if interval is not None and interval.low == interval.high:  # a constant, broadcast: it is refused as any other is
        require_fit(frame, interval.low, dtype)
    conversion = Convert(x=value, dtype=dtype)
    result = frame.emit(conversion)
    if dtype is f32:  # a later conversion to f64 converts the whole number itself, in place of the f32
        frame.compilation.bare.note(conversion, result)
    return result


def narrows(frame: Frame, value: Any, dtype: DTypeLike) -> bool:
    """Whether a weak whole number is refused as i32, which may not hold it.

    Such a number and an i32 of the user's are not two values of one variable: one of them has to be converted. In
    contrast, an operation on both is one of i32, and wraps.

    While the types of a loop may change, nothing is refused. The number may be weak only because a variable that the
    loop carries is still taken for weak. If one is left when the types settle, the loop is built once more.
    """
    if not is_tile(value) or not is_whole(frame, value) or dtype is not i32 or interval_of(frame, value).fits(i32):
        return False
    frame.compilation.narrowed += 1
    return not frame.compilation.unsettled


def dtype_of_weak(values: list[Any]) -> DTypeLike:
    """The common dtype of plain numbers: values that are weak, and constants."""
    dtypes = {value.tile.dtype for value in values if is_tile(value)}
    if f32 in dtypes or any(isinstance(value, float) for value in values):
        return f32
    wide = i64 in dtypes or any(isinstance(value, int) and not I32.low <= value <= I32.high for value in values)
    return i64 if wide else i32


# Whole numbers


def interval_of(frame: Frame, value: Any) -> Interval:
    """The interval of an integer scalar, or of a constant."""
    if not isinstance(value, Value):
        return Interval(int(value), int(value))
    return frame.compilation.weak.get(value) or Interval.of(value.tile.dtype)


def whole_dtype(interval: Interval) -> DTypeLike:
    """The dtype of whole numbers within an interval."""
    return i32 if interval.fits(i32) else i64


def require_fit(frame: Frame, number: float, dtype: DTypeLike, neighbour: Value | None = None) -> None:
    """Refuse a constant number that a dtype cannot hold.

    Args:
        neighbour: the tile or scalar that has `dtype`, for errors.
    """
    beside = "tile" if neighbour is None else noun(neighbour)

    def conversion(wider_dtype: str) -> str:
        return f"ct.convert_tile(tile, ct.{wider_dtype})" if neighbour is None else converted(neighbour, wider_dtype)

    def widening() -> str:
        wide = wider(number, dtype)
        if wide is None:
            return _beyond(number, dtype, neighbour)
        return f"Convert the {beside}, to hold both: {conversion(wide.name)}."

    if isinstance(number, float) and dtype.kind in ("int", "uint", "bool"):
        frame.type_error(
            f"the number {number!r} does not fit beside a {beside} of {dtype}",
            remedy=f"Convert the {beside} to a float dtype first: {conversion('f32')}.",
        )
    if dtype.is_bool and not isinstance(number, bool):
        frame.type_error(
            f"the number {short(number)} does not fit beside a {beside} of bool",
            remedy=f"Use True or False, or convert the {beside} first: {conversion('i32')}.",
        )
    if dtype.is_integer and not dtype.min <= number <= dtype.max:
        frame.type_error(
            f"the number {short(number)} does not fit {dtype} ({dtype.min} to {dtype.max})", remedy=widening()
        )
    if not fits(number, dtype):
        frame.type_error(
            f"the number {short(number)} does not fit {dtype}, whose largest is {dtype.max:.8g}",
            remedy=f"Write ct.{dtype.__name__}.max or float('inf') if that is meant. {widening()}",
        )


def _beyond(number: float, dtype: DTypeLike, neighbour: Value | None) -> str:
    """The remedy for a number that neither `dtype` nor a wider one holds.

    Args:
        neighbour: the tile or scalar that has `dtype`.
    """
    if neighbour is not None or dtype is not i64:
        return "No dtype holds both."
    remedy = "Whole numbers that are known only when the kernel runs are i32 or i64."
    return f"{remedy} ct.u64({number}) holds this one." if 0 <= number <= u64.max else remedy


def whole(frame: Frame, value: Any, dtype: DTypeLike) -> Value:
    """A plain whole number as a scalar of i32 or i64."""
    if isinstance(value, Value):
        return value if value.tile.dtype is dtype else frame.emit(Convert(x=value, dtype=dtype))
    require_fit(frame, value, dtype)
    return frame.emit(Constant(value=value, dtype=dtype, shape=()))


def computed(frame: Frame, make: Callable[..., Op], result: Interval, *operands: Any) -> Value:
    """The result of an operation on plain whole numbers, in 32 bits if they suffice.

    Args:
        frame: the frame.
        make: makes the operation, of operands of one dtype.
        result: the interval of Python's result, which never wraps.
        operands: the numbers.
    """
    interval = result if result.fits(i64) else I64  # past 64 bits the operation wraps: any i64 may come out
    is_narrow = interval.fits(i32) and all(interval_of(frame, operand).fits(i32) for operand in operands)
    dtype = i32 if is_narrow else i64
    value = frame.emit(make(*(whole(frame, operand, dtype) for operand in operands)))
    if not is_narrow and interval.fits(i32):  # a weak number is an i32 wherever its interval fits 32 bits
        value = frame.emit(Convert(x=value, dtype=i32))
    return weak(frame, value, interval)


def bounded(frame: Frame, value: Any, least: int, most: int) -> Any:
    """A weak whole number between two bounds, as i32 if i32 holds them."""
    if not isinstance(value, Value):
        return value
    interval = interval_of(frame, value).meet(Interval(least, most))
    return weak(frame, whole(frame, value, whole_dtype(interval)), interval)
