"""Shapes: the same elements arranged differently, or repeated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir import ANY_TILE, SCALAR_INT, Op, Type, Value, attribute, operand, operands


class Broadcast(Op, name="broadcast", spelled=("broadcast", "broadcast_scalar", "Tile.broadcast")):
    """A scalar, or axes of size 1, repeated to `shape`.

    The ranks are equal unless `x` is a scalar.

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


class Reshape(Op, name="reshape", spelled=("reshape", "Tile.reshape", "x[:, None]")):
    """The same elements, in row-major order, under another shape.

    `x[:, None]` adds axes of extent 1, as in NumPy.

    Examples:
        >>> run(lambda x: x.reshape((2, 2)).transpose().reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 3.0, 2.0, 4.0]
        >>> run(lambda x: ct.reduce_sum(x[:, None] * x[None, :], 1), [1.0, 2.0, 3.0])
        [6.0, 12.0, 18.0]
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


class Permute(Op, name="permute", spelled=("permute", "transpose", "Tile.transpose")):
    """The axes in another order: axis `k` of the result is axis `axes[k]` of `x`."""

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


class Cat(Op, name="cat", spelled=("cat",)):
    """Two tiles side by side along an axis.

    They agree in dtype and in every other extent.
    """

    x: Value = operand(ANY_TILE)
    y: Value = operand(ANY_TILE)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        x, y, axis = self.x.tile, self.y.tile, self.axis
        if x.dtype is not y.dtype:
            raise KernelTypeError(
                f"cat: the tiles must have one dtype, got {x.dtype} and {y.dtype}",
                remedy="Convert one with ct.convert_tile.",
            )
        if not 0 <= axis < len(x.shape):
            raise KernelTypeError(f"cat: axis {axis} of {x}, which has {len(x.shape)} axes")
        others = [tile.shape[:axis] + tile.shape[axis + 1 :] for tile in (x, y)]
        if len(x.shape) != len(y.shape) or others[0] != others[1]:
            raise KernelTypeError(
                f"cat: the tiles must agree in every axis but axis {axis}, got {x.shape} and {y.shape}",
                remedy="Reshape or broadcast one first.",
            )
        total = x.shape[axis] + y.shape[axis]
        return (x.with_shape((*x.shape[:axis], total, *x.shape[axis + 1 :])),)

    def reference(self, x: Any, y: Any) -> Any:
        return np.concatenate([x, y], axis=self.axis)


class Extract(Op, name="extract", spelled=("extract",)):
    """The part of `shape` at an index that counts such parts.

    The part's extents divide those of `x`. The index has one integer scalar for each axis. An index outside is clamped
    to the nearest part.
    """

    x: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        source = self.x.tile.shape
        if not len(source) == len(self.shape) == len(self.index):
            raise KernelTypeError(
                f"extract: {self.x.type} takes a shape and an index of {len(source)} entries, "
                f"got the shape {self.shape} and {len(self.index)} indices"
            )
        if any(extent % part for extent, part in zip(source, self.shape, strict=True)):
            raise KernelTypeError(
                f"extract: the shape {self.shape} does not divide that of {self.x.type}",
                remedy="Each extent of the part must divide the tile's.",
            )
        return (self.x.tile.with_shape(self.shape),)

    def reference(self, x: Any, *index: Any) -> Any:
        slices: list[slice] = []
        for extent, part, at in zip(x.shape, self.shape, index, strict=True):
            start = min(max(int(at), 0), extent // part - 1) * part
            slices.append(slice(start, start + part))
        return x[tuple(slices)]
