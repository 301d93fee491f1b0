"""Tiles copied by the tensor memory accelerator (TMA, `cp.async.bulk.tensor`).

One thread begins a copy for all. A load's bytes complete a phase of an mbarrier; stores are waited for in groups (PTX
ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, models, pack, register_model, types, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    I16,
    I32,
    I64,
    PIECE_SHIFT,
    VOID,
    WORD_BYTES,
    address,
    asm,
    cluster_rank,
    const,
    i32c,
    ir,
    lane_of,
    pairs_of_halves,
    proxy_fence,
    synchronize_warp,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, full_barrier, stage_of
from cutile.backend.cuda.intrinsics.wgmma import tied
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.gpu.layout import LANE_BITS, Layout, axis_first
from cutile.dtypes import DTypeLike, f32, i32

WARP_ROWS = 16
"""Rows that one warp holds of a warpgroup's product."""
OUTSIDE = -(2**30)
"""A coordinate so far below 0 that no box that begins there reaches a tensor's first element."""
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000
"""Policies of the L2 cache for a whole access. Their bits are opaque in PTX: these are the values of CUTLASS
(`TMA::CacheHintSm90`)."""
MATRIX = 8
"""Rows, and columns of 16 bits, of a matrix that `stmatrix` writes."""
MATRICES = 4
"""Matrices that one `stmatrix` writes at most, each from one register of each thread."""


# -- tensor maps as kernel parameters: descriptors in the constant bank ----------------------------

MAP: Any = ir.LiteralStructType([ir.ArrayType(I64, 16)])
"""The descriptor's 128 bytes in LLVM IR."""


class _TensorMap(types.Type):
    """The Numba type of a tensor map as a kernel's parameter."""

    def __init__(self) -> None:
        types.Type.__init__(self, name="TensorMap")


class _TensorMapModel(models.PrimitiveModel):
    """The LLVM type of a `_TensorMap`: a pointer to the descriptor.

    `build.py` marks the parameter `byval` and `grid_constant` when the function becomes a kernel, so that its address
    is taken without a copy to local memory.
    """

    def __init__(self, manager: Any, kind: Any) -> None:
        models.PrimitiveModel.__init__(self, manager, kind, ir.PointerType(MAP))


register_model(_TensorMap)(_TensorMapModel)

TENSOR_MAP: Any = _TensorMap()


def map_address(b: Any, map_: Any) -> Any:
    """The generic address (i64) of a tensor map, which TMA's instructions take."""
    return b.ptrtoint(map_, I64)


@cache
def prefetch() -> Any:
    """`f(map)`: thread 0 prefetches the tensor map."""

    def generate(b: Any, values: list[Any]) -> None:
        with b.if_then(b.icmp_unsigned("==", thread(b), i32c(0))):
            # The first copy then need not fetch the map's 128 bytes from memory. The instruction takes a generic
            # address in the constant, parameter or global space (PTX ISA, "prefetch").
            asm(b, VOID, [map_address(b, values[0])], "prefetch.tensormap [$0];", "l,~{memory}", effect=True)

    return intrinsic("prefetch", None, [TENSOR_MAP], generate)


# -- loads ----------------------------------------------------------------------------------------


