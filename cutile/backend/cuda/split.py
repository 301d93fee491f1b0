"""Products whose tile blocks are too few to fill a GPU: the turns of each are divided among several thread blocks.

    for unit in first..tiles * pieces by step:
        tile, piece = unit // pieces, unit % pieces
        acc = zeros; for k in the piece's share of the loop: acc = mma(...)
        acc, mine = add_up(acc, tile, piece, pieces)
        if mine: ... the rest of the kernel

How many pieces there are is found at the launch, by the kernel itself, from the number of tile blocks, of thread blocks
and of turns: a kernel that is asked to (`CompileOptions(num_pieces=16)`) serves small and large products, and where
tile blocks are enough there is one piece, and nothing to add up. Of several pieces, each thread block writes its sums
to the workspace and counts itself; the one that comes last adds all of them, in the order of the pieces whoever it is,
so that results do not depend on timing. Nobody waits for anybody, so that it does not matter which thread blocks run at
one time. Kernels that are not asked pay nothing: on an H200, asking took 0.2 of the 3.5 us of a product of 512 cubed.
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Layout
from cutile.dtypes import DTypeLike
from cutile.ir.constant import Constant
from cutile.ir.core import Op

MOST_PIECES = 16
"""Of a tile block: the last thread block reads the sums of all."""
LEAST_TURNS = 16
"""Of a piece: what writing and adding up sums costs, in turns that would take longer."""
MOST_SUMS = 64
"""Sums of a thread up to which a kernel is made to be divided: larger tiles are for products that fill the GPU."""


def why_whole(sums: Layout, initial: Op | None, moving_bounds: bool, cluster: int, groups: int, pieces: int) -> str:
    """Why a product is not divided; empty where it may be.

    Args:
        sums: their layout.
        initial: what makes the sums' first value.
        moving_bounds: whether the loop's bounds differ from tile block to tile block.
        cluster: thread blocks that load together.
        groups: warp groups that multiply.
        pieces: into which a tile block's turns may be divided.
    """
    if pieces < 2:
        return f"nobody asks for it: CompileOptions(num_pieces={MOST_PIECES}) does"
    if sums.registers > MOST_SUMS:
        return (
            f"a thread holds {sums.registers} sums: with more than {MOST_SUMS}, tiles are for products that fill a GPU"
        )
    if groups & (groups - 1):
        return f"{groups} warp groups share the sums"
    if not isinstance(initial, Constant) or initial.value != 0:
        return "the sums do not begin as zeros"
    if moving_bounds:
        return "the loop's bounds differ from tile block to tile block"
    if cluster > 1:
        return "the thread blocks of a cluster load together"
    return ""


def sums_bytes(sums: Layout, dtype: DTypeLike) -> int:
    """What one piece's sums take in the workspace."""
    return sums.registers * sums.threads * dtype.bits // 8
