"""Products of f32 by specialised warps.

Exact, by fused multiply-adds, from operands in panels.

The tensor cores would round f32. A thread that adds outer products needs 16 bytes of an operand for every four of its
rows or columns, so the more sums it holds, the less it reads: of 8 rows by 16 columns, 6 reads of 16 bytes for 128
multiply-adds. What else a turn costs is the loading warps' work.
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Basis, Layout

LANES = (4, 8)
"""Lanes of a warp along rows and columns."""


def simt_accumulator(shape: tuple[int, int], warps: int, by_k: tuple[bool, bool]) -> Layout | None:
    """The sums of outer products.

    A warp covers 4 rows, or 4 times 4, by 8 columns, or 8 times 4.

    Of an operand that is contiguous along K a thread reads its rows one by one. They are so far apart that the swizzle
    treats all of a thread's alike, and those of a warp's lanes are neighbours, which lie in different banks. Of the
    others it reads four neighbours at once. The warps are split so that a thread reads the least.

    Args:
        shape: of the sums.
        warps: a power of two.
        by_k: whether the left and the right operand are contiguous along K.

    Returns:
        None where no split covers the shape in whole cores.

    Example:
        >>> print(simt_accumulator((128, 256), 8, (True, False)))
        128x256: 128 each of 256 threads, core 16x64
    """
    layouts = [_layout(shape, (rows, warps // rows), by_k) for rows in (1 << k for k in range(warps.bit_length()))]
    fitting = [layout for layout in layouts if layout is not None]
    return min(fitting, key=lambda layout: _reads(layout, by_k), default=None)


def _reads(layout: Layout, by_k: tuple[bool, bool]) -> tuple[int, int]:
    """What a thread reads for four steps of K, in 16 bytes; its rows held at once."""
    rows, columns = (len({offset[axis] for offset in layout.offsets}) for axis in range(2))
    return rows + columns, rows if by_k[0] else rows // 4


def _layout(shape: tuple[int, int], split: tuple[int, int], by_k: tuple[bool, bool]) -> Layout | None:
    def unit(axis: int, value: int) -> Basis:
        return (value, 0) if axis == 0 else (0, value)

    register: list[Basis] = []
    lanes: list[list[Basis]] = [[], []]
    warp: list[Basis] = []
    core = [1, 1]
    for axis in (1, 0):
        if not by_k[axis]:
            register += [unit(axis, 1), unit(axis, 2)]
            core[axis] = 4
        lanes[axis] = [unit(axis, core[axis] << k) for k in range(LANES[axis].bit_length() - 1)]
        core[axis] *= LANES[axis]
        warp += [unit(axis, core[axis] << k) for k in range(split[axis].bit_length() - 1)]
        core[axis] *= split[axis]
    if any(extent % step for extent, step in zip(shape, core, strict=True)):
        return None
    lane = [lanes[0][0], *lanes[1], lanes[0][1]]
    repeat = tuple((axis, shape[axis] // core[axis]) for axis in (1, 0) if shape[axis] > core[axis])
    return Layout(shape, tuple(register), tuple(lane), tuple(warp), repeat)
