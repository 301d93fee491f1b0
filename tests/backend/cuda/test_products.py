"""Products of which the library launches none by itself: batches whose tile blocks go to halves of thread blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutile.dtypes import bf16
from cutile.ir.core import Function
from cutile.ir.types import Type
from kernels.gemm_fused import gemm_fused
from kernels.gemm_model import HOPPER, best
from kernels.gemm_variants import gemm_stacked
from tests.backend.cuda.programs import compiled, instructions, shipped
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
    found = best(8192, 8192, 512, HOPPER, 132, halves=True)
    assert found.halved
    assert found.options is not None
    tile = (found.rows, found.columns)
    made = compiled(stacked(*tile), "sm_90a", num_worker_warps=found.options.num_worker_warps)
    assert_clean(made)
    names = instructions(made, tmp_path)
    for meant in ("HGMMA.", "UTMALDG.2D", "UTMASTG.2D"):
        assert any(each.startswith(meant) for each in names), meant
