"""Layouts of accumulators and of their parts (sm_90a).

**Operands across K.** `wgmma` reads 16-bit operands from shared memory along either axis. Operands of other types have
to be contiguous along K there. But a left operand may come from registers, and threads can read it from shared memory
where it lies across K:

    x stored by columns                 x is the left operand, through registers
    y stored by rows (K, N)             z^T = y^T x^T: y^T is the left operand, through registers; the sums are z^T
    both                                no such product

Threads read as many bytes as `wgmma` itself would, so the transposition costs only instructions. Any lane may hold any
row of the product, as long as the accumulator's layout says so. These layouts let the lanes of each access find their
elements in different banks, and a thread hold neighbours.

    32 bits   a lane reads two neighbours (8 bytes) of one k; four lanes read four ks, whose swizzles differ
    8 bits    `ldmatrix` transposes blocks of 8 ks by 16 rows, in pairs of rows; two blocks make four ks of one row

**Products of f32** are made by fused multiply-adds: the tensor cores would round f32. A thread adds outer products. For
each k it reads 16 bytes for every four of its rows or columns. The more sums it holds, the less it reads for each: with
8 rows by 16 columns, 6 reads of 16 bytes for 128 multiply-adds.

**Loads beside accumulators.** Accumulators lie in quads: four neighbouring lanes have eight columns of a row, two each.
A tile that is added to one may be loaded in another layout:

    a lane loads    row 0: columns 0..7 | 8..15 | 16..23 | 24..31        one access of 16 bytes for 8 columns
    and is to hold  row 0: 0 1  8 9  16 17  24 25 | 2 3  10 11 ... | 4 5 ... | 6 7 ...

In the accumulator's layout an access of 4 bytes a lane touches eight rows, with 16 bytes in each, and the cache serves
one line at a time. The residual of a tile of 128 x 256 takes 4096 cycles of the cache, and a quarter of that in wide
accesses. After the loads, two bits of the lane's number are exchanged with bits of the register's number, by one
shuffle for a pair of registers.
"""

from dataclasses import replace

from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.smem_layout import WGMMA_ROWS
from cutile.backend.gpu.layout import Basis, Layout, repeats_of, unit
from cutile.backend.gpu.layout_assignment import ACCESS_BYTES

BYTE, WORD = 1, 4
"""Bytes of an element of an operand across K. There is no 2: `wgmma` reads 16-bit elements along either axis."""

LANE_ROWS = {WORD: (2, 16, 4), BYTE: (2, 4, 8)}
"""Rows that the upper three bits of a lane's number stand for, by the bytes of an element."""
WARP_ROWS = {WORD: (8, 32), BYTE: (16, 32)}
"""Rows that the bits of a warp's number in its warpgroup stand for, by the bytes of an element."""

THREE_WARPGROUPS = 3
THREE_WARPGROUP_ROWS = THREE_WARPGROUPS * WGMMA_ROWS
"""Rows of a tile that three warpgroups share."""


def a_from_registers_accumulator(shape: tuple[int, int], groups: int, size: int, *, transposed: bool) -> Layout:
    """The accumulator's layout where threads read a left operand across K.

    A thread holds two neighbouring rows of two neighbouring columns. The lowest bit of the register's number is the
    axis that is contiguous in the result.

    Args:
        shape: of the accumulator.
        groups: the number of warpgroups that share the rows, 64 each in turn. It is a power of two, since the bits of a
            warpgroup's number are bases of the layout; `mainloop_rules.py` refuses three.
        size: bytes of an element of the operands.
        transposed: whether rows of the accumulator are columns of the result.

    Example:
        >>> print(a_from_registers_accumulator((128, 192), 2, WORD, transposed=True))
        128x192: 96 each of 256 threads, core 128x8
    """

    def rows(*steps: int) -> tuple[Basis, ...]:
        return tuple((step, 0) for step in steps)

    pairs = ((1, 0), (0, 1)) if transposed else ((0, 1), (1, 0))
    lane = ((0, 2), (0, 4), *rows(*LANE_ROWS[size]))
    warp = rows(*WARP_ROWS[size], *(64 << bit for bit in range(groups.bit_length() - 1)))
    return Layout(shape, pairs, lane, warp, repeats_of(shape, (64 * groups, 8), (1, 0)))


