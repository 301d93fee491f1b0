"""Matrix products with accumulation. Operands pass through shared memory; the accumulator stays in registers.

f16 and bf16 go through the tensor cores (`mma.sync.m16n8k16`, sums in f32). Everything else is outer products of fused
multiply-adds: f32 and f64 in their own precision, small integers in i32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.arith import fused
from cutile.backend.cuda.intrinsics.cast import converted
from cutile.backend.cuda.intrinsics.coordinates import Coordinates
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import (
    F32,
    I32,
    SHARED,
    asm,
    barrier,
    const,
    i32c,
    ir,
    memory_type,
    narrow,
    pointer,
    register_type,
    shared,
    thread,
    to_memory,
    widen,
)
from cutile.backend.cuda.intrinsics.memory import join
from cutile.backend.cuda.intrinsics.stage import slot_shift
from cutile.backend.cuda.layout import LANE_BITS, Layout
from cutile.backend.cuda.staging import STEP, Stage, stages, tensor_cores
from cutile.dtypes import DTypeLike, i32


def _put(b: Any, dtype: DTypeLike, layout: Layout, elements: Sequence[Any], stage: Stage) -> None:
    """Write a tile to shared memory, in accesses as wide as registers and rows allow."""
    size = stage.dtype.bits // 8
    kind = memory_type(stage.dtype)
    row, column = (1, 0) if stage.swap else (0, 1)
    width = min(layout.vector(column), 16 // size)
    at = Coordinates(b, layout)
    for first in range(0, layout.registers, width):
        chosen = [converted(b, dtype, stage.dtype, each) for each in elements[first : first + width]]
        value = join(b, stage.dtype, chosen)
        index = b.add(b.mul(at.element(first, row), i32c(stage.pitch)), at.element(first, column))
        where = shared(b, b.add(b.mul(index, i32c(size)), i32c(stage.offset)))
        whole = layout.shape[column] % width == 0
        inside = at.inside(first)
        if inside is None:
            b.store(value, pointer(b, where, value.type, SHARED)).align = size * width
            continue
        with b.if_then(inside):
            if whole:
                b.store(value, pointer(b, where, value.type, SHARED)).align = size * width
        if not whole:  # the tile ends within the access
            for i in range(width):
                with b.if_then(Coordinates(b, layout).inside(first + i)):
                    single = b.gep(where, [i32c(i * size)])
                    b.store(to_memory(b, stage.dtype, chosen[i]), pointer(b, single, kind, SHARED)).align = size


def _clear(b: Any, stage: Stage, rows: range, columns: range, threads: int) -> None:
    """Write zeros to a rectangle of a stage: what is added to K so that whole steps can be taken."""
    count = len(rows) * len(columns)
    size = stage.dtype.bits // 8
    for first in range(0, count, threads):
        index = b.add(thread(b), i32c(first))
        with b.if_then(b.icmp_unsigned("<", index, i32c(count))):
            row = b.add(b.udiv(index, i32c(len(columns))), i32c(rows.start))
            column = b.add(b.urem(index, i32c(len(columns))), i32c(columns.start))
            where = b.add(b.mul(row, i32c(stage.pitch)), column)
            where = shared(b, b.add(b.mul(where, i32c(size)), i32c(stage.offset)))
            kind = memory_type(stage.dtype)
            b.store(const(kind, 0), pointer(b, where, kind, SHARED)).align = size


def _warp_coordinate(b: Any, layout: Layout, axis: int) -> Any:
    """What the warp contributes to a coordinate."""
    number_ = thread(b)
    total: Any = i32c(0)
    for bit, basis in enumerate(layout.warp):
        if basis[axis]:
            flag = b.and_(b.lshr(number_, i32c(LANE_BITS + bit)), i32c(1))
            total = b.or_(total, b.shl(flag, i32c(basis[axis].bit_length() - 1)))
    return total


def _tiles(layout: Layout, axis: int) -> list[int]:
    """Where the cores of one warp begin along an axis."""
    count = next((n for a, n in layout.repeat if a == axis), 1)
    return [layout.core[axis] * i for i in range(count)]


def _matrices(b: Any, address: Any, count: int, transposed: bool) -> list[Any]:
    """`count` 8 x 8 matrices of 16-bit elements from shared memory, one 32-bit register each."""
    outputs = ", ".join(f"${i}" for i in range(count))
    kind = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    result = ir.LiteralStructType([I32] * count)
    constraints = ",".join(["=r"] * count) + ",r"
    made = asm(b, result, [address], f"{kind} {{{outputs}}}, [${count}];", constraints, effect=True, convergent=True)
    return [b.extract_value(made, i) for i in range(count)]


def _mma(b: Any, dtype: DTypeLike, left: Sequence[Any], right: Sequence[Any], acc: Sequence[Any]) -> list[Any]:
    """One 16 x 8 x 16 product of a warp."""
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype.name}.{dtype.name}.f32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    constraints = "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3"
    made = asm(b, ir.LiteralStructType([F32] * 4), [*left, *right, *acc], text, constraints, convergent=True)
    return [b.extract_value(made, i) for i in range(4)]


def _by_tensor_cores(
    b: Any, dtype: DTypeLike, accumulator: Layout, sums: list[Any], left: Stage, right: Stage, shift: Any = None
) -> list[Any]:
    """Add the staged product to `sums`, in f32. `shift`: bytes from the stages' offsets to where they are now."""
    lane = b.and_(thread(b), i32c(31))
    low, high = b.and_(lane, i32c(15)), b.lshr(lane, i32c(4))
    down, across = _tiles(accumulator, 0), _tiles(accumulator, 1)
    stride = across[1] if len(across) > 1 else 0
    base = b.ptrtoint(shared(b, 0 if shift is None else shift), I32)

    row = b.add(_warp_coordinate(b, accumulator, 0), low)
    left_base = b.add(b.add(b.mul(row, i32c(left.pitch * 2)), b.shl(high, i32c(4))), i32c(left.offset))
    left_base = b.add(base, left_base)
    column = b.add(_warp_coordinate(b, accumulator, 1), b.mul(high, i32c(stride)))
    right_base = b.add(b.add(b.mul(low, i32c(right.pitch * 2)), b.shl(column, i32c(1))), i32c(right.offset))
    right_base = b.add(base, right_base)

    for k in range(0, left.columns, STEP):
        a = [_matrices(b, b.add(left_base, i32c((m * left.pitch + k) * 2)), 4, False) for m in down]
        parts: list[list[Any]] = []
        for first in range(0, len(across), 2):
            pair = min(2, len(across) - first)
            where = b.add(right_base, i32c((k * right.pitch + across[first]) * 2))
            found = _matrices(b, where, 2 * pair, True)
            parts += [found[2 * i : 2 * i + 2] for i in range(pair)]
        for i in range(len(down)):
            for j in range(len(across)):
                at = (i * len(across) + j) * 4
                sums[at : at + 4] = _mma(b, dtype, a[i], parts[j], sums[at : at + 4])
    return sums


