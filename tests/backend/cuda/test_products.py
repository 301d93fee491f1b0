"""The library's products on Hopper, with the tiles that its model picks: the instructions that are meant, no spills."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutile.dtypes import bf16
from cutile.ir.core import Function
from cutile.ir.types import Type
from kernels.gemm_fused import gemm_fused
from kernels.gemm_model import HOPPER, best
from kernels.gemm_variants import gemm_stacked
from tests.backend.cuda.programs import compiled, gemm_program, instructions, shipped
from tests.backend.cuda.test_compile import assert_clean
from tests.support.programs import mut, tensor

SIZES = ((512, 512, 512), (1024, 1024, 1024), (8192, 8192, 8192), (16, 8192, 8192), (128, 8192, 8192))
TILES = sorted({(found.rows, found.columns) for found in (best(*size, HOPPER, 132) for size in SIZES)})


def fused(rows: int, columns: int) -> Function:
    """With everything that may follow."""
    x, row = tensor(2, bf16), tensor(1, bf16)
    types: dict[str, Type] = {"z": mut(rows, columns, dtype=bf16), "x": x, "y": x, "bias": row, "residual": x}
    return shipped(gemm_fused, types, BK=64, BIAS=1, RESIDUAL=1, ACTIVATION=2)


def stacked(rows: int, columns: int) -> Function:
    """In batches."""
    x = tensor(2, bf16)
    return shipped(gemm_stacked, {"z": mut(rows, columns, dtype=bf16), "x": x, "y": x}, BK=64, TALL=8)


HALVED = ((8192, 8192, 512), (8192, 8192, 8192))
"""Products whose tile blocks go to halves of thread blocks."""

PRODUCTS = {
    **{f"{rows}x{columns}": gemm_program(bf16, (rows, columns), 64) for rows, columns in TILES},
    "fused": fused(128, 256),
    "stacked": stacked(128, 256),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_made_of_what_is_fast_there(name: str, tmp_path: Path) -> None:
    made = compiled(PRODUCTS[name], "sm_90a")
    assert_clean(made)
    assert made.facts["persistent"] >= 1
    found = instructions(made, tmp_path)
    rows = int(name.split("x")[0]) if "x" in name else 64
    for meant in ("HGMMA.", "UTMALDG.2D", "UTMASTG.2D" if rows % 64 == 0 else "STG"):  # few rows are stored by threads
        assert any(each.startswith(meant) for each in found), meant
    assert not any(each.startswith(("HMMA", "LDSM", "LDL", "STL")) for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("size", HALVED, ids=str)
@pytest.mark.parametrize("kind", ["plain", "stacked"])
def test_halves_of_thread_blocks_have_tile_blocks_of_their_own(
    size: tuple[int, int, int], kind: str, tmp_path: Path
) -> None:
    found = best(*size, HOPPER, 132, halves=True)
    assert found.halved
    assert found.options is not None
    tile = (found.rows, found.columns)
    function = stacked(*tile) if kind == "stacked" else gemm_program(bf16, tile, found.depth)
    made = compiled(function, "sm_90a", num_worker_warps=found.options.num_worker_warps)
    assert_clean(made)
    names = instructions(made, tmp_path)
    for meant in ("HGMMA.", "UTMALDG.2D", "UTMASTG.2D"):
        assert any(each.startswith(meant) for each in names), meant


@pytest.mark.slow
def test_products_that_share_columns_or_divide_their_steps_are_clean() -> None:
    for size in ((128, 8192, 8192), (16, 1024, 8192), (512, 512, 8192)):
        found = best(*size, HOPPER, 132)
        options = found.options
        assert options is not None
        function = gemm_program(bf16, (found.rows, found.columns), found.depth)
        assert_clean(compiled(function, num_cta_in_cga=options.num_cta_in_cga, num_pieces=options.num_pieces))
