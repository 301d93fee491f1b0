"""Tiles without operands.

`Constant` is in `cutile/ir`, since builders and passes make constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.dtypes import DTypeLike, i32
from cutile.errors import KernelTypeError
from cutile.ir import Op, TileType, Type, attribute


class Iota(Op, name="iota", spelled=("iota",)):
    """`0, 1, ..., length - 1`."""

    length: int = attribute()
    dtype: DTypeLike = attribute(i32)

    def infer(self) -> tuple[Type, ...]:
        if not self.dtype.is_integer:
            raise KernelTypeError(
                f"iota: the dtype must be an integer's, got {self.dtype}",
                remedy="Convert what it makes: ct.convert_tile(ct.iota(shape), dtype).",
            )
        return (TileType(self.dtype, (self.length,)),)

    def reference(self) -> Any:
        return np.arange(self.length).astype(self.dtype.numpy)
