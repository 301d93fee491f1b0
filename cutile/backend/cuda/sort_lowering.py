"""Lowering of sorts: their keys, layouts, and room in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.smem_sizes import move_bytes, spans, warp_mask
from cutile.backend.gpu.layout import LANE_BITS, Layout, along, round_up
from cutile.dtypes import DTypeLike, f32, u16, u32, u64
from cutile.errors import KernelTypeError
from cutile.ops.sort import Sort, TakeAlongAxis, TopK

LANES = 1 << LANE_BITS
MAX_KEY_WORDS = 64
"""Registers of a thread for the keys of a sort; with more, compilers spill."""
FAST_DOUBLES = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities that compare as many f64 in a cycle as integers of 32 bits, or half as many."""
WARP_SORTS = 256
"""Elements of a tile up to which each warp sorts all of them for itself, so that no warp waits for another."""
MAX_PLACE = 1 << 15
"""Elements of a row of at most 16 bits: each shares a register of 32 bits with its place in the row."""


def key_words(dtype: DTypeLike) -> tuple[DTypeLike, ...]:
    """The dtypes of a key's words: an element to be sorted, with its place in the row."""
    if dtype.bits <= u16.bits:
        return (u32,)
    return (u64,) if dtype.bits == u32.bits else (u64, u32)


def key_bytes(dtype: DTypeLike) -> int:
    """Bytes of a key."""
    return sum(word.bits // 8 for word in key_words(dtype))


def sort_bytes(dtype: DTypeLike, layout: Layout, axis: int) -> int:
    """The bytes that a sort in a layout of `along` needs.

    0 where no row crosses warps.
    """
    if not warp_mask(layout, axis):
        return 0
    return key_bytes(dtype) * layout.registers * layout.threads


@dataclass(frozen=True)
class TopKRoom:
    """Shared memory for the largest elements of a tile.

    Attributes:
        groups: groups of threads, whose best keys bound the candidates; 0 where all elements are sorted.
        threads, bests, candidates: offsets of the keys of each thread, of each group, and of the candidates.
        limit: offset of the last key, in their order, that a candidate may have.
        counter: offset of the number of candidates.
        results: offset of the result's keys.
        capacity: candidates at most.
        count: keys of the result.
        bytes: bytes of all.
    """

    groups: int
    threads: int
    bests: int
    limit: int
    counter: int
    candidates: int
    results: int
    capacity: int
    count: int
    bytes: int

    @classmethod
    def of(cls, dtype: DTypeLike, layout: Layout, axis: int, k: int) -> TopKRoom:
        """The room for the `k` largest elements along an axis."""
        size = key_bytes(dtype)
        groups = top_k_groups(layout, axis, k)
        rows = prod(extent for other, extent in enumerate(layout.shape) if other != axis)
        count = rows * k
        if not groups:
            network = sort_bytes(dtype, layout, axis)
            starts = spans([network, size * count])
            return cls(0, 0, 0, 0, 0, 0, starts[1], 0, count, starts[2])
        # No candidate comes after the k-th best of the groups' keys, so only threads of the k best groups hold any.
        capacity = min(layout.shape[axis], k * (layout.threads // groups) * layout.registers)
        sizes = [size * layout.threads, size * groups, size, u32.bits // 8, size * capacity, size * count]
        threads, bests, limit, counter, candidates, results, end = spans(sizes)
        return cls(groups, threads, bests, limit, counter, candidates, results, capacity, count, end)


def top_k_groups(layout: Layout, axis: int, k: int) -> int:
    """Groups of threads whose best elements bound the candidates; 0 to sort all.

    There are twice as many groups as elements to be found (`k`), or one for each lane of a warp if that is more. With
    twice as many, some 1.4 `k` elements are candidates.
    """
    groups = max(LANES, round_up(2 * k))
    one_row = prod(layout.shape) == layout.shape[axis]
    return groups if one_row and groups <= layout.threads and layout.registers > 1 else 0


def _network_layout(op: Sort | TopK, context: LoweringContext) -> Layout:
    """The layout in which a whole tile is sorted.

    Raises:
        KernelTypeError: the tile does not fit in registers.
    """
    tile = op.x.tile
    layout = along(tile.shape, op.axis, context.warps)
    words = key_bytes(tile.dtype) // 4 * layout.registers
    if words > MAX_KEY_WORDS:
        fits = round_up(tile.size) * MAX_KEY_WORDS // round_up(words)
        raise KernelTypeError(
            f"{op.name}: a thread would hold {words} registers of {tile}; {MAX_KEY_WORDS} are for elements to sort",
            op.location,
            f"Sort tiles of at most {fits} elements of {tile.dtype}, and merge what comes of them; or sort by digits, "
            "as docs/recipes/transforms.md does.",
        )
    return layout


def lower_sort(op: Sort, context: LoweringContext) -> None:
    """Sort in a layout of its own."""
    _check_places(op)
    layout = _network_layout(op, context)
    x = context.converted(context.lowered[op.x], context.layouts[op.x], layout)
    size = sort_bytes(op.x.tile.dtype, layout, op.axis)
    by_double = op.x.tile.dtype is f32 and (context.arch.major, context.arch.minor) in FAST_DOUBLES
    names = {"layout": context.layout_name(layout), "by_double": by_double}
    copy = context.in_shared(op.copy_with([x], (), ()), size, **names)
    for old, new in zip(op.results, copy.results, strict=True):
        context.place(old, new, layout)


def lower_top_k(op: TopK, context: LoweringContext) -> None:
    """Rank candidates in the tile's own layout, or sort the whole tile."""
    _check_places(op)
    source, dtype = context.layouts[op.x], op.x.tile.dtype
    if not top_k_groups(source, op.axis, op.k):
        source = _one_warp(op, context) if op.x.tile.size <= WARP_SORTS else _network_layout(op, context)
    x = context.converted(context.lowered[op.x], context.layouts[op.x], source)
    target = context.layouts[op.results[0]]
    names = {"source": context.layout_name(source), "layout": context.layout_name(target)}
    size = TopKRoom.of(dtype, source, op.axis, op.k).bytes
    copy = context.in_shared(op.copy_with([x], (), ()), size, **names)
    for old, new in zip(op.results, copy.results, strict=True):
        context.place(old, new, target)


def _one_warp(op: TopK, context: LoweringContext) -> Layout:
    """A layout in which every warp holds all elements."""
    layout = along(op.x.tile.shape, op.axis, 1)
    free = ((0,) * layout.rank,) * (context.warps.bit_length() - 1)  # the warp's bits
    return Layout(layout.shape, layout.register, layout.lane, free)


def _check_places(op: Sort | TopK) -> None:
    tile = op.x.tile
    if tile.dtype.bits <= 16 and tile.shape[op.axis] > MAX_PLACE:
        raise KernelTypeError(
            f"{op.name}: {tile.shape[op.axis]} elements of {tile.dtype} along the axis, of at most {MAX_PLACE}",
            op.location,
            "Sort shorter pieces, and merge what comes of them.",
        )


def lower_take_along_axis(op: TakeAlongAxis, context: LoweringContext) -> None:
    """Read elements by their places from shared memory."""
    source, layout = context.layouts[op.x], context.layouts[op.places]
    names = {"source": context.layout_name(source), "layout": context.layout_name(layout)}
    copy = context.in_shared(context.copied(op), move_bytes(op.x.tile.dtype, source), **names)
    context.place(op.result, copy.result, layout)


LOWERINGS = ((Sort, lower_sort), (TopK, lower_top_k), (TakeAlongAxis, lower_take_along_axis))
