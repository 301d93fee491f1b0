"""Tiles loaded beside an accumulator in wide accesses, and exchanged among four lanes: the right elements meet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics import quads
from cutile.backend.cuda.mma_layouts import group_accumulator, mma_accumulator
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.ops import ConvertLayout
from cutile.backend.cuda.pipeline.accumulators import pingpong_accumulator, vector_load_layout
from cutile.backend.cuda.pipeline.epilogue import Epilogue
from cutile.backend.gpu.layout import Layout, blocked
from cutile.dtypes import DTypeLike, bf16, f16, f32
from cutile.errors import IRError
from cutile.ir.core import Function, Value
from cutile.ir.types import Type
from tests.backend.cuda.chosen import Kind, described, faults, machine_code
from tests.backend.cuda.emulated import Emulated, collect, scatter
from tests.backend.cuda.programs import instructions, lowered, written
from tests.support.draw import draw
from tests.support.programs import mut, tensor

SUMS = {
    "of two groups": group_accumulator((128, 64), 2),
    "of one group": group_accumulator((64, 96), 1),
    "of 16 columns": group_accumulator((128, 16), 2),
    "of a group alone": pingpong_accumulator((128, 48)),
}


@pytest.mark.parametrize("layout", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
def test_elements_come_to_where_the_sums_are(layout: Layout, dtype: DTypeLike) -> None:
    wide = vector_load_layout(layout, 1, dtype.bits // 8)
    assert wide is not None
    assert wide.vector(1) > layout.vector(1)
    tile = draw(dtype, layout.shape, "small", 3)
    made = quads.exchange(dtype, wide, layout)
    result = made.generate(Emulated(layout.threads), [scatter(tile, wide, dtype)])
    np.testing.assert_array_equal(collect(result, layout, dtype), tile)


def test_wide_accesses_are_as_wide_as_the_columns_allow() -> None:
    widths = [vector_load_layout(group_accumulator((64, columns), 1), 1, 2) for columns in (128, 96, 48, 16, 8)]
    assert [each and each.vector(1) for each in widths] == [8, 8, 4, 4, None]
    assert vector_load_layout(group_accumulator((64, 64), 1), 0, 2) is None  # memory goes along the other axis
    assert vector_load_layout(group_accumulator((64, 64), 1), 1, 8) is None  # two elements are an access as it is
    assert vector_load_layout(blocked((64, 64), 4, 4), 1, 2) is None  # no sums
    assert vector_load_layout(mma_accumulator((64, 32), 4), 1, 2) is None  # whose columns other warps have


@pytest.mark.slow
def test_a_residual_is_loaded_in_wide_accesses(tmp_path: Path) -> None:
    made = machine_code(Kind("matmul", bf16, residual=True).request(described("sm_90a"), (4096, 4096, 4096)))
    assert not faults(made), made.log
    found = instructions(made, tmp_path)
    assert found["LDG.E.128"] == 4 * 4  # of four pieces, 32 elements to a thread
    assert sum(count for name, count in found.items() if name.startswith("SHFL.BFLY")) == 4 * 16


FIRST = """
def f(z: Mut, x: Tensor, y: Tensor, first: Tensor):
    part_x, part_y = x.partition((128, 64)), y.partition((64, 128))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.load_tile(first, (128, 128), (i, j))
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def begun() -> Function:
    """A product whose sums begin with a tile of f32."""
    x = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": x, "y": x, "first": tensor(2, f32)}
    return written(FIRST, types)


def test_sums_that_begin_with_what_is_loaded_have_it_where_they_are() -> None:
    made = lowered(begun())
    assert "exchange" in [op.attributes["how"] for op in made.walk() if isinstance(op, ConvertLayout)]
    assert check_layouts(made) > 5


def test_a_tile_that_is_not_handed_round_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_came(epilogue: Epilogue, values: Sequence[Value]) -> None:
        """An exchange that moves nothing, to be found."""

    monkeypatch.setattr(Epilogue, "shuffle_back", as_it_came)
    with pytest.raises(
        IRError, match=r"cuda\.optimization_barrier takes .* to lie as tile_128x128_1, it lies as tile_128x128"
    ):
        check_layouts(lowered(begun()))
