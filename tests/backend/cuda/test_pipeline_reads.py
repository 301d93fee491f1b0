"""Stages that threads read, beside products and alone: the right elements, and no early release."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cutile import bf16
from cutile.backend.cuda.intrinsics import buffer, tma
from cutile.backend.cuda.intrinsics.llvm import I32
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import Dot, DotWait, Pipeline, PipelineRelease, PipelineWait, ReadBuffer, Roles
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.gpu.layout import Layout, blocked
from cutile.dtypes import DTypeLike, f16, f32, i8, u16
from cutile.ir.control import For
from cutile.ir.core import Block, Function, Op
from cutile.ir.types import Type
from cutile.ir.verify import verify
from cutile.ops.memory import LoadTile
from tests.backend.cuda.emulated import Array, Emulated, Vector, collect
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import compiled, instructions, lowered, written
from tests.support.programs import mut, tensor

NORM = """
def norm(z: Mut, x: Tensor, y: Tensor):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc, squares = ct.constant(0, (BM, BN), f32), ct.constant(0, (BM, 1), f32)
    for k in range(ct.num_tiles(x.partition((BM, 64)), 1)):
        left = ct.load_tile(x, (BM, 64), (i, k))
        wide = ct.convert_tile(left, f32)
        squares = squares + ct.reduce_sum(wide * wide, 1).reshape((BM, 1))
        acc = ct.mma(left, ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc * ct.rsqrt(squares), z.dtype))
"""
WEIGHTED = """
def weighted(z: Mut, x: Tensor, y: Tensor, scale: Tensor):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(x.partition((BM, 64)), 1)):
        right = ct.load_tile(y, (64, BN), (k, j))
        part = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), right, ct.constant(0, z.shape, f32))
        acc = acc + part * ct.load_tile(scale, (1, BM), (k, i)).reshape((BM, 1))
    z.store(ct.convert_tile(acc, z.dtype))
