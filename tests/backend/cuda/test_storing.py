"""Epilogues: cut into subtiles of columns, and stored by TMA or by threads."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.properties import check_stores
from cutile.backend.cuda.ops import (
    Pipeline,
    Roles,
    Store,
    Subtile,
    TmaLoad,
    TmaStore,
)
from cutile.dtypes import bf16, f16, f32
from cutile.ir.types import MutType, Type
from cutile.ops.view import StoreView
from tests.backend.cuda.programs import compiled, instructions, lowered, source, written
from tests.backend.cuda.test_compile import assert_clean
from tests.backend.cuda.test_specialise import GEMM, column_major, refusal, types
from tests.support.programs import mut, tensor

SUMS = """
def f(z: Mut, x: Tensor, y: Tensor):
    part_x, part_y = x.partition((128, 64)), y.partition((64, 64))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (128, 64), ct.f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(WHAT, z.dtype))
"""


@pytest.mark.parametrize(
    ("what", "tile"),
    [
        ("ct.reduce_sum(acc, 0).reshape((1, 64))", (1, 64)),
        ("ct.reduce_sum(acc, 1).reshape((128, 1)).broadcast((128, 16))", (128, 16)),
        ("ct.reduce_sum(acc, 1).reshape((128, 1)).broadcast((128, 256))", (128, 256)),
    ],
)
def test_the_copy_engine_stores_no_tiles_but_those_like_the_sums(what: str, tile: tuple[int, int]) -> None:
    """A warp stores its sixteen rows of the sums; a result of another shape has other rows there."""
    x = tensor(2, bf16)
    made = lowered(written(SUMS.replace("WHAT", what), {"z": mut(*tile, dtype=bf16), "x": x, "y": x}))
    assert any(isinstance(op, Roles) for op in made.walk())
    assert [type(op) for op in made.walk() if isinstance(op, Store | TmaStore)] == [Store]


def test_what_fused_multiply_adds_leave_is_stored_by_threads() -> None:
    """In a SIMT product of f32, threads hold other elements than after `wgmma`."""
    x = tensor(2, f32)
    for tile in ((64, 64), (64, 128), (128, 128)):
        program = written(GEMM.replace("64", "32"), types(tile, x=x, y=x))
        assert refusal(program) == ""
        assert [type(op) for op in lowered(program).walk() if isinstance(op, Store | TmaStore)] == [Store]
    assert_clean(compiled(program))


def test_a_number_made_of_all_sums_is_not_cut() -> None:
    """The epilogue runs some columns at a time, but a sum of all elements cannot."""
    text = SUMS.replace("WHAT", "acc * ct.reduce_sum(ct.reduce_sum(acc, 1), 0)").replace("64", "128")
    x = tensor(2, bf16)
    made = lowered(written(text, {"z": mut(128, 128, dtype=bf16), "x": x, "y": x}))
    assert check_function(made) > 10
    assert not any(isinstance(op, Subtile) for op in made.walk())


def test_another_store_beside_what_follows_the_loop_is_not_left_out() -> None:
    """Only stores of the block's own tile are cut into subtiles."""
    text = GEMM.replace("z: Mut,", "z: Mut, w: Mut,").replace("convert_tile(acc,", "convert_tile(acc * acc,")
    text = text.replace(
        "    z.store(", "    w.partition_mut((128, 128)).store(ct.convert_tile(acc, w.dtype), (i, j))\n    z.store("
    )
    lowering = lowered(
        written(text, {"z": mut(128, 128, dtype=bf16), "w": mut(256, 256, dtype=bf16), **types((128, 128))})
    )
    assert "refused" not in lowering.facts
    assert sum(isinstance(op, StoreView) for op in lowering.walk()) == 1
    assert not any(isinstance(op, Subtile) for op in lowering.walk())


def test_what_the_copy_engine_cannot_store_threads_do() -> None:
    for z in (mut(128, 128), MutType(column_major(), (128, 128)), MutType(tensor(2, bf16, 8), (128, 128))):
        made = lowered(written(GEMM, types(z=z)))
        assert [type(op) for op in made.walk() if isinstance(op, Store | TmaStore)] == [Store]


