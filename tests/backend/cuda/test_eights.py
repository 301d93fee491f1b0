"""Products of 8 bits and of tf32 by warp groups: which instructions, and what becomes of sums that lack bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.loops.scaled import scaled
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Dot, Roles, TileIndex, TmaStore
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f8e5m2, f32, i8, i32, u8
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Function
from cutile.ir.types import Type
from cutile.ops.compare import Lt
from kernels.gemm_choice import Lie, choose
from kernels.gemm_fused import gemm_fused
from tests.backend.cuda.chosen import described
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import compiled, instructions, lowered, shipped, source, tensor_maps, written
from tests.backend.cuda.test_specialise import GEMM, column_major, refusal, types
from tests.support.programs import mut, tensor


def eights(x: DTypeLike, y: DTypeLike, sums: str, columns: int = 256) -> Function:
    """A product of 8-bit operands, both contiguous along K."""
    text = GEMM.replace("64)", "128)").replace("(64,", "(128,").replace("ct.f32", f"ct.{sums}")
    turned: dict[str, Type] = {"x": tensor(2, x), "y": column_major(y)}
    return written(text, types(**turned, z=mut(128, columns, dtype=i32 if sums == "i32" else bf16)))


@pytest.mark.parametrize(
    ("x", "y", "instruction"),
    [(f8e5m2, f8e4m3fn, "QGMMA.64"), (i8, u8, "IGMMA.64")],
    ids=str,
)
def test_operands_of_8_bits_may_differ(x: DTypeLike, y: DTypeLike, instruction: str, tmp_path: Path) -> None:
    function = eights(x, y, "i32" if x is i8 else "f32")
    made = lowered(function)
    assert check_function(made) > 10
    (product,) = (op for op in made.walk() if isinstance(op, Dot))
    assert product.promote_columns == (
        0 if x is i8 else 128
    )  # sums of fp8 go to f32 on the way, half of the columns at a time
    built = compiled(function)
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    assert any(each.startswith(instruction) for each in instructions(built, tmp_path))


def test_sums_of_8_bit_floats_go_to_f32_every_few_steps(tmp_path: Path) -> None:
    function = eights(f8e4m3fn, f8e4m3fn, "f32", 192)
    lowering = lowered(function)
    assert check_function(lowering) > 10
    (product,) = (op for op in lowering.walk() if isinstance(op, Dot))
    loops = [op for op in lowering.walk() if isinstance(op, For)]
    (turns,) = (each for each in loops if product in each.body.operations)
    (steps,) = (each for each in loops if turns in each.body.operations)
    assert product.replaces
    step = next(op for op in lowering.walk() if op.results and op.results[0] is steps.step)
    assert isinstance(step, Constant)
    assert step.value == 4  # the sums of so many K steps are added in f32 together
    built = compiled(function)
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    found = instructions(built, tmp_path)
    assert found["FADD"] == 96


@pytest.mark.parametrize("columns", [192, 256])
def test_fast_sums_of_8_bit_floats_are_left_to_the_tensor_cores(columns: int, tmp_path: Path) -> None:
    x, y, z = tensor(2, f8e4m3fn), column_major(f8e4m3fn), mut(128, columns, dtype=bf16)
    given: dict[str, Type] = {"z": z, "x": x, "y": y, "bias": tensor(1, bf16), "residual": tensor(2, bf16)}
    function = shipped(gemm_fused, given, BK=128, BIAS=0, RESIDUAL=0, FAST_ACC=1)
    made = lowered(function)
    assert check_function(made) > 10
    (product,) = (op for op in made.walk() if isinstance(op, Dot))
    assert product.promote_columns == 0
    built = compiled(function)
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    found = instructions(built, tmp_path)
    assert any(each.startswith("QGMMA.64") for each in found)
    assert "FADD" not in found


def test_tf32_is_rounded_on_the_way_in(tmp_path: Path) -> None:
    text = GEMM.replace("mma(a, b,", "mma(ct.convert_tile(a, ct.tf32), ct.convert_tile(b, ct.tf32),")
    text = text.replace("64)", "32)").replace("(64,", "(32,")
    parameters = types((128, 256), x=tensor(2, f32), y=column_major(f32), z=mut(128, 256))
    made = source(written(text, parameters))
    assert [tensor_map.rounded for tensor_map in tensor_maps(made)] == [True, True]
    built = compiled(written(text, parameters))
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    assert any(each.startswith("HGMMA.64") for each in instructions(built, tmp_path))
    assert "lies across K" in refusal(written(text, parameters | {"x": column_major(f32), "y": tensor(2, f32)}))


def test_bytes_are_multiplied_by_warp_groups(tmp_path: Path) -> None:
    text = GEMM.replace("64)", "128)").replace("(64,", "(128,").replace("ct.f32", "ct.i32")
    turned: dict[str, Type] = {"x": tensor(2, i8), "y": column_major(i8), "z": mut(128, 256, dtype=i32)}
    function = written(text, types(**turned))
    built = compiled(function)
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    assert any(each.startswith("IGMMA.64") for each in instructions(built, tmp_path))
    across = written(text, types(**turned | {"x": column_major(i8), "y": tensor(2, i8)}))
    why = f"the right operand, of {i8}, lies across K, and cannot change places with the left one"
    assert refusal(across) == why
    odd = written(text, types(**turned | {"z": mut(128, 200, dtype=i32)}))
    assert "200 columns: a multiple of 16 up to 256 is wanted" in refusal(odd)


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_clusters_go_through_as_many_rows_of_tiles_together(cluster: int) -> None:
    made = lowered(eights(f8e4m3fn, f8e4m3fn, "f32", 192), num_cta_in_cga=cluster)
    assert made.facts["cluster"] == cluster
    rows = {op.group * cluster for op in made.walk() if isinstance(op, TileIndex)}
    assert all(abs(each - 14) <= cluster / 2 for each in rows)
    if cluster == 2:
        built = compiled(eights(f8e4m3fn, f8e4m3fn, "f32", 192), num_cta_in_cga=cluster)
        assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log


def test_large_products_of_8_bit_floats_share_columns() -> None:
    lies: tuple[Lie, ...] = ("along", "right across")
    for size, many in ((8192, True), (4096, False)):
        for lie in lies:
            found = choose(size, size, size, f8e4m3fn, described("sm_90a"), lie=lie)
            assert found.cluster == (2 if many and lie == "along" else 1)


def scales_of_blocks() -> Function:
    operand, scale = tensor(2, f8e4m3fn), tensor(2, f32)
    given: dict[str, Type] = {"z": mut(128, 256, dtype=bf16), "x": operand, "w": operand}
    return shipped(scaled, {**given, "of_x": scale, "of_w": scale})


def test_a_tile_of_two_blocks_with_scales_is_made_one_behind_the_other() -> None:
    """By NumPy, with edges of rows and columns; the second block's sums take the registers of the first one's."""
    function = lowered(scales_of_blocks())
    assert check_function(function) > 10
    assert check_layouts(function) > 3
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    first, second = (op for op in roles.consumer.walk() if isinstance(op, Dot))
    assert (first.fresh, first.replaces, second.fresh, second.replaces) == (True, False, False, True)
    _, added = second.sums
    (never,) = (op for op in roles.consumer.walk() if added in op.results)
    assert isinstance(never, Lt)  # no counter is less than 0
    assert any(isinstance(op, TmaStore) for op in roles.consumer.walk())  # both halves as one tile, without a move
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((extent, 384)).astype(f8e4m3fn.numpy) for extent in (136, 384))
    of_x, of_w = ((random.random((3, extent)) + 0.5).astype(np.float32) for extent in (136, 3))  # of_w[j, k]
    z = np.full((136, 384), np.nan, bf16.numpy)
    execute(function, [z, x, w, of_x, of_w], (2, 2, 1), blocks=2, seed=0)
    left = x.astype(np.float64) * np.repeat(of_x.T, 128, axis=1)
    right = w.astype(np.float64) * np.repeat(np.repeat(of_w, 128, axis=0), 128, axis=1)
    wanted = left @ right.T
    assert np.linalg.norm(z.astype(np.float64) - wanted) / np.linalg.norm(wanted) < 4e-3


@pytest.mark.slow
def test_two_blocks_with_scales_fit_in_registers(tmp_path: Path) -> None:
    built = compiled(scales_of_blocks())
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    assert instructions(built, tmp_path)["QGMMA.64"] == 8


CHAIN = """
def kernel(z: Mut, x: Tensor, y: Tensor, w: Tensor):
    i, _, _ = ct.get_tile_block_id()
    rows = ct.load_tile(x, (128, 128), (i, 0))
    acc = ct.constant(0, (128, 64), ct.i32)
    for j in range(ct.ceil_div(y.shape[0], 96)):
        right = ct.load_tile(y, (96, 128), (j, 0))
        sums = ct.mma(rows, right.transpose(), ct.constant(0, (128, 96), ct.i32))
        columns = ct.iota((96,)).reshape((1, 96)) + j * 96
        sums = ct.select(ct.broadcast(columns % 5 < 3, (128, 96)), sums, 0)
        left = ct.min_tile(ct.max_tile(sums, ct.constant(-99, (128, 96), ct.i32)), ct.constant(99, (128, 96), ct.i32))
        acc = ct.mma(left.astype(ct.i8), ct.load_tile(w, (64, 96), (0, j)).transpose(), acc)
    z.store(acc)