@cache
def load(
    smem_layout: SmemLayout,
    shape: tuple[int, ...],
    axis: int,
    *,
    stages: int,
    stage_bytes: int,
    place: int,
    offset: int,
    cluster: int,
    steps: tuple[int, ...] = (),
    shared: int | None = None,
) -> Any:
    """`f(map, *tile index, counter, *tile blocks)`: begin to load a tile into a stage.

    Its bytes arrive on the stage's barrier `full`. If all blocks of a cluster need the tile, each block loads a part of
    it for all of them. Only the producer's elected thread may run this (`intrinsics/roles.py`, `elected`): each thread
    that runs it begins the copies.

    Args:
        smem_layout: how the tile lies in shared memory.
        shape: the tile's extents, in the tensor's order of axes.
        axis: the contiguous one.
        stages: of the buffer.
        stage_bytes: from stage to stage.
        place: the byte of shared memory where stage 0 begins.
        offset: the byte of shared memory where the pipeline's barriers begin.
        cluster: blocks that need the tile.
        steps: elements from tile to tile along each axis, where tiles do not lie side by side.
        shared: the number of `tile blocks` arguments. They count the tile blocks that load this tile, along each axis
            of the grid. If all counts are 1, the L2 cache evicts the tile first. None: no such arguments, and no hint.
    """
    panels, rows, part_bytes = smem_layout.part(cluster)  # one block's panels and their rows; bytes from part to part
    split = smem_layout.split(cluster)
    # `row_at` counts the rows of a whole panel. So a part of an interleaved tile has whole panels.
    assert not smem_layout.interleaved or split != "rows", "blocks divide interleaved rows"
    order = axis_first(len(shape), axis)  # the axes as in memory, the innermost first
    # A box has every second row of an interleaved tile: its tensor map has an element stride of 2 along the rows
    # (`Operand.map`).
    box_rows = rows // 2 if smem_layout.interleaved else rows

    def generate(b: Any, values: list[Any]) -> None:
        map_, *index, counter = values[: len(shape) + 2]
        target = b.add(address(b, place), b.mul(stage_of(b, counter, stages), i32c(stage_bytes)))
        full = full_barrier(b, counter, stages, offset)
        origin = [b.mul(at, i32c(step)) for at, step in zip(index, steps or shape, strict=True)]
        for a, (step, extent) in enumerate(zip(steps or shape, shape, strict=True)):
            # A tile that begins before the tensor's first element is outside as a whole. If the step is no multiple of
            # the extent, a part of such a tile may be inside, and TMA would load that.
            if step % extent:
                origin[a] = b.select(b.icmp_signed("<", origin[a], i32c(0)), i32c(OUTSIDE), origin[a])
        # If the buffer is wider than the tile (a single element), the aligned group around the tile is loaded. A box
        # must begin at a multiple of 16 bytes: any other ends the launch with an illegal instruction.
        if smem_layout.width > shape[axis]:
            origin[axis] = b.and_(origin[axis], i32c(-smem_layout.span))
        text, letters = _load_text(len(shape), cluster > 1, shared is not None)
        blocks_mask = [const(I16, (1 << cluster) - 1)] * (cluster > 1)  # all blocks of the cluster
        hint = [] if shared is None else [_policy(b, values[len(shape) + 2 :])]
        if split != "none":
            rank = cluster_rank(b)
            target = b.add(target, b.mul(rank, i32c(part_bytes)))
            split_axis, step = (axis, panels * smem_layout.span) if split == "panels" else (order[1], rows)
            origin[split_axis] = b.add(origin[split_axis], b.mul(rank, i32c(step)))
        for panel in range(panels):
            for row in range(0, rows, box_rows):
                begin = panel * smem_layout.panel_bytes + row * smem_layout.swizzle
                # Elements from the tile's origin to the box's, along the two innermost axes; a tensor of one axis has
                # no rows.
                distances = dict(zip(order, (panel * smem_layout.span, smem_layout.row_at(row)), strict=False))
                start = [b.add(origin[a], i32c(distances.get(a, 0))) for a in order]
                operands = [b.add(target, i32c(begin)), map_address(b, map_), *start, full, *blocks_mask, *hint]
                # One box per panel, since a box is at most as wide as the swizzle; if rows are interleaved, one for
                # even rows and one for odd rows. `_load_text` has the instruction.
                asm(b, VOID, operands, text, letters, effect=True)

    return intrinsic("load", None, [TENSOR_MAP, *[INTEGER] * (len(shape) + 1 + (shared or 0))], generate)


