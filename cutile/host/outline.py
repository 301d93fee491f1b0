"""Outlines of new tensors and their partitions: all but the memory, made once.

An op that makes a tensor knows what it will yield, except for the address. So does `op.partition(tile)`. A launch that
gets such an op needs no run (`cutile/launch/lazy.py`). Outlines of equal shapes, dtypes and tiles are one object.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from cuda_async import Storage
from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.memory import contiguous_view
from cutile.host.partition import Partition, as_tile, is_open, is_padded
from cutile.host.shapes import is_same_shape, new_bytes
from cutile.host.tensor import Tensor
from cutile.launch.views import SharedView, TiledView, View

__all__ = ("PartitionOutline", "TensorOutline", "tensor_outline")

_MAX_OUTLINES = 1024
"""Outlines of tensors that are cached, about two kilobytes each."""

_MAX_TILES = 16
"""Outlines of partitions that are cached for each outline of a tensor."""


class PartitionOutline:
    """A partition of a new tensor, before there is memory.

    See `cutile.launch.lazy.Outline`.
    """

    __slots__ = ("mut", "nbytes", "view")

    def __init__(self, tiled: TiledView, nbytes: int) -> None:
        self.mut = tiled
        self.view = tiled.view
        self.nbytes = nbytes

    def whole(self, view: View) -> Tensor:
        """The tensor of these elements, as a partition that is given up returns it."""
        return Tensor(view)

    def part(self, view: View) -> Partition:
        """The partition of these elements, which holds their tensor."""
        return Tensor(view).partition(self.mut.tile)


class TensorOutline:
    """A new tensor with elements, before there is memory."""

    __slots__ = ("_parts", "nbytes", "shared", "tensor", "view")

    mut = None

    def __init__(self, view: View, nbytes: int) -> None:
        self.view = self.tensor = view
        self.shared = SharedView(view.storage, view.offset, view.dtype, view.shape, view.strides)
        self.nbytes = nbytes
        self._parts: dict[tuple[int, ...], PartitionOutline] = {}

    def at(self, storage: Storage) -> Tensor:
        """The tensor in its memory."""
        return Tensor(self.view.at(storage))

    def part(self, view: View) -> Tensor:
        """The tensor of these elements."""
        return Tensor(view)

    def partition(self, shape: Any) -> PartitionOutline | None:
        """The outline of the tensor's `partition(shape)`.

        None where that raises or warns, or where the tile has names for extents.
        """
        part = self._parts.get(shape) if cast("Any", type(shape)) is tuple else None
        if part is not None and is_same_shape(part.mut.tile, shape):
            return part
        extents = self.view.shape
        try:
            if is_open(shape) or is_padded(shape, extents):
                return None
            tile = as_tile(shape, extents)
        except (ArgumentError, ArgumentTypeError):
            return None
        part = PartitionOutline(TiledView(self.view, tile), self.nbytes)
        if len(self._parts) < _MAX_TILES:
            self._parts[tile] = part
        return part


@lru_cache(maxsize=_MAX_OUTLINES)
def tensor_outline(dtype: DTypeLike, shape: tuple[int, ...]) -> TensorOutline | None:
    """The outline of a new contiguous tensor; None for one without elements."""
    if 0 in shape:
        return None
    view = contiguous_view(dtype, shape)
    return TensorOutline(view, new_bytes(dtype, shape, view.strides))