"""
"""Columns are counted, so that each thread has to know which it has."""


def chained(text: str) -> Function:
    operand = tensor(2, i8)
    return written(text, {"z": mut(128, 64, dtype=i32), "x": operand, "y": operand, "w": operand})


def test_sums_that_become_a_left_operand_of_8_bits_lie_as_it_does(tmp_path: Path) -> None:
    """Rows of the product's right operand change places, and nothing moves between lanes."""
    function = lowered(chained(CHAIN))
    assert check_function(function) > 10
    assert check_layouts(function) > 3
    maps = {name: TensorMap(*fields) for name, _, *fields in function.facts["tensor_maps"]}
    assert {name: (form.step, form.box) for name, form in maps.items()} == {
        "x_map": (1, (128, 128)),
        "y_map": (2, (96, 128)),  # the even rows, or the odd ones
        "w_map": (1, (64, 32)),
    }
    layouts = layouts_of(function)
    for op in (op for op in function.walk() if isinstance(op, Dot)):
        neighbours = 2 if op.from_registers else 4
        assert layouts[op.attributes["layout"]] == group_accumulator((op.shape[0], op.shape[1]), 2, neighbours)
    random = np.random.default_rng(0)
    x, y, w = (random.integers(-4, 5, shape).astype(np.int8) for shape in ((200, 128), (250, 128), (64, 256)))
    z = np.full((200, 64), -1, np.int32)
    execute(function, [z, x, y, w[:, :250]], (2, 1, 1), blocks=2, seed=0)
    sums = np.where(np.arange(250) % 5 < 3, x.astype(np.int32) @ y.T.astype(np.int32), 0)
    np.testing.assert_array_equal(z, sums.clip(-99, 99) @ w[:, :250].T.astype(np.int32))
    built = compiled(chained(CHAIN))
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    assert instructions(built, tmp_path)["SHFL.IDX"] < 4  # none but those that tell all lanes what one knows


def test_rows_that_somebody_else_reads_stay_in_their_places(tmp_path: Path) -> None:
    more = "acc = acc + ct.reduce_max(right.astype(ct.i32))\n        "
    function = chained(CHAIN.replace("acc = ct.mma(", f"{more}acc = ct.mma("))
    assert {TensorMap(*fields).step for _, _, *fields in lowered(function).facts["tensor_maps"]} == {1}
    assert instructions(compiled(function), tmp_path)["SHFL.IDX"] >= 12  # one for each word of a thread


def test_a_left_operand_of_8_bits_that_is_made_of_a_load_is_read_as_it_lies(tmp_path: Path) -> None:
    text = GEMM.replace("mma(a, b,", "mma(ct.convert_tile(a, ct.i8), b,").replace("ct.f32", "ct.i32")
    text = text.replace("64)", "128)").replace("(64,", "(128,")
    parameters = types(x=tensor(2, bf16), y=column_major(i8), z=mut(128, 256, dtype=i32))
    function = lowered(written(text, parameters))
    assert check_layouts(function) > 1
    assert any(op.name == "cuda.pack_quads" for op in function.walk())
    assert instructions(compiled(written(text, parameters)), tmp_path)["SHFL.IDX"] < 4
