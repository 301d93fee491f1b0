"""Register layouts as data: which thread holds which element, in which register.

A layout is a core times a repetition. The core is a linear map over F2 from the bits of (register, lane, warp) to the
bits of the tile's index. Each bit has a basis: a vector of one number per axis. A thread's coordinate is the XOR of the
bases of its set bits. The repetition stacks the core along the axes, any number of times, in further registers. So a
tile of 96 x 80 is 3 x 5 cores of 32 x 16, and its extents need not be powers of two.

Every basis here is a power of two along one axis. So XOR is addition, and a register's element is a fixed step from its
thread's first. A basis of zeros is a free bit: threads that differ in it hold the same elements. A core may extend
beyond the tile's edge: elements there are neither loaded nor stored nor reduced.

Nothing here knows of dtypes, of LLVM or of a device; `layout_assignment.py` chooses among the layouts made here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

Basis = tuple[int, ...]
Coordinate = tuple[int, ...]

LANE_BITS = 5


def xor(a: Coordinate, b: Coordinate) -> Coordinate:
    """The sum of two vectors over F2."""
    return tuple(x ^ y for x, y in zip(a, b, strict=True))


def unit(rank: int, axis: int, value: int) -> Basis:
    """The basis that steps by `value` along `axis`."""
    return tuple(value if each == axis else 0 for each in range(rank))


@dataclass(frozen=True)
class Layout:
    """The thread and the register of each element of a tile.

    Attributes:
        shape: the tile's extents.
        register: the basis of each register bit of the core, lowest bit first.
        lane: the basis of each of the five lane bits.
        warp: the basis of each warp bit; there are `2 ** len(warp)` warps.
        repeat: (axis, count) of each digit of the repetition, fastest first. Above the core's register bits, the number
            of a register consists of these digits.

    Example:
        >>> row = Layout((96,), register=((1,),), lane=((2,), (4,), (8,), (0,), (0,)), warp=(), repeat=((0, 6),))
        >>> row.registers, row.threads, row.core
        (12, 32, (16,))
        >>> row.coordinate(3, lane=5, warp=0)
        (27,)
    """

    shape: tuple[int, ...]
    register: tuple[Basis, ...]
    lane: tuple[Basis, ...]
    warp: tuple[Basis, ...]
    repeat: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if len(self.lane) != LANE_BITS:
            raise ValueError(f"a layout has {LANE_BITS} lane bits, got {len(self.lane)}")
        bases = [*self.register, *self.lane, *self.warp]
        if any(len(basis) != self.rank for basis in bases):
            raise ValueError(f"every basis of a layout of {self.shape} has {self.rank} components")
        if any(not any(basis) for basis in self.register):
            raise ValueError("a register bit is never free: its two registers would hold the same element")
        steps = [basis for basis in bases if any(basis)]
        are_powers = all(sum(map(bool, basis)) == 1 and not max(basis) & (max(basis) - 1) for basis in steps)
        if not are_powers or len(set(steps)) < len(steps):
            raise ValueError("each basis of a layout is a power of two on one axis, and none occurs twice")
        for axis, extent in enumerate(self.shape):
            if self.cover[axis] < extent:
                raise ValueError(f"the layout covers {self.cover} of a tile of {self.shape}")

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def warps(self) -> int:
        """The number of warps."""
        return 1 << len(self.warp)

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self.warps << LANE_BITS

    @cached_property
    def core(self) -> tuple[int, ...]:
        """The extents of the core: powers of two."""
        bases = (*self.register, *self.lane, *self.warp)
        return tuple(1 << max((b[axis].bit_length() for b in bases), default=0) for axis in range(self.rank))

    @cached_property
    def cover(self) -> tuple[int, ...]:
        """The extents that the repeated core covers: the tile's, or more."""
        extents = list(self.core)
        for axis, count in self.repeat:
            extents[axis] *= count
        return tuple(extents)

    @cached_property
    def registers(self) -> int:
        """Elements per thread, those beyond the tile's edge included."""
        return len(self.offsets)

    @cached_property
    def offsets(self) -> tuple[Coordinate, ...]:
        """The offset of each register, which is added (by XOR) to its thread's coordinate."""
        zero = (0,) * self.rank
        offsets = [zero]
        for basis in self.register:
            offsets += [xor(each, basis) for each in offsets]
        step = list(self.core)
        for axis, count in self.repeat:
            moves = [unit(self.rank, axis, step[axis] * k) for k in range(count)]
            offsets = [xor(move, each) for move in moves for each in offsets]
            step[axis] *= count
        return tuple(offsets)

    def thread_coordinate(self, lane: int, warp: int) -> Coordinate:
        """The coordinate of a thread's register 0."""
        bases = [basis for bit, basis in enumerate(self.lane) if lane >> bit & 1]
        bases += [basis for bit, basis in enumerate(self.warp) if warp >> bit & 1]
        return reduce(xor, bases, (0,) * self.rank)

    def coordinate(self, register: int, lane: int, warp: int) -> Coordinate:
        """The tile index that a register of a thread holds.

        It may lie beyond the tile's edge.
        """
        return xor(self.thread_coordinate(lane, warp), self.offsets[register])

    def owner(self, lane: int, warp: int) -> bool:
        """Whether the thread stores its elements.

        Of threads with equal elements it is the one whose free bits are 0.
        """
        return not (lane & self.free_lanes or warp & self.free_warps)

    def elements(self) -> Iterator[tuple[Coordinate, int, int, int]]:
        """Every (coordinate, register, lane, warp) in the tile."""
        for warp in range(self.warps):
            for lane in range(1 << LANE_BITS):
                for register in range(self.registers):
                    where = self.coordinate(register, lane, warp)
                    if all(c < extent for c, extent in zip(where, self.shape, strict=True)):
                        yield where, register, lane, warp

    @cached_property
    def holders(self) -> int:
        """Threads that hold different elements."""
        return self.threads >> (self.free_lanes.bit_count() + self.free_warps.bit_count())

    @cached_property
    def free_lanes(self) -> int:
        """The free bits of the lane, as a mask."""
        return sum(1 << bit for bit, basis in enumerate(self.lane) if not any(basis))

    @cached_property
    def free_warps(self) -> int:
        """The free bits of the warp, as a mask."""
        return sum(1 << bit for bit, basis in enumerate(self.warp) if not any(basis))

    @cached_property
    def reach(self) -> Coordinate:
        """Per axis, the most that lane and warp add to a register's offset."""
        return tuple(reduce(int.__or__, (b[axis] for b in (*self.lane, *self.warp)), 0) for axis in range(self.rank))

    def edge_axes(self, register: int) -> tuple[int, ...]:
        """Axes along which this register lies beyond the tile's edge in some thread."""
        offset = self.offsets[register]
        return tuple(a for a in range(self.rank) if (offset[a] | self.reach[a]) >= self.shape[a])

    def run(self, axis: int) -> tuple[int, ...]:
        """The registers with the first consecutive elements along `axis`.

        Their number is a power of two. The registers of another run are these, XOR the register of its first element.

        Example:
            >>> lanes = ((0, 4), (1, 0), (2, 0), (0, 0), (0, 0))
            >>> pairs = Layout((8, 8), ((0, 1), (4, 0), (0, 2)), lanes, ())
            >>> pairs.run(1), pairs.vector(1)
            ((0, 1, 4, 5), 2)
        """
        registers = [0]
        while (step := unit(self.rank, axis, len(registers))) in self.register:
            bit = 1 << self.register.index(step)
            registers += [register | bit for register in registers]
        return tuple(registers)

    def vector(self, axis: int) -> int:
        """The number of consecutive registers that hold consecutive elements along `axis`.

        It is a power of two. The first register's number and its element's coordinate are multiples of it.
        """
        width = 1
        for basis in self.register:
            if basis != unit(self.rank, axis, width):
                break
            width *= 2
        return width

    # Layouts from layouts.

    def collapse(self, axis: int) -> Layout:
        """The layout of a reduction along `axis` that keeps the axis with extent 1."""
        mask = tuple(0 if a == axis else -1 for a in range(self.rank))

        def flat(basis: Basis) -> Basis:
            return tuple(c & m for c, m in zip(basis, mask, strict=True))

        return Layout(
            shape=tuple(1 if a == axis else e for a, e in enumerate(self.shape)),
            register=tuple(b for b in map(flat, self.register) if any(b)),
            lane=tuple(map(flat, self.lane)),
            warp=tuple(map(flat, self.warp)),
            repeat=tuple((a, count) for a, count in self.repeat if a != axis),
        )

    def drop(self, axis: int) -> Layout:
        """The layout without `axis`, whose extent is 1."""
        if self.shape[axis] != 1:
            raise ValueError(f"axis {axis} of {self.shape} has not extent 1")
        return self.collapse(axis).permute([a for a in range(self.rank) if a != axis])

    def insert(self, axis: int) -> Layout:
        """The layout with a new axis of extent 1 at `axis`."""

        def wide(basis: Sequence[int], value: int = 0) -> tuple[int, ...]:
            return (*basis[:axis], value, *basis[axis:])

        return Layout(
            wide(self.shape, 1),
            tuple(map(wide, self.register)),
            tuple(map(wide, self.lane)),
            tuple(map(wide, self.warp)),
            tuple((a + (a >= axis), count) for a, count in self.repeat),
        )

    def permute(self, axes: Sequence[int]) -> Layout:
        """The layout whose axis k is this one's axis `axes[k]`.

        Axes left out must have extent 1.
        """

        def pick(basis: Sequence[int]) -> tuple[int, ...]:
            return tuple(basis[axis] for axis in axes)

        return Layout(
            pick(self.shape),
            tuple(map(pick, self.register)),
            tuple(map(pick, self.lane)),
            tuple(map(pick, self.warp)),
            tuple((axes.index(a), count) for a, count in self.repeat),
        )

    def __str__(self) -> str:
        """The shape, elements per thread, threads, and the core."""
        text = "x".join(map(str, self.shape)) or "scalar"
        core = "x".join(map(str, self.core))
        return f"{text}: {self.registers} each of {self.threads} threads, core {core}"


