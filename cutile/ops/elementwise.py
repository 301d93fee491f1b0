"""The shapes that element-wise operations come in.

One, two or three tiles of one type. Not a family of its own.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir.core import BITS_TILE, FLOAT_TILE, INT_TILE, NUMBER_TILE, Op, Value, operand
from cutile.ir.types import TileType, Type


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
    """`function(*arrays)` in more bits than the arrays' dtype, and rounded to it."""
    wide = np.longdouble if arrays[0].dtype.itemsize == 8 else np.float64
    return np.asarray(function(*(each.astype(wide) for each in arrays))).astype(arrays[0].dtype)


class Unary(Op):
    """One tile in, the same type out."""

    x: Value = operand(NUMBER_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


def of_name(name: str) -> Any:
    """NumPy's function of this name; where it has none, Python's, of each element."""
    return getattr(np, name, None) or np.vectorize(getattr(math, name), otypes=[np.float64])


class FloatUnary(Op):
    """One tile of floats in, the same type out.

    Attributes:
        function: what it means; None for the function that has the operation's name in NumPy or in Python.
    """

    function: ClassVar[Any] = None
    x: Value = operand(FLOAT_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)

    def reference(self, x: Any) -> Any:
        return rounded(type(self).function or of_name(self.name), x)


class Binary(Op):
    """Two tiles of one type in, the same type out.

    `function` is the NumPy function that it means.
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


__all__ = (
    "Binary",
    "BitsBinary",
    "FloatBinary",
    "FloatUnary",
    "IntBinary",
    "Unary",
    "of_name",
    "require_same",
    "rounded",
)
