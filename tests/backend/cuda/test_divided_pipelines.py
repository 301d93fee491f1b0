"""Loops of products by pipelines whose iterations thread blocks share: those that carry nothing but sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutile import bf16
from cutile.backend.cuda.budget import shared_room
from cutile.backend.cuda.grids import SplitKVariants
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Fixup, KSplits, ReducePartials, Store, StoreSubtile, TmaStore
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.split_k import summing_loop
from cutile.backend.cuda.pipeline.subtiles import epilogue_of_part
from cutile.backend.cuda.pipeline.swap_ab import swap
from cutile.backend.cuda.target import architecture
from cutile.ir.control import For
from cutile.ir.core import Function
from cutile.ir.verify import verify
from cutile.ops.shape import Permute
from tests.backend.cuda.programs import compiled, instructions, lowered, written
from tests.backend.cuda.test_pipeline_swaps import quantised
from tests.support.programs import mut, tensor

SCALED = """
def k(z: Mut, x: Tensor, y: Tensor):
    acc = ct.constant(0, (64, 64), ct.f32)
    n = ct.ceil_div(x.shape[1], 64)
    i, j, _ = ct.get_tile_block_id()
    for k in range(n):
        right = ct.load_tile(y, (64, 64), (k, j))
        left = (ct.load_tile(x, (64, 64), (i, k)).astype(ct.f32) * 2.0).astype(ct.bf16)
        acc = ct.mma(left, right, acc)
    z.store(acc.astype(z.dtype))