def _policy(b: Any, counts: Sequence[Any]) -> Any:
    """The L2 cache's policy for a tile: evict it first if one tile block loads it.

    `counts` are the numbers of tile blocks that load it, along each axis of the grid.
    """
    policy = const(I64, EVICT_FIRST)
    for count in counts:
        policy = b.select(b.icmp_signed("==", count, i32c(1)), policy, const(I64, EVICT_NORMAL))
    return policy


def _load_text(rank: int, multicast: bool, hint: bool) -> tuple[str, str]:
    """The instruction that loads a box of `rank` axes, and its constraints."""
    coordinates = ", ".join(f"${2 + i}" for i in range(rank))
    # $0 is the address in shared memory, $1 the tensor map. Then come the coordinates, the innermost first; the barrier
    # that counts the bytes; the mask of the blocks that get the tile; and the cache's policy (PTX ISA,
    # "cp.async.bulk.tensor").
    options = "".join(f", ${rank + 3 + i}" for i in range(multicast + hint))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f"{'.multicast::cluster' if multicast else ''}{'.L2::cache_hint' if hint else ''} "
        f"[$0], [$1, {{{coordinates}}}], [${rank + 2}]{options};"
    )
    return text, ",".join(["r", "l", *["r"] * (rank + 1), *["h"] * multicast, *["l"] * hint, "~{memory}"])


# -- stores ---------------------------------------------------------------------------------------


@cache
def pack_pairs(dtype: DTypeLike, n: int) -> Any:
    """`f(tile)`: 16-bit elements as `n` words of two."""

    def generate(b: Any, values: list[Any]) -> Any:
        words = pairs_of_halves(b, unpack(b, values[0], 2 * n))
        # Tied to empty PTX, so that LLVM joins the elements here, and not where the words are read.
        return pack(b, tied(b, "", words), n)

    return intrinsic("pack_pairs", frag(i32, n), [frag(dtype, 2 * n)], generate)


def _wait_until_read(b: Any, pending: int) -> None:
    """Wait until TMA has read all but the last `pending` stores of this thread."""
    # `.read`: until shared memory has been read, not until global memory is written (PTX ISA,
    # "cp.async.bulk.wait_group").
    asm(b, VOID, [], f"cp.async.bulk.wait_group.read {pending};", "~{memory}", effect=True)


def _begin_store(b: Any, map_: Any, source: Any, coordinates: Sequence[Any], *, adds: bool = False) -> None:
    """Have TMA store the box at `source`, or add it to the tensor's elements.

    Each box is a group of its own, which `_wait_until_read` counts.
    """
    operands = ", ".join(f"${2 + i}" for i in range(len(coordinates)))
    name, mode = ("cp.reduce.async", "add.tile") if adds else ("cp.async", "tile")
    # Elements past the tensor's edges are dropped (PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor",
    # "cp.async.bulk.commit_group").
    text = (
        f"{name}.bulk.tensor.{len(coordinates)}d.global.shared::cta.{mode}.bulk_group [$0, {{{operands}}}], "
        "[$1]; cp.async.bulk.commit_group;"
    )
    letters = ",".join(["l", "r", *["r"] * len(coordinates), "~{memory}"])
    asm(b, VOID, [map_address(b, map_), source, *coordinates], text, letters, effect=True)


def _write_matrices(b: Any, row_address: Any, words: Sequence[Any], *, transposed: bool = False) -> None:
    """Write 8 x 8 matrices of 16-bit elements, each from one register of each lane.

    `row_address` is the address of a row of a matrix: each lane has to name one row.
    """
    count = len(words)
    names = ", ".join(f"${1 + i}" for i in range(count))
    # Lanes 8 i to 8 i + 7 give the rows of matrix i. All lanes take part (PTX ISA, "stmatrix").
    text = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 [$0], {{{names}}};"
    letters = ",".join(["r"] * (1 + count)) + ",~{memory}"
    asm(b, VOID, [row_address, *words], text, letters, effect=True, convergent=True)


