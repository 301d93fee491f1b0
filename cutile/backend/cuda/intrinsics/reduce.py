"""Reductions along an axis: in each thread, lanes, warps, blocks of a cluster.

Lanes shuffle, warps meet in shared memory, and blocks write to each other's (distributed shared memory, DSMEM). f16 and
bf16 are reduced in f32 and rounded once. Their extremes are exact, so a thread folds two at a time.
"""

import functools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.arith import BINARY, PACKED, packed
from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    HALF_BITS,
    I16,
    I32,
    I64,
    LANES,
    SHARED,
    VOID,
    address,
    asm,
    barrier,
    cluster_rank,
    const,
    from_memory,
    from_shared,
    halves_of_pair,
    i32c,
    ir,
    lane_of,
    memory_type,
    narrow,
    number,
    pair_of_halves,
    pointer,
    select_lanes,
    shared,
    shuffle_from,
    shuffle_xor,
    thread,
    to_memory,
    widen,
)
from cutile.backend.cuda.intrinsics.pipeline import wait_parity
from cutile.backend.cuda.intrinsics.split_k_cluster import ACQUIRE, MAPA
from cutile.backend.cuda.smem_sizes import lane_mask, warp_mask
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.backend.gpu.row_axis import reduced_in
from cutile.dtypes import DTypeLike, bf16, f32

KINDS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_max_nan": "max_nan",
    "reduce_min_nan": "min_nan",
}


def _identity(name: str, dtype: DTypeLike) -> Any:
    """The identity of a reduction.

    For an extreme of floats it is NaN, which is dropped beside any number; an infinity if NaN propagates.
    """
    if name in ("reduce_sum", "reduce_prod"):
        return number(dtype, int(name == "reduce_prod"))
    if dtype.is_float:
        extreme = float("inf" if name.startswith("reduce_min") else "-inf")
        return number(dtype, extreme if name.endswith("_nan") else float("nan"))
    bits = dtype.bits - (dtype.is_signed)
    low = -(1 << bits) if dtype.is_signed else 0
    return number(dtype, low if name.startswith("reduce_max") else (1 << bits) - 1)


def _by_words(b: Any, dtype: DTypeLike, value: Any, move: Callable[[Any], Any]) -> Any:
    """An element of another lane, of which `move` gives each word of 32 bits."""
    kind = value.type
    if dtype.bits == 64:
        pair = b.bitcast(value, ir.VectorType(I32, 2))
        moved = const(ir.VectorType(I32, 2), ir.Undefined)
        for half in range(2):
            moved = b.insert_element(moved, move(b.extract_element(pair, i32c(half))), i32c(half))
        return b.bitcast(moved, kind)
    if dtype is f32:
        return b.bitcast(move(b.bitcast(value, I32)), kind)
    if dtype.bits == 32:
        return move(value)
    return b.trunc(move(b.zext(value, I32)), kind)


def exchange(b: Any, dtype: DTypeLike, value: Any, mask: int) -> Any:
    """The element of the lane whose number differs by `mask`."""
    return _by_words(b, dtype, value, lambda word: shuffle_xor(b, word, mask))


def from_lane(b: Any, dtype: DTypeLike, value: Any, lane: Any) -> Any:
    """The element of a lane, by its number (an i32 value) or its distance (an int).

    A lane without a neighbour at that distance gets its own element.
    """
    return _by_words(b, dtype, value, lambda word: shuffle_from(b, word, lane))


