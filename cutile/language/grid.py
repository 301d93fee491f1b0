"""The grid: this tile block's index, the number of blocks, a tensor's tiles."""

from __future__ import annotations

from cutile.language.annotations import Mut
from cutile.language.declare import operation
from cutile.language.partition import Partition


@operation
def get_tile_block_id() -> tuple[int, int, int]:
    """This tile block's index in the grid, as three i32 scalars.

    Axis 0 of the grid is axis 0 of the partition.

    Returns:
        Three i32 scalars, from 0; 0 along axes that the grid does not have.

    Example:
        >>> run(lambda x: x + ct.convert_tile(ct.get_tile_block_id()[0], x.dtype), [1.0, 2.0])
        [1.0, 2.0]
    """
    ...


@operation
def get_num_tile_blocks() -> tuple[int, int, int]:
    """The extents of the grid, as three i32 scalars.

    Returns:
        Three i32 scalars; 1 along axes that the grid does not have.

    Example:
        >>> run(lambda x: x + ct.convert_tile(ct.get_num_tile_blocks()[0], x.dtype), [1.0, 2.0])
        [2.0, 3.0]
    """
    ...


@operation
def num_tiles(view: Partition | Mut, axis: int) -> int:
    """How many tiles cover the tensor along a constant `axis`.

    It is the tensor's extent divided by the tile's, rounded up.

    Args:
        view: a partition, or a `Mut`.
        axis: a constant; negative ones count from the end.

    Returns:
        An i32 scalar, or a constant where the kernel is compiled for the extent.

    Raises:
        KernelTypeError: there is no such axis.

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