"""
PROLOGUE = """
def prologue(z: Mut, x: Tensor, y: Tensor, scale: Tensor):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(x.partition((BM, 64)), 1)):
        left = ct.convert_tile(ct.load_tile(x, (BM, 64), (i, k)), f32) * ct.load_tile(scale, (1, 64), (0, k))
        acc = ct.mma(ct.convert_tile(left, bf16), ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
BATCHED = """
def batched(z: Mut, x: Tensor, y: Tensor):
    _, BM, BN = z.shape
    b, i, j = ct.get_tile_block_id()
    acc, total = ct.constant(0, (BM, BN), f32), ct.constant(0, (BM, 1), f32)
    for k in range(ct.num_tiles(x.partition((1, BM, 64)), 2)):
        left = ct.load_tile(x, (1, BM, 64), (b, i, k)).reshape((BM, 64))
        total = total + ct.reduce_sum(ct.convert_tile(left, f32), 1).reshape((BM, 1))
        acc = ct.mma(left, ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc + total, z.dtype).reshape(z.shape))
"""


def program(text: str, columns: int = 128, rows: int = 128) -> Function:
    operand = tensor(2, bf16)
    z, x = mut(rows, columns, dtype=bf16), operand
    if text is BATCHED:
        z, x = mut(1, 128, columns, dtype=bf16), tensor(3, bf16)
    given: dict[str, Type] = {"z": z, "x": x, "y": operand}
    return written(text, {**given, **({"scale": tensor(2, f32)} if "scale: Tensor" in text else {})})


PROGRAMS = {"rows that are summed up": NORM, "scales": WEIGHTED, "a prologue": PROLOGUE, "a batch": BATCHED}


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_read_what_tma_brings(name: str) -> None:
    function = lowered(program(PROGRAMS[name]))
    verify(function)
    assert [step for step, _ in function.facts["refused"]] == ["specialised warps"]
    assert check_function(function) > 10
    assert check_layouts(function) > 3
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    assert any(isinstance(op, ReadBuffer) for op in roles.consumer.walk())
    assert not any(isinstance(op, LoadTile) for op in roles.consumer.walk())
    read = {op.buffer for op in function.walk() if isinstance(op, ReadBuffer)}
    for op in function.walk():
        if isinstance(op, Pipeline):
            assert op.arrivals == (8 if read.intersection(op.buffers) else 2)


def test_sums_of_rows_leave_products_under_way() -> None:
    """What threads read and add up does not touch the product's sums: it is waited for in the next iteration."""
    (roles,) = (op for op in lowered(program(NORM, 256)).walk() if isinstance(op, Roles))
    inner = [op for op in roles.consumer.walk() if isinstance(op, For)][-1]
    assert sum(isinstance(op, Dot) for op in inner.body.operations) == 1
    assert all(op.goes_on for op in inner.body.operations if isinstance(op, DotWait))


def buffers(text: str) -> list[list[str]]:
    """The buffers of each pipeline."""
    pipelines = [op for op in lowered(program(text)).walk() if isinstance(op, Pipeline)]
    return sorted(sorted(buffer.name for buffer in op.buffers) for op in pipelines)


BY_NUMBERS = WEIGHTED.replace("(1, BM), (k, i)).reshape((BM, 1))", "(1, 1), (i, k))")


@pytest.mark.parametrize("text", [WEIGHTED, BY_NUMBERS], ids=["tiles", "numbers"])
def test_what_sums_are_combined_with_arrives_with_the_operands(text: str) -> None:
    assert buffers(text) == [["scale_buffer", "x_buffer", "y_buffer"]]


def test_what_three_warpgroups_combine_sums_with_arrives_with_the_operands() -> None:
    """A row of 192 scales is no power of two: a thread reads past its end, which is still within the stage."""
    function = lowered(program(WEIGHTED, rows=192))
    assert check_function(function) > 10
    assert check_layouts(function) > 3
    (pipeline,) = (op for op in function.walk() if isinstance(op, Pipeline))
    assert pipeline.arrivals == 12
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((extent, 320)).astype(bf16.numpy) for extent in (200, 136))
    y = np.ascontiguousarray(y.T)
    scale, z = (random.random((5, 200)) + 0.5).astype(np.float32), np.full((200, 136), np.nan, bf16.numpy)
    execute(function, [z, x, y, scale], (2, 2, 1), blocks=2, seed=0)
    wanted = (x.astype(np.float64) * np.repeat(scale.T, 64, axis=1)) @ y.astype(np.float64)
    assert np.linalg.norm(z.astype(np.float64) - wanted) < 4e-3 * np.linalg.norm(wanted)


def test_what_an_operand_is_computed_from_arrives_by_itself() -> None:
    assert buffers(PROLOGUE) == [["scale_buffer", "x_buffer"], ["y_buffer"]]


DECIDES = {
    "an index": "right = ct.load_tile(y, (64, BN), (k + number.reshape(()).astype(ct.i32), j))",
    "a branch": "if number.reshape(()) > 1.0:\n            acc = acc * 2.0",
    "an assertion": "assert number.reshape(()) > 0.0",
    "the next iteration": "number, before = before, number",
}


