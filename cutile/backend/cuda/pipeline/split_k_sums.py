"""Sums that thread blocks share (split-K).

The parts of a tile's columns, where they lie, the bytes that they take.
"""

from __future__ import annotations

from dataclasses import replace

from cutile.backend.cuda.layout import Layout
from cutile.dtypes import DTypeLike


def parts_of(columns: int, least: int, pieces: int) -> int:
    """Into how many parts the columns of a tile are cut for its pieces.

    One for each where that goes, else more.

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
    """Registers of a thread for the first part, and the distance to the next, or None.

    None where they do not follow each other so.

    Example:
        >>> from cutile.backend.cuda.layout import group_accumulator
        >>> registers_of(group_accumulator((64, 32), 1), 2)
        ([0, 1, 2, 3, 4, 5, 6, 7], 8)
    """
    where = {offset: register for register, offset in enumerate(sums.offsets)}
    first_part = part_layout(sums, parts)
    if first_part.core != sums.core:
        return None
    parts_registers = [
        [where.get((row, column + part * first_part.shape[1])) for row, column in first_part.offsets]
        for part in range(parts)
    ]
    first = [register for register in parts_registers[0] if register is not None]
    step = len(first) if parts == 1 or parts_registers[1][0] is None else parts_registers[1][0] - first[0]
    follows = all(register == [at + part * step for at in first] for part, register in enumerate(parts_registers))
    return (first, step) if follows else None
