"""Matrix products with accumulation, of operands in shared memory.

The accumulator stays in registers. Tensor cores (`fragments.py`) multiply all dtypes but f32, which they would round to
tf32. f32 is multiplied by outer products of fused multiply-adds. A batch is staged as a whole, and its products are
computed one after the other.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.arith import fused
from cutile.backend.cuda.intrinsics.cast import OLDEST, Capability
from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.fragments import Shifts, by_tensor_cores, tiles_along
from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    I32,
    PIECE_BYTES,
    SHARED,
    WORD_BYTES,
    barrier,
    const,
    i32c,
    ir,
    memory_type,
    narrow,
    pointer,
    shared,
    thread,
    to_memory,
    widen,
)
from cutile.backend.cuda.intrinsics.memory import join
from cutile.backend.cuda.intrinsics.stage import stage_shift
from cutile.backend.cuda.smem_sizes import VECTOR, Stage, Swaps, one_product, tensor_cores
from cutile.backend.cuda.smem_sizes import stages as operand_stages
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, f32, i32


def _put(b: Any, layout: Layout, elements: Sequence[Any], stage: Stage, between: int, shift: Any = None) -> None:
    """Write a tile to shared memory, in accesses as wide as registers and rows allow.

    Args:
        b: the builder.
        layout: of the tile.
        elements: of this thread.
        stage: where the operand goes, and how it lies there.
        between: bytes from product to product of a batch, whose axis is the first of three.
        shift: bytes from the operand's first stage to this one; None for 0.
    """
    size = stage.dtype.bits // 8
    kind = memory_type(stage.dtype)
    first_axis = layout.rank - 2
    row, column = (first_axis + 1, first_axis) if stage.swap else (first_axis, first_axis + 1)
    width = min(layout.vector(column), PIECE_BYTES // size)
    at = Coordinates(b, layout)
    for first in range(0, layout.registers, width):
        neighbours = elements[first : first + width]
        value = join(b, stage.dtype, neighbours)
        index = b.add(b.mul(at.element(first, row), i32c(stage.pitch)), at.element(first, column))
        where = b.add(b.mul(index, i32c(size)), i32c(stage.offset))
        if first_axis:
            where = b.add(where, b.mul(at.element(first, 0), i32c(between)))
        where = shared(b, where if shift is None else b.add(where, shift))
        is_whole = layout.shape[column] % width == 0  # no access reaches beyond the tile's edge
        inside = at.inside(first)
        if inside is None:
            b.store(value, pointer(b, where, value.type, SHARED)).align = size * width
            continue
        with b.if_then(inside):
            if is_whole:
                b.store(value, pointer(b, where, value.type, SHARED)).align = size * width
        if not is_whole:  # the tile ends within the access
            for i in range(width):
                # Coordinates anew: those of another branch do not dominate this one.
                with b.if_then(Coordinates(b, layout).inside(first + i)):
                    single = b.gep(where, [i32c(i * size)])
                    b.store(to_memory(b, stage.dtype, neighbours[i]), pointer(b, single, kind, SHARED)).align = size


def _clear(b: Any, stage: Stage, depth: int, along_rows: bool, shift: int, threads: int) -> None:
    """Write zeros to a stage beyond `depth` along K, up to an instruction's steps.

    `along_rows`: K runs along the stage's rows, else along its columns. `shift`: bytes to this product of a batch.
    """
    rows = range(depth, stage.rows) if along_rows else range(stage.rows)
    columns = range(stage.columns) if along_rows else range(depth, stage.columns)
    count = len(rows) * len(columns)
    size = stage.dtype.bits // 8
    for first in range(0, count, threads):
        index = b.add(thread(b), i32c(first))
        with b.if_then(b.icmp_unsigned("<", index, i32c(count))):
            row = b.add(b.udiv(index, i32c(len(columns))), i32c(rows.start))
            column = b.add(b.urem(index, i32c(len(columns))), i32c(columns.start))
            where = b.add(b.mul(row, i32c(stage.pitch)), column)
            where = shared(b, b.add(b.mul(where, i32c(size)), i32c(stage.offset + shift)))
            kind = memory_type(stage.dtype)
            b.store(const(kind, 0), pointer(b, where, kind, SHARED)).align = size


def _row_vector(b: Any, at: Any, count: int) -> list[Any]:
    """`count` neighbours of f32, up to four, from byte `at` of shared memory on."""
    kind = ir.VectorType(F32, count)
    vector = b.load(pointer(b, shared(b, at), kind, SHARED))
    vector.align = WORD_BYTES * count
    return [b.extract_element(vector, i32c(i)) for i in range(count)]


def _by_outer_products(
    b: Any, accumulator: Layout, sums: list[Any], left: Stage, right: Stage, shifts: Shifts
) -> list[Any]:
    """Add the staged product of f32 to `sums`, by outer products.

    Each step of K has one outer product, of a column and a row. Four columns of the left operand are read at once,
    since it is contiguous along K. Up to 32 steps are unrolled: loads of later steps stand between products of earlier
    ones, and no register spills.
    """
    at = Coordinates(b, accumulator)
    width = accumulator.vector(1)
    rows = list(dict.fromkeys(each[0] for each in accumulator.offsets[: 1 << len(accumulator.register)]))
    down, across = tiles_along(accumulator, 0), tiles_along(accumulator, 1)
    left_base = b.add(b.mul(at.thread_part(0), i32c(left.pitch * WORD_BYTES)), i32c(left.offset))
    right_base = b.add(b.mul(at.thread_part(1), i32c(WORD_BYTES)), i32c(right.offset))
    left_base, right_base = b.add(left_base, shifts[0]), b.add(right_base, shifts[1])
    depth = left.columns
    # At most 32 steps of K, 8 vectors; the number divides the depth.
    unroll = VECTOR * next(vectors for vectors in (8, 4, 2, 1) if depth % (VECTOR * vectors) == 0)

    entry = b.block
    body, done = b.append_basic_block("product"), b.append_basic_block("summed")
    b.branch(body)
    b.position_at_end(body)
    k = b.phi(I32)
    k.add_incoming(i32c(0), entry)
    phis = [b.phi(each.type) for each in sums]
    for phi, each in zip(phis, sums, strict=True):
        phi.add_incoming(each, entry)
    new = list(phis)
    left_at = b.add(left_base, b.mul(k, i32c(WORD_BYTES)))
    right_at = b.add(right_base, b.mul(k, i32c(right.pitch * WORD_BYTES)))
    for step in range(0, unroll, VECTOR):
        xs = [
            [_row_vector(b, b.add(left_at, i32c(((m + r) * left.pitch + step) * WORD_BYTES)), VECTOR) for r in rows]
            for m in down
        ]
        for part in range(VECTOR):
            row = (step + part) * right.pitch
            ys = [_row_vector(b, b.add(right_at, i32c((row + n) * WORD_BYTES)), width) for n in across]
            for i, x in enumerate(xs):
                for j, y in enumerate(ys):
                    first = (i * len(across) + j) * len(rows) * width
                    for r in range(len(rows)):
                        for c in range(width):
                            where = first + r * width + c
                            new[where] = fused(b, f32, x[r][part], y[c], new[where])
    following = b.add(k, i32c(unroll))
    k.add_incoming(following, b.block)
    for phi, each in zip(phis, new, strict=True):
        phi.add_incoming(each, b.block)
    b.cbranch(b.icmp_unsigned("<", following, i32c(depth)), body, done)
    b.position_at_end(done)
    return new


def _multiply(
    b: Any,
    accumulator: Layout,
    sums: list[Any],
    left: Stage,
    right: Stage,
    shifts: Shifts,
    capability: Capability,
    rounds: bool = False,
) -> list[Any]:
    """Add one staged product to `sums`."""
    if tensor_cores(left.dtype):
        return by_tensor_cores(b, accumulator, sums, left, right, shifts, capability, rounds=rounds)
    return _by_outer_products(b, accumulator, sums, left, right, shifts)


@cache
def mma(
    dtype: DTypeLike,
    other: DTypeLike,
    acc: DTypeLike,
    a: Layout,
    b_layout: Layout,
    accumulator: Layout,
    offset: int,
    fence: bool,
    capability: Capability = OLDEST,
) -> Any:
    """`f(a, b, acc) = a @ b + acc`, or a batch of these.

    Args:
        dtype, other: of a and of b; both have the same size.
        acc: of the accumulator and the result.
        a: the layout of the left operand, M x K.
        b_layout: the layout of the right operand, K x N.
        accumulator: the layout of acc and the result: a `mma_accumulator` if `tensor_cores(dtype)`, else an
            `outer_accumulator`.
        offset: where the operands go in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
        capability: of the architecture, whose instructions may be used.
    """
    depth = a.shape[-1]
    product = one_product(accumulator)
    left, right = operand_stages(dtype, product, depth, offset, right=other)
    batch = accumulator.shape[0] if accumulator.rank > 2 else 1
    between = left.bytes + right.bytes
    count = accumulator.registers

    def generate(b: Any, values: list[Any]) -> Any:
        if fence:
            barrier(b)  # others may still use the memory
        _put(b, a, unpack(b, values[0], a.registers), left, between)
        _put(b, b_layout, unpack(b, values[1], b_layout.registers), right, between)
        for i in range(batch):
            for stage, rows in ((left, left.swap), (right, not right.swap)):
                if (stage.rows if rows else stage.columns) > depth:
                    _clear(b, stage, depth, rows, i * between, accumulator.threads)
        barrier(b)  # all have written the operands before anyone reads them
        sums = [widen(b, acc, each) for each in unpack(b, values[2], count)]
        size = count // batch
        for i in range(batch):
            part = slice(i * size, (i + 1) * size)
            sums[part] = _multiply(b, product, sums[part], left, right, (i32c(i * between),) * 2, capability)
        return pack(b, [narrow(b, acc, each) for each in sums], count)

    operands = [frag(dtype, a.registers), frag(other, b_layout.registers), frag(acc, count)]
    return intrinsic("mma", frag(acc, count), operands, generate)


@cache
def stage_put(
    dtype: DTypeLike,
    other: DTypeLike,
    layout: Layout,
    accumulator: Layout,
    *,
    right: bool,
    depth: int,
    swaps: Swaps,
    stages: int,
    stage_bytes: int,
    offset: int,
) -> Any:
    """`f(tile, iteration)`: write an operand of a product to an iteration's stage.

    Args:
        dtype, other, accumulator, depth, swaps: as of `staged_mma`.
        layout: of the tile.
        right: whether it is the right operand.
        stages: of the operand.
        stage_bytes: from stage to stage.
        offset: of the first stage, in bytes.
    """
    place = replace(operand_stages(dtype, accumulator, depth, right=other, swaps=swaps)[right], offset=offset)

    def generate(b: Any, values: list[Any]) -> None:
        shift = stage_shift(b, values[1], stages, stage_bytes)
        _put(b, layout, unpack(b, values[0], layout.registers), place, 0, shift)

    return intrinsic("stage_put", None, [frag(place.dtype, layout.registers), frag(i32, 0)], generate)


@cache
def staged_mma(
    dtype: DTypeLike,
    other: DTypeLike,
    acc: DTypeLike,
    accumulator: Layout,
    depth: int,
    left: tuple[int, int, int],
    right: tuple[int, int, int],
    swaps: Swaps,
    capability: Capability = OLDEST,
    rounds: bool = False,
) -> Any:
    """`f(acc, iteration) = acc + a @ b`, of operands in an iteration's stages.

    Args:
        dtype, other, acc, accumulator, capability: as for `mma`.
        depth: of the product, in whole steps of an instruction.
        left, right: for each operand, the offset of its first stage in bytes, its stages, the bytes between stages.
        swaps: whether each operand lies transposed.
        rounds: whether the operands are f32, to be rounded to tf32.
    """
    places = left, right
    operands = operand_stages(dtype, accumulator, depth, right=other, swaps=swaps)
    first, second = (replace(each, offset=place[0]) for each, place in zip(operands, places, strict=True))
    count = accumulator.registers

    def generate(b: Any, values: list[Any]) -> Any:
        shift = stage_shift(b, values[1], *left[1:])
        shifts = shift, shift if left[1:] == right[1:] else stage_shift(b, values[1], *right[1:])
        sums = [widen(b, acc, each) for each in unpack(b, values[0], count)]
        sums = _multiply(b, accumulator, sums, first, second, shifts, capability, rounds)
        return pack(b, [narrow(b, acc, each) for each in sums], count)

    return intrinsic("staged_mma", frag(acc, count), [frag(acc, count), frag(i32, 0)], generate)
