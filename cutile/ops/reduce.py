"""Reductions along one axis, and scans.

A reduction drops its axis. Sums and products of floats may be added in any order, and those of f16 and bf16 run in f32.
A fold by the author's own function computes in the dtypes of its tiles. The elements stay in order, and are grouped
freely.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from cutile.errors import IRError, KernelTypeError
from cutile.ir.core import ANY_TILE, NUMBER_TILE, Accuracy, Block, Op, Value, attribute, operand, operands, region
from cutile.ir.types import TileType, Type


class Reduce(Op):
    """A reduction of a tile of numbers: the same dtype, one axis fewer."""

    function: ClassVar[Any]
    x: Value = operand(NUMBER_TILE)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        shape = self.x.tile.shape
        if not 0 <= self.axis < len(shape):
            raise KernelTypeError(f"{self.name}: axis {self.axis} of {self.x.type}, which has {len(shape)} axes")
        return (self.x.tile.with_shape(shape[: self.axis] + shape[self.axis + 1 :]),)

    def reference(self, x: Any) -> Any:
        # Not `kind == "f"`: that of ml_dtypes' bfloat16 is "V".
        wide = x.astype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "iu" else x
        with np.errstate(all="ignore"):
            return np.asarray(type(self).function(wide, axis=self.axis)).astype(x.dtype)


# The default bounds hold for one step. The notes say that a reduction has many.
SUM_ACCURACY = Accuracy(note="each step rounds, and the order of the steps is free")
FUNCTION_ACCURACY = Accuracy(
    note="the function's own operations round; the elements stay in order, and are grouped at will"
)


class ReduceSum(Reduce, name="reduce_sum", spelled=("reduce_sum",), accuracy=SUM_ACCURACY):
    """The sum along an axis."""

    function = staticmethod(np.sum)


class ReduceProd(Reduce, name="reduce_prod", spelled=("reduce_prod",), accuracy=SUM_ACCURACY):
    """The product along an axis."""

    function = staticmethod(np.prod)


class ReduceExtreme(Reduce):
    """The largest or the smallest element; exact, so computed in the tile's dtype.

    Of 0.0 and -0.0 it may give either, as in NumPy: LLVM's reductions of vectors on the CPU do not order the two. The
    operations `max` and `min` do, with -0 below +0.

    Attributes:
        nan: whether a NaN propagates. If not, NaNs are ignored unless all elements are NaN.
    """

    propagating: ClassVar[Any]
    nan: bool = attribute(default=False)

    def reference(self, x: Any) -> Any:
        function = type(self).propagating if self.nan else type(self).function
        return np.asarray(function(x, axis=self.axis)).astype(x.dtype)


class ReduceMax(ReduceExtreme, name="reduce_max", spelled=("reduce_max", "Tile.any")):
    """The largest element along an axis. Ignores NaN unless `nan` is set.

    `Tile.any` is the largest of 0 for False and 1 for True; `Tile.all` is the smallest.
    """

    function = staticmethod(np.fmax.reduce)
    propagating = staticmethod(np.maximum.reduce)


class ReduceMin(ReduceExtreme, name="reduce_min", spelled=("reduce_min", "Tile.all")):
    """The smallest element along an axis. Ignores NaN unless `nan` is set."""

    function = staticmethod(np.fmin.reduce)
    propagating = staticmethod(np.minimum.reduce)


Identity = bool | int | float


class Folding(Op):
    """Base of `reduce` and `scan` by the author's associative function of scalars.

    For n tiles of one shape, `body` takes n accumulators, then n elements, and yields n accumulators. It has
    element-wise operations alone, and reads nothing from outside.

    Attributes:
        identities: for each tile its first accumulator, the function's identity.
    """

    isolated = True
    tiles: tuple[Value, ...] = operands(ANY_TILE)
    axis: int = attribute()
    identities: tuple[Identity, ...] = attribute()
    body: Block = region()

    def check_body(self) -> tuple[TileType, ...]:
        """The types of the tiles.

        Raises:
            KernelTypeError, IRError: the tiles, the axis or the body do not fit.
        """
        types = tuple(value.tile for value in self.tiles)
        shape = types[0].shape if types else ()
        if not types or any(each.shape != shape for each in types):
            raise KernelTypeError(
                f"{self.name}: the tiles must have one shape, got {', '.join(map(str, types)) or 'none'}",
                remedy="Broadcast them to one shape first.",
            )
        if not 0 <= self.axis < len(shape):
            raise KernelTypeError(f"{self.name}: axis {self.axis} of {types[0]}, which has {len(shape)} axes")
        scalars = [each.with_shape(()) for each in types]
        if [value.type for value in self.body.arguments] != scalars * 2:
            raise IRError(f"{self.name}: the body's arguments must be {scalars}, twice")
        if [value.type for value in self.body.terminator.operands] != scalars:
            raise IRError(f"{self.name}: the body must yield {scalars}")
        if len(self.identities) != len(types):
            raise IRError(f"{self.name}: expected {len(types)} identities, got {len(self.identities)}")
        return types


class Fold(Folding, name="reduce", spelled=("reduce", "argmax", "argmin"), accuracy=FUNCTION_ACCURACY):
    """Reduce tiles along an axis by the author's function.

    The function must be associative, and `identities` its identity; the elements stay in order.

    Examples:
        >>> run(lambda x: x - ct.reduce(x, 0, 1.0, lambda a, b: a * b), [2.0, 3.0])
        [-4.0, -3.0]
    """

    def infer(self) -> tuple[Type, ...]:
        types = self.check_body()
        shape = types[0].shape
        return tuple(each.with_shape(shape[: self.axis] + shape[self.axis + 1 :]) for each in types)


class Scan(
    Folding, name="scan", spelled=("scan", "scan_sum", "cumsum", "cumprod", "cummax"), accuracy=FUNCTION_ACCURACY
):
    """Tiles of running results along an axis.

    Element `i` is the fold of the elements 0 to `i`, or of `i` to the end with `reverse`. The function must be
    associative, and `identities` its identity.
    """

    reverse: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return self.check_body()
