"""Conversions between element types."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.dtypes import DTypeLike
from cutile.ir.core import ANY_TILE, Op, Value, attribute, operand
from cutile.ir.types import Type


class Convert(Op, name="convert", spelled=("convert_tile", ".astype")):
    """The elements as another dtype: floats round to nearest even, float to integer truncates, integers wrap,
    to bool is `!= 0`. Float to integer is unspecified for NaN and out of range.

    Examples:
        >>> run(lambda x: ct.convert_tile(ct.convert_tile(x, ct.i32), x.dtype), [1.75, -1.75])
        [1.0, -1.0]
    """

    x: Value = operand(ANY_TILE)
    dtype: DTypeLike = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.x.tile.with_dtype(self.dtype),)

    def reference(self, x: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(x).astype(self.dtype.numpy)