def _row_vector(b: Any, stage: Stage, at: Any, count: int) -> list[Any]:
    """`count` neighbours from a byte offset in shared memory."""
    size = stage.dtype.bits // 8
    width = min(count, 16 // size)
    kind = ir.VectorType(register_type(stage.dtype), width)
    found: list[Any] = []
    for first in range(0, count, width):
        loaded = b.load(pointer(b, shared(b, b.add(at, i32c(first * size))), kind, SHARED))
        loaded.align = size * width
        found += [b.extract_element(loaded, i32c(i)) for i in range(width)]
    return found


def _by_outer_products(
    b: Any, acc: DTypeLike, accumulator: Layout, sums: list[Any], left: Stage, right: Stage
) -> list[Any]:
    """Add the staged product to `sums`: for each k, the outer product of a column and a row."""
    size = acc.bits // 8
    at = Coordinates(b, accumulator)
    width = accumulator.vector(1)
    height = len({each[0] for each in accumulator.offsets[: 1 << len(accumulator.register)]})
    down, across = _tiles(accumulator, 0), _tiles(accumulator, 1)
    rows = b.add(b.mul(at.thread_part(0), i32c(size)), i32c(left.offset))
    columns = b.add(b.mul(at.thread_part(1), i32c(size)), i32c(right.offset))
    depth = left.rows
    unroll = next(each for each in (8, 4, 2, 1) if depth % each == 0)

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
    left_at = b.add(rows, b.mul(k, i32c(left.pitch * size)))
    right_at = b.add(columns, b.mul(k, i32c(right.pitch * size)))
    for step in range(unroll):
        xs = [_row_vector(b, left, b.add(left_at, i32c((step * left.pitch + m) * size)), height) for m in down]
        ys = [_row_vector(b, right, b.add(right_at, i32c((step * right.pitch + n) * size)), width) for n in across]
        for i, x in enumerate(xs):
            for j, y in enumerate(ys):
                first = (i * len(across) + j) * height * width
                for r in range(height):
                    for c in range(width):
                        where = first + r * width + c
                        new[where] = _multiply_add(b, acc, x[r], y[c], new[where])
    following = b.add(k, i32c(unroll))
    k.add_incoming(following, b.block)
    for phi, each in zip(phis, new, strict=True):
        phi.add_incoming(each, b.block)
    b.cbranch(b.icmp_unsigned("<", following, i32c(depth)), body, done)
    b.position_at_end(done)
    return new


def _multiply_add(b: Any, dtype: DTypeLike, x: Any, y: Any, z: Any) -> Any:
    return fused(b, dtype, x, y, z) if dtype.kind == "float" else b.add(b.mul(x, y), z)


@cache
def mma(
    dtype: DTypeLike, acc: DTypeLike, a: Layout, b_layout: Layout, accumulator: Layout, offset: int, fence: bool
) -> Any:
    """`f(a, b, acc) = a @ b + acc`.

    Args:
        dtype: of a and b.
        acc: of the accumulator and the result.
        a: the layout of the left operand, M x K.
        b_layout: of the right operand, K x N.
        accumulator: of acc and the result: `mma_accumulator` or `outer_accumulator`, by `tensor_cores(dtype)`.
        offset: where in shared memory, in bytes.
        fence: whether an earlier use of that memory may still be under way.
    """
    depth = a.shape[1]
    left, right = stages(dtype, acc, accumulator, depth, offset)
    count = accumulator.registers

    def generate(b: Any, values: list[Any]) -> Any:
        if fence:
            barrier(b)
        _put(b, dtype, a, unpack(b, values[0], a.registers), left)
        _put(b, dtype, b_layout, unpack(b, values[1], b_layout.registers), right)
        if tensor_cores(dtype) and left.columns > depth:
            _clear(b, left, range(left.rows), range(depth, left.columns), accumulator.threads)
            _clear(b, right, range(depth, right.rows), range(right.columns), accumulator.threads)
        barrier(b)
        sums = [widen(b, acc, each) for each in unpack(b, values[2], count)]
        if tensor_cores(dtype):
            sums = _by_tensor_cores(b, dtype, accumulator, sums, left, right)
        else:
            sums = _by_outer_products(b, acc, accumulator, sums, left, right)
        return pack(b, [narrow(b, acc, each) for each in sums], count)

    operands = [frag(dtype, a.registers), frag(dtype, b_layout.registers), frag(acc, count)]
    return intrinsic("mma", frag(acc, count), operands, generate)


@cache
def staged_mma(dtype: DTypeLike, acc: DTypeLike, accumulator: Layout, depth: int, slots: int, offset: int) -> Any:
    """`f(acc, turn) = acc + a @ b`, with the operands in slot `turn % slots` of a ring in shared memory.

    Args:
        dtype: of the operands, which the tensor cores take.
        acc: of the accumulator and the result.
        accumulator: the layout of acc and the result, an `mma_accumulator`.
        depth: of the product; whole steps.
        slots: of the ring.
        offset: where the ring is in shared memory, in bytes.
    """
    left, right = stages(dtype, acc, accumulator, depth, offset)
    count = accumulator.registers

    def generate(b: Any, values: list[Any]) -> Any:
        shift = slot_shift(b, values[1], slots, left.bytes + right.bytes)
        sums = [widen(b, acc, each) for each in unpack(b, values[0], count)]
        sums = _by_tensor_cores(b, dtype, accumulator, sums, left, right, shift)
        return pack(b, [narrow(b, acc, each) for each in sums], count)

    return intrinsic("staged_mma", frag(acc, count), [frag(acc, count), frag(i32, 0)], generate)
