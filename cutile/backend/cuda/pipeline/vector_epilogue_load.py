"""Sums lie in quads: four neighbouring lanes have eight columns of a row, two each. What is loaded need not lie so.

    a lane loads    row 0: columns 0..7 | 8..15 | 16..23 | 24..31        one access of 16 bytes for 8 columns
    and is to hold  row 0: 0 1  8 9  16 17  24 25 | 2 3  10 11 ... | 4 5 ... | 6 7 ...

In the sums' own layout a warp's access of 4 bytes a lane touches eight rows for 16 bytes each, and the cache serves one
line at a time: the residual of a tile of 128 x 256 takes 4096 of its cycles, and a quarter of that in wide accesses.
From there each of two bits of the lane's number changes places with a bit of the register's: one shuffle for a pair.
"""

from __future__ import annotations

from dataclasses import replace

from cutile.backend.cuda.layout import Basis, Layout, unit
from cutile.backend.cuda.layout_assignment import ACCESS_BYTES


def vector_load_layout(layout: Layout, axis: int, size: int) -> Layout | None:
    """The layout in which a tile that lies in quads is loaded; None where it does not lie so, or gains nothing.

    Args:
        layout: where the tile is to lie.
        axis: along which it is contiguous in memory.
        size: bytes of an element.

    Example:
        >>> from cutile.backend.cuda.layout import group_accumulator
        >>> print(vector_load_layout(group_accumulator((128, 64), 2), 1, 2))
        128x64: 32 each of 256 threads, core 128x32
    """

    def along(value: int) -> Basis:
        return unit(layout.rank, axis, value)

    quads = layout.register[:1] == (along(1),) and layout.lane[:2] == (along(2), along(4)) and layout.core[axis] == 8
    repeats = dict(layout.repeat).get(axis, 1)
    swaps = (ACCESS_BYTES // size // 2).bit_length() - 1
    while swaps and repeats % (1 << swaps):
        swaps -= 1
    if not quads or swaps < 1 or size < 2:  # bytes would have to be taken apart
        return None
    lanes = [along(8), along(16)] if swaps == 2 else [along(8), along(4)]
    register = (along(1), along(2), along(4))[: swaps + 1]
    rest = [(a, count >> swaps if a == axis else count) for a, count in layout.repeat]
    return replace(
        layout,
        register=(*register, *layout.register[1:]),
        lane=(*lanes, *layout.lane[2:]),
        repeat=tuple(repeat for repeat in rest if repeat[1] > 1),
    )


def swapped_bits(source: Layout, target: Layout) -> list[tuple[int, Basis, Basis]]:
    """The bits of a lane's number that stand for something else in the target: which, for what here, for what there."""
    pairs = enumerate(zip(source.lane, target.lane, strict=True))
    return [(bit, old, new) for bit, (old, new) in pairs if old != new]
