"""Conversions between element types."""

from __future__ import annotations

from typing import Any

from cutile.conversion import convert as converted
from cutile.dtypes import DTypeLike
from cutile.errors import KernelTypeError
from cutile.ir.core import COMPUTED_TILE, Op, Value, attribute, operand
from cutile.ir.types import Type


class Convert(Op, name="convert", spelled=("convert_tile", ".astype")):
    """The elements as another dtype: floats round to nearest even, float to integer truncates, integers wrap,
    to bool is `!= 0`. Float to integer saturates, NaN gives 0.

    Examples:
        >>> run(lambda x: ct.convert_tile(ct.convert_tile(x, ct.i32), x.dtype), [1.75, -1.75])
        [1.0, -1.0]
    """

    x: Value = operand(COMPUTED_TILE)
    dtype: DTypeLike = attribute()

    def infer(self) -> tuple[Type, ...]:
        if self.dtype.kind == "storage":
            raise KernelTypeError(f"convert: to {self.dtype} kernels do not convert; api.convert does on the CPU")
        return (self.x.tile.with_dtype(self.dtype),)

    def reference(self, x: Any) -> Any:
        return converted(x, self.x.tile.dtype, self.dtype)
