"""The index of a tile block, and the extents of the grid.

The grid counts tile blocks. A target may run several of them in one thread block, in any order.
"""

from __future__ import annotations

from cutile.dtypes import i32
from cutile.errors import KernelTypeError
from cutile.ir import Op, TileType, Type, attribute


class GridQuery(Op):
    """One axis (0, 1 or 2) of a fact about the grid, as an i32 scalar."""

    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        if self.axis not in (0, 1, 2):
            raise KernelTypeError(f"{self.name}: the grid has the axes 0, 1 and 2, not {self.axis}")
        return (TileType(i32),)


class TileBlockId(GridQuery, name="tile_block_id", spelled=("get_tile_block_id",)):
    """This tile block's index along an axis of the grid."""


class NumTileBlocks(GridQuery, name="num_tile_blocks", spelled=("get_num_tile_blocks",)):
    """The extent of the grid along an axis."""
