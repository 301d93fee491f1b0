"""Products of which the library launches none by itself: of batches in halves of thread blocks, and of vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutile.backend.interface import Target
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f16, f32, f64, i8, i32, tf32
from cutile.ir.core import Function
from cutile.ir.types import Type
from kernels.gemm_fused import gemm_fused
from kernels.gemm_model import HOPPER, best
from kernels.gemm_variants import gemm_stacked
from tests.backend.cuda.programs import compiled, instructions, shipped, source, written
from tests.backend.cuda.test_compile import assert_clean
from tests.support.programs import mut, tensor


def fused(rows: int, columns: int) -> Function:
    """With everything that may follow."""
    x, row = tensor(2, bf16), tensor(1, bf16)
    types: dict[str, Type] = {"z": mut(rows, columns, dtype=bf16), "x": x, "y": x, "bias": row, "residual": x}
    return shipped(gemm_fused, types, BK=64, BIAS=1, RESIDUAL=1, ACTIVATION=2)


def stacked(rows: int, columns: int) -> Function:
    """In batches."""
    x = tensor(2, bf16)
    return shipped(gemm_stacked, {"z": mut(rows, columns, dtype=bf16), "x": x, "y": x}, BK=64, TALL=8)


@pytest.mark.slow
def test_halves_of_thread_blocks_have_tile_blocks_of_their_own(tmp_path: Path) -> None:
    plan = best(8192, 8192, 512, HOPPER, 132, halves=True)
    assert plan.halved
    assert plan.options is not None
    tile = (plan.rows, plan.columns)
    made = compiled(stacked(*tile), "sm_90a", num_worker_warps=plan.options.num_worker_warps)
    assert_clean(made)
    names = instructions(made, tmp_path)
    for meant in ("HGMMA.", "UTMALDG.2D", "UTMASTG.2D"):
        assert any(each.startswith(meant) for each in names), meant


VECTORS = """
def k(y: Mut, w: Mut, x: Tensor, v: Tensor):
    i = ct.get_tile_block_id()[0]
    px, pv = x.partition((64, 64)), v.partition((64,))
    column, row = ct.constant(0, (64,), {acc}), ct.constant(0, (64,), {acc})
    for k in range(ct.num_tiles(pv, 0)):
        column += (px.load((i, k)) @ pv.load((k,))).astype({acc})
        row += (pv.load((k,)) @ px.load((k, i))).astype({acc})
    y.store(column)
    w.store(row)
"""


@pytest.mark.parametrize(("dtype", "acc"), [(f16, f32), (i8, i32)], ids=str)
def test_vectors_are_factors(dtype: DTypeLike, acc: DTypeLike) -> None:
    """A vector is no matrix that TMA could bring: it is reshaped to one in the kernel."""
    parameters = {"y": mut(64, dtype=acc), "w": mut(64, dtype=acc), "x": tensor(2, dtype), "v": tensor(1, dtype)}
    program = written(VECTORS.format(acc=f"ct.{acc.name}"), parameters)
    assert source(program).text.count("store_y(") == 2


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("dtype", "acc"),
    [(f16, f32), (bf16, f32), (tf32, f32), (f32, f32), (f64, f64), (i8, i32), (f8e4m3fn, f32)],
    ids=str,
)
def test_plans_of_any_depth(dtype: DTypeLike, acc: DTypeLike, arch: str) -> None:
    """The depth of a tile need be no whole number of an instruction's steps."""
    for depth in (1, 3, 4, 7, 12, 16, 33):
        text = f"""
def k(z: Mut, x: Tensor, y: Tensor):
    z.store(ct.mma(x.load_tile((5, {depth}), (0, 0)), y.load_tile(({depth}, 3), (0, 0)), z.load()))
"""
        x = tensor(2, dtype)
        made = source(written(text, {"z": mut(5, 3, dtype=acc), "x": x, "y": x}), Target("cuda", arch))
        assert f" -> {acc}" in str(made.facts["plan"]) or dtype is f32, depth
