"""Stream compaction: selected elements of a tile are stored side by side.

Each lane counts its selected elements, vector by vector. One warp adds up the counts of all warps, so that each lane
knows where its elements go. Neighbouring lanes then store neighbouring elements.
"""

import functools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.compaction import room
from cutile.backend.cuda.intrinsics.fragment import as_flag, frag, intrinsic, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    GLOBAL,
    HALF_BITS,
    I32,
    I64,
    LANES,
    REGISTERS,
    VOID,
    asm,
    barrier,
    call,
    i32c,
    ir,
    lane_of,
    memory_type,
    shared_element,
    shuffle_from,
    synchronize_warp,
    thread,
    to_register,
)
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, bool_, i64, u64

WORD_BITS = 32
BYTE_BITS = 8
"""Bits of the narrower kind of fields in which the lanes of a warp count; the wider kind has `HALF_BITS`."""


def _compacted(b: Any, dtype: DTypeLike, offset: int, number: Any) -> Any:
    """A pointer to a selected element in shared memory, by its number among them."""
    return shared_element(b, memory_type(dtype), number, offset)


@cache
def compact(dtype: DTypeLike, layout: Layout, *, offset: int, fence: bool) -> Any:
    """`f(value, mask)`: put selected elements side by side in shared memory.

    A running sum of the mask would need 32 bits for each element. Here each field of a word counts the selected
    elements of one vector. A field holds up to 32 lanes times the elements of a vector.

    Args:
        dtype: of the elements.
        layout: of the tiles: vectors of neighbours, lane by lane, warp by warp, and then the same again.
        offset: of the room in shared memory, in bytes.
        fence: whether an earlier use of that room may still be under way.
    """
    vector, count, warps = layout.vector(0), layout.registers, layout.warps
    counts = count // vector * warps  # one for each vector of each warp
    width = BYTE_BITS if LANES * vector < 1 << BYTE_BITS else HALF_BITS  # of a field
    fields = WORD_BITS // width
    letter, kind, _, _ = REGISTERS[dtype.bits]
    # Predicated: of several branches one after the other, each would keep a convergence barrier (PTX ISA, "st").
    text = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.shared.{kind} [$1], $0;}}"

    def generate(b: Any, values: list[Any]) -> None:
        elements, masks = (unpack(b, tile, count) for tile in values)
        flags = _Flags(b, masks)
        if fence:
            barrier(b)  # others may still use the memory
        lane, warp = lane_of(b, thread(b)), b.lshr(thread(b), i32c(LANES.bit_length() - 1))
        own: list[Any] = []
        for first in range(0, count, vector * fields):
            word = i32c(0)
            for field, start in enumerate(range(first, min(first + vector * fields, count), vector)):
                word = b.add(word, b.shl(flags.total(start, vector), i32c(field * width)))
            own.append(word)
        up_to_lane = [_lane_sums(b, word, lane) for word in own]

        def field_of(words: list[Any], number: int) -> Any:
            shifted = b.lshr(words[number // fields], i32c(number % fields * width))
            return b.and_(shifted, i32c((1 << width) - 1))

        with b.if_then(b.icmp_unsigned("==", lane, i32c(LANES - 1))):
            for number in range(count // vector):
                place = _count(b, dtype, layout.shape[0], offset, b.add(warp, i32c(number * warps)))
                b.store(field_of(up_to_lane, number), place)
        barrier(b)  # all warps have counted before one adds
        with b.if_then(b.icmp_unsigned("==", warp, i32c(0))):
            _sum_counts(b, lambda number: _count(b, dtype, layout.shape[0], offset, number), counts, lane)
        barrier(b)  # the sums are there before others read them
        before = [b.sub(with_own, word) for with_own, word in zip(up_to_lane, own, strict=True)]
        for number in range(count // vector):
            base = b.load(_count(b, dtype, layout.shape[0], offset, b.add(warp, i32c(number * warps))))
            where = b.add(base, field_of(before, number))
            for register in range(number * vector, (number + 1) * vector):
                flag = flags.flag(register)
                place = b.ptrtoint(_compacted(b, dtype, offset, where), I32)
                # The store of `text`, above.
                operands = [to_register(b, dtype, elements[register]), place, flag]
                asm(b, VOID, operands, text, f"{letter},r,r,~{{memory}}", effect=True)
                where = b.add(where, flag)

    return intrinsic("compact", None, [frag(dtype, count), frag(bool_, count)], generate)


class _Flags:
    """The mask of a thread's registers, as bits of words.

    As single numbers the flags would take as many registers as the elements.
    """

    def __init__(self, b: Any, masks: Sequence[Any]) -> None:
        self._b = b
        self._words: list[Any] = []
        for first in range(0, len(masks), WORD_BITS):
            word = i32c(0)
            for bit, mask in enumerate(masks[first : first + WORD_BITS]):
                word = b.or_(word, b.shl(b.zext(as_flag(mask), I32), i32c(bit)))
            # A move that LLVM does not see through (PTX ISA, "mov"): else it would keep the flags apart all the same.
            self._words.append(asm(b, I32, [word], "mov.b32 $0, $1;", "=r,r", effect=True))

    def flag(self, register: int) -> Any:
        """1 where a register is selected, else 0."""
        b = self._b
        return b.and_(b.lshr(self._words[register // WORD_BITS], i32c(register % WORD_BITS)), i32c(1))

    def total(self, first: int, count: int) -> Any:
        """Number of selected registers, of `count` from `first` on, all in one word."""
        b = self._b
        part = b.and_(b.lshr(self._words[first // WORD_BITS], i32c(first % WORD_BITS)), i32c((1 << count) - 1))
        return call(b, "llvm.ctpop.i32", I32, [part])


def _lane_sums(b: Any, word: Any, lane: Any) -> Any:
    """The sum of a word over the lanes up to this one, itself included."""
    distance = 1
    while distance < LANES:
        below = shuffle_from(b, word, -distance)
        exists = b.icmp_unsigned(">=", lane, i32c(distance))  # a lane at that distance below
        word = b.add(word, b.select(exists, below, i32c(0)))
        distance *= 2
    return word


def _count(b: Any, dtype: DTypeLike, extent: int, offset: int, number: Any) -> Any:
    """A pointer to a count, by its number; the counts lie behind the tile's room."""
    return shared_element(b, I32, number, offset + room(dtype, extent))


def _sum_counts(b: Any, count: Callable[[Any], Any], counts: int, lane: Any) -> None:
    """Replace each count by the sum of those before it, and append the sum of all.

    The lanes of one warp do this, each for neighbouring counts.
    """
    neighbours = -(-counts // LANES)  # counts of a lane
    first = b.mul(lane, i32c(neighbours))
    numbers = [b.add(first, i32c(step)) for step in range(neighbours)]
    inside = [b.icmp_unsigned("<", number, i32c(counts)) for number in numbers]
    readable = [b.select(flag, number, i32c(0)) for flag, number in zip(inside, numbers, strict=True)]
    values = [b.select(flag, b.load(count(at)), i32c(0)) for flag, at in zip(inside, readable, strict=True)]
    own = functools.reduce(b.add, values)
    up_to_lane = _lane_sums(b, own, lane)
    before = b.sub(up_to_lane, own)
    synchronize_warp(b)  # all lanes have read before one writes
    for flag, number, value in zip(inside, numbers, values, strict=True):
        with b.if_then(flag):
            b.store(before, count(number))
        before = b.add(before, value)
    with b.if_then(b.icmp_unsigned("==", lane, i32c(LANES - 1))):
        b.store(up_to_lane, count(i32c(counts)))


@cache
def store_compacted(
    dtype: DTypeLike, index_dtype: DTypeLike, extent: int, *, counts: int, threads: int, offset: int
) -> Any:
    """`f(base, first, limit)`: write the elements that `compact` has put side by side.

    They go to the indices from `first` on, at the address `base`. Indices below 0, or from `limit` on, are dropped.

    Args:
        dtype: of the elements.
        index_dtype: of `first`, i32 or i64.
        extent: of the tile.
        counts: number of counts ahead of their sum.
        threads: number of threads that store.
        offset: of the room in shared memory, in bytes.
    """

    def generate(b: Any, values: list[Any]) -> None:
        base, first, limit = values
        barrier(b)  # all selected elements lie in shared memory before others store them
        total, own = b.load(_count(b, dtype, extent, offset, i32c(counts))), thread(b)
        for start in range(0, extent, threads):
            number = b.add(own, i32c(start))
            index = b.add(first, b.zext(number, I64) if index_dtype.bits > WORD_BITS else number)
            index = index if index_dtype.bits > WORD_BITS else b.sext(index, I64)
            inside = b.and_(b.icmp_signed("<", index, limit), b.icmp_signed(">=", index, ir.Constant(I64, 0)))
            with b.if_then(b.and_(b.icmp_signed("<", number, total), inside)):
                bits = b.load(_compacted(b, dtype, offset, number))
                target = b.add(base, b.mul(index, ir.Constant(I64, dtype.bits // 8)))
                b.store(bits, b.inttoptr(target, ir.PointerType(bits.type, GLOBAL)))

    return intrinsic("store_compacted", None, [frag(u64, 0), frag(index_dtype, 0), frag(i64, 0)], generate)
