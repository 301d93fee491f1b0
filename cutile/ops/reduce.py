"""Reductions along one axis, which is dropped. The order of float operations is free; f16 and bf16 sum in f32."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir.core import NUMBER_TILE, Op, Value, attribute, operand
from cutile.ir.types import Type


class Reduce(Op):
    """A tile of numbers in, the same dtype with one axis fewer out."""

    function: ClassVar[Any]
    x: Value = operand(NUMBER_TILE)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        shape = self.x.tile.shape
        if not 0 <= self.axis < len(shape):
            raise KernelTypeError(f"{self.name}: axis {self.axis} of {self.x.type}, which has {len(shape)} axes")
        return (self.x.tile.with_shape(shape[: self.axis] + shape[self.axis + 1 :]),)

    def reference(self, x: Any) -> Any:
        wide = x.astype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "iu" else x
        with np.errstate(all="ignore"):
            return np.asarray(type(self).function(wide, axis=self.axis)).astype(x.dtype)


class ReduceSum(Reduce, name="reduce_sum", spelled=("reduce_sum",)):
    """The sum along an axis.

    Examples:
        >>> run(lambda x: x + ct.reduce_sum(x, 0), [1.0, 2.0])
        [4.0, 5.0]
    """

    function = staticmethod(np.sum)


class ReduceProd(Reduce, name="reduce_prod", spelled=("reduce_prod",)):
    """The product along an axis.

    Examples:
        >>> run(lambda x: x + ct.reduce_prod(x, 0), [2.0, 3.0])
        [8.0, 9.0]
    """

    function = staticmethod(np.prod)


class ReduceMax(Reduce, name="reduce_max", spelled=("reduce_max",)):
    """The largest element along an axis; NaN is dropped where there is a number.

    Examples:
        >>> run(lambda x: x - ct.reduce_max(x, 0), [1.0, 3.0])
        [-2.0, 0.0]
    """

    function = staticmethod(np.fmax.reduce)


class ReduceMin(Reduce, name="reduce_min", spelled=("reduce_min",)):
    """The smallest element along an axis; NaN is dropped where there is a number.

    Examples:
        >>> run(lambda x: x - ct.reduce_min(x, 0), [1.0, 3.0])
        [0.0, 2.0]
    """

    function = staticmethod(np.fmin.reduce)
