"""MN-major operands of products that want both along K (tf32, 8 bits, sm_90a).

`wgmma` reads 16-bit operands from shared memory whichever axis is contiguous there; of other types only those that are
contiguous along K. Its left operand may come from registers instead, though, and threads can read that from panels
that lie across K:

    x stored by columns                 left operand, through registers
    y stored by rows (K, N)             z^T = y^T x^T: y^T is the left operand, through registers; the sums are z^T
    both                                no such product

What is read is as much as `wgmma` itself would read, so nothing is paid for the transposition but instructions. Which
row of the product a lane holds is free, as long as the sums are known to lie so: rows are dealt out such that each
access finds its lanes in different banks, and threads hold neighbours.

    32 bits   a lane reads two neighbours (8 bytes) of one k; four lanes read four ks, whose swizzles differ
    8 bits    `ldmatrix` turns blocks of 8 ks by 16 rows, in pairs of rows; two blocks make four ks of one row
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Basis, Layout

BYTE, WORD = 1, 4
"""Bytes of the elements that there are rules for."""

LANE_ROWS = {WORD: (2, 16, 4), BYTE: (2, 4, 8)}
"""What the upper three bits of a lane's number add to the row, by the size of an element."""
WARP_ROWS = {WORD: (8, 32), BYTE: (16, 32)}
"""What the bits of a warp's number in its group add."""


def a_from_registers_accumulator(shape: tuple[int, int], groups: int, size: int, *, exchanged: bool) -> Layout:
    """Where a product leaves its sums whose left operand was read crosswise.

    Of the two neighbours along the rows and along the columns of the instruction that a thread holds, those come first
    that are neighbours in a row of the tile.

    Args:
        shape: of the tile.
        groups: warp groups that share the rows, 64 each in turn.
        size: bytes of an element of the operands.
        exchanged: whether the tile is the product's transpose.

    Example:
        >>> print(a_from_registers_accumulator((192, 128), 2, WORD, exchanged=True))
        192x128: 96 each of 256 threads, core 8x128
    """

    def row(step: int) -> Basis:
        return (0, step) if exchanged else (step, 0)

    def column(step: int) -> Basis:
        return (step, 0) if exchanged else (0, step)

    pairs = (row(1), column(1)) if exchanged else (column(1), row(1))
    lane = (column(2), column(4), *map(row, LANE_ROWS[size]))
    warp = (*WARP_ROWS[size], *(64 << bit for bit in range(groups.bit_length() - 1)))
    down, across = (1, 0) if exchanged else (0, 1)
    counts = ((across, -(-shape[across] // 8)), (down, shape[down] // (64 * groups)))
    repeat = tuple((axis, count) for axis, count in counts if count > 1)
    return Layout(shape, pairs, lane, tuple(map(row, warp)), repeat)


def fragment_registers(tall: int, nbytes: int, groups: int) -> int:
    """Registers of a thread for a left operand of `tall` rows and `nbytes` along K.

    Example:
        >>> fragment_registers(128, 128, groups=2)
        16
    """
    return tall // (64 * groups) * nbytes // 8
