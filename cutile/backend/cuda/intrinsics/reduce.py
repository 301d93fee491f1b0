"""Reductions along an axis: in each thread, lanes, warps, blocks of a cluster.

Lanes shuffle, warps meet in shared memory, and blocks write to one another's shared memory (distributed shared memory,
DSMEM). f16 and bf16 are reduced in f32 and rounded once. Their extremes are exact, so a thread folds two at a time.
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
    VOID,
    address,
    asm,
    barrier,
    cluster_rank,
    from_memory,
    from_shared,
    halves_of_pair,
    i32c,
    lane_of,
    memory_type,
    narrow,
    number,
    pairs_of_halves,
    select_lanes,
    shared_element,
    shuffle_from,
    shuffle_words,
    shuffle_xor,
    thread,
    to_memory,
    widen,
)
from cutile.backend.cuda.intrinsics.pipeline import wait_parity
from cutile.backend.cuda.intrinsics.split_k_cluster import ACQUIRE, MAPA
from cutile.backend.cuda.smem_sizes import lane_mask, spans, warp_mask
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
"""The binary operation (`arith.BINARY`) of each reduction."""


def _identity(name: str, dtype: DTypeLike) -> Any:
    """The identity of a reduction.

    For an extreme of floats it is NaN, which loses against any number; an infinity if the extreme propagates NaN.
    """
    if name in ("reduce_sum", "reduce_prod"):
        return number(dtype, int(name == "reduce_prod"))
    if dtype.is_float:
        extreme = float("inf" if name.startswith("reduce_min") else "-inf")
        return number(dtype, extreme if name.endswith("_nan") else float("nan"))
    bits = dtype.bits - dtype.is_signed  # that are set in the greatest number
    low = -(1 << bits) if dtype.is_signed else 0
    return number(dtype, low if name.startswith("reduce_max") else (1 << bits) - 1)


def exchange(b: Any, value: Any, mask: int) -> Any:
    """The element of the lane whose number differs by `mask`."""
    return shuffle_words(b, value, lambda word: shuffle_xor(b, word, mask))


def from_lane(b: Any, value: Any, lane: Any) -> Any:
    """The element of a lane, by its number (an i32 value) or its distance (an int).

    A lane without a neighbour at that distance gets its own element.
    """
    return shuffle_words(b, value, lambda word: shuffle_from(b, word, lane))


def result_registers(layout: Layout, axis: int) -> list[int]:
    """For each register of a tile, the register of its reduction along an axis."""
    registers = {offset: register for register, offset in enumerate(layout.collapse(axis).offsets)}
    return [registers[(*offset[:axis], 0, *offset[axis + 1 :])] for offset in layout.offsets]


@cache
def reduce(
    name: str, dtype: DTypeLike, layout: Layout, axis: int, offset: int, fence: bool, in_lanes: bool = False
) -> Any:
    """`f(x)`: the reduction of a tile of `layout` along `axis`.

    The result is in the registers of `layout.collapse(axis)`. A tile of one axis reduces to a scalar.

    Args:
        name: of `KINDS`.
        dtype: of the tile and of the result.
        layout: of the tile.
        axis: along which it is reduced.
        offset: where warps exchange results in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
        in_lanes: whether each lane gets the reduction of its own elements alone; no warps may share rows then.
    """
    target = layout.collapse(axis)
    operation = BINARY[KINDS[name]]
    wide = reduced_in(dtype)
    slots = result_registers(layout, axis)
    lanes, warps = 0 if in_lanes else lane_mask(layout, axis), warp_mask(layout, axis)
    count = target.registers if layout.rank > 1 else 0
    packs = dtype.is_half and KINDS[name] in PACKED

    def generate(b: Any, values: list[Any]) -> Any:
        def combine(x: list[Any], y: list[Any]) -> list[Any]:
            return [operation(b, wide, x[0], y[0])]

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
                partial = [operation(b, wide, each, exchange(b, each, 1 << bit)) for each in partial]
        if warps:
            bits = [bit for bit in range(warps.bit_length()) if warps >> bit & 1]
            results = across_warps(b, combine, [wide], [[each] for each in partial], bits, layout, axis, offset, fence)
            partial = [each for (each,) in results]
        return pack(b, [(_exactly if packs else narrow)(b, dtype, each) for each in partial], count)

    return intrinsic(name, frag(dtype, count), [frag(dtype, layout.registers)], generate)


@cache
def sum_lanes(dtype: DTypeLike, count: int, *, lanes: int) -> Any:
    """`f(x)`: the sums of the lanes' parts of each row, in all lanes of the row.

    Args:
        dtype, count: of the parts: their dtype, and how many a lane has; 0 for a number.
        lanes: the bits of a lane's number in which the lanes of a row differ.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        parts = unpack(b, values[0], count)
        for bit in range(LANE_BITS):
            if lanes >> bit & 1:
                parts = [BINARY["add"](b, dtype, part, exchange(b, part, 1 << bit)) for part in parts]
        return pack(b, parts, count)

    return intrinsic("sum_lanes", frag(dtype, count), [frag(dtype, count)], generate)


def _packed(b: Any, name: str, dtype: DTypeLike, elements: Sequence[Any]) -> Any:
    """Elements of 16 bits folded to an f32, two at a time as they lie in words."""
    even = len(elements) // 2 * 2
    words = pairs_of_halves(b, elements[:even])
    last = list(elements[even:])
    if words:
        last += halves_of_pair(b, functools.reduce(lambda x, y: packed(b, name, dtype, x, y), words))
    return functools.reduce(lambda x, y: BINARY[name](b, f32, x, y), [widen(b, dtype, each) for each in last])


