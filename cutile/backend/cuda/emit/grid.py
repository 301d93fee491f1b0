"""Where a tile block is in the logical grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.cuda.emit.text import Call
from cutile.ops import grid

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def tile_block_id(op: grid.TileBlockId, kernel: Kernel) -> Call:
    """`tile_block_id_0(grid_y, grid_z)`."""
    made = kernel.bind(f"tile_block_id_{op.axis}", "grid.tile_block_id", str(op.axis))
    return Call(made, GRID_NAMES[1:])


EMITTERS = {grid.TileBlockId: tile_block_id}
