"""Tiles in order along one axis, and elements picked by their places.

A place is the index of an element along the axis. All operations here use the same order. A NaN is larger than every
number, as in NumPy, and -0.0 equals 0.0. Equal elements keep their order, also where the largest come first.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy

from cutile.dtypes import i32
from cutile.errors import KernelTypeError
from cutile.ir import COMPUTED_TILE, Op, TileType, Type, Value, attribute, operand

np: Any = numpy  # untyped: NumPy's stubs leave the types of sorts unknown


def check_axis(name: str, tile: TileType, axis: int) -> None:
    """Check that a tile has an axis.

    Raises:
        KernelTypeError: it has fewer axes.
    """
    if not 0 <= axis < len(tile.shape):
        raise KernelTypeError(f"{name}: axis {axis} of {tile}, which has {len(tile.shape)} axes")


def places_in_order(x: Any, axis: int, descending: bool) -> Any:
    """The places of the elements along an axis, in the order of a stable sort."""
    # bf16 is sorted as f32: NumPy has no order of its own for it.
    wide = x if x.dtype.kind in "iufb" else x.astype(np.float32)
    if not descending:
        return np.argsort(wide, axis=axis, kind="stable").astype(np.int32)
    # The flipped axis is sorted, and the result flipped: the largest comes first, and equal elements keep their order.
    ascending = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return (x.shape[axis] - 1 - np.flip(ascending, axis)).astype(np.int32)


class Sort(Op, name="sort", spelled=("sort", "argsort")):
    """The elements along an axis in order, and the place that each had in `x`.

    NaN counts as larger than every number. The sort is stable.

    Attributes:
        descending: whether the largest comes first.
    """

    x: Value = operand(COMPUTED_TILE)
    axis: int = attribute()
    descending: bool = attribute(default=False)
    sorts_whole: ClassVar[bool] = True  # see `TopK.sorts_whole`

    def infer(self) -> tuple[Type, ...]:
        check_axis("sort", self.x.tile, self.axis)
        return self.x.type, TileType(i32, self.x.tile.shape)

    def reference(self, x: Any) -> Any:
        places = places_in_order(x, self.axis, self.descending)
        return np.take_along_axis(x, places, self.axis), places


class TopK(Op, name="top_k", spelled=("top_k",)):
    """The `k` largest elements along an axis, the largest first, and their places.

    NaN counts as larger than every number. Equal elements keep their order.
    """

    x: Value = operand(COMPUTED_TILE)
    axis: int = attribute()
    k: int = attribute()

    @property
    def sorts_whole(self) -> bool:
        """Whether a target sorts all elements.

        It need not for a tile of a single row: there it may sort only candidates for the `k` largest.
        """
        return self.x.tile.size > self.x.tile.shape[self.axis]

    def infer(self) -> tuple[Type, ...]:
        tile = self.x.tile
        check_axis("top_k", tile, self.axis)
        if not 1 <= self.k <= tile.shape[self.axis]:
            raise KernelTypeError(
                f"top_k: expected k from 1 to {tile.shape[self.axis]}, the axis' extent, got {self.k}",
                remedy="k is a constant.",
            )
        shape = (*tile.shape[: self.axis], self.k, *tile.shape[self.axis + 1 :])
        return tile.with_shape(shape), TileType(i32, shape)

    def reference(self, x: Any) -> Any:
        places = np.take(places_in_order(x, self.axis, True), range(self.k), self.axis)
        return np.take_along_axis(x, places, self.axis), places


class TakeAlongAxis(Op, name="take_along_axis", spelled=("take_along_axis",)):
    """The elements at given places along an axis.

    The two tiles agree in every other extent. A place outside is clamped to the nearest inside.
    """

    x: Value = operand(COMPUTED_TILE)
    places: Value = operand(COMPUTED_TILE)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        tile, places = self.x.tile, self.places.tile
        check_axis("take_along_axis", tile, self.axis)
        if places.dtype is not i32:
            raise KernelTypeError(
                f"take_along_axis: places are i32, got {places}",
                remedy="Places are positions along the axis, as ct.argsort returns them. Convert others: "
                "places.astype(ct.i32).",
            )
        # A slice, since an index would raise an IndexError where `places` has fewer axes, before the message below.
        expected = (*tile.shape[: self.axis], *places.shape[self.axis : self.axis + 1], *tile.shape[self.axis + 1 :])
        if places.shape != expected:
            raise KernelTypeError(
                f"take_along_axis: places of shape {places.shape} in a tile of shape {tile.shape}",
                remedy=f"The two shapes must agree in every axis but axis {self.axis}.",
            )
        return (tile.with_shape(places.shape),)

    def reference(self, x: Any, places: Any) -> Any:
        return np.take_along_axis(x, np.clip(places, 0, x.shape[self.axis] - 1), self.axis)
