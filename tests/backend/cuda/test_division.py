"""The launches that are to divide a kernel: how few tile blocks, how many iterations, how many pieces."""

from __future__ import annotations

from typing import Any

import pytest

from cutile.backend.cuda.grids import PersistentGrid
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.pipeline.split_k import (
    CLUSTER_SMS,
    MAX_CLUSTER_PIECES,
    MAX_PIECES,
    MIN_CLUSTER_ITERATIONS,
    MIN_WORKSPACE_ITERATIONS,
)
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import bf16, f16, f32
from cutile.ir.core import Function
from cutile.ir.text import print_function
from tests.backend.cuda.programs import AMPERE, HOPPER, compiled, gemm_program, lowered, source, written
from tests.backend.cuda.test_compile import assert_clean
from tests.backend.cuda.test_nearby import fused, row_sums
from tests.backend.cuda.test_specialise import GEMM, types
from tests.support.programs import mut, tensor

TILES = ((16, 64), (64, 64), (64, 128), (128, 64), (128, 128), (128, 192))
H200 = Target("cuda", "sm_90a", 132)


def ways_of(function: Function, target: Target = H200, **options: Any) -> tuple[tuple[int, int, int], ...]:
    """The rows of its fact."""
    return lowered(function, target, **options).facts["division"][1]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_fewer_tile_blocks_have_more_pieces(tile: tuple[int, int]) -> None:
    ways = ways_of(gemm_program(bf16, tile, 64))
    tiles, _, pieces = map(list, zip(*ways, strict=True))
    assert tiles == sorted(tiles)
    assert tiles[-1] == 66  # that is half of the multiprocessors
    assert pieces == sorted(pieces, reverse=True)
    assert set(pieces) <= {*CLUSTER_SMS, MAX_PIECES}
    for _, least, n in ways:
        assert least >= n * (
            MIN_CLUSTER_ITERATIONS if n <= MAX_CLUSTER_PIECES else MIN_WORKSPACE_ITERATIONS
        )  # else the kernel divides nothing


@pytest.mark.parametrize("function", [*(gemm_program(f16, tile, 64) for tile in TILES), fused(64, 128), row_sums()])
def test_a_kernel_for_so_many_pieces_has_them_all_at_once(function: Function) -> None:
    for tiles, _, pieces in ways_of(function):
        facts = lowered(function, H200, num_pieces=pieces).facts
        assert facts["persistent"] == pieces
        assert facts["cluster"] == (pieces if pieces <= MAX_CLUSTER_PIECES else 1)
        assert "division" not in facts
        held = CLUSTER_SMS.get(pieces, 132) // facts["cluster"] * facts["cluster"]
        assert PersistentGrid(facts).blocks(tiles, held) == min(tiles * pieces, held)


@pytest.mark.parametrize("tile", [*TILES, (128, 256), (256, 64)], ids=str)
def test_the_rings_of_all_of_them_neither_deadlock_nor_overwrite(tile: tuple[int, int]) -> None:
    for function in (gemm_program(bf16, tile, 64), gemm_program(f16, tile, 32)):
        for _, _, pieces in ways_of(function):
            assert check_function(lowered(function, H200, num_pieces=pieces)) > 10


