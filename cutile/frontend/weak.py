"""Scalars that Python would have as plain numbers: extents, counts, block indices, what `range` counts, their sums.

Beside a tile of another dtype they become that dtype, as a number does: `total / x.shape[1]` divides floats. What the
author gave a dtype, a parameter `n: i32` or the element of a tile, is strong, and is converted only where that is said.
Only conversions that a number would take as well are made: integers become floats or i64, and f32, which such integers
give beside a Python float or divided by one another, becomes f16 or bf16, not f64, for which it would be too coarse.
"""

from __future__ import annotations

from typing import Any

from cutile.dtypes import DTypeLike, bf16, f16, f32, i32, i64
from cutile.frontend.frame import Frame
from cutile.frontend.values import is_tile
from cutile.ir.core import Value
from cutile.ops.cast import Convert

_BECOMES: dict[DTypeLike, tuple[str, ...]] = {
    i32: ("i64", "f16", "bf16", "f32", "f64"),
    i64: ("f16", "bf16", "f32", "f64"),
    f32: (f16.name, bf16.name),
}


def weak(frame: Frame, value: Value) -> Value:
    """Note that a scalar is a plain number."""
    frame.compilation.weak.add(value)
    return value


def is_weak(frame: Frame, value: Any) -> bool:
    """Whether a value is a plain number, known now or when the kernel runs."""
    return isinstance(value, bool | int | float) or value in frame.compilation.weak


def of_weak(frame: Frame, result: Any, *operands: Any) -> Any:
    """A result, noted as a plain number if all that it came from are."""
    if is_tile(result) and result.tile.dtype in _BECOMES and all(is_weak(frame, each) for each in operands):
        weak(frame, result)
    return result


def adapted(frame: Frame, value: Any, dtype: DTypeLike) -> Any:
    """A plain number as `dtype`, where it may become that; anything else as it is."""
    if not is_tile(value) or value not in frame.compilation.weak or value.tile.dtype is dtype:
        return value
    fits = dtype.name in _BECOMES.get(value.tile.dtype, ())
    return frame.emit(Convert(x=value, dtype=dtype)) if fits else value


def dtype_of_weak(values: list[Any]) -> DTypeLike:
    """What plain numbers, of which at least one is known only when the kernel runs, have together."""
    dtypes = {value.tile.dtype for value in values if is_tile(value)}
    if f32 in dtypes or any(isinstance(value, float) for value in values):
        return f32
    return i64 if i64 in dtypes else next(iter(dtypes)) if len(dtypes) == 1 else i32