@pytest.mark.parametrize("how", DECIDES)
def test_a_number_that_more_than_sums_need_is_in_no_stage(how: str) -> None:
    number = f"        number = ct.load_tile(scale, (1, 1), (i, k))\n        {DECIDES[how]}\n"
    text = BY_NUMBERS.replace("ct.load_tile(scale, (1, 1), (i, k))", "number")
    text = text.replace("        part", f"{number}        part")
    text = text.replace("    for", "    before = ct.constant(1, (1, 1), f32)\n    for") if "before" in number else text
    (roles,) = (op for op in lowered(program(text)).walk() if isinstance(op, Roles))
    assert [op.x.name for op in roles.consumer.walk() if isinstance(op, LoadTile)] == ["scale"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_spills_and_nothing_is_serialised(name: str, tmp_path: Any) -> None:
    built = compiled(program(PROGRAMS[name]))
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    assert any(each.startswith("HGMMA") for each in instructions(built, tmp_path))


# What the model must find.


def _blocks(block: Block) -> list[Block]:
    return [block, *(one for op in block.operations for nested in op.regions for one in _blocks(nested))]


def read_without_a_wait(block: Block) -> None:
    reads = [op for op in block.operations if isinstance(op, ReadBuffer)]
    waits = [op for op in block.operations if isinstance(op, PipelineWait)]
    if reads and waits:
        block.operations.remove(waits[-1])


def given_up_before_it_is_read(block: Block) -> None:
    """The release of a stage that only threads read, moved ahead of the read."""
    for place, op in enumerate(block.operations):
        later = block.operations[place + 1 :]
        if isinstance(op, ReadBuffer) and later and isinstance(later[0], Op):
            counters = [each for each in later if isinstance(each, PipelineRelease) and each.counter is op.counter]
            if counters:
                block.operations.remove(counters[0])
                block.operations.insert(place, counters[0])
                return


@pytest.mark.parametrize("fault", [read_without_a_wait, given_up_before_it_is_read], ids=lambda each: each.__name__)
def test_a_stage_read_too_early_or_too_late_is_found(fault: Callable[[Block], None]) -> None:
    function = lowered(program(WEIGHTED))
    check_function(function)
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    for block in _blocks(roles.consumer):
        fault(block)
    with pytest.raises(ProtocolError):
        check_function(function)


# The intrinsic: every element in its place, whatever the layout.


class _Memory(Emulated):
    """Adds loads from shared memory by inline PTX."""

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        access = re.search(r"ld\.shared\.(?:v(\d)\.)?[ub](8|16|32) .*\+(\d+)\]", str(function))
        if access is None:
            return super().call(function, operands, attrs)
        count, size, beyond = int(access[1] or 1), int(access[2]) // 8, int(access[3])
        at = operands[0].data.astype(np.int64)[:, None] + beyond
        assert not (at % (size * count)).any(), "an access is not aligned"
        raw = np.ascontiguousarray(self.memory[at + np.arange(size * count)]).view(f"u{size}")
        if count == 1:
            return Vector(I32, raw[:, 0].astype(np.uint32))
        return Vector(None, [Vector(I32, raw[:, i].copy()) for i in range(count)])


def put(memory: Array, tile: Array, smem_layout: SmemLayout, axis: int, place: int) -> None:
    """Write a tile as TMA does: panel by panel, pieces of a row permuted by the row's number."""
    rows = np.ascontiguousarray(np.moveaxis(tile, axis, -1)).reshape(-1, tile.shape[axis]).view(np.uint8)
    line = smem_layout.span * smem_layout.size
    for panel in range(smem_layout.count):
        for row in range(smem_layout.length):
            data = rows[row, panel * line : (panel + 1) * line]
            where = panel * smem_layout.panel_bytes + row * line
            for piece in range(line // 16):
                # rows of 128 bytes: the row in the period of 1024; narrower ones share 128 bytes
                at = where // 16 + piece
                moved = at ^ (at // 8 % (smem_layout.swizzle // 16)) if smem_layout.swizzle else at
                memory[place + moved * 16 : place + moved * 16 + 16] = data[piece * 16 : piece * 16 + 16]


ROWS = group_accumulator((128, 64), 2)
PREPACKED = Layout(
    (128, 64), ((0, 1), (8, 0), (0, 2), (0, 4)), ((0, 8), (0, 16), *ROWS.lane[2:]), ROWS.warp, repeat=((1, 2),)
)
"""Eight neighbours to a thread, in registers that lie apart (`kernels/prepacked.py`)."""


@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "layout"),
    [
        (bf16, (128, 64), 1, group_accumulator((128, 64), 2)),
        (bf16, (64, 128), 1, group_accumulator((64, 128), 1)),
        (f16, (128, 32), 1, group_accumulator((128, 32), 2)),
        (f16, (64, 16), 1, group_accumulator((64, 16), 1)),
        (i8, (64, 128), 1, group_accumulator((128, 64), 2).permute((1, 0))),
        (i8, (128, 64), 1, group_accumulator((128, 64), 2)),
        (bf16, (64, 128), 0, group_accumulator((64, 128), 1)),
        (bf16, (64, 128), 1, blocked((64, 128), 8, 8)),
        (f32, (1, 128), 1, group_accumulator((128, 64), 2).collapse(1).permute((1, 0))),
        (f32, (1, 192), 1, group_accumulator((192, 64), 3).collapse(1).permute((1, 0))),
        (f32, (128,), 0, group_accumulator((128, 64), 2).collapse(1).drop(1)),
        (bf16, (1, 2, 64, 64), 3, blocked((1, 2, 64, 64), 8, 4)),
        (u16, (128, 64), 1, PREPACKED),
    ],
    ids=str,
)
def test_threads_find_every_element(dtype: DTypeLike, shape: tuple[int, ...], axis: int, layout: Layout) -> None:
    width = shape[axis]
    smem_layout = SmemLayout(width, int(np.prod(shape)) // width, dtype.bits // 8, k_major=True)
    tile = np.random.default_rng(0).integers(0, 256, (*shape, dtype.bits // 8), np.uint8).view(dtype.numpy)[..., 0]
    if dtype is not i8:
        tile = np.arange(tile.size, dtype=np.float32).reshape(shape).astype(dtype.numpy)
    builder = _Memory(layout.threads)
    put(builder.memory, tile, smem_layout, axis, 2048 + smem_layout.place_bytes)
    read = buffer.read(dtype, layout, smem_layout, axis, stages=2, stage_bytes=smem_layout.place_bytes, place=2048)
    counter = Vector(I32, np.full(layout.threads, 3, np.uint32))  # stage 1
    found = collect(read.generate(builder, [counter]), layout, dtype)
    np.testing.assert_array_equal(found, tile)


class _Boxes(Emulated):
    """Records where boxes of a tensor begin, the innermost axis first."""

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        if "cp.async.bulk.tensor" not in str(function):
            return super().call(function, operands, attrs)
        self.begins = [int(each.data.view(np.int32)[0]) for each in operands[2:-1]]
        return None


@pytest.mark.parametrize("dtype", [f32, bf16, i8], ids=str)
@pytest.mark.parametrize("index", [0, 5, 43, -1])
def test_a_number_is_found_among_those_that_come_with_it(dtype: DTypeLike, index: int) -> None:
    """TMA begins at a multiple of 16 bytes of a row, so that a group comes with a single element."""
    size = dtype.bits // 8
    layout, smem_layout = blocked((1, 1), 1, 1), SmemLayout(32 // size, 1, size, k_major=True)
    row = np.arange(smem_layout.width, dtype=np.float32).astype(dtype.numpy)
    at = Vector(I32, np.full(layout.threads, index, np.int32).view(np.uint32))
    counter = Vector(I32, np.full(layout.threads, 3, np.uint32))  # stage 1
    boxes = _Boxes(layout.threads)
    where = {"stages": 2, "stage_bytes": smem_layout.place_bytes, "place": 2048}
    tma.load(smem_layout, (1, 1), 1, offset=0, cluster=1, **where).generate(boxes, [at, at, at, counter])
    begin, line = boxes.begins
    assert (begin * size % 16, line) == (0, index)
    memory = _Memory(layout.threads)
    put(memory.memory, row[None], smem_layout, 1, 2048 + smem_layout.place_bytes)
    read = buffer.read(dtype, layout, smem_layout, 1, number=True, **where)
    found = collect(read.generate(memory, [counter, at]), layout, dtype)
    assert found[0, 0] == row[index - begin]
