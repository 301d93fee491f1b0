"""Scalars that Python would have as plain numbers.

Extents, counts, block indices, what `range` counts and their sums are *weak*. Beside a tile of another dtype they
become that dtype, as a number does: `total / x.shape[1]` divides floats. A parameter `n: i32` or the element of a tile
is strong: its author gave it a dtype, and it is converted only where the kernel says so.

A weak integer becomes a float, i32 or i64. A weak f32 is the result of weak integers beside a Python float, or divided
by one another. It becomes f16 or bf16, and not f64, for which it is too coarse.

A weak integer has an interval (`interval.py`). It is an i32 in the IR where the interval fits 32 bits, else an i64. An
operation is computed in 32 bits where its operands and its result fit, else in 64. Past 64 bits it wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i32, i64
from cutile.frontend.frame import Frame
from cutile.frontend.interval import I32, I64, Interval
from cutile.frontend.values import is_tile
from cutile.ir import Constant, Op, Value
from cutile.ops.cast import Convert

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
    """
    if not is_tile(value) or value not in frame.compilation.weak or value.tile.dtype is dtype:
        return value
    # An f32 becomes an f64 only if the kernel can compute it anew in f64 (`Bare`): the f32 itself is too coarse.
    converts = dtype in _WEAK_TARGETS.get(value.tile.dtype, ()) or frame.compilation.bare.becomes(value, dtype)
    if not converts:
        return value
    conversion = Convert(x=value, dtype=dtype)
    result = frame.emit(conversion)
    if dtype is f32:  # of a whole number, which a later conversion to f64 converts anew, in place of the f32
        frame.compilation.bare.note(conversion, result)
    return result


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


def whole(frame: Frame, value: Any, dtype: DTypeLike) -> Value:
    """A plain whole number as a scalar of i32 or i64."""
    if isinstance(value, Value):
        return value if value.tile.dtype is dtype else frame.emit(Convert(x=value, dtype=dtype))
    limits = Interval.of(dtype)
    if not limits.low <= value <= limits.high:
        frame.type_error(
            f"the number {value} does not fit {dtype} ({limits.low} to {limits.high})",
            remedy="Whole numbers that are known only when the kernel runs have 64 bits.",
        )
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