"""


def scaled() -> Function:
    given = {"z": mut(64, 64, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    return written(SCALED, given)


def summing(function: Function) -> For:
    loop = summing_loop(Kernel(function), [op for op in function.body.operations if op.regions])
    assert isinstance(loop, For)
    return loop


@pytest.mark.parametrize(("tile", "pieces"), [((16, 64), 2), ((128, 128), 2), ((16, 128), 8), ((64, 64), 3)], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
def test_pieces_of_computed_operands_are_a_cluster(bits: int, tile: tuple[int, int], pieces: int) -> None:
    function = lowered(quantised(bits, *tile), num_pieces=pieces)
    verify(function)
    assert (function.facts["cluster"], function.facts["persistent"]) == (pieces, pieces)
    assert check_function(function) > 10
    assert check_layouts(function) > 3
    (part,) = (op for op in function.walk() if isinstance(op, ReducePartials))
    assert part.result.tile.shape == (tile[1], tile[0] // part.parts)  # the sums are the tile's transpose
    stores = [type(op) for op in function.walk() if isinstance(op, Store | TmaStore)]
    assert stores == ([Store] if part.parts == 1 else [Store, TmaStore])


@pytest.mark.parametrize("pieces", [2, 3, 4, 8, 16])
@pytest.mark.parametrize(
    "result", ["acc * ct.num_tiles(z, 1)", "acc + ct.num_tiles(z, 0)", "acc * n", "acc * i", "acc * (x.shape[0] % 2)"]
)
def test_what_follows_the_sums_may_ask_for_numbers(result: str, pieces: int) -> None:
    given = {"z": mut(64, 64, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    function = lowered(written(SCALED.replace("acc.astype", f"({result}).astype"), given), num_pieces=pieces)
    verify(function)
    assert function.facts["persistent"] == pieces
    assert check_function(function) > 10
    assert check_layouts(function) > 3


@pytest.mark.parametrize("bits", [8, 4])
def test_more_pieces_meet_in_a_workspace(bits: int) -> None:
    function = lowered(quantised(bits, 64, 128), num_pieces=16)
    assert function.facts["cluster"] == 1
    assert any(isinstance(op, Fixup) for op in function.walk())
    assert check_function(function) > 10


def test_parts_of_transposed_sums_are_rows_of_the_result() -> None:
    function = swap(quantised(8, 128, 64))
    loop = summing(function)
    parts = epilogue_of_part(function, loop, 4)
    assert parts is not None
    (store,) = (op for op in parts.body.operations if isinstance(op, StoreSubtile))
    assert (store.axis, store.parts, store.value.tile.shape) == (0, 4, (32, 64))
    (exchange,) = (op for op in parts.body.operations if isinstance(op, Permute))
    assert exchange.x.tile.shape == (64, 32)
    straight = scaled()
    of_columns = epilogue_of_part(straight, summing(straight), 4)
    assert of_columns is not None
    (store,) = (op for op in of_columns.body.operations if isinstance(op, StoreSubtile))
    assert (store.axis, store.value.tile.shape) == (1, (64, 16))


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("the sums do not begin as zeros", ("constant(0,", "constant(1,")),
        ("tile blocks have loops of different lengths", ("range(n)", "range(i + 1)")),
        ("the loop carries more than the sums", ("left, right, acc)", "left, right, acc) * 2.0")),
        ("the products are not all in one loop", ("    z.store", "    acc = ct.mma(left0, left0, acc)\n    z.store")),
    ],
)
def test_why_others_are_not_stands_in_the_dump(reason: str, change: tuple[str, str]) -> None:
    function = written(
        SCALED.replace("    for k", "    left0 = ct.load_tile(x, (64, 64), (i, 0))\n    for k").replace(*change),
        {"z": mut(64, 64, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)},
    )
    made = lowered(function)
    assert made.facts["divided"].startswith(f"no: {reason}"), made.facts["divided"]
    asked = lowered(function, num_pieces=4)  # refused by name, and left to one group of warps
    assert f"4 pieces of a tile block are asked for: {reason}" in asked.facts["refused"][-1][1]
    assert not any(isinstance(op, KSplits) for op in asked.walk())


def test_a_loop_that_loads_nothing_is_not_divided() -> None:
    """Its operands stay the same, so that they are loaded ahead of it. The producer does not run it."""
    text = SCALED.replace("range(n)", "range(n + 1)").replace("(k, j)", "(0, j)").replace("(i, k)", "(i, 0)")
    function = written(text, {"z": mut(64, 64, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)})
    made = lowered(function)
    assert made.facts["divided"] == "no: the loop loads no operand"
    assert check_function(made) > 3
    for pieces in (4, 16):
        asked = lowered(function, num_pieces=pieces)
        assert not any(isinstance(op, KSplits) for op in asked.walk())


def test_launches_divide_a_kernel_that_asks_for_nothing() -> None:
    made = lowered(scaled())
    assert made.facts["divided"].startswith("by launches of up to 66 tile blocks")
    assert made.facts["persistent"] == 1


@pytest.mark.parametrize(("tile", "occupancy", "most"), [((128, 128), 1, 66), ((16, 64), 2, 132)], ids=str)
def test_launches_divide_weights_of_few_rows(tile: tuple[int, int], occupancy: int, most: int) -> None:
    """Of 8192 columns, 128 or 64 in a tile, and 8192 of K."""
    _, ways = lowered(quantised(8, *tile), occupancy=occupancy).facts["division"]
    assert ways[-1][::2] == (most, 2)
    variants = SplitKVariants(64, ways)
    assert variants.choose(8192 // tile[1], 64) == (("num_pieces", 2),)
    assert variants.choose(most + 1, 64) == ()


@pytest.mark.parametrize("blocks", [2, 3])
def test_so_many_thread_blocks_fit_as_are_asked_for(blocks: int) -> None:
    facts = lowered(quantised(8, 16, 64), occupancy=blocks).facts
    assert facts["min_blocks"] == blocks
    assert facts["shared_bytes"] <= shared_room(architecture("sm_90a"), blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "tile", "options"),
    [
        (4, (16, 64), {"num_pieces": 2, "occupancy": 2}),
        (8, (128, 128), {"num_pieces": 2}),
        (8, (64, 128), {"num_pieces": 16}),
    ],
    ids=str,
)
def test_they_are_compiled_to_what_is_meant(bits: int, tile: tuple[int, int], options: Any, tmp_path: Path) -> None:
    made = compiled(quantised(bits, *tile), **options)
    assert (made.facts["spills"], made.facts["stack"], made.facts["remarks"]) == (0, 0, ()), made.log
    names = instructions(made, tmp_path)
    assert any(each.startswith("STAS") for each in names) == (options["num_pieces"] <= 8)
