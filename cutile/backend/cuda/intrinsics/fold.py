"""Reductions and scans by a function of scalars.

The function is data: values in slots, and steps. Its arguments are `a...` (the fold so far) and `b...` (the next
elements), which have the first slots. A step is an element-wise intrinsic with the slots of its operands; its result
gets the next slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import Coordinates, bundle, frag, intrinsic, pack, together, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    LANES,
    barrier,
    i32c,
    lane_of,
    number,
    select_lanes,
    thread,
)
from cutile.backend.cuda.intrinsics.reduce import WarpRows, across_warps, combinations, exchange, from_lane
from cutile.backend.cuda.smem_sizes import Run, fold_order, fold_runs, totals_bytes
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike

Steps = tuple[tuple[Any, tuple[int, ...]], ...]
Row = list[Any]
"""One element of each tile."""

MIN_WARPS_BY_LANES = 8
"""Warps of a scan. From this number on, lanes scan the warps' totals, one total to a lane.

With fewer warps each thread reads all totals. For 8 warps and 8 segments these would be 64 numbers: a scan of 6144
elements by 8 warps took 64 registers of a thread this way, and takes 56 by lanes.
"""


class _Function:
    """The function of scalars, which writes its steps when it is called."""

    def __init__(self, b: Any, steps: Steps, results: tuple[int, ...]) -> None:
        self._b, self._steps, self._results = b, steps, results

    def __call__(self, first: Row, second: Row) -> Row:
        slots = [*first, *second]
        for function, operands in self._steps:
            slots.append(function.element(self._b, *(slots[slot] for slot in operands)))
        return [slots[slot] for slot in self._results]


def _results(b: Any, columns: Sequence[Sequence[Any]], dtypes: Sequence[DTypeLike], count: int) -> Any:
    """A fragment for each column of elements; several as a tuple."""
    packed = [pack(b, column, count) for column in columns]
    if len(packed) == 1:
        return packed[0]
    return bundle(b, packed, together([frag(dtype, count) for dtype in dtypes]))


def _result_type(dtypes: Sequence[DTypeLike], count: int) -> Any:
    """The Numba type of `_results`."""
    kinds = [frag(dtype, count) for dtype in dtypes]
    return kinds[0] if len(kinds) == 1 else together(kinds)


@cache
def fold(
    steps: Steps,
    results: tuple[int, ...],
    dtypes: tuple[DTypeLike, ...],
    identities: tuple[bool | int | float, ...],
    layout: Layout,
    axis: int,
    offset: int,
    fence: bool,
) -> Any:
    """`f(*tiles)`: the reductions of tiles of `layout` along `axis`.

    The results are in the registers of `layout.collapse(axis)`. Neighbours are folded first, then neighbouring pairs,
    and so on. So the elements stay in order, and the function need not commute.

    Args:
        steps: of the function; the top of this file describes them.
        results: the slots of the function's results.
        dtypes: of the tiles, and of the results.
        identities: of the function, one for each tile; they take the place of elements past the edge.
        layout: of the tiles.
        axis: along which they are folded.
        offset: where warps exchange results in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    target = layout.collapse(axis)
    order = fold_order(layout, axis)
    count = target.registers if layout.rank > 1 else 0  # 0: the result of one axis is a scalar

    def generate(b: Any, values: list[Any]) -> Any:
        function = _Function(b, steps, results)
        neutral = [number(dtype, each) for dtype, each in zip(dtypes, identities, strict=True)]
        at = Coordinates(b, layout)
        rows: dict[tuple[int, ...], Row] = {}
        columns = [unpack(b, value, layout.registers) for value in values]
        for register, elements in enumerate(zip(*columns, strict=True)):
            row = list(elements)
            if axis in layout.edge_axes(register):
                inside = b.icmp_unsigned("<", at.element(register, axis), i32c(layout.shape[axis]))
                row = [b.select(inside, each, none) for each, none in zip(row, neutral, strict=True)]
            rows[layout.offsets[register]] = row
        warp_bits = [bit for _, kind, bit in order if kind == "warp"]
        for stride, kind, bit in order:
            if kind == "register":
                rows = _in_registers(function, rows, axis, stride)
            elif kind == "lane":
                rows = {each: _across_lanes(b, function, row, bit) for each, row in rows.items()}
            elif warp_bits:  # at the first bit of the warp's number, all of its bits are folded at once
                totals = across_warps(b, function, dtypes, list(rows.values()), warp_bits, layout, axis, offset, fence)
                rows = dict(zip(rows, totals, strict=True))
                warp_bits = []
        folded: dict[tuple[int, ...], Row] = {}
        for origin in sorted(rows):  # the rows that are left belong to repeats of the core, which follow each other
            place = tuple(0 if a == axis else o for a, o in enumerate(origin))
            folded[place] = function(folded[place], rows[origin]) if place in folded else rows[origin]
        totals = [folded[place] for place in target.offsets]
        return _results(b, list(zip(*totals, strict=True)), dtypes, count)

    arguments = [frag(dtype, layout.registers) for dtype in dtypes]
    return intrinsic("fold", _result_type(dtypes, count), arguments, generate)


