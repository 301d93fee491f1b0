"""Floats of Python that became f32 tiles because nothing said what they are.

They are exact beside f64 all the same: `ct.broadcast(math.pi, shape).astype(ct.f64)` is pi to 53 bits. What was made of
such numbers alone is noted, and a conversion to f64 makes it again, of f64.
"""

from __future__ import annotations

from collections.abc import Callable

from cutile.dtypes import DTypeLike, f32, f64
from cutile.ir.constant import Constant
from cutile.ir.core import Op, Value
from cutile.ir.types import TileType
from cutile.ops.arith import Abs, Add, Div, Max, Min, Mul, Neg, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Select
from cutile.ops.shape import Broadcast, Permute, Reshape

_KEEPS = (Broadcast, Reshape, Permute, Select, Add, Sub, Mul, Div, Neg, Abs, Max, Min)
"""Operations whose results are as bare as their operands."""


class Bare:
    """Which values are bare floats, and of which operations they come."""

    def __init__(self) -> None:
        self._origins: dict[Value, Op] = {}

    def note(self, op: Op, value: Value) -> None:
        """`value` is what `op` made of a number, or of a plain whole number."""
        self._origins[value] = op

    def follow(self, op: Op, value: Value) -> None:
        """An operation on floats gives a bare one if all of them are."""
        if self._origins and isinstance(op, _KEEPS) and _is_f32(value):
            floats = [each for each in op.operands if _is_f32(each)]
            if floats and all(each in self._origins for each in floats):
                self._origins[value] = op

    def exact(self, value: Value, emit: Callable[[Op], Value]) -> Value | None:
        """A bare float as f64, made anew; None for any other value."""
        op = self._origins.get(value)
        if op is None:
            return None
        if isinstance(op, Constant):
            return emit(Constant(value=op.value, dtype=f64, shape=op.shape))
        if isinstance(op, Convert):
            return emit(Convert(x=op.x, dtype=f64))
        operands = [each if not _is_f32(each) else self.exact(each, emit) or each for each in op.operands]
        return emit(op.copy_with(operands, (), ()))

    def becomes(self, value: Value, dtype: DTypeLike) -> bool:
        """Whether a value is a bare float that may become an f64."""
        return dtype is f64 and value in self._origins


def _is_f32(value: Value) -> bool:
    return isinstance(value.type, TileType) and value.type.dtype is f32
