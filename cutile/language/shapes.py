"""Shapes by upstream's names: queries, scalars as tiles, tiles side by side and parts of tiles.

A shape is a tuple; of a tensor its extents are i32 scalars where they are not known when the kernel is compiled.
"""

from __future__ import annotations

from typing import TypeVar

from cutile.language.annotations import Mut, Tensor
from cutile.language.mark import operation
from cutile.tile import Tile, outside_kernel

T = TypeVar("T")


@operation
def broadcast_scalar(x: Tile | float, shape: tuple[int, ...]) -> Tile:
    """A scalar repeated to `shape`."""
    outside_kernel("broadcast_scalar")


@operation
def scalar_to_tile(x: Tile | float) -> Tile:
    """A scalar as a tile of shape `()`, which a scalar is."""
    outside_kernel("scalar_to_tile")


@operation
def tile_to_scalar(x: Tile) -> Tile:
    """A tile of shape `()` as a scalar, which such a tile is."""
    outside_kernel("tile_to_scalar")


@operation
def permute_array(values: tuple[T, ...], axes: tuple[int, ...]) -> tuple[T, ...]:
    """A tuple of indices in another order: entry `k` of the result is `values[axes[k]]`."""
    outside_kernel("permute_array")


@operation
def get_tensor_shape(x: Tensor | Mut) -> tuple[int, ...]:
    """The extents of a whole tensor, also of one that is cut into tiles."""
    outside_kernel("get_tensor_shape")


@operation
def get_shape_dim(shape: tuple[int, ...], axis: int) -> int:
    """One extent of a shape: `shape[axis]`."""
    outside_kernel("get_shape_dim")


@operation
def cat(x: Tile, y: Tile, axis: int) -> Tile:
    """Two tiles side by side along a constant `axis`; they agree in dtype and in every other extent."""
    outside_kernel("cat")


@operation
def extract(x: Tile, index: tuple[int | Tile, ...], shape: tuple[int, ...]) -> Tile:
    """The part of `shape` at an index that counts in such parts; each extent divides the tile's."""
    outside_kernel("extract")