LOADS = """
def gemm(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    py, px = y.partition((64, 128)), x.partition((128, 64))
    q = px.load((i, 0))
    acc = ct.constant(0, (128, 128), f32)
    for k in range(ct.num_tiles(py, 0)):
        acc = ct.mma({left}, py.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


def test_a_load_ahead_of_the_loop_takes_no_time_of_an_iteration() -> None:
    """Nor do its few stages count: a division begins about where it does with both operands loaded in the loop."""
    operand = {"z": mut(128, 128, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    ahead, inside = (ways_of(written(LOADS.format(left=left), operand)) for left in ("q", "px.load((i, k))"))
    assert [tiles for tiles, *_ in ahead] == [tiles for tiles, *_ in inside] == [8, 15, 17, 22, 30, 39, 66]
    for (_, fewest, _), (_, fewest_inside, _) in zip(ahead, inside, strict=True):
        assert fewest < 1.5 * fewest_inside


def test_clusters_take_the_multiprocessors_that_were_measured() -> None:
    """Of three thread blocks 39 clusters fit: 117 multiprocessors."""
    most = {pieces: tiles for tiles, _, pieces in ways_of(gemm_program(bf16, (64, 64), 64))}
    assert most == {2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 8: 15, MAX_PIECES: 8}


def test_what_the_others_launch_is_what_it_was() -> None:
    function = gemm_program(bf16, (64, 64), 64)
    divided, without = source(function), source(function, num_pieces=1)
    assert (divided.text, divided.parameters) == (without.text, without.parameters)
    told = ("division", "plan")  # what launches read, and what people do
    assert {key: value for key, value in divided.facts.items() if key not in told} == {
        key: value for key, value in without.facts.items() if key not in told
    }


def test_it_stands_in_the_dump() -> None:
    text = print_function(lowered(gemm_program(bf16, (64, 64), 64), H200))
    assert "divided = 'by launches of up to 66 tile blocks, as `division` says'" in text
    assert "division = ['(x.shape[1] + 63) // 64', [[" in text


def test_a_smaller_device_has_room_for_fewer() -> None:
    function = gemm_program(bf16, (64, 64), 64)
    assert [tiles for tiles, _, _ in ways_of(function, Target("cuda", "sm_90a", 66))][-1] == 33
    assert ways_of(function, HOPPER) == ways_of(function)  # not known: as an H200
    assert {pieces for _, _, pieces in ways_of(function, Target("cuda", "sm_90a", 4))} == {2, 3}


@pytest.mark.parametrize(
    ("loop", "turns"),
    [
        ("range(n)", "n"),
        ("range(3, n)", "n - 3"),
        ("range(1, n, 2)", "n // 2"),
        ("range(40)", "40"),
    ],
)
def test_turns_are_counted_by_the_launch(loop: str, turns: str) -> None:
    assert lowered(written(GEMM.replace("range(n)", loop), types((64, 64)))).facts["division"][0] == turns


def test_turns_that_only_the_kernel_knows_are_left_to_it() -> None:
    text = GEMM.replace("range(n)", "range(n % 7)")
    facts = lowered(written(text, types((64, 64)))).facts
    assert facts["divided"] == (
        "no: launches do not know its iterations; CompileOptions(num_pieces=16) leaves it to the kernel"
    )
    assert "division" not in facts
    assert lowered(written(text, types((64, 64))), num_pieces=16).facts["persistent"] == 16


@pytest.mark.parametrize(
    ("tile", "target", "options"),
    [
        ((192, 128), HOPPER, {}),
        ((128, 128), HOPPER, {"num_pieces": 1}),
        ((128, 128), HOPPER, {"num_pieces": 4}),
        ((128, 128), HOPPER, {"num_cta_in_cga": 2}),
        ((128, 128), HOPPER, {"num_worker_warps": 4}),
        ((128, 128), AMPERE, {}),
        ((96, 80), HOPPER, {}),
    ],
)
def test_others_say_nothing(tile: tuple[int, int], target: Target, options: dict[str, Any]) -> None:
    assert "division" not in lowered(gemm_program(bf16, tile, 64), target, **options).facts


def test_tiles_whose_sums_fill_no_cluster_meet_in_a_workspace() -> None:
    """There a kernel finds by itself how many pieces fit."""
    ((tiles, least, pieces),) = ways_of(gemm_program(bf16, (128, 256), 64))
    assert (tiles, pieces) == (66, 16)
    assert least >= 2 * MIN_WORKSPACE_ITERATIONS
    facts = lowered(gemm_program(bf16, (128, 256), 64), H200, num_pieces=16).facts
    assert (facts["cluster"], facts["persistent"]) == (1, 16)


def test_products_of_f32_are_divided_too() -> None:
    ways = ways_of(gemm_program(f32, (64, 64), 32))
    assert (66, 2) in [(tiles, pieces) for tiles, _, pieces in ways]


@pytest.mark.parametrize("pieces", [3, 16])
def test_none_spills_what_follows_the_loop(pieces: int) -> None:
    assert pieces in [each for _, _, each in ways_of(fused(128, 128))]
    assert_clean(compiled(fused(128, 128), num_pieces=pieces))


@pytest.mark.parametrize("columns", [192, 256])
def test_more_sums_leave_no_registers_for_what_follows(columns: int) -> None:
    assert "division" not in lowered(fused(128, columns), H200).facts
    asked = lowered(fused(128, columns), H200, num_pieces=16).facts["divided"]
    assert asked == (f"no: a thread holds {columns // 2} sums, and has registers for 64 beside what follows the loop")


@pytest.mark.parametrize(("tile", "pieces"), [((128, 128), 2), ((128, 128), 6), ((64, 64), 8), ((64, 128), 3)])
def test_they_are_compiled_to_what_is_meant(tile: tuple[int, int], pieces: int) -> None:
    assert pieces in [each for _, _, each in ways_of(gemm_program(bf16, tile, 64))]
    assert_clean(compiled(gemm_program(bf16, tile, 64), num_pieces=pieces))


def test_the_options_leave_it_to_launches() -> None:
    assert CompileOptions().num_pieces is None