FUSED = """
def f(z: Mut, x: Tensor, y: Tensor, bias: Tensor, more: Tensor):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, ct.f32)
    for k in range(ct.num_tiles(x.partition((z.shape[0], 64)), 1)):
        acc = ct.mma(ct.load_tile(x, (z.shape[0], 64), (i, k)), ct.load_tile(y, (64, z.shape[1]), (k, j)), acc)
    row = ct.convert_tile(ct.load_tile(bias, (1, z.shape[1]), (0, j)), ct.f32)
    acc = max(acc + row, 0.0) + ct.convert_tile(ct.load_tile_like(more, z), ct.f32)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def test_bias_activation_and_residual_are_part_of_the_kernel(tmp_path: Path) -> None:
    x = tensor(2, bf16)
    others = {"y": x, "bias": x, "more": x}
    function = written(FUSED, {"z": mut(128, 256, dtype=bf16), "x": x, **others})
    lowering = lowered(function)
    assert sum(isinstance(op, TmaLoad) for op in lowering.walk()) == 2
    stores = [op for op in lowering.walk() if isinstance(op, TmaStore)]
    assert [op.value.tile.shape for op in stores] == [(128, 64)] * 4  # a thread holds 64 columns beside its sums
    check_stores(lowering)
    built = compiled(function)
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    found = instructions(built, tmp_path)
    assert all(any(each.startswith(start) for each in found) for start in ("HGMMA", "UTMALDG", "UTMASTG"))


def test_what_mixes_columns_is_not_cut() -> None:
    text = FUSED.replace("    z.store(", "    acc = acc - ct.reduce_max(acc, 1).reshape((z.shape[0], 1))\n    z.store(")
    made = lowered(written(text, {"z": mut(128, 128, dtype=f16), **fused_types()}))
    assert [op.value.tile.shape for op in made.walk() if isinstance(op, TmaStore)] == [(128, 128)]
    assert not any(isinstance(op, Subtile) for op in made.walk())


def test_warps_wait_for_each_other_before_an_exchange_in_the_next_tile_block() -> None:
    """A thread block goes through many tile blocks, and its warps may be at different ones."""
    text = FUSED.replace("    z.store(", "    acc = acc - ct.reduce_max(acc, 0).reshape((1, z.shape[1]))\n    z.store(")
    made = lowered(written(text, {"z": mut(128, 128, dtype=f16), **fused_types()}))
    exchanges = [op.attributes for op in made.walk() if "fence" in op.attributes]
    assert exchanges
    assert all(each["fence"] for each in exchanges)


@pytest.mark.parametrize("tile", [(128, 128), (128, 256), (64, 256), (256, 128)], ids=str)
def test_a_ring_leaves_room_for_what_follows(tile: tuple[int, int]) -> None:
    text = GEMM.replace("    z.store(", "    acc = acc - ct.reduce_max(acc, 0).reshape((1, z.shape[1]))\n    z.store(")
    plain, lowering = lowered(written(GEMM, types(tile))), lowered(written(text, types(tile)))
    stages, fewer = (next(op.stages for op in each.walk() if isinstance(op, Pipeline)) for each in (plain, lowering))
    assert 2 <= fewer <= stages
    assert lowering.facts["shared_bytes"] <= 232448
    assert check_function(lowering) > 10


def test_what_threads_store_is_cut_too() -> None:
    made = lowered(written(FUSED, {"z": mut(128, 192, dtype=f32), **fused_types()}))
    stores = [op for op in made.walk() if isinstance(op, Store)]
    assert [op.value.tile.shape for op in stores] == [(128, 64)] * 3


def test_only_what_loads_need_is_done_by_the_warps_that_load() -> None:
    text = textwrap.dedent(source(written(FUSED, {"z": mut(128, 128, dtype=f16), **fused_types()})).text)
    loading, computing = text.split("\n    else:\n")
    assert "load_bias" not in loading.split("if is_producer():")[1]
    assert "load_bias" in computing


def fused_types() -> dict[str, Type]:
    x = tensor(2, f16)
    return {"x": x, "y": x, "bias": x, "more": x}
