"""Products of few rows: multiplied as the transpose, with the operands exchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Dot, TileIndex, TmaLoad
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.dtypes import bf16, f8e4m3fn, f16, f32
from cutile.ir.core import Function
from cutile.ir.types import TensorType, Type
from cutile.ir.verify import verify
from kernels.gemm import gemm
from tests.backend.cuda.programs import compiled, gemm_program, instructions, lowered, shipped
from tests.backend.cuda.test_compile import assert_clean
from tests.support.programs import mut, tensor

TILES = ((1, 64), (8, 64), (16, 64), (16, 128), (20, 64), (32, 128), (48, 256), (96, 128))


def product(function: Function) -> Dot:
    """The one product by warp groups of a lowered kernel."""
    (found,) = (op for op in lowered(function).walk() if isinstance(op, Dot))
    return found


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_few_rows_are_the_columns_of_an_instruction(tile: tuple[int, int]) -> None:
    lowering = lowered(gemm_program(bf16, tile, 64))
    verify(lowering)
    (op,) = (op for op in lowering.walk() if isinstance(op, Dot))
    rows, columns = tile
    layout = layouts_of(lowering)[op.attributes["layout"]]
    assert layout.shape == (columns, rows)
    assert layout.cover == (columns, -(-rows // 8) * 8)
    held = {where for where, *_ in layout.elements()}
    assert len(held) == rows * columns
    # The left operand is y, as wide as the tile; the right one is x, as tall as whole instructions are wide.
    assert tuple(SmemLayout(*each.smem_layout) for each in buffer_types((op.left, op.right))) == (
        SmemLayout(columns, 64, 2, k_major=False),
        SmemLayout(64, layout.cover[1], 2, k_major=True),
    )


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_their_rings_neither_deadlock_nor_overwrite(tile: tuple[int, int], cluster: int) -> None:
    assert check_function(lowered(gemm_program(bf16, tile, 64), num_cta_in_cga=cluster)) > 10


def test_what_has_64_rows_keeps_its_operands() -> None:
    for tile in ((64, 64), (64, 128), (128, 64)):
        assert product(gemm_program(bf16, tile, 64)).shape == tile


def test_more_of_x_is_copied_than_the_tile_has_rows() -> None:
    lowering = lowered(gemm_program(f16, (1, 64), 128))
    maps = {name: TensorMap(*fields) for name, _, *fields in lowering.facts["tensor_maps"]}
    assert maps["x_map"].box == (8, 64)
    loads = {op.x.name: op for op in lowering.walk() if isinstance(op, TmaLoad)}
    (buffer,) = buffer_types([loads["x"].buffer])
    assert buffer.shape == (1, 128)  # tiles are counted as the kernel does


def test_the_blocks_of_a_cluster_share_the_few_rows() -> None:
    """Of 16 x 128, y is larger, but there is hardly another tile block that needs the same columns."""
    lowering = lowered(gemm_program(bf16, (16, 128), 64), num_cta_in_cga=2)
    loads = {op.x.name: op.attributes["cluster"] for op in lowering.walk() if isinstance(op, TmaLoad)}
    assert loads == {"y": 1, "x": 2}
    assert {op.along for op in lowering.walk() if isinstance(op, TileIndex)} == {1}


def turned(rows: int, columns: int) -> Function:
    """Both operands as transposed views."""
    x = TensorType(bf16, (None, None), (1, None), 16)
    return shipped(gemm, {"z": mut(rows, columns, dtype=bf16), "x": x, "y": x}, BK=64)


def eights(rows: int, columns: int) -> Function:
    """Operands of 8 bits, along K."""
    y = TensorType(f8e4m3fn, (None, None), (1, None), 16)
    types: dict[str, Type] = {"z": mut(rows, columns, dtype=bf16), "x": tensor(2, f8e4m3fn), "y": y}
    return shipped(gemm, types, BK=128)


@pytest.mark.parametrize(
    ("function", "instruction"),
    [
        (gemm_program(bf16, (1, 64), 128), "HGMMA."),
        (gemm_program(f16, (16, 64), 64), "HGMMA."),
        (gemm_program(bf16, (48, 256), 64), "HGMMA."),
        (turned(16, 128), "HGMMA."),
        (eights(16, 64), "QGMMA."),
    ],
    ids=("1 row", "16 rows", "48 rows", "transposed", "fp8"),
)
def test_they_are_compiled_to_what_is_meant(function: Function, instruction: str, tmp_path: Path) -> None:
    made = compiled(function)
    assert_clean(made)
    found = instructions(made, tmp_path)
    assert any(each.startswith(instruction) for each in found), sorted(found)


def test_results_of_32_bits_are_stored_too() -> None:
    function = shipped(gemm, {"z": mut(16, 64, dtype=f32), "x": tensor(2, bf16), "y": tensor(2, bf16)}, BK=64)
    assert_clean(compiled(function))