def pingpong_accumulator(shape: tuple[int, int]) -> Layout:
    """The accumulator's layout where each warpgroup has a tile of its own (ping-pong).

    The threads of both warpgroups hold the same elements of their tiles: the bit of the warpgroup moves by nothing.

    Example:
        >>> print(pingpong_accumulator((128, 192)))
        128x192: 192 each of 256 threads, core 64x8
    """
    one = group_accumulator(shape, 1)
    return Layout(shape, one.register, one.lane, (*one.warp, (0, 0)), one.repeat)


def held_by_each_warpgroup(layout: Layout) -> bool:
    """Whether each warpgroup holds every element of a tile."""
    return not any(any(basis) for basis in layout.warp[2:])


def among_three(layout: Layout) -> bool:
    """Whether three warpgroups hold every element of a tile."""
    # The warps of the fourth, which the layout has and the kernel has not: they may hold only places past the edge.
    missing = (layout.thread_coordinate(0, warp) for warp in range(4 * THREE_WARPGROUPS, layout.warps))
    return held_by_each_warpgroup(layout) or all(
        any(at >= extent for at, extent in zip(where, layout.shape, strict=True)) for where in missing
    )


def fragment_registers(rows: int, nbytes: int, groups: int) -> int:
    """Registers of a thread for a left operand of `nbytes` along K.

    Example:
        >>> fragment_registers(128, 128, groups=2)
        16
    """
    # 64 rows are 64 * nbytes / 4 words, over the 128 threads of a warpgroup.
    return rows // (64 * groups) * nbytes // 8


LANES = (4, 8)
"""Lanes of a warp along rows and columns of a SIMT product."""


def simt_accumulator(shape: tuple[int, int], warps: int, by_k: tuple[bool, bool]) -> Layout | None:
    """The accumulator's layout of a SIMT product.

    A warp has 4 lanes along the rows and 8 along the columns. Along an axis that is contiguous in its operand, a lane
    has four neighbours, which it reads at once. Along the axis of an operand that is contiguous along K, it has single
    rows of the operand. A thread's rows are so far apart that the swizzle treats all of them alike. The rows of
    neighbouring lanes are neighbours, which lie in different banks.

    The warps are split between rows and columns in the way in which a thread reads the least.

    Args:
        shape: of the accumulator.
        warps: warps that share it; a power of two.
        by_k: whether the left and the right operand are contiguous along K.

    Returns:
        None where no split covers the shape in whole cores.

    Example:
        >>> print(simt_accumulator((128, 256), 8, (True, False)))
        128x256: 128 each of 256 threads, core 16x64
    """
    splits = [(1 << bit, warps >> bit) for bit in range(warps.bit_length())]  # warps along rows and columns
    layouts = [_simt_layout(shape, split, by_k) for split in splits]
    fitting = [layout for layout in layouts if layout is not None]
    return min(fitting, key=lambda layout: _reads(layout, by_k), default=None)


def _reads(layout: Layout, by_k: tuple[bool, bool]) -> tuple[int, int]:
    """A thread's reads of 16 bytes for four ks.

    The second number is the reads of the left operand that it holds at once.
    """
    rows, columns = (len({offset[axis] for offset in layout.offsets}) for axis in range(2))
    return rows + columns, rows if by_k[0] else rows // 4


def _simt_layout(shape: tuple[int, int], split: tuple[int, int], by_k: tuple[bool, bool]) -> Layout | None:
    """The layout with `split` warps along rows and columns.

    None where its core does not divide the shape.
    """
    register: list[Basis] = []
    lanes: list[list[Basis]] = [[], []]
    warp: list[Basis] = []
    core = [1, 1]
    for axis in (1, 0):
        if not by_k[axis]:
            register += [unit(2, axis, 1), unit(2, axis, 2)]
            core[axis] = 4
        lanes[axis] = [unit(2, axis, core[axis] << k) for k in range(LANES[axis].bit_length() - 1)]
        core[axis] *= LANES[axis]
        warp += [unit(2, axis, core[axis] << k) for k in range(split[axis].bit_length() - 1)]
        core[axis] *= split[axis]
    if any(extent % step for extent, step in zip(shape, core, strict=True)):
        return None
    # An access of 16 bytes serves a quarter of a warp at a time: 2 lanes along rows by 4 along columns.
    lane = [lanes[0][0], *lanes[1], lanes[0][1]]
    return Layout(shape, tuple(register), tuple(lane), tuple(warp), repeats_of(shape, core, (1, 0)))