def _in_registers(
    function: _Function, rows: dict[tuple[int, ...], Row], axis: int, stride: int
) -> dict[tuple[int, ...], Row]:
    """Fold the registers that differ in one bit along the axis."""
    folded: dict[tuple[int, ...], Row] = {}
    for place, row in rows.items():
        if not place[axis] & stride:
            other = tuple(o | stride if a == axis else o for a, o in enumerate(place))
            folded[place] = function(row, rows[other])
    return folded


def _across_lanes(b: Any, function: _Function, row: Row, bit: int) -> Row:
    """Fold with the lane whose number differs in one bit.

    In both lanes the lower lane's elements come first.
    """
    others = [exchange(b, each, 1 << bit) for each in row]
    upper = b.icmp_unsigned("!=", b.and_(thread(b), i32c(1 << bit)), i32c(0))
    first = [b.select(upper, other, mine) for mine, other in zip(row, others, strict=True)]
    second = [b.select(upper, mine, other) for mine, other in zip(row, others, strict=True)]
    return function(first, second)


def _spread(b: Any, value: Any, bits: Sequence[int]) -> Any:
    """The lowest bits of a number, moved to the positions `bits`.

    The inverse of `select_lanes`.
    """
    moved: Any = i32c(0)
    for low, bit in enumerate(bits):
        moved = b.or_(moved, b.shl(b.and_(b.lshr(value, i32c(low)), i32c(1)), i32c(bit)))
    return moved


# -- scans ----------------------------------------------------------------------------------------


Place = tuple[int, ...]
"""The offset of a register from its thread's first element."""


@dataclass
class _Part:
    """Neighbours in one thread, which are scanned among themselves.

    Attributes:
        rows: the running results among these neighbours alone.
        before: the fold of elements before them, as far as it is computed.
        has: whether there are elements before them; an i1 where threads differ.
    """

    rows: dict[Place, Row]
    before: Row | None = None
    has: Any = False


@dataclass
class _Segment:
    """This thread's part of a run of neighbours along the axis, over several threads.

    Attributes:
        parts: of this thread, in order.
        total: the fold of the whole run.
    """

    parts: list[_Part]
    total: Row


