"""Kernels with a `SharedMut`, for tests: whose grid is not the tiling of an output."""

from __future__ import annotations

import cutile as ct
from cutile import Const, SharedMut, Tensor, i32


@ct.entry
def total(y: SharedMut, x: Tensor) -> None:
    """A sum into one element."""
    part = x.partition((64,))
    mine = ct.constant(0, (64,), i32)
    for i in range(ct.get_tile_block_id()[0], ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        mine += part.load(i)
    ct.atomic_add(y, 0, ct.reduce_sum(mine, 0))


@ct.entry
def histogram(counts: SharedMut, x: Tensor, *, TILE: Const = 64) -> None:
    """Any number of blocks count into one histogram."""
    part = x.partition((TILE,))
    for i in range(ct.get_tile_block_id()[0], ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        ct.atomic_add(counts, part.load(i), 1, mask=part.inside(i))


@ct.entry
def rows(y: SharedMut, x: Tensor) -> None:
    """Each block writes every n-th row, in pieces, and reads it again."""
    part, source = y.partition((1, 16)), x.partition((1, 16))
    for i in range(ct.get_tile_block_id()[0], ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        for j in range(ct.num_tiles(part, 1)):
            part.store(source.load((i, j)), (i, j))
            part.store(2 * part.load((i, j)), (i, j))


@ct.entry
def chunks(y: SharedMut) -> None:
    """Each block has four tiles in a row, along the second axis."""
    part, block = y.partition((2, 4)), ct.get_tile_block_id()[0]
    for i in range(4 * block, 4 * block + 4):
        part.store(i, (0, i))


@ct.entry
def squares(y: SharedMut) -> None:
    """A grid of two axes, and elements by address."""
    i, j, _ = ct.get_tile_block_id()
    row, column = ct.iota((2,)) + 2 * i, ct.iota((4,)) + 4 * j
    ct.scatter(y, (row[:, None], column[None, :]), 10 * i + j)


@ct.entry
def kept(out: SharedMut, count: SharedMut, x: Tensor) -> None:
    """What is above 3, in any order: each lane claims a place."""
    t = x.load_tile((16,), ct.get_tile_block_id()[:1])
    keep = t > 3
    place = ct.atomic_add(count, ct.constant(0, (16,), i32), 1, mask=keep)
    ct.scatter(out, place, t, mask=keep)


@ct.entry
def work(y: SharedMut, ticket: SharedMut) -> None:
    """Blocks take tiles from a list of work until there is none left."""
    part = y.partition((8,))
    n = ct.num_tiles(part, 0)
    t = ct.atomic_add(ticket, 0, 1)
    while t < n:
        part.store(t, t)
        t = ct.atomic_add(ticket, 0, 1)


@ct.entry
def extremes(y: SharedMut, x: Tensor) -> None:
    """Several updates of one tensor, all of them atomic."""
    t = x.load_tile((16,), ct.get_tile_block_id()[:1])
    ct.atomic_max(y, 0, ct.reduce_max(t, 0))
    ct.atomic_min(y, 1, ct.reduce_min(t, 0))
