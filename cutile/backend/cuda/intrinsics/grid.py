"""The place of a tile block in the logical grid.

The launch is one row of thread blocks. The index in the logical grid `(x, y, z)` is computed from a block's number.
"""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import block, i32c, merge
from cutile.backend.cuda.intrinsics.llvm import cluster_rank as rank
from cutile.dtypes import i32


@cache
def tile_block_id(axis: int, blocks: int = 1, *, alone: bool = False) -> Any:
    """`f(grid_y, grid_z)`: block `b` has the index `(b // (y*z), b // z % y, b % z)`.

    Args:
        axis: of the grid.
        blocks: thread blocks of each tile block.
        alone: whether to test for a grid of a single axis, which needs no division. The test pays if most grids are so.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        y, z = values
        number = b.udiv(block(b), i32c(blocks)) if blocks > 1 else block(b)
        if not alone:
            return _index(b, axis, number, y, z)
        with b.if_else(b.icmp_unsigned("==", b.mul(y, z), i32c(1)), likely=True) as (single, several):
            with single:
                behind_single = b.block
            with several:
                quotient = _index(b, axis, number, y, z)
                behind_several = b.block
        own = i32c(0) if axis else number
        return merge(b, ([own], behind_single), ([quotient], behind_several))[0]

    return intrinsic(f"tile_block_id_{axis}", frag(i32, 0), [frag(i32, 0)] * 2, generate)


def _index(b: Any, axis: int, number: Any, y: Any, z: Any) -> Any:
    """The index of block `number` along an axis; `y` and `z` are the grid's extents."""
    if axis == 0:
        return b.udiv(number, b.mul(y, z))
    return b.urem(number, z) if axis == 2 else b.urem(b.udiv(number, z), y)


@cache
def cluster_rank() -> Any:
    """`f()`: the block's number in its cluster."""
    return intrinsic("cluster_rank", frag(i32, 0), [], lambda b, _: rank(b))