def _exactly(b: Any, dtype: DTypeLike, value: Any) -> Any:
    """An f32 as f16 or bf16, one of whose numbers it equals: nothing is rounded."""
    return b.trunc(b.lshr(b.bitcast(value, I32), i32c(HALF_BITS)), I16) if dtype is bf16 else narrow(b, dtype, value)


class WarpRows:
    """Rows of elements that warps hand to each other through shared memory.

    Args:
        b: the builder.
        dtypes: of a row's elements.
        layout: of the tiles that the elements come from. Lanes that differ along `axis` alone have equal rows, and
            share one place.
        axis: along which rows are combined.
        count: the rows of a thread.
        offset: of the memory, in bytes.
    """

    def __init__(self, b: Any, dtypes: Sequence[DTypeLike], layout: Layout, axis: int, count: int, offset: int) -> None:
        self._b, self._dtypes = b, dtypes
        own_number = thread(b)
        other_bits = (LANES - 1) & ~lane_mask(layout, axis)  # of a lane's number
        self.lanes = 1 << other_bits.bit_count()  # with different rows
        self.warp = b.lshr(own_number, i32c(LANE_BITS))
        self._warps = layout.warps
        self._slot = select_lanes(b, lane_of(b, own_number), other_bits)
        sizes = [dtype.bits // 8 * count * self._warps * self.lanes for dtype in dtypes]
        self._starts = spans(sizes, offset)  # of the elements of each dtype

    def _element(self, position: int, index: Any, warp: Any) -> Any:
        """A pointer to element `position` of a warp's row number `index`."""
        b, per_row = self._b, self._warps * self.lanes
        first = i32c(index * per_row) if isinstance(index, int) else b.mul(index, i32c(per_row))
        place = b.add(b.mul(warp, i32c(self.lanes)), b.add(self._slot, first))
        return shared_element(b, memory_type(self._dtypes[position]), place, self._starts[position])

    def write(self, index: int, row: Sequence[Any]) -> None:
        """Write this thread's row number `index`; lanes with equal rows write the same."""
        for position, (dtype, value) in enumerate(zip(self._dtypes, row, strict=True)):
            self._b.store(to_memory(self._b, dtype, value), self._element(position, index, self.warp))

    def read(self, index: Any, warp: Any) -> list[Any]:
        """Row number `index` (an int or an i32 value) of the lane's counterpart in a warp."""
        columns = enumerate(self._dtypes)
        return [from_shared(self._b, dtype, self._element(position, index, warp)) for position, dtype in columns]


def combinations(bits: Sequence[int]) -> list[int]:
    """All numbers whose set bits are among `bits`, 0 first.

    Numbers with later bits come behind all numbers without them.
    """
    numbers = [0]
    for bit in bits:
        numbers += [number | 1 << bit for number in numbers]
    return numbers


def across_warps(
    b: Any,
    combine: Callable[[list[Any], list[Any]], list[Any]],
    dtypes: Sequence[DTypeLike],
    rows: Sequence[list[Any]],
    bits: Sequence[int],
    layout: Layout,
    axis: int,
    offset: int,
    fence: bool,
) -> list[list[Any]]:
    """Combine the rows of all warps through shared memory, lower warps first.

    Args:
        b: the builder.
        combine: two rows, in their order, to one.
        dtypes, layout, axis, offset: as of `WarpRows`.
        rows: of this thread.
        bits: of a warp's number, in which warps differ along the axis.
        fence: whether an earlier use of the memory may still be under way.
    """
    memory = WarpRows(b, dtypes, layout, axis, len(rows), offset)
    if fence:
        barrier(b)  # no warp writes before all warps are done with an earlier use of the memory
    for index, row in enumerate(rows):
        memory.write(index, row)
    barrier(b)  # all have written before anyone reads
    rest = b.and_(memory.warp, i32c(~sum(1 << bit for bit in bits) & (layout.warps - 1)))
    totals: list[list[Any]] = []
    for index in range(len(rows)):
        total: list[Any] = []
        for warp in combinations(bits):  # in one order for all threads, so that all get the same bits
            row = memory.read(index, b.or_(rest, i32c(warp)))
            total = combine(total, row) if total else row
        totals.append(total)
    return totals


@cache
def across_cluster(
    kind: str, dtype: DTypeLike, layout: Layout, blocks: int, *, offset: int, counter: int, first: bool = False
) -> Any:
    """`f(x)`: the tiles of all blocks of a cluster, folded element by element.

    They are folded in the order of the blocks, so that all blocks get the same bits, and the same in each launch.

    Lanes that hold the same elements share the sending: each sends them to another block. A thread waits only for the
    data that is sent to its own block.

    Args:
        kind: of `KINDS`.
        dtype: of the tile and of the result.
        layout: of the tile, the same in every block.
        blocks: of the cluster.
        offset: where the tiles of all blocks go in shared memory, in bytes.
        counter: where the barrier is that counts their bytes, in bytes; each reduction has one of its own.
        first: whether to wait for the arrival of all blocks first: a block that does not run yet has no shared memory.
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
                    # The store counts its bytes on the receiver's barrier, so that nobody waits here (PTX ISA,
                    # "st.async"). A barrier of the cluster would also wait for the threads' accesses to global memory.
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
