"""The place of a tile block in the logical grid.

The launch is one row of blocks; the logical grid `(x, y, z)` is decoded from the number.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import block, i32c
from cutile.backend.cuda.intrinsics.llvm import cluster_rank as rank
from cutile.dtypes import i32


@cache
def tile_block_id(axis: int, blocks: int = 1) -> Any:
    """`f(grid_y, grid_z)`: block `b` has the index `(b // (y*z), b // z % y, b % z)`.

    `blocks`: thread blocks of each tile block.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        y, z = values
        number = b.udiv(block(b), i32c(blocks)) if blocks > 1 else block(b)
        if axis == 0:
            return b.udiv(number, b.mul(y, z))
        return b.urem(number, z) if axis == 2 else b.urem(b.udiv(number, z), y)

    return intrinsic(f"tile_block_id_{axis}", frag(i32, 0), [frag(i32, 0)] * 2, generate)


@cache
def cluster_rank() -> Any:
    """`f()`: the block's number in its cluster."""
    return intrinsic("cluster_rank", frag(i32, 0), [], lambda b, _: rank(b))
