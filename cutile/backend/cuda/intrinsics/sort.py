"""Sorts and the largest elements along an axis, by the keys of `keys.py`."""

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import Coordinates, bundle, frag, intrinsic, pack, together, unpack
from cutile.backend.cuda.intrinsics.keys import Doubles, Key, Keys
from cutile.backend.cuda.intrinsics.llvm import (
    I1,
    I32,
    LANES,
    SHARED,
    barrier,
    const,
    from_shared,
    i32c,
    memory_type,
    pointer,
    repeat,
    shared,
    shared_element,
    thread,
)
from cutile.backend.cuda.intrinsics.shape import clamp, flat_index, row_major, write_tile
from cutile.backend.cuda.smem_sizes import warp_mask
from cutile.backend.cuda.sort_lowering import TopKRoom
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike, i32

PART = 8
"""Keys of a thread that are passed over together: none is a candidate if the first of them is none. Also the keys of an
array that `_rank` reads at once."""


class _Network:
    """A bitonic network over rows of keys, which leaves each row in order.

    A row has `length` keys in each of `1 << bits` threads, whose numbers differ in their lowest bits. A step compares
    keys whose positions differ in the bits of a mask. The first step of a merge mirrors: its mask has all bits below a
    power of two. So every run ascends, where the usual network needs descending runs as well.
    """

    def __init__(self, b: Any, keys: Keys, layout: Layout, axis: int, offset: int) -> None:
        self._b, self._keys = b, keys
        self._offset, self._count = offset, layout.registers * layout.threads
        self._threads, self._registers = layout.threads, layout.registers
        self._length = 1 << sum(1 for basis in layout.register if basis[axis])
        self._bits = sum(1 for basis in (*layout.lane, *layout.warp) if basis[axis])
        self._thread = thread(b)

    def run(self, rows: list[Key]) -> list[Key]:
        """Put the keys of all rows in order."""
        size = 2
        while size <= self._length:  # within a thread
            rows = self._in_registers(rows, size - 1)
            rows = self._merged(rows, size // 4)
            size *= 2
        in_warp = min(self._bits, LANE_BITS)
        if in_warp:
            rows = self._merges(rows, 0, in_warp)
        if self._bits > LANE_BITS:
            rows = self._merges(rows, LANE_BITS, self._bits - LANE_BITS)
        return rows

    def _merges(self, rows: list[Key], first: int, count: int) -> list[Key]:
        """`count` merges between threads.

        The first step of merge `i` crosses bit `first + i` of the thread's number.
        """
        b = self._b
        through_memory = first >= LANE_BITS

        def merge(merge_index: Any, rows: list[Key]) -> list[Key]:
            bit = b.add(merge_index, i32c(first))
            top = b.shl(i32c(1), bit)
            mask = b.sub(b.shl(top, i32c(1)), i32c(1))
            rows = self._across(rows, mask, top, mirrored=True, through_memory=through_memory)

            def between_warps(step: Any, rows: list[Key]) -> list[Key]:
                mask = b.lshr(top, b.add(step, i32c(1)))
                return self._across(rows, mask, mask, mirrored=False, through_memory=True)

            def between_lanes(step: Any, rows: list[Key]) -> list[Key]:
                mask = b.lshr(i32c(LANES) if through_memory else top, b.add(step, i32c(1)))
                return self._across(rows, mask, mask, mirrored=False, through_memory=False)

            if through_memory:
                rows = self._repeat(merge_index, rows, between_warps)
            rows = self._repeat(i32c(LANE_BITS) if through_memory else bit, rows, between_lanes)
            return self._merged(rows, self._length // 2)

        return self._repeat(i32c(count), rows, merge)

    def _repeat(self, count: Any, rows: list[Key], body: Any) -> list[Key]:
        """A loop that carries the words of keys: `rows = body(i, rows)`."""
        width = len(self._keys.kinds)

        def flat(iteration: Any, words: list[Any]) -> list[Any]:
            rows = [words[at : at + width] for at in range(0, len(words), width)]
            return [word for key in body(iteration, rows) for word in key]

        words = repeat(self._b, count, [word for key in rows for word in key], flat)
        return [words[at : at + width] for at in range(0, len(words), width)]

    def _merged(self, rows: list[Key], stride: int) -> list[Key]:
        """The steps of a merge within a thread, at distances from `stride` down to 1."""
        while stride:
            rows = self._in_registers(rows, stride)
            stride //= 2
        return rows

    def _in_registers(self, rows: list[Key], mask: int) -> list[Key]:
        """A step within a thread."""
        rows = list(rows)
        for at in range(len(rows)):
            other = at ^ mask
            if at < other:
                rows[at], rows[other] = self._keys.ordered(rows[at], rows[other])
        return rows

    def _across(self, rows: list[Key], mask: Any, top: Any, *, mirrored: bool, through_memory: bool) -> list[Key]:
        """A step between two threads; the one with the bit `top` keeps the later key."""
        b, keys = self._b, self._keys
        later = b.icmp_unsigned("!=", b.and_(self._thread, top), i32c(0))
        partners = [at ^ (self._length - 1) if mirrored else at for at in range(len(rows))]
        if through_memory:
            others = self._through_memory(rows, partners, b.xor(self._thread, mask))
        else:
            others = [keys.from_lane(rows[partner], mask) for partner in partners]
        return [
            keys.select(b.xor(keys.less(mine, other), later), mine, other)
            for mine, other in zip(rows, others, strict=True)
        ]

    def _through_memory(self, rows: list[Key], partners: list[int], partner: Any) -> list[Key]:
        """The keys in the registers `partners` of the thread `partner`."""
        b, keys = self._b, self._keys

        def place(of: Any, register: int) -> Any:
            return b.add(of, i32c(register * self._threads))

        barrier(b)  # all have read what an earlier step wrote, before anyone writes anew
        for register, key in enumerate(rows):
            keys.write(key, place(self._thread, register), self._offset, self._count)
        barrier(b)  # all have written before anyone reads
        return [keys.read(place(partner, register), self._offset, self._count) for register in partners]


def _encoded(
    b: Any, keys: Keys, layout: Layout, axis: int, elements: Sequence[Any], encode: Any, only: Any | None = None
) -> list[Key]:
    """The keys of a thread's elements.

    Past the tile's edge, and in threads where the i1 `only` is false, it is the key behind all others.
    """
    at = Coordinates(b, layout)
    rows: list[Key] = []
    for register, element in enumerate(elements):
        key = encode(element, at.element(register, axis))
        if axis in layout.edge_axes(register):
            inside = b.icmp_unsigned("<", at.element(register, axis), i32c(layout.shape[axis]))
            key = keys.select(inside, key, keys.last())
        rows.append(key if only is None else keys.select(only, key, keys.last()))
    return rows


def _decoded(b: Any, keys: Keys, dtype: DTypeLike, rows: Sequence[Key], kind: Any) -> Any:
    """Two fragments: the elements, and their places along the axis."""
    columns = list(zip(*(keys.decode(key) for key in rows), strict=True))
    return bundle(b, [pack(b, column, len(rows)) for column in columns], kind)


@cache
def sort(
    dtype: DTypeLike, layout: Layout, axis: int, descending: bool, by_double: bool, offset: int, fence: bool
) -> Any:
    """`f(x)`: the elements of a tile in order along `axis`, and their places.

    Both are in the registers of `layout`.

    Args:
        dtype: of the elements.
        layout: of the tile, as `sort_lowering.along` makes it.
        axis: along which it is sorted.
        descending: whether the largest comes first.
        by_double: whether keys of f32 are compared as f64.
        offset: where keys are exchanged in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way. It is not read: a network begins each
            exchange with a barrier.
    """
    kind = together([frag(dtype, layout.registers), frag(i32, layout.registers)])

    def generate(b: Any, values: list[Any]) -> Any:
        keys = (Doubles if by_double else Keys)(b, dtype, descending)
        rows = _encoded(b, keys, layout, axis, unpack(b, values[0], layout.registers), keys.encode)
        rows = _Network(b, keys, layout, axis, offset).run(rows)
        return _decoded(b, keys, dtype, rows, kind)

    return intrinsic("sort", kind, [frag(dtype, layout.registers)], generate)


@cache
def top_k(dtype: DTypeLike, source: Layout, target: Layout, axis: int, k: int, offset: int, fence: bool) -> Any:
    """`f(x)`: the largest elements of a tile along `axis`, and their places.

    Several rows, or a row of which `k` is a large part, are sorted as a whole. Else few elements of the only row are
    candidates, and only these are ranked.

    Args:
        dtype: of the elements.
        source: the layout of the tile.
        target: the layout of the results.
        axis: along which the largest are looked for.
        k: the number of results; the largest comes first.
        offset: of the room in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    kind = together([frag(dtype, target.registers), frag(i32, target.registers)])
    room = TopKRoom.of(dtype, source, axis, k)

    def generate(b: Any, values: list[Any]) -> Any:
        keys = Keys(b, dtype, True)
        elements = unpack(b, values[0], source.registers)
        if fence:
            barrier(b)  # others may still use the memory
        if room.groups:
            _rank_candidates(b, keys, source, axis, k, room, offset, elements)
        else:
            _sort_all(b, keys, source, axis, k, room, offset, elements)
        barrier(b)  # all have written their results before anyone reads
        strides = row_major(target.shape)
        at = Coordinates(b, target)
        rows: list[Key] = []
        for register in range(target.registers):
            inside = at.inside(register)
            place = flat_index(b, at, register, strides)
            place = place if inside is None else b.select(inside, place, i32c(0))  # past the edge: read any key
            rows.append(keys.read(place, offset + room.results, room.count))
        return _decoded(b, keys, dtype, rows, kind)

    return intrinsic("top_k", kind, [frag(dtype, source.registers)], generate)


def _sort_all(
    b: Any, keys: Keys, layout: Layout, axis: int, k: int, room: TopKRoom, offset: int, elements: Sequence[Any]
) -> None:
    """Sort, and write the first `k` keys of each row.

    If one warp holds the whole tile, only the first warp sorts, and no warp waits for another.
    """
    if layout.free_warps and not warp_mask(layout, axis):
        with b.if_then(b.icmp_unsigned("<", thread(b), i32c(LANES))):
            _write_sorted(b, keys, layout, axis, k, room, offset, elements)
    else:
        _write_sorted(b, keys, layout, axis, k, room, offset, elements)


def _write_sorted(
    b: Any, keys: Keys, layout: Layout, axis: int, k: int, room: TopKRoom, offset: int, elements: Sequence[Any]
) -> None:
    """Sort with the threads that run this, and write the first `k` keys of each row."""
    rows = _Network(b, keys, layout, axis, offset).run(_encoded(b, keys, layout, axis, elements, keys.encode))
    strides = row_major([k if a == axis else extent for a, extent in enumerate(layout.shape)])
    for register, key in enumerate(rows):
        at = Coordinates(b, layout)  # anew: coordinates of another branch do not dominate this register's
        is_result = b.icmp_unsigned("<", at.element(register, axis), i32c(k))
        inside = at.inside(register)
        with b.if_then(is_result if inside is None else b.and_(is_result, inside)):
            keys.write(key, flat_index(b, at, register, strides), offset + room.results, room.count)


def _rank_candidates(
    b: Any, keys: Keys, layout: Layout, axis: int, k: int, room: TopKRoom, offset: int, elements: Sequence[Any]
) -> None:
    """Write the first `k` keys of the only row.

    Threads form groups, and each group has a first key. The `k` first of these keys belong to `k` different elements.
    So no key behind the last of them, the limit, is in the result. Few candidates are left. The rank of each is the
    number of candidates before it.
    """
    threads, groups = layout.threads, room.groups
    at = Coordinates(b, layout)
    me = thread(b)
    own = _encoded(b, keys, layout, axis, elements, keys.quick, at.owner())
    parts = [reduce(keys.lesser, own[begin : begin + PART]) for begin in range(0, len(own), PART)]
    best = reduce(keys.lesser, parts)  # the first key of this thread
    keys.write(best, me, offset + room.threads, threads)
    count = pointer(b, shared(b, offset + room.counter), I32, SHARED)
    with b.if_then(b.icmp_unsigned("==", me, i32c(0))):
        b.store(i32c(0), count)
        # The limit for a row of which fewer than k groups have elements: no group has rank k - 1 then.
        keys.write(keys.last(), i32c(0), offset + room.limit, 1)
    barrier(b)  # all threads have written their first keys, before groups read them
    leads = b.icmp_unsigned("<", me, i32c(groups))
    group = best
    with b.if_then(leads):
        group = keys.read(me, offset + room.threads, threads)
        # Neighbouring lanes are in different groups: the first keys of a row that is sorted already lie side by side.
        for other in range(1, threads // groups):
            member = keys.read(b.add(me, i32c(other * groups)), offset + room.threads, threads)
            group = keys.lesser(group, member)
        keys.write(group, me, offset + room.bests, groups)
    barrier(b)  # all groups are there before they are ranked
    with b.if_then(leads):
        mine = keys.read(me, offset + room.bests, groups)
        rank = _rank(b, keys, mine, i32c(groups // PART), offset + room.bests, groups, PART)
        with b.if_then(b.icmp_unsigned("==", rank, i32c(k - 1))):
            keys.write(mine, i32c(0), offset + room.limit, 1)
    barrier(b)  # the limit is known before candidates are looked for
    limit = keys.read(i32c(0), offset + room.limit, 1)

    def push(key: Key, element: Any) -> None:
        candidate = b.xor(keys.less(limit, key), const(I1, 1))
        # An element beyond the edge has the last key: it is no candidate, even if the limit is that key.
        candidate = b.and_(candidate, keys.less(key, keys.last()))
        with b.if_then(candidate):
            place = b.atomic_rmw("add", count, i32c(1), "monotonic")
            keys.write(keys.signed(key, element), place, offset + room.candidates, room.capacity)

    with b.if_then(b.xor(keys.less(limit, best), const(I1, 1))):
        for part, begin in zip(parts, range(0, len(own), PART), strict=True):
            with b.if_then(b.xor(keys.less(limit, part), const(I1, 1))):
                for register in range(begin, begin + len(own[begin : begin + PART])):
                    push(own[register], elements[register])
    barrier(b)  # all candidates are there before they are ranked
    total = b.load(count)

    def rank_candidates(iteration: Any, _: list[Any]) -> list[Any]:
        place = b.add(b.mul(iteration, i32c(threads)), me)
        with b.if_then(b.icmp_unsigned("<", place, total)):
            mine = keys.read(place, offset + room.candidates, room.capacity)
            rank = _rank(b, keys, mine, total, offset + room.candidates, room.capacity)
            with b.if_then(b.icmp_unsigned("<", rank, i32c(k))):
                keys.write(mine, rank, offset + room.results, room.count)
        return []

    iterations = b.lshr(b.add(total, i32c(threads - 1)), i32c(threads.bit_length() - 1))
    repeat(b, iterations, [], rank_candidates)


def _rank(b: Any, keys: Keys, mine: Key, count: Any, offset: int, length: int, together: int = 1) -> Any:
    """The number of keys before `mine`, of an array's first `together * count` keys.

    `together` keys are read at once; the array has room for `length` keys.
    """

    def count_before(iteration: Any, words: list[Any]) -> list[Any]:
        first, before = b.mul(iteration, i32c(together)), words[0]
        for key in [keys.read(b.add(first, i32c(more)), offset, length) for more in range(together)]:
            before = b.add(before, b.zext(keys.less(key, mine), I32))
        return [before]

    return repeat(b, count, [i32c(0)], count_before)[0]


@cache
def take_along_axis(dtype: DTypeLike, source: Layout, places: Layout, axis: int, offset: int, fence: bool) -> Any:
    """`f(x, places)`: the elements of a tile of `source` at places along `axis`.

    They are in the registers of `places`. A place outside is clamped to the first or the last.

    Args:
        dtype: of the elements.
        source: the layout of the tile.
        places: the layout of the places, and of the result.
        axis: along which the places count.
        offset: where the tile goes in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    strides = row_major(source.shape)

    def generate(b: Any, values: list[Any]) -> Any:
        if fence:
            barrier(b)  # others may still use the memory
        write_tile(b, dtype, source, unpack(b, values[0], source.registers), strides, offset)
        barrier(b)  # all have written before anyone reads
        at = Coordinates(b, places)
        elements: list[Any] = []
        for register, place in enumerate(unpack(b, values[1], places.registers)):
            inside = at.inside(register)
            index = b.mul(clamp(b, place, source.shape[axis] - 1), i32c(strides[axis]))
            for other, stride in enumerate(strides):
                if other != axis:
                    index = b.add(index, b.mul(at.element(register, other), i32c(stride)))
            index = index if inside is None else b.select(inside, index, i32c(0))  # past the edge: read any element
            elements.append(from_shared(b, dtype, shared_element(b, memory_type(dtype), index, offset)))
        return pack(b, elements, places.registers)

    arguments = [frag(dtype, source.registers), frag(i32, places.registers)]
    return intrinsic("take_along_axis", frag(dtype, places.registers), arguments, generate)