class _Scan:
    """One scan along an axis, by one run of neighbouring bits after the other."""

    def __init__(
        self, b: Any, function: _Function, dtypes: Sequence[DTypeLike], layout: Layout, axis: int, reverse: bool
    ) -> None:
        self._b, self._function, self._dtypes = b, function, dtypes
        self._layout, self._axis, self._reverse = layout, axis, reverse
        self._thread = thread(b)

    def _ordered(self, items: Sequence[Any]) -> list[Any]:
        """Items in the order of the axis, brought into the direction of the scan."""
        return list(reversed(items)) if self._reverse else list(items)

    def _select(self, condition: Any, first: Row, second: Row) -> Row:
        """One of two rows, by a bool or an i1."""
        if isinstance(condition, bool):
            return first if condition else second
        return [self._b.select(condition, x, y) for x, y in zip(first, second, strict=True)]

    def _put_before(self, part: _Part, total: Row, has: Any) -> None:
        """Fold `total` into a part's `before` where `has` holds.

        `total` is of elements before the part, and before those in `before`.
        """
        if part.before is None:
            part.before, part.has = total, has
            return
        both = self._select(part.has, self._function(total, part.before), total)
        part.before = self._select(has, both, part.before)
        certain = has is True or part.has is True
        part.has = certain or self._b.or_(part.has, has)

    def in_registers(self, segments: dict[Place, _Segment], mask: int) -> dict[Place, _Segment]:
        """Join the segments of a thread that differ in these bits along the axis."""
        lines: dict[Place, list[_Segment]] = {}
        for place in sorted(segments):
            line = tuple(o & ~mask if a == self._axis else o for a, o in enumerate(place))
            lines.setdefault(line, []).append(segments[place])
        return {line: self._joined(self._ordered(each)) for line, each in lines.items()}

    def _joined(self, segments: Sequence[_Segment]) -> _Segment:
        """Segments of one thread, one behind the other."""
        parts, total = list(segments[0].parts), segments[0].total
        for segment in segments[1:]:
            part = segment.parts[0]
            if len(parts) == len(segment.parts) == len(part.rows) == 1 and parts[0].before is part.before is None:
                # One element behind a single part joins that part. As a part of its own it would be folded twice.
                ((place, row),) = part.rows.items()
                total = self._function(total, row)
                parts = [_Part({**parts[0].rows, place: total})]
                continue
            for part in segment.parts:
                self._put_before(part, total, True)
            parts += segment.parts
            total = self._function(total, segment.total)
        return _Segment(parts, total)

    def across_lanes(self, segments: dict[Place, _Segment], run: Run) -> None:
        """Scan over lanes whose numbers differ in the neighbouring bits of `run`.

        Distances double (Kogge and Stone, 1973).
        """
        b, count = self._b, 1 << len(run.bits)
        step = 1 << run.bits[0]
        place = b.and_(b.lshr(self._thread, i32c(run.bits[0])), i32c(count - 1))  # the lane's number in the run
        if self._reverse:
            place = b.sub(i32c(count - 1), place)
        sign = 1 if self._reverse else -1
        tests = [b.icmp_unsigned(">=", place, i32c(1 << bit)) for bit in range(len(run.bits))]
        # The lane of the run that the scan reaches last.
        last = b.and_(lane_of(b, self._thread), i32c((LANES - 1) & ~((count - 1) * step)))
        last = last if self._reverse else b.or_(last, i32c((count - 1) * step))
        for segment in segments.values():
            total = segment.total
            for bit, test in enumerate(tests):
                other = self._from(total, sign * (step << bit))
                total = self._select(test, self._function(other, total), total)
            before = self._from(total, sign * step)
            for part in segment.parts:
                self._put_before(part, before, tests[0])
            segment.total = self._from(total, last)

    def _from(self, row: Row, lane: Any) -> Row:
        return [from_lane(self._b, each, lane) for each in row]

    def across_warps(self, segments: dict[Place, _Segment], run: Run, offset: int) -> None:
        """Scan over warps, whose totals are in shared memory."""
        b, layout = self._b, self._layout
        memory = WarpRows(b, self._dtypes, layout, self._axis, len(segments), offset)
        for index, segment in enumerate(segments.values()):
            memory.write(index, segment.total)
        barrier(b)  # all have written before anyone reads
        warps = combinations(run.bits)  # in the bits of the run, the numbers of the warps that share it
        mask = sum(1 << bit for bit in run.bits)
        rest, mine = b.and_(memory.warp, i32c(~mask & (layout.warps - 1))), b.and_(memory.warp, i32c(mask))
        # If all lanes of a warp have the same total of a segment, each of them can take another warp's total.
        if memory.lanes == 1 and len(warps) >= MIN_WARPS_BY_LANES:

            def total_of(index: Any, warp: Any) -> Row:
                return memory.read(index, b.or_(rest, _spread(b, warp, run.bits)))

            self._across_totals(segments, len(warps), select_lanes(b, mine, mask), total_of)
            return
        ordered = self._ordered(warps)
        is_mine = [b.icmp_unsigned("==", mine, i32c(warp)) for warp in ordered]
        has_before = b.icmp_unsigned("!=", mine, i32c(ordered[0]))
        for index, segment in enumerate(segments.values()):
            total: Row = []
            before: Row = []
            for rank, warp in enumerate(ordered):
                row = memory.read(index, b.or_(rest, i32c(warp)))
                if rank:
                    before = self._select(is_mine[rank], total, before)
                    total = self._function(total, row)
                else:
                    before = total = row
            for part in segment.parts:
                self._put_before(part, before, has_before)
            segment.total = total

    def _across_totals(
        self, segments: dict[Place, _Segment], count: int, mine: Any, total_of: Callable[[Any, Any], Row]
    ) -> None:
        """Scan the totals of `count` warps, one to a lane, several segments at a time.

        So a thread holds two numbers, and not all warps' totals of each segment.

        Args:
            segments: by place; each has a total in each warp.
            count: the warps of a segment, a power of 2.
            mine: this thread's warp, from 0 to `count - 1`.
            total_of: loads a total, by the numbers of its segment and of its warp.
        """
        b, lane = self._b, lane_of(self._b, self._thread)
        warp = b.and_(lane, i32c(count - 1))
        place, my_place = warp, mine
        if self._reverse:
            place, my_place = b.sub(i32c(count - 1), warp), b.sub(i32c(count - 1), mine)
        sign = 1 if self._reverse else -1
        steps = [1 << bit for bit in range(count.bit_length() - 1)]
        tests = [b.icmp_unsigned(">=", place, i32c(step)) for step in steps]
        has_before = b.icmp_unsigned("!=", my_place, i32c(0))
        # Nothing is before the first warp: its `before_me` is a lane of another segment, or none, and is not used.
        before_me, last = b.add(mine, i32c(sign)), 0 if self._reverse else count - 1
        at_once = LANES // count
        ordered = list(segments.values())
        for first in range(0, len(ordered), at_once):
            here = ordered[first : first + at_once]
            # Lanes beyond the last segment load its totals once more.
            index = b.lshr(lane, i32c(count.bit_length() - 1))
            if len(here) < at_once:
                index = b.select(b.icmp_unsigned("<", index, i32c(len(here))), index, i32c(len(here) - 1))
            total = total_of(b.add(index, i32c(first)), warp)
            for step, test in zip(steps, tests, strict=True):
                other = self._from(total, sign * step)
                total = self._select(test, self._function(other, total), total)
            for slot, segment in enumerate(here):
                before = self._from(total, b.add(before_me, i32c(slot * count)))
                for part in segment.parts:
                    self._put_before(part, before, has_before)
                segment.total = self._from(total, i32c(slot * count + last))

    def finished(self, segments: dict[Place, _Segment]) -> dict[Place, Row]:
        """The running results, with all elements before them folded in."""
        rows: dict[Place, Row] = {}
        for part in (part for segment in segments.values() for part in segment.parts):
            for place, row in part.rows.items():
                if part.before is None:
                    rows[place] = row
                else:
                    rows[place] = self._select(part.has, self._function(part.before, row), row)
        return rows