@cache
def reduce(name: str, dtype: DTypeLike, layout: Layout, axis: int, offset: int, fence: bool) -> Any:
    """`f(x)`: the reduction of a tile of `layout` along `axis`.

    The result is in the registers of `layout.collapse(axis)`. A tile of one axis reduces to a scalar.

    Args:
        name: of `KINDS`.
        dtype: of the tile and of the result.
        layout: of the tile.
        axis: along which it is reduced.
        offset: where warps exchange results in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    target = layout.collapse(axis)
    operation = BINARY[KINDS[name]]
    wide = reduced_in(dtype)
    where = {each: register for register, each in enumerate(target.offsets)}
    keep = tuple(int(a != axis) for a in range(layout.rank))
    slots = [where[tuple(o * k for o, k in zip(each, keep, strict=True))] for each in layout.offsets]
    lanes, warps = lane_mask(layout, axis), warp_mask(layout, axis)
    count = target.registers if layout.rank > 1 else 0
    packs = dtype.is_half and KINDS[name] in PACKED

    def generate(b: Any, values: list[Any]) -> Any:
        identity = _identity(name, dtype if packs else wide)
        at = Coordinates(b, layout)
        elements = unpack(b, values[0], layout.registers)
        rows: list[list[Any]] = [[] for _ in range(target.registers)]  # this thread's elements of each result
        for register, element in enumerate(elements):
            value = element if packs else widen(b, dtype, element)
            if axis in layout.edge_axes(register):
                inside = b.icmp_unsigned("<", at.element(register, axis), i32c(layout.shape[axis]))
                value = b.select(inside, value, identity)
            rows[slots[register]].append(value)
        if packs:
            partial = [_packed(b, KINDS[name], dtype, row) for row in rows]
        else:
            partial = [functools.reduce(lambda x, y: operation(b, wide, x, y), row) for row in rows]
        for bit in range(LANE_BITS):
            if lanes >> bit & 1:
                partial = [operation(b, wide, each, exchange(b, wide, each, 1 << bit)) for each in partial]
        if warps:
            partial = _across_warps(b, wide, partial, operation, lanes, warps, layout.warps, offset, fence)
        return pack(b, [(_exactly if packs else narrow)(b, dtype, each) for each in partial], count)

    return intrinsic(name, frag(dtype, count), [frag(dtype, layout.registers)], generate)


def _packed(b: Any, name: str, dtype: DTypeLike, elements: Sequence[Any]) -> Any:
    """Elements of 16 bits, folded two by two as they lie in words, to an f32."""
    even = len(elements) // 2 * 2
    words = [pair_of_halves(b, *both) for both in zip(elements[:even:2], elements[1:even:2], strict=True)]
    last = list(elements[even:])
    if words:
        last += halves_of_pair(b, functools.reduce(lambda x, y: packed(b, name, dtype, x, y), words))
    return functools.reduce(lambda x, y: BINARY[name](b, f32, x, y), [widen(b, dtype, each) for each in last])


def _exactly(b: Any, dtype: DTypeLike, value: Any) -> Any:
    """An f32 that a number of `dtype` equals, as that number: nothing is rounded."""
    return b.trunc(b.lshr(b.bitcast(value, I32), i32c(HALF_BITS)), I16) if dtype is bf16 else narrow(b, dtype, value)


def _across_warps(
    b: Any,
    dtype: DTypeLike,
    partial: list[Any],
    operation: Any,
    lane_bits: int,
    warp_bits: int,
    warps: int,
    offset: int,
    fence: bool,
) -> list[Any]:
    """Combine the partial results of all warps through shared memory."""
    number_ = thread(b)
    lane, warp = lane_of(b, number_), b.lshr(number_, i32c(LANE_BITS))
    others = (LANES - 1) & ~lane_bits
    lanes = 1 << others.bit_count()
    slot = select_lanes(b, lane, others)
    kind = memory_type(dtype)
    size = dtype.bits // 8

    def address(register: int, which: Any) -> Any:
        index = b.add(b.mul(which, i32c(lanes)), b.add(slot, i32c(register * warps * lanes)))
        return pointer(b, shared(b, b.add(b.mul(index, i32c(size)), i32c(offset))), kind, SHARED)

    if fence:
        barrier(b)  # others may still use the memory
    for register, value in enumerate(partial):  # lanes that hold the same write the same
        b.store(to_memory(b, dtype, value), address(register, warp))
    barrier(b)  # all have written before anyone reads
    choices = [0]  # all combinations of the bits of a warp's number along the axis
    for bit in range(warp_bits.bit_length()):
        if warp_bits >> bit & 1:
            choices += [each | 1 << bit for each in choices]
    rest = b.and_(warp, i32c(~warp_bits & (warps - 1)))
    totals: list[Any] = []
    for register in range(len(partial)):
        total: Any = None
        for choice in choices:  # in one order for all threads, so that all get the same bits
            value = from_shared(b, dtype, address(register, b.or_(rest, i32c(choice))))
            total = value if total is None else operation(b, dtype, total, value)
        totals.append(total)
    return totals


@cache
def across_cluster(
    kind: str, dtype: DTypeLike, layout: Layout, blocks: int, *, offset: int, counter: int, first: bool = False
) -> Any:
    """`f(x)`: the tiles of all blocks of a cluster, folded element by element.

    They are folded in the order of the blocks, so that all blocks get the same bits, and the same in each launch.

    Lanes that hold the same elements share the sending: each sends them to another block. Nobody waits but for the data
    that is sent to its own block.

    Args:
        kind: of `KINDS`.
        dtype: of the tile and of the result.
        layout: of the tile, the same in every block.
        blocks: of the cluster.
        offset: where the tiles of all blocks go in shared memory, in bytes.
        counter: where the barrier is that counts their bytes, used once; in bytes.
        first: wait first until all blocks have arrived: a block that does not run yet has no shared memory.
    """
    operation, wide = BINARY[KINDS[kind]], reduced_in(dtype)
    count = layout.registers if layout.rank else 0
    registers = max(1, count)
    word, suffix, letter = (I64, "b64", "l") if wide.bits == I64.width else (I32, "b32", "r")
    size = word.width // 8  # bytes
    threads = layout.holders
    free = layout.free_lanes | layout.free_warps << LANE_BITS
    senders = 1 << layout.free_lanes.bit_count()

    def bits_of(b: Any, value: Any) -> Any:
        bits = to_memory(b, wide, widen(b, dtype, value))
        return bits if bits.type == word else b.zext(bits, word)

    def element_of(b: Any, bits: Any) -> Any:
        narrow_type = memory_type(wide)
        return from_memory(b, wide, bits if bits.type == narrow_type else b.trunc(bits, narrow_type))

    def generate(b: Any, values: list[Any]) -> Any:
        elements = unpack(b, values[0], count)
        number = thread(b)
        holder = select_lanes(b, number, (layout.threads - 1) & ~free)
        mine = b.add(address(b, offset), b.mul(holder, i32c(size)))  # in the part of the first block
        there = b.add(mine, b.mul(cluster_rank(b), i32c(registers * threads * size)))
        barrier_ = address(b, counter)
        if first:
            # The other half of `pipeline.start`: loads have begun between the two (PTX ISA, "barrier.cluster").
            asm(b, VOID, [], "barrier.cluster.wait.acquire;", "~{memory}", effect=True, convergent=True)
        with b.if_then(b.icmp_unsigned("==", number, i32c(0))):
            # The phase's only arrival announces the bytes of all blocks, some of which may have come already (PTX ISA,
            # "mbarrier.arrive").
            text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            nbytes = i32c(blocks * registers * threads * size)
            asm(b, VOID, [barrier_, nbytes], text, "r,r,~{memory}", effect=True)
        sends = b.icmp_unsigned("==", b.and_(number, i32c(layout.free_warps << LANE_BITS)), i32c(0))
        receiver = select_lanes(b, number, layout.free_lanes)
        for begin in range(0, blocks, senders):
            peer = b.add(receiver, i32c(begin)) if begin else receiver
            with b.if_then(b.and_(sends, b.icmp_unsigned("<", peer, i32c(blocks)))):
                # The same places in the receiver's shared memory (PTX ISA, "mapa").
                target, counts = (asm(b, I32, [each, peer], MAPA, "=r,r,r") for each in (there, barrier_))
                for register, element in enumerate(elements):
                    text = (
                        f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{suffix} "
                        f"[$0+{register * threads * size}], $1, [$2];"
                    )
                    operands = [target, bits_of(b, element), counts]
                    # It counts its bytes on the receiver's barrier, so that nobody waits here (PTX ISA, "st.async"). A
                    # barrier of the cluster would also wait for the threads' accesses to global memory.
                    asm(b, VOID, operands, text, f"r,{letter},r,~{{memory}}", effect=True)
        wait_parity(b, barrier_, i32c(0), scope=ACQUIRE)
        totals: list[Any] = []
        for register in range(registers):
            total: Any = None
            for block in range(blocks):
                place = (block * registers + register) * threads * size
                # With an effect: other blocks have written there, of which LLVM knows nothing.
                text = f"ld.shared.{suffix} $0, [$1+{place}];"
                value = element_of(b, asm(b, word, [mine], text, f"={letter},r,~{{memory}}", effect=True))
                total = value if total is None else operation(b, wide, total, value)
            totals.append(narrow(b, dtype, total))
        return pack(b, totals, count)

    return intrinsic(f"cluster_{kind}", frag(dtype, count), [frag(dtype, count)], generate)
