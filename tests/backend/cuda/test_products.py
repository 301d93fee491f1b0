"""Products of which the library launches none by itself: of batches in halves of thread blocks, and of vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutile.dtypes import DTypeLike, bf16, f16, f32, i8, i32
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