def register_map(source: Layout, target: Layout) -> tuple[int, ...] | None:
    """For each register of `target` the register of `source` with the same element.

    None if an element has to move between threads. A register beyond the tile's edge may get any element.

    Example:
        >>> a = blocked((8, 64), warps=1, vector=4)
        >>> register_map(a, a) == tuple(range(a.registers))
        True
    """
    if source.shape != target.shape or (source.lane, source.warp) != (target.lane, target.warp):
        return None
    where = {offset: register for register, offset in enumerate(source.offsets)}
    registers: list[int] = []
    for offset in target.offsets:
        outside = any(o >= e for o, e in zip(offset, target.shape, strict=True))
        if offset not in where and not outside:
            return None
        registers.append(where.get(offset, 0))
    return tuple(registers)


def round_up(extent: int) -> int:
    """The power of two at or above `extent`."""
    return 1 << max(extent - 1, 0).bit_length()


def _splits(bits: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to divide up to `bits` bits among axes.

    `limits` has the most bits that each axis takes. Ways with many bits for the first axis come first.
    """
    if not limits:
        yield ()
        return
    for count in range(min(bits, limits[0]), -1, -1):
        for rest in _splits(bits - count, limits[1:]):
            yield (count, *rest)


def axis_first(rank: int, axis: int) -> list[int]:
    """All axes: `axis`, then the others, the last one first.

    Example:
        >>> axis_first(4, 1), axis_first(3, -1)
        ([1, 3, 2, 0], [2, 1, 0])
    """
    return [axis % rank, *(other for other in reversed(range(rank)) if other != axis % rank)]


def repeats_of(shape: Sequence[int], core: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The repetition of a core over a tile, the first axis of `order` fastest."""
    counts = [(axis, -(-shape[axis] // core[axis])) for axis in order]
    return tuple((axis, count) for axis, count in counts if count > 1)


def blocked(
    shape: Sequence[int], warps: int, vector: int = 1, order: Sequence[int] | None = None, *, rows: bool = False
) -> Layout:
    """The layout for memory: neighbouring lanes hold neighbouring vectors.

    So a warp accesses one stretch of memory. Of the ways to spread the threads over the axes, the way with the fewest
    registers is taken. Among equals it is the one with the longest stretch along the first axis of `order`. With
    `rows`, the number of warps along that axis, the fewer the better, decides before the stretch.

    Args:
        shape: the tile's extents.
        warps: a power of two.
        vector: consecutive elements per thread along the first axis of `order`; a power of two.
        order: axes, the contiguous one first; by default the last axis first.
        rows: whether each warp has rows of its own, if there are enough. The reduction of a row then crosses few warps.

    Example:
        >>> print(blocked((96, 80), warps=4, vector=4))
        96x80: 60 each of 128 threads, core 32x16
    """
    rank = len(shape)
    order = tuple(order) if order is not None else tuple(reversed(range(rank)))
    if not rank:
        return Layout((), (), ((),) * LANE_BITS, ((),) * (warps.bit_length() - 1))
    vector = min(vector, round_up(shape[order[0]]))
    bits = LANE_BITS + warps.bit_length() - 1
    start = [vector if axis == order[0] else 1 for axis in order]
    limits = [(round_up(shape[axis]) // s).bit_length() - 1 for axis, s in zip(order, start, strict=True)]

    def cost(split: tuple[int, ...]) -> tuple[int, int]:
        cores = (s << n for s, n in zip(start, split, strict=True))
        registers = math.prod(-(-shape[axis] // core) for axis, core in zip(order, cores, strict=True))
        return registers, max(0, split[0] - LANE_BITS) if rows else 0

    best = min(_splits(bits, limits), key=cost)  # min keeps the first of equals
    bases: list[Basis] = []
    for axis, s, n in zip(order, start, best, strict=True):
        bases += [unit(rank, axis, s << k) for k in range(n)]
    bases += [(0,) * rank] * (bits - len(bases))
    core = {axis: s << n for axis, s, n in zip(order, start, best, strict=True)}
    return Layout(
        tuple(shape),
        tuple(unit(rank, order[0], 1 << k) for k in range(vector.bit_length() - 1)),
        tuple(bases[:LANE_BITS]),
        tuple(bases[LANE_BITS:]),
        repeats_of(shape, [core[axis] for axis in range(rank)], order),
    )


def blocked_for_sums(shape: Sequence[int], warps: int, vector: int, reduced: Sequence[int]) -> Layout:
    """The layout for a tile in registers whose axes `reduced` are reduced.

    It is `blocked`, with lanes along the last axis or along the other axes first: with whichever reductions exchange
    fewer sums between threads. The first one is taken of equals, and for a tile that no operation reduces.

    Example:
        >>> print(blocked_for_sums((32, 64, 32), 16, 4, reduced=[1]))  # `blocked`: 128 sums each, of 64 threads
        32x64x32: 128 each of 512 threads, core 32x2x32
    """

    def exchanged(layout: Layout) -> int:
        """The sums of a thread, once for each halving of the threads that share them."""
        threads = (*layout.lane, *layout.warp)
        return sum(layout.collapse(axis).registers * sum(basis[axis] != 0 for basis in threads) for axis in reduced)

    orders = [sorted(range(len(shape)), key=lambda axis: (axis in last, -axis)) for last in ((), reduced)]
    return min((blocked(shape, warps, vector, order) for order in orders), key=exchanged)


def split_warps(
    shape: tuple[int, int], core: tuple[int, int], warps: int, reads: tuple[int, int] | None = None
) -> tuple[int, int]:
    """The numbers of warps along the first axis and along the second.

    Of all splits this one has the fewest cores per warp. Among equals it reads the fewest elements of operands.

    Args:
        shape: the tile's extents.
        core: the extents of a warp's core.
        warps: a power of two.
        reads: the elements of the left operand that a warp reads for each core along the first axis, and those of the
            right operand for each core along the second. By default the core's extents: a warp's part is then as square
            as possible.

    Example:
        >>> split_warps((128, 256), (16, 8), 8)
        (2, 4)
    """

    def cost(rows: int) -> tuple[int, int]:
        tall = -(-shape[0] // (core[0] * rows))
        wide = -(-shape[1] // (core[1] * (warps // rows)))
        left, right = reads or core
        return tall * wide, tall * left + wide * right

    rows = min((1 << k for k in range(warps.bit_length())), key=cost)
    return rows, warps // rows


def with_warps(
    shape: tuple[int, int],
    register: Sequence[Basis],
    lane: Sequence[Basis],
    warps: int,
    reads: tuple[int, int] | None = None,
) -> Layout:
    """A core of one warp, spread over the warps and repeated.

    `register` and `lane` are the bases of that core. `reads`: as for `split_warps`.
    """
    warp_layout = Layout((1, 1), tuple(register), tuple(lane), ())
    rows, columns = split_warps(shape, (warp_layout.core[0], warp_layout.core[1]), warps, reads)
    bases: list[Basis] = []
    core = list(warp_layout.core)
    for axis, count in ((1, columns), (0, rows)):
        while count > 1:
            is_inside = core[axis] < shape[axis]  # beyond the tile's edge a warp repeats another's work
            bases.append(unit(2, axis, core[axis]) if is_inside else (0, 0))
            core[axis] *= 2 if is_inside else 1
            count //= 2
    return Layout(shape, tuple(register), tuple(lane), tuple(bases), repeats_of(shape, core, (1, 0)))


def outer_accumulator(shape: tuple[int, int], warps: int) -> Layout:
    """The layout of the accumulator of SIMT products.

    Each lane has 4 neighbours in each of 4 rows; a warp covers 16 x 32. Small tiles take a smaller core, so that a
    1 x 1 product does not carry 512 elements.

    The rows of a lane are 4 apart, so that lanes read neighbouring rows of the left operand, which lie in different
    banks. Lanes that differ only in the lowest or only in the highest bit have the same columns; lanes that differ only
    in the others have the same rows. Shared memory serves wide accesses half a warp at a time. It serves two halves at
    once where neighbouring lanes read the same address.
    """
    down = max(0, min(2, (round_up(shape[0]) - 1).bit_length() - 2))
    across = min(2, (round_up(shape[1]) - 1).bit_length())
    register = [(0, 1 << k) for k in range(across)] + [(4 << k, 0) for k in range(down)]
    lane = [(1, 0), *((0, 1 << (across + k)) for k in range(3)), (2, 0)]
    return with_warps(shape, register, lane, warps, reads=(1 << down, 1 << across))


def batched(accumulator: Layout, count: int) -> Layout:
    """`count` tiles of one layout along a new first axis.

    Each thread holds the same elements of every tile.
    """
    single = accumulator.insert(0)
    repeat = (*single.repeat, (0, count))
    return Layout((count, *single.shape[1:]), single.register, single.lane, single.warp, repeat)


def along(shape: Sequence[int], axis: int, warps: int) -> Layout:
    """The layout for sorting networks along one axis.

    The lowest bits of the axis are in registers, the next in lanes, the highest in warps. So few steps of a network
    exchange elements between threads, and fewer between warps. The axis has the lowest bits of the thread's number.
    Extents are rounded up to powers of two.

    Example:
        >>> print(along((4096,), 0, warps=8))
        4096: 16 each of 256 threads, core 4096
    """
    rank = len(shape)
    order = axis_first(rank, axis)
    bits = {each: round_up(shape[each]).bit_length() - 1 for each in order}
    threads = LANE_BITS + warps.bit_length() - 1
    registers = max(0, sum(bits.values()) - threads)
    inner = min(bits[axis], registers)  # bits of the axis that are in registers
    outer = [unit(rank, axis, 1 << bit) for bit in range(inner, bits[axis])]
    outer += [unit(rank, other, 1 << bit) for other in order[1:] for bit in range(bits[other])]
    of_threads = outer[:threads] + [(0,) * rank] * (threads - len(outer))  # bits that are left over are free
    return Layout(
        tuple(shape),
        (*(unit(rank, axis, 1 << bit) for bit in range(inner)), *outer[threads:]),
        tuple(of_threads[:LANE_BITS]),
        tuple(of_threads[LANE_BITS:]),
    )


def cut(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """The layout of a part of a tile, if each thread holds it in its own registers.

    None if the parts of this shape do not follow each other in a thread's registers.

    Example:
        >>> whole = Layout((64, 64), ((0, 1),), ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((8, 0),), ((0, 4), (1, 8)))
        >>> print(whole, cut(whole, (64, 32)), cut(whole, (64, 4)), sep="\\n")
        64x64: 64 each of 64 threads, core 16x8
        64x32: 32 each of 64 threads, core 16x8
        None
    """
    counts = dict(layout.repeat)
    for axis, (extent, whole) in enumerate(zip(shape, layout.shape, strict=True)):
        count, rest = divmod(counts.get(axis, 1) * extent, whole)
        if rest or extent % layout.core[axis]:
            return None
        counts[axis] = count
    repeat = tuple((axis, counts[axis]) for axis, _ in layout.repeat if counts[axis] > 1)
    part = replace(layout, shape=tuple(shape), repeat=repeat)
    return part if extended(part, layout.shape) == layout else None


def extended(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """The layout of a tile of several parts, each of which has the layout `layout`.

    None if the parts do not follow each other in a thread's registers, or if `shape` is no multiple of theirs.
    """
    if layout.rank != len(shape) or any(layout.shape[axis] % layout.core[axis] for axis in range(layout.rank)):
        return None
    if any(extent % part for extent, part in zip(shape, layout.shape, strict=True)):
        return None
    counts = dict(layout.repeat)
    for axis, extent in enumerate(shape):
        if extent != layout.shape[axis]:
            counts[axis] = counts.get(axis, 1) * extent // layout.shape[axis]
    return replace(layout, shape=tuple(shape), repeat=tuple(counts.items()))
