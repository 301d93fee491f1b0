"""`MappedLaunchPartition`: a partition whose tiles a fixed number of tile blocks share, for persistent kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cutile.errors import ArgumentError, LaunchError
from cutile.language import OWNED
from cutile.launch.views import TiledView

if TYPE_CHECKING:
    from cutile.host.partition import BorrowedPartition, Partition

__all__ = ("MappedLaunchPartition",)


class MappedLaunchPartition:
    """A partition with a schedule. Made by `partition.map(map_shape, num_tile_blocks)`; a launch yields the partition.

    Args:
        partition: whose tiles.
        map_shape: how many tiles a group has along each axis: leading axes 1, the trailing two any; `OWNED` (0) leaves
            an axis out of the stream.
        num_tile_blocks: the launch's grid is `(num_tile_blocks, 1, 1)`.

    Raises:
        LaunchError: the map has another number of axes than the partition, streams none, or groups a leading axis; or
            there are no blocks, or more than streamed tiles, or more of those than 32 bits count.
    """

    __slots__ = ("_partition", "blocks", "map_shape")

    def __init__(
        self, partition: Partition | BorrowedPartition, map_shape: Sequence[int] | int, num_tile_blocks: int
    ) -> None:
        shape = (map_shape,) if isinstance(map_shape, int) else tuple(map_shape)
        self._partition = partition
        self.map_shape = shape
        self.blocks = num_tile_blocks
        _check(partition, shape, num_tile_blocks)

    @property
    def partition(self) -> Partition | BorrowedPartition:
        """The plain partition."""
        return self._partition

    @property
    def __kernel_yields__(self) -> Partition | BorrowedPartition:
        """What a launch gives back."""
        return self._partition

    def __kernel_output__(self) -> TiledView:
        """The elements, to be read and written by a kernel."""
        tiled = self._partition.__kernel_output__()
        return TiledView(tiled.view, tiled.tile, self.map_shape, self.blocks)

    def __kernel_give_back__(self) -> None:
        """An operation that got this did not run."""
        release: Any = getattr(self._partition, "__kernel_give_back__", None)
        if release is not None:
            release()

    def __repr__(self) -> str:
        return f"{self._partition!r}.map({self.map_shape}, {self.blocks})"


MOST_TILES = 2**31 - 1
"""How many tiles a stream may have: kernels count them in 32 bits."""


def _check(partition: Partition | BorrowedPartition, shape: tuple[Any, ...], blocks: Any) -> None:
    tile = partition.partition_shape
    if len(shape) != len(tile) or len(partition.tensor_shape) != len(tile):
        raise LaunchError(
            f"map: the map {shape} has {len(shape)} axes, the partition {tile} of a tensor of shape "
            f"{partition.tensor_shape} has {len(tile)}; give one extent for each axis"
        )
    if any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in shape):
        raise ArgumentError(f"map: the extents of a map are integers, at least 1, or OWNED (0); got {shape}")
    if all(each == OWNED for each in shape):
        raise LaunchError(f"map: the map {shape} streams no axis: at least one must not be OWNED")
    if any(each not in (OWNED, 1) for each in shape[:-2]):
        raise LaunchError(
            f"map: of the map {shape} only the last two axes can be grouped; the others must be 1 or OWNED"
        )
    counts = [-(-extent // size) for extent, size in zip(partition.tensor_shape, tile, strict=True)]
    streamed = math.prod(count for count, group in zip(counts, shape, strict=True) if group != OWNED)
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise LaunchError(f"map: the number of tile blocks must be at least 1, got {blocks!r}")
    if streamed > MOST_TILES:
        raise LaunchError(
            f"map: {streamed} streamed tiles are more than the {MOST_TILES} that a kernel counts; take larger tiles, "
            "or leave an axis out of the stream with OWNED"
        )
    if blocks > streamed:
        raise LaunchError(f"map: {blocks} tile blocks for {streamed} streamed tiles; give at most as many as tiles")
