"""The operation `Constant`, which builders and passes make.

Control flow is in `control.py`. All other operations are in `cutile/ops/`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.conversion import element
from cutile.dtypes import DTypeLike
from cutile.ir.core import Op, attribute
from cutile.ir.types import TileType, Type

__all__ = (
    "Constant",
)  # fmt: skip


class Constant(Op, name="constant", spelled=("constant",)):
    """A tile whose elements are all `value`.

    Examples:
        >>> from cutile.dtypes import f32
        >>> Constant(value=2.0, dtype=f32, shape=(2,)).reference()
        array([2., 2.], dtype=float32)
    """

    value: bool | int | float = attribute()
    dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute(())

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.dtype, self.shape),)

    def reference(self) -> Any:
        return np.full(self.shape, element(self.value, self.dtype))
