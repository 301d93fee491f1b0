"""The grid: this tile block's index, the number of blocks, a tensor's tiles."""

from __future__ import annotations

from cutile.language.annotations import Mut
from cutile.language.declare import operation
from cutile.language.partition import Partition


@operation
def get_tile_block_id() -> tuple[int, int, int]:
    """This tile block's index in the grid, as three i32 scalars.

    Axis 0 of the grid is axis 0 of the partition.
    """
    ...


@operation
def get_num_tile_blocks() -> tuple[int, int, int]:
    """The extents of the grid, as three i32 scalars."""
    ...


@operation
def num_tiles(view: Partition | Mut, axis: int) -> int:
    """How many tiles cover the tensor along a constant `axis`.

    The extent over the tile's, rounded up.

    Example:
        >>> run(lambda x: x + ct.num_tiles(x_in.partition((2,)), 0).astype(ct.f32), [1.0, 2.0, 3.0])
        [3.0, 4.0, 5.0]
    """
    ...


__all__ = (
    "get_num_tile_blocks",
    "get_tile_block_id",
    "num_tiles",
)
