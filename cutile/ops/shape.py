"""Shapes: the same elements arranged differently, or repeated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir.core import ANY_TILE, Op, Value, attribute, operand
from cutile.ir.types import Type


class Broadcast(Op, name="broadcast", spelled=("broadcast", ".broadcast")):
    """A scalar, or axes of size 1, repeated to `shape`. The ranks are equal unless `x` is a scalar.

    Examples:
        >>> run(lambda x: x + ct.reduce_sum(x, 0).reshape((1,)).broadcast((2,)), [1.0, 2.0])
        [4.0, 5.0]
    """

    x: Value = operand(ANY_TILE)
    shape: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        source = self.x.tile.shape
        fits = len(source) == len(self.shape) and all(a == b or a == 1 for a, b in zip(source, self.shape, strict=True))
        if source and not fits:
            raise KernelTypeError(
                f"broadcast: a tile of shape {source} does not broadcast to {self.shape}",
                remedy="Only axes of size 1 repeat; reshape first to add axes.",
            )
        return (self.x.tile.with_shape(self.shape),)

    def reference(self, x: Any) -> Any:
        return np.broadcast_to(x, self.shape)


class Reshape(Op, name="reshape", spelled=("reshape", ".reshape")):
    """The same elements, in row-major order, under another shape.

    Examples:
        >>> run(lambda x: x.reshape((2, 2)).transpose().reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 3.0, 2.0, 4.0]
    """

    x: Value = operand(ANY_TILE)
    shape: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        if math.prod(self.shape) != self.x.tile.size:
            raise KernelTypeError(
                f"reshape: a tile of shape {self.x.tile.shape} has {self.x.tile.size} elements, "
                f"the shape {self.shape} has {math.prod(self.shape)}",
                remedy="A reshape keeps the number of elements; one extent may be -1, and takes what remains.",
            )
        return (self.x.tile.with_shape(self.shape),)

    def reference(self, x: Any) -> Any:
        return np.reshape(x, self.shape)


class Permute(Op, name="permute", spelled=("permute", "transpose", ".transpose")):
    """The axes in another order: axis `k` of the result is axis `axes[k]` of `x`.

    Examples:
        >>> run(lambda x: ct.permute(x.reshape((2, 2)), (1, 0)).reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 3.0, 2.0, 4.0]
    """

    x: Value = operand(ANY_TILE)
    axes: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        shape = self.x.tile.shape
        if sorted(self.axes) != list(range(len(shape))):
            raise KernelTypeError(
                f"permute: {self.axes} is no order of the {len(shape)} axes of {self.x.type}",
                remedy="Name each axis once: (1, 0) for two axes, (0, 2, 1) for three.",
            )
        return (self.x.tile.with_shape(tuple(shape[axis] for axis in self.axes)),)

    def reference(self, x: Any) -> Any:
        return np.transpose(x, self.axes)