def vector_load_layout(layout: Layout, axis: int, size: int) -> Layout | None:
    """The layout of wide loads of a tile whose final layout has quads.

    None where the final layout has no quads, or wide loads gain nothing.

    Args:
        layout: the final layout of the tile.
        axis: the axis along which it is contiguous in memory.
        size: bytes of an element.

    Example:
        >>> from cutile.backend.cuda.mma_layouts import group_accumulator
        >>> print(vector_load_layout(group_accumulator((128, 64), 2), 1, 2))
        128x64: 32 each of 256 threads, core 128x32
    """

    def along(value: int) -> Basis:
        return unit(layout.rank, axis, value)

    quads = layout.register[:1] == (along(1),) and layout.lane[:2] == (along(2), along(4)) and layout.core[axis] == 8
    repeats = dict(layout.repeat).get(axis, 1)
    swaps = (ACCESS_BYTES // size // 2).bit_length() - 1  # a lane has pairs; each bit doubles its access
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
    """The bits of a lane's number whose bases differ, each with its two bases."""
    pairs = enumerate(zip(source.lane, target.lane, strict=True))
    return [(bit, old, new) for bit, (old, new) in pairs if old != new]


def parts_of(columns: int, least: int, pieces: int) -> int:
    """The number of parts of a tile's columns, for the thread blocks of a cluster.

    There is one for each thread block if that divides the columns; else there are as many as multiples of `least`.

    Args:
        columns: columns of the tile.
        least: the columns of a part are a multiple of it.
        pieces: thread blocks that share the parts.

    Example:
        >>> parts_of(128, 8, 4), parts_of(64, 8, 8), parts_of(128, 8, 3), parts_of(24, 8, 8), parts_of(64, 64, 2)
        (4, 8, 16, 3, 1)
    """
    return pieces if columns % (least * pieces) == 0 else max(1, columns // least)


def cluster_bytes(sums: Layout, parts: int, pieces: int) -> int:
    """Bytes that a thread block of a cluster receives: its parts of all blocks' sums."""
    return -(-parts // pieces) * pieces * sums.registers * sums.threads * 4 // parts


def with_columns(sums: Layout, columns: int) -> Layout:
    """The same layout for a tile with another number of columns."""
    shape = (sums.shape[0], columns)
    return replace(sums, shape=shape, repeat=repeats_of(shape, sums.core, (1, 0)))


def part_layout(sums: Layout, parts: int) -> Layout:
    """The layout of one part, where the columns of a tile are cut into `parts`."""
    return with_columns(sums, sums.shape[1] // parts)


def registers_of(sums: Layout, parts: int) -> tuple[list[int], int] | None:
    """Registers of a thread for the first part, and the distance to the next part's.

    None where the parts do not follow each other at one distance.

    Example:
        >>> from cutile.backend.cuda.mma_layouts import group_accumulator
        >>> registers_of(group_accumulator((64, 32), 1), 2)
        ([0, 1, 2, 3, 4, 5, 6, 7], 8)
    """
    where = {offset: register for register, offset in enumerate(sums.offsets)}
    first_part = part_layout(sums, parts)
    parts_registers = [
        [where.get((row, column + part * first_part.shape[1])) for row, column in first_part.offsets]
        for part in range(parts)
    ]
    first = [register for register in parts_registers[0] if register is not None]
    step = len(first) if parts == 1 or parts_registers[1][0] is None else parts_registers[1][0] - first[0]
    follows = all(register == [at + part * step for at in first] for part, register in enumerate(parts_registers))
    return (first, step) if follows else None
