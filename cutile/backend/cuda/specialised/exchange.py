"""Products of few rows: the operands change places, and what is multiplied is the transpose, y^T by x^T.

An instruction of a warp group has 64 rows and 8 to 256 columns. Of a tile of 16 rows it would multiply 48 that nobody
wants, and the copy engine would fill as many rows of the left operand with zeros. Exchanged, the tile's columns are the
instruction's rows, and its few rows 8 or 16 columns. Nothing moves for it: 16-bit operands are read whichever axis is
contiguous, and the sums lie in the transposed layout, from which what follows the loop takes them as from any other.
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Layout, group_accumulator
from cutile.backend.cuda.panels import ROWS

COLUMNS = 8
"""A multiple of which an instruction has columns."""


def exchanged(rows: int, columns: int) -> bool:
    """Whether operands change places: where a tile's rows are no whole number of an instruction's, and its columns are.

    Example:
        >>> exchanged(16, 128), exchanged(64, 128), exchanged(16, 80)
        (True, False, False)
    """
    return rows % ROWS != 0 and columns % ROWS == 0


def whole(rows: int) -> int:
    """The columns of an instruction that rows become. What is more than the tile has is loaded and multiplied as well,
    and its sums belong to nobody.

    Example:
        >>> whole(1), whole(16), whole(20)
        (8, 16, 24)
    """
    return -(-rows // COLUMNS) * COLUMNS


def sums_of(rows: int, columns: int, groups: int) -> Layout:
    """Where the sums of an exchanged product are.

    Example:
        >>> print(sums_of(16, 128, groups=2))
        16x128: 8 each of 256 threads, core 8x128
    """
    return group_accumulator((columns, rows), groups).permute((1, 0))