@cache
def scan(
    steps: Steps,
    results: tuple[int, ...],
    dtypes: tuple[DTypeLike, ...],
    identities: tuple[bool | int | float, ...],
    layout: Layout,
    axis: int,
    reverse: bool,
    offset: int,
    fence: bool,
) -> Any:
    """`f(*tiles)`: the running results along `axis`, in the registers of the tiles.

    Neighbours in a thread are scanned first, then their totals across lanes, across warps, and over repeats of the
    core. The fold of all elements before a part is folded into the part's results once, at the end.

    Args:
        steps, results, dtypes, identities, layout, offset, fence: as of `fold`.
        axis: along which the tiles are scanned.
        reverse: from the last element to the first.
    """
    runs = fold_runs(layout, axis)

    def generate(b: Any, values: list[Any]) -> Any:
        work = _Scan(b, _Function(b, steps, results), dtypes, layout, axis, reverse)
        at = Coordinates(b, layout)
        segments: dict[Place, _Segment] = {}
        columns = [unpack(b, value, layout.registers) for value in values]
        for register, elements in enumerate(zip(*columns, strict=True)):
            row, place = list(elements), layout.offsets[register]
            # A scan from the last element begins with the elements past the edge. Other scans end with them.
            if reverse and axis in layout.edge_axes(register):
                inside = b.icmp_unsigned("<", at.element(register, axis), i32c(layout.shape[axis]))
                neutral = [number(dtype, each) for dtype, each in zip(dtypes, identities, strict=True)]
                row = [b.select(inside, each, none) for each, none in zip(row, neutral, strict=True)]
            segments[place] = _Segment([_Part({place: row})], row)
        start, in_use = offset, fence
        for run in runs:
            if run.kind == "register":
                segments = work.in_registers(segments, run.mask)
            elif run.kind == "lane":
                work.across_lanes(segments, run)
            else:
                if in_use:
                    barrier(b)  # no warp writes before all warps are done with an earlier use of the memory
                work.across_warps(segments, run, start)
                # The next run of warps has memory of its own: it needs no barrier for this one's reads.
                start += totals_bytes(dtypes, layout, axis, len(segments))
                in_use = False
        segments = work.in_registers(segments, -1)  # all bits that are left: the repeats of the core
        rows = work.finished(segments)
        ordered = [rows[place] for place in layout.offsets]
        return _results(b, list(zip(*ordered, strict=True)), dtypes, layout.registers)

    arguments = [frag(dtype, layout.registers) for dtype in dtypes]
    return intrinsic("scan", _result_type(dtypes, layout.registers), arguments, generate)
