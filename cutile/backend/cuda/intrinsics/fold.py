"""Reductions and scans by a function of scalars.

The function is data: its operations are element-wise intrinsics of scalars. It takes `a...` (what is folded so far) and
`b...` (the next elements). Its steps are pairs: an intrinsic, and the slots that it reads. The arguments are the first
slots, and each step adds one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.coordinates import Coordinates
from cutile.backend.cuda.intrinsics.fragment import bundle, frag, intrinsic, pack, together, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    LANES,
    SHARED,
    barrier,
    from_shared,
    i32c,
    lane_of,
    memory_type,
    number,
    pointer,
    select_lanes,
    shared,
    thread,
    to_memory,
)
from cutile.backend.cuda.intrinsics.reduce import exchange
from cutile.backend.cuda.intrinsics.shape import flat_index, row_major
from cutile.backend.cuda.smem_sizes import fold_order, lane_mask, spans
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike

Steps = tuple[tuple[Any, tuple[int, ...]], ...]
Row = list[Any]
"""One element of each tile."""


class _Function:
    """The function of scalars."""

    def __init__(self, b: Any, steps: Steps, results: tuple[int, ...]) -> None:
        self._b, self._steps, self._results = b, steps, results

    def __call__(self, first: Row, second: Row) -> Row:
        slots = [*first, *second]
        for made, where in self._steps:
            slots.append(made.element(self._b, *(slots[each] for each in where)))
        return [slots[each] for each in self._results]


def _results(b: Any, columns: Sequence[Sequence[Any]], dtypes: Sequence[DTypeLike], count: int) -> Any:
    packed = [pack(b, column, count) for column in columns]
    if len(packed) == 1:
        return packed[0]
    return bundle(b, packed, together([frag(dtype, count) for dtype in dtypes]))


def _result_type(dtypes: Sequence[DTypeLike], count: int) -> Any:
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

    The results are in the registers of `layout.collapse(axis)`. Neighbours are folded first, then pairs of pairs: the
    elements stay in order, so the function need not commute.

    Args:
        offset: where in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    target = layout.collapse(axis)
    order = fold_order(layout, axis)
    count = target.registers if layout.rank > 1 else 0

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
        waiting = [bit for _, kind, bit in order if kind == "warp"]
        for stride, kind, bit in order:
            if kind == "register":
                rows = _in_registers(function, rows, axis, stride)
            elif kind == "lane":
                rows = {each: _across_lanes(b, function, dtypes, row, bit) for each, row in rows.items()}
            elif waiting:  # all warps at once
                rows = _across_warps(b, function, dtypes, rows, waiting, layout, axis, offset, fence)
                waiting = []
        folded: dict[tuple[int, ...], Row] = {}
        for each in sorted(rows):  # what repeats the core lies behind it
            place = tuple(0 if a == axis else o for a, o in enumerate(each))
            folded[place] = function(folded[place], rows[each]) if place in folded else rows[each]
        made = [folded[each] for each in target.offsets]
        return _results(b, list(zip(*made, strict=True)), dtypes, count)

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


def _across_lanes(b: Any, function: _Function, dtypes: Sequence[DTypeLike], row: Row, bit: int) -> Row:
    """Fold with the lane that differs in one bit.

    Both lanes take the lower one's elements first.
    """
    others = [exchange(b, dtype, each, 1 << bit) for dtype, each in zip(dtypes, row, strict=True)]
    upper = b.icmp_unsigned("!=", b.and_(thread(b), i32c(1 << bit)), i32c(0))
    first = [b.select(upper, other, mine) for mine, other in zip(row, others, strict=True)]
    second = [b.select(upper, mine, other) for mine, other in zip(row, others, strict=True)]
    return function(first, second)


def _across_warps(
    b: Any,
    function: _Function,
    dtypes: Sequence[DTypeLike],
    rows: dict[tuple[int, ...], Row],
    bits: Sequence[int],
    layout: Layout,
    axis: int,
    offset: int,
    fence: bool,
) -> dict[tuple[int, ...], Row]:
    """Fold the rows of all warps through shared memory, the lower warps first."""
    number_ = thread(b)
    lane, warp = lane_of(b, number_), b.lshr(number_, i32c(LANE_BITS))
    others = (LANES - 1) & ~lane_mask(layout, axis)
    lanes, warps = 1 << others.bit_count(), layout.warps
    slot = select_lanes(b, lane, others)
    starts = spans([dtype.bits // 8 * len(rows) * warps * lanes for dtype in dtypes], offset)

    def address(position: int, index: int, which: Any) -> Any:
        dtype = dtypes[position]
        element = b.add(b.mul(which, i32c(lanes)), b.add(slot, i32c(index * warps * lanes)))
        place = b.add(b.mul(element, i32c(dtype.bits // 8)), i32c(starts[position]))
        return pointer(b, shared(b, place), memory_type(dtype), SHARED)

    if fence:
        barrier(b)  # others may still use the memory
    for index, row in enumerate(rows.values()):  # lanes that hold the same write the same
        for position, value in enumerate(row):
            b.store(to_memory(b, dtypes[position], value), address(position, index, warp))
    barrier(b)  # all have written before anyone reads
    choices = [0]
    for bit in bits:
        choices += [each | 1 << bit for each in choices]
    rest = b.and_(warp, i32c(~sum(1 << bit for bit in bits) & (warps - 1)))
    folded: dict[tuple[int, ...], Row] = {}
    for index, place in enumerate(rows):
        parts = [b.or_(rest, i32c(choice)) for choice in choices]
        read = [
            [from_shared(b, dtype, address(position, index, part)) for position, dtype in enumerate(dtypes)]
            for part in parts
        ]
        total = read[0]
        for row in read[1:]:
            total = function(total, row)
        folded[place] = total
    return folded


class _Exchange:
    """Rows of elements in shared memory, by their row-major numbers.

    Each tile has an array of its own.
    """

    def __init__(self, b: Any, dtypes: Sequence[DTypeLike], layout: Layout, offset: int) -> None:
        self._b, self._dtypes, self._layout = b, dtypes, layout
        self.strides = row_major(layout.shape)
        size = self.strides[0] * layout.shape[0]
        self._starts = spans([dtype.bits // 8 * size for dtype in dtypes], offset)

    def _address(self, position: int, place: Any) -> Any:
        b, dtype = self._b, self._dtypes[position]
        where = b.add(b.mul(place, i32c(dtype.bits // 8)), i32c(self._starts[position]))
        return pointer(b, shared(b, where), memory_type(dtype), SHARED)

    def publish(self, rows: list[Row]) -> None:
        """Every thread writes its elements; threads with the same element write the same."""
        b, layout = self._b, self._layout
        for register, row in enumerate(rows):
            at = Coordinates(b, layout)
            inside = at.inside(register)
            if inside is None:
                self._store(at, register, row)
            else:
                with b.if_then(inside):
                    self._store(Coordinates(b, layout), register, row)

    def _store(self, at: Coordinates, register: int, row: Row) -> None:
        place = flat_index(self._b, at, register, self.strides)
        for position, value in enumerate(row):
            self._b.store(to_memory(self._b, self._dtypes[position], value), self._address(position, place))

    def read(self, place: Any) -> Row:
        """The elements with this number."""
        return [
            from_shared(self._b, dtype, self._address(position, place)) for position, dtype in enumerate(self._dtypes)
        ]


def _at_distance(
    b: Any, memory: _Exchange, layout: Layout, axis: int, distance: int, reverse: bool
) -> Iterator[tuple[Any, Row]]:
    """For each register, whether there are elements `distance` ahead, and these."""
    length = layout.shape[axis]
    at = Coordinates(b, layout)
    for register in range(layout.registers):
        along = at.element(register, axis)
        last = i32c(max(length - distance, 0))
        has = b.icmp_unsigned("<", along, last) if reverse else b.icmp_unsigned(">=", along, i32c(distance))
        inside = at.inside(register)
        has = has if inside is None else b.and_(has, inside)
        place = flat_index(b, at, register, memory.strides)
        step = i32c((distance if reverse else -distance) * memory.strides[axis])
        place = b.select(has, b.add(place, step), i32c(0))  # nobody's element: read any other
        yield has, memory.read(place)


@cache
def scan(
    steps: Steps,
    results: tuple[int, ...],
    dtypes: tuple[DTypeLike, ...],
    layout: Layout,
    axis: int,
    reverse: bool,
    offset: int,
    fence: bool,
) -> Any:
    """`f(*tiles)`: the running results along `axis`, in the same registers.

    In rounds (Hillis and Steele, 1986): after the one with distance `d` each element has folded the `2 * d` up to it.
    Elements pass through shared memory, so the layout may be any.

    Args:
        offset: where in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    length = layout.shape[axis]

    def generate(b: Any, values: list[Any]) -> Any:
        function, memory = _Function(b, steps, results), _Exchange(b, dtypes, layout, offset)
        rows = [list(row) for row in zip(*(unpack(b, value, layout.registers) for value in values), strict=True)]
        distance = 1
        if fence and length > 1:
            barrier(b)  # others may still use the memory
        while distance < length:
            memory.publish(rows)
            barrier(b)  # all have written before anyone reads
            neighbours = list(_at_distance(b, memory, layout, axis, distance, reverse))
            rows = [
                [b.select(has, new, old) for new, old in zip(function(other, row), row, strict=True)]
                for (has, other), row in zip(neighbours, rows, strict=True)
            ]
            distance *= 2
            if distance < length:
                barrier(b)  # all have read before anyone writes anew
        return _results(b, list(zip(*rows, strict=True)), dtypes, layout.registers)

    arguments = [frag(dtype, layout.registers) for dtype in dtypes]
    return intrinsic("scan", _result_type(dtypes, layout.registers), arguments, generate)
