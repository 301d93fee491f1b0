"""Products whose tile blocks are too few to fill a GPU: the turns of each are divided among several thread blocks.

    for unit in first..tiles * pieces by step:
        tile, piece = unit // pieces, unit % pieces
        acc = zeros; for k in the piece's share of the loop: acc = mma(...)
        acc, mine = add_up(acc, tile, piece, pieces)
        if mine: ... the rest of the kernel

How many pieces there are is found at the launch, by the kernel itself, from the number of tile blocks, of thread blocks
and of turns: a kernel that is asked to (`CompileOptions(num_pieces=16)`) serves small and large products, and where
tile blocks are enough there is one piece, and nothing to add up. Kernels that are not asked pay nothing: on an H200,
asking took 0.2 of the 3.5 us of a product of 512 cubed. Of these it is the launches with few tile blocks that take a
kernel which is asked: see `division.py`.

Where up to eight pieces are asked for, their thread blocks are a cluster, and read each other's sums: see `nearby.py`.
Of more, each thread block writes its sums to a workspace and counts itself; the one that comes last adds all of them,
in the order of the pieces whoever it is, so that results do not depend on timing. Nobody waits for anybody, so that it
does not matter which thread blocks run at one time.
"""

from __future__ import annotations

from dataclasses import replace

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.dtypes import DTypeLike
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Op

MOST_PIECES = 16
"""Of a tile block: the last thread block reads the sums of all."""
MOST_NEARBY = 8
"""Pieces up to which their thread blocks are a cluster, which every kind of device takes."""
MOST_BESIDE_MORE = 64
"""Sums of a thread up to which it adds those of other pieces where it holds more than sums."""
LEAST_TURNS = 16
"""Of a piece: what writing and adding up sums costs, in turns that would take longer."""
LEAST_NEARBY = 3
"""The same where thread blocks are a cluster, which adds up sooner: of fewer, most is the first turn's way there."""


def why_whole(initial: Op | None, moving_bounds: bool, cluster: int, groups: int) -> str:
    """Why a product cannot be divided; empty where it can.

    Args:
        initial: what makes the sums' first value.
        moving_bounds: whether the loop's bounds differ from tile block to tile block.
        cluster: thread blocks that load together.
        groups: warp groups that multiply.
    """
    if groups & (groups - 1):
        return f"{groups} warp groups share the sums"
    if not isinstance(initial, Constant) or initial.value != 0:
        return "the sums do not begin as zeros"
    if moving_bounds:
        return "the loop's bounds differ from tile block to tile block"
    if cluster > 1:
        return "the thread blocks of a cluster load together"
    return ""


def why_too_many(kernel: Kernel, loop: For, sums: Layout, crosswise: bool) -> str:
    """Why a thread has no registers to add up the sums of other pieces; empty where it has.

    Args:
        kernel: whose sums they are.
        loop: of products.
        sums: their layout.
        crosswise: whether threads hold an operand beside them.
    """
    more = kernel.computes_behind(loop)
    if sums.registers <= MOST_BESIDE_MORE or not (more or crosswise):
        return ""
    beside = "an operand" if crosswise else "what follows the loop"
    return f"a thread holds {sums.registers} sums, and has registers for {MOST_BESIDE_MORE} beside {beside}"


def parts_of(columns: int, least: int, pieces: int) -> int:
    """Into how many parts the columns of a tile are cut for its pieces: one for each where that goes, else more.

    Args:
        columns: of the tile.
        least: columns of which a part has some multiple.
        pieces: thread blocks that share the parts.

    Example:
        >>> parts_of(128, 8, 4), parts_of(64, 8, 8), parts_of(128, 8, 3), parts_of(24, 8, 8), parts_of(64, 64, 2)
        (4, 8, 16, 3, 1)
    """
    return pieces if columns % (least * pieces) == 0 else max(1, columns // least)


def cluster_bytes(sums: Layout, parts: int, pieces: int) -> int:
    """What a thread block of a cluster is sent: its parts of the sums of all pieces."""
    return -(-parts // pieces) * pieces * sums.registers * sums.threads * 4 // parts


def sums_bytes(sums: Layout, dtype: DTypeLike) -> int:
    """What one piece's sums take in the workspace."""
    return sums.registers * sums.threads * dtype.bits // 8


def with_columns(sums: Layout, columns: int) -> Layout:
    """The layout of sums, of a tile with so many columns."""
    shape = (sums.shape[0], columns)
    counts = [(axis, -(-shape[axis] // sums.core[axis])) for axis in (1, 0)]
    return replace(sums, shape=shape, repeat=tuple((axis, count) for axis, count in counts if count > 1))


def part_layout(sums: Layout, parts: int) -> Layout:
    """The layout of one of `parts` parts of the columns of a tile that lies as `sums`."""
    return with_columns(sums, sums.shape[1] // parts)


def registers_of(sums: Layout, parts: int) -> tuple[list[int], int] | None:
    """The registers of a thread that hold the first part, and how far on those of the next are; None where they do not
    follow each other so.

    Example:
        >>> from cutile.backend.cuda.layout import group_accumulator
        >>> registers_of(group_accumulator((64, 32), 1), 2)
        ([0, 1, 2, 3, 4, 5, 6, 7], 8)
    """
    where = {offset: register for register, offset in enumerate(sums.offsets)}
    one = part_layout(sums, parts)
    if one.core != sums.core:
        return None
    chosen = [[where.get((row, column + part * one.shape[1])) for row, column in one.offsets] for part in range(parts)]
    first = [each for each in chosen[0] if each is not None]
    step = len(first) if parts == 1 or chosen[1][0] is None else chosen[1][0] - first[0]
    follows = all(each == [at + part * step for at in first] for part, each in enumerate(chosen))
    return (first, step) if follows else None