@cache
def store(
    dtype: DTypeLike,
    layout: Layout,
    *,
    span: int,
    buffers: int,
    place: int,
    first: int,
    begins: bool,
    packed: bool = False,
    dropped: bool = False,
    shape: tuple[int, ...] = (),
) -> Any:
    """`f(tile, map, *tile index)`: write a tile of 16-bit elements by TMA.

    Each warp writes its 16 rows, `span` columns at a time, to a place in shared memory (`stmatrix`). Its first lane has
    TMA store them. The warp's `buffers` places take turns: a place is written again when TMA has read it.

    Args:
        dtype: of the elements.
        layout: of the tile: a `group_accumulator`.
        span: columns at a time.
        buffers: places per warp.
        place: the byte of shared memory where the places begin.
        first: the number of the place that is written first.
        begins: whether this is the first subtile of a result. Then the warp waits until TMA has read all places. The
            result before may have ended with any of them, since its subtiles need not be a multiple of `buffers`.
            Between two results TMA has the time of a main loop.
        packed: the tile comes as words of two elements.
        dropped: whether a tile may be dropped: it is not stored if its first index is below zero.
        shape: of the tile in the tensor: all axes but the last are the rows. The layout's shape by default.
    """
    rows, columns = layout.shape
    row_extents = shape[:-1] or (rows,)
    smem_layout = SmemLayout(span, WARP_ROWS, dtype.bits // 8, k_major=False)
    cores = -(-rows // layout.core[0])  # cores of the layout, one below the other
    count = layout.registers // 2 if packed else layout.registers
    nbytes = smem_layout.nbytes  # of a place

    def generate(b: Any, values: list[Any]) -> None:
        tile, map_, *index = values
        words = unpack(b, tile, count) if packed else pairs_of_halves(b, unpack(b, tile, count))
        lane, warp = _late_lane_and_warp(b)
        mine = b.add(address(b, place), b.mul(warp, i32c(buffers * nbytes)))
        at_row, unit, mask = _lane_row(b, smem_layout, mine, lane)
        leads, stores = _leads(b, lane, index[0], dropped)
        first_row = b.mul(_warp_of_tile(b, layout, 0, warp), i32c(WARP_ROWS))
        origins = [b.mul(at, i32c(extent)) for at, extent in zip(index, (*row_extents, columns), strict=True)]
        buffer = first
        for m in range(cores):
            for column in range(0, columns, span):
                with b.if_then(leads):
                    # `begins`: all places. Else the warp's last `buffers - 1` stores have other places than this one.
                    _wait_until_read(b, 0 if begins and m == column == 0 else buffers - 1)
                synchronize_warp(b)  # no lane writes before its first lane has waited
                base = b.add(at_row, i32c(buffer * nbytes))
                at = (m * columns + column) // MATRIX * 2  # a lane has two words of 16 rows by 8 columns
                _write_rows(b, base, unit, mask, words[at : at + span // MATRIX * 2])
                proxy_fence(b)  # of each lane, for what it wrote: TMA reads it next
                synchronize_warp(b)  # the first lane begins when all have written
                with b.if_then(stores):
                    source = b.add(mine, i32c(buffer * nbytes))
                    within = *_row_index(b, b.add(first_row, i32c(m * layout.core[0])), row_extents), i32c(column)
                    _begin_store(b, map_, source, [b.add(*each) for each in zip(origins, within, strict=True)][::-1])
                buffer = (buffer + 1) % buffers

    kind = frag(i32 if packed else dtype, count)
    return intrinsic("store", None, [kind, TENSOR_MAP, *[INTEGER] * (len(row_extents) + 1)], generate)


def _late_lane_and_warp(b: Any) -> tuple[Any, Any]:
    """The numbers of lane and warp, read at this place and no earlier."""
    # With an effect, so that LLVM computes no address from it before the store: registers would hold these addresses
    # during the products ahead (PTX ISA, "Special Registers: %tid").
    number = asm(b, I32, [], "mov.u32 $0, %tid.x;", "=r", effect=True)
    return lane_of(b, number), b.lshr(number, i32c(LANE_BITS))


def _leads(b: Any, lane: Any, first_index: Any, may_drop: bool) -> tuple[Any, Any]:
    """Whether the lane is its warp's first, and whether it has TMA store the tile.

    `first_index` is the tile's index along the first axis. `may_drop`: a tile with a negative one is not stored.
    """
    leads = b.icmp_unsigned("==", lane, i32c(0))
    # TMA drops rows past a tensor's end: a result that ends within a tile relies on that. But a launch that gave it
    # rows ahead of the first ended with an illegal instruction. So no store is begun for a tile that is dropped.
    return leads, b.and_(leads, b.icmp_signed(">=", first_index, i32c(0))) if may_drop else leads


def _write_rows(b: Any, base: Any, unit: Any, mask: Any, words: Sequence[Any]) -> None:
    """Write a warp's words of 16 rows to the pieces where the swizzle puts them."""
    for first in range(0, len(words), MATRICES):
        piece = b.xor(b.add(unit, i32c(first // 2)), mask)
        _write_matrices(b, b.add(base, b.shl(piece, i32c(PIECE_SHIFT))), words[first : first + MATRICES])


def _lane_row(b: Any, smem_layout: SmemLayout, mine: Any, lane: Any) -> tuple[Any, Any, Any]:
    """The row that a lane gives `stmatrix`: address, the lane's piece, and swizzle.

    A piece has 16 bytes. The swizzle is a mask: the bits of a piece's number that are flipped in this row.
    """
    # Lane l gives the address of row l % 8 of matrix l // 8 (PTX ISA, "stmatrix"): matrices from rows 0 and 8, then
    # those of the next 8 columns.
    row = b.and_(lane, i32c(2 * MATRIX - 1))
    unit = b.lshr(lane, i32c(4))
    bits = smem_layout.swizzle.bit_length() - 5  # of the piece's number in a row, which has swizzle // 16 pieces
    # The row's number permutes the row's pieces. Narrow swizzles skip the low bits of that number (PTX ISA, "Swizzling
    # Modes").
    mask = b.and_(b.lshr(row, i32c(3 - bits)), i32c((1 << bits) - 1))
    return b.add(mine, b.mul(row, i32c(smem_layout.swizzle))), unit, mask


def _warp_of_tile(b: Any, layout: Layout, axis: int, warp: Any) -> Any:
    """The warp's number among those that share a tile."""
    sharing = layout.core[axis] // WARP_ROWS
    return b.and_(warp, i32c(sharing - 1)) if sharing < layout.warps else warp


@cache
def store_transposed(
    dtype: DTypeLike, layout: Layout, *, span: int, buffers: int, place: int, dropped: bool = False
) -> Any:
    """`f(tile, map, *tile index)`: as `store`, of a tile whose columns warps share.

    Each warp has 16 columns. `stmatrix.trans` transposes the matrices that it writes: a place has `span` rows of 16
    columns.

    Args:
        dtype, place, dropped: as of `store`.
        layout: of the tile: a transposed `group_accumulator`.
        span: rows at a time.
        buffers: places per warp.
    """
    rows, columns = layout.shape
    smem_layout = SmemLayout(WARP_ROWS, span, dtype.bits // 8, k_major=False)
    cores = -(-columns // layout.core[1])  # cores of the layout, side by side

    def generate(b: Any, values: list[Any]) -> None:
        tile, map_, *index = values
        words = pairs_of_halves(b, unpack(b, tile, layout.registers))
        # Not `_late_lane_and_warp`: whether it would save registers here was not measured.
        number = thread(b)
        lane, warp = lane_of(b, number), b.lshr(number, i32c(LANE_BITS))
        mine = b.add(address(b, place), b.mul(warp, i32c(buffers * smem_layout.nbytes)))
        # Lane l gives the address of row l % 8 of matrix l // 8 (PTX ISA, "stmatrix"): 8 columns of 8 rows, the next 8
        # columns, then the same of the next 8 rows.
        row = b.or_(b.and_(lane, i32c(MATRIX - 1)), b.shl(b.lshr(lane, i32c(4)), i32c(3)))
        piece = b.and_(b.lshr(lane, i32c(3)), i32c(1))  # the matrix's lowest bit
        # Rows of 32 bytes have two pieces, which change places every fourth row (PTX ISA, "Swizzling Modes").
        swizzled = b.xor(piece, b.and_(b.lshr(row, i32c(2)), i32c(1)))
        at_row = b.add(mine, b.add(b.mul(row, i32c(smem_layout.swizzle)), b.shl(swizzled, i32c(PIECE_SHIFT))))
        leads, stores = _leads(b, lane, index[0], dropped)
        origin_row = b.mul(index[0], i32c(rows))
        warp_column = b.mul(_warp_of_tile(b, layout, 1, warp), i32c(WARP_ROWS))
        origin_column = b.add(b.mul(index[1], i32c(columns)), warp_column)
        buffer = 0
        for m in range(cores):
            for first in range(0, rows, span):
                with b.if_then(leads):
                    # First for all places: each tile begins with place 0, whichever one the tile before ended with.
                    _wait_until_read(b, 0 if m == first == 0 else buffers - 1)
                synchronize_warp(b)  # no lane writes before its first lane has waited
                for part in range(0, span, 2 * MATRIX):
                    offset = buffer * smem_layout.nbytes + part * smem_layout.swizzle
                    at = (m * rows + first + part) // MATRIX * 2
                    count = min(MATRICES, (span - part) // 4)  # 8 rows of 16 columns are two matrices
                    _write_matrices(b, b.add(at_row, i32c(offset)), words[at : at + count], transposed=True)
                proxy_fence(b)  # of each lane, for what it wrote: TMA reads it next
                synchronize_warp(b)  # the first lane begins when all have written
                with b.if_then(stores):
                    source = b.add(mine, i32c(buffer * smem_layout.nbytes))
                    x = b.add(origin_column, i32c(m * layout.core[1]))
                    y = b.add(origin_row, i32c(first))
                    _begin_store(b, map_, source, (x, y))
                buffer = (buffer + 1) % buffers

    return intrinsic("store_transposed", None, [frag(dtype, layout.registers), TENSOR_MAP, INTEGER, INTEGER], generate)


def _row_index(b: Any, row: Any, extents: Sequence[int]) -> list[Any]:
    """The index of a row over axes of these extents, by the row's number."""
    rows = math.prod(extents)
    index: list[Any] = []
    for extent in reversed(extents):
        index.append(row if extent == rows else b.urem(row, i32c(extent)))
        row = i32c(0) if extent == rows else b.udiv(row, i32c(extent))
        rows //= extent
    return index[::-1]


@cache
def add(layout: Layout, *, span: int, buffers: int, place: int, shape: tuple[int, ...] = (), part: str = "") -> Any:
    """`f(tile, map, *tile index)`: add a tile of f32 to memory by TMA.

    As `store`, but each element is added atomically. A warp waits until TMA has read all of its places, and then writes
    them together: other results may have used them since the last tile.

    Args:
        layout: of the tile: a `group_accumulator` or an `across_accumulator`.
        span: columns at a time, of 128 bytes.
        buffers, place, shape: as of `store`.
        part: "write", `f(tile)`, only writes to shared memory. "begin", `f(map, *tile index)`, only has TMA add from
            there. By default both are done.
    """
    rows, columns = layout.shape
    row_extents = shape[:-1] or (rows,)
    nbytes = WARP_ROWS * span * WORD_BYTES
    registers = {offset: register for register, offset in enumerate(layout.offsets)}
    origins = sorted({(row - row % WARP_ROWS, column - column % span) for row, column in registers})

    writes, adds = part != "begin", part != "write"
    # The parts are separate calls, so what one writes has to stay in its places until the other begins.
    assert not part or len(origins) <= buffers, "a part takes all boxes at once"

    def generate(b: Any, values: list[Any]) -> None:
        elements = unpack(b, values[0], layout.registers) if writes else []
        map_, *index = values[writes:] if adds else [None, *[i32c(0)] * (len(row_extents) + 1)]
        lane, warp = _late_lane_and_warp(b)
        mine = b.add(address(b, place), b.mul(warp, i32c(buffers * nbytes)))
        # 8 columns are two pieces of 16 bytes. Lane l has columns 2 (l % 4) and the next one, half a piece, in row
        # l // 4 and in the row 8 below (PTX ISA, "Register Fragments and Shared Memory Matrix Layouts").
        row, unit = b.lshr(lane, i32c(2)), b.and_(b.lshr(lane, i32c(1)), i32c(1))
        half = b.shl(b.and_(lane, i32c(1)), i32c(3))
        at_row = b.add(b.add(mine, b.mul(row, i32c(span * WORD_BYTES))), half)
        leads = b.icmp_unsigned("==", lane, i32c(0))
        corner = [_of_warp(b, layout, axis, warp) for axis in range(2)]
        starts = [b.mul(at, i32c(extent)) for at, extent in zip(index, (*row_extents, columns), strict=True)]
        for first in range(0, len(origins), buffers):
            boxes = list(enumerate(origins[first : first + buffers]))
            if writes:
                with b.if_then(leads):
                    _wait_until_read(b, 0)
                synchronize_warp(b)  # no lane writes before its first lane has waited
                for buffer, (down, across) in boxes:
                    for column in range(0, span, MATRIX):
                        piece = b.xor(b.add(unit, i32c(column // 4)), row)  # 4 columns are a piece; the swizzle's XOR
                        target = b.add(b.add(at_row, i32c(buffer * nbytes)), b.shl(piece, i32c(PIECE_SHIFT)))
                        for below in (0, MATRIX):
                            pair = [elements[registers[down + below, across + column + side]] for side in range(2)]
                            # Two columns are half a piece, which the swizzle keeps together (PTX ISA, "Swizzling
                            # Modes").
                            text = f"st.shared.v2.f32 [$0+{below * span * WORD_BYTES}], {{$1, $2}};"
                            asm(b, VOID, [target, *pair], text, "r,f,f,~{memory}", effect=True)
            if not adds:
                return  # after the one round that a part has
            proxy_fence(b)  # of each lane, for what it wrote: TMA reads it next; once for all boxes, since it is slow
            synchronize_warp(b)  # the first lane begins when all have written
            with b.if_then(leads):
                for buffer, (down, across) in boxes:
                    source = b.add(mine, i32c(buffer * nbytes))
                    within = *_row_index(b, b.add(corner[0], i32c(down)), row_extents), b.add(corner[1], i32c(across))
                    coordinates = [b.add(*each) for each in zip(starts, within, strict=True)][::-1]
                    _begin_store(b, map_, source, coordinates, adds=True)

    kinds = [frag(f32, layout.registers)] * writes + [TENSOR_MAP, *[INTEGER] * (len(row_extents) + 1)] * adds
    return intrinsic("add", None, kinds, generate)


def _of_warp(b: Any, layout: Layout, axis: int, warp: Any) -> Any:
    """The coordinate at which a warp's part of a tile begins along an axis."""
    begin = i32c(0)
    for bit, basis in enumerate(layout.warp):
        if basis[axis]:
            begin = b.add(begin, b.mul(b.and_(b.lshr(warp, i32c(bit)), i32c(1)), i32c(basis[axis])))
    return begin


@cache
def store_wait() -> Any:
    """`f()`: wait until TMA has read shared memory for all stores of this thread."""

    def generate(b: Any, _: list[Any]) -> None:
        # A thread block that ends gives up its shared memory, which TMA may still read. There is no need to wait for
        # the writes: they are complete at the kernel's end.
        _wait_until_read(b, 0)

    return intrinsic("store_wait", None, [], generate)
