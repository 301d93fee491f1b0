"""Split-K in a cluster: the sums of the splits meet in distributed shared memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.grids import PersistentGrid
from cutile.backend.cuda.intrinsics import split_k
from cutile.backend.cuda.intrinsics import split_k_cluster as intrinsics
from cutile.backend.cuda.intrinsics.llvm import F32, I32, ir
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.properties import check_stores
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import Barrier, ClusterStart, Fixup, ReducePartials, ScatterPartials, Store, TmaStore
from cutile.backend.cuda.pipeline.accumulators import cluster_bytes, part_layout
from cutile.backend.cuda.pipeline.split_k import MAX_CLUSTER_PIECES, MIN_CLUSTER_ITERATIONS
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import bf16, f16, f32, i32
from cutile.ir.core import Function
from cutile.ir.text import print_function
from cutile.ir.types import Type
from cutile.ir.verify import verify
from kernels.gemm_fused import gemm_fused
from tests.backend.cuda.emulated import Array, Emulated, Vector, collect, everywhere, scatter
from tests.backend.cuda.programs import compiled, gemm_program, instructions, lowered, shipped, source, written
from tests.backend.cuda.test_compile import assert_clean
from tests.backend.cuda.test_split import Launch, integers
from tests.support.draw import draw
from tests.support.programs import mut, tensor

TILES = (((64, 128), 4), ((128, 128), 8), ((128, 64), 2), ((64, 96), 3), ((16, 64), 8), ((64, 64), 5), ((128, 192), 2))

ROW_SUMS = """
def kernel(z: Mut, x: Tensor, y: Tensor):
    part_x, part_y = x.partition((64, 64)), y.partition((64, 64))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 64), ct.f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    total = ct.reduce_sum(acc, 1).reshape((64, 1)).broadcast((64, 64))
    z.store(ct.convert_tile(acc / total, z.dtype))
"""
"""A computation on rows, which needs all columns of each."""


def fused(rows: int, columns: int) -> Function:
    """With a bias, an activation and a residual."""
    types = {"z": mut(rows, columns, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    more = {"bias": tensor(1, bf16), "residual": tensor(2, bf16)}
    return shipped(gemm_fused, {**types, **more}, BK=64, BIAS=1, RESIDUAL=1, ACTIVATION=2)


def row_sums() -> Function:
    types: dict[str, Type] = {"z": mut(64, 64, dtype=bf16), "x": tensor(2, bf16), "y": tensor(2, bf16)}
    return written(ROW_SUMS, types)


@pytest.mark.parametrize(("tile", "pieces"), TILES, ids=str)
def test_pieces_are_a_cluster(tile: tuple[int, int], pieces: int) -> None:
    lowering = lowered(gemm_program(bf16, tile, 64), num_pieces=pieces)
    verify(lowering)
    assert (lowering.facts["cluster"], lowering.facts["persistent"]) == (pieces, pieces)
    assert "workspace" not in lowering.facts
    assert not any(isinstance(op, Fixup) for op in lowering.walk())
    assert sum(isinstance(op, ScatterPartials) for op in lowering.walk()) == 1
    assert sum(isinstance(op, ClusterStart) for op in lowering.body.operations) == 1  # all wait, those who load too
    assert f"{pieces} pieces of {MIN_CLUSTER_ITERATIONS} iterations or more, which are a cluster" in print_function(
        lowering
    )


@pytest.mark.parametrize(
    ("tile", "pieces", "parts"), [(*each, n) for each, n in zip(TILES, (4, 8, 2, 3, 1, 8, 2), strict=True)]
)
def test_each_thread_block_adds_up_some_columns(tile: tuple[int, int], pieces: int, parts: int) -> None:
    """Five splits of 64 columns have eight parts; the sums of few rows are added up by one block."""
    lowering = lowered(gemm_program(bf16, tile, 64), num_pieces=pieces)
    (found,) = (op for op in lowering.walk() if isinstance(op, ReducePartials))
    assert (found.parts, found.blocks) == (parts, pieces)
    stores = [type(op) for op in lowering.walk() if isinstance(op, Store | TmaStore)]
    assert stores == ([Store] if parts == 1 else [Store, TmaStore])  # whole tiles by TMA


def test_what_follows_the_loop_is_done_for_these_columns() -> None:
    made = lowered(fused(64, 128), num_pieces=4)
    (found,) = (op for op in made.walk() if isinstance(op, ReducePartials))
    assert found.result.tile.shape == (64, 32)
    assert_clean(compiled(fused(64, 128), num_pieces=4))


def test_what_needs_whole_rows_is_done_by_the_first() -> None:
    made = lowered(row_sums(), num_pieces=4)
    (found,) = (op for op in made.walk() if isinstance(op, ReducePartials))
    assert (found.parts, found.result.tile.shape) == (1, (64, 64))
    assert_clean(compiled(row_sums(), num_pieces=4))


def test_more_pieces_than_a_cluster_has_meet_in_a_workspace() -> None:
    for pieces in (MAX_CLUSTER_PIECES + 1, 16):
        made = lowered(gemm_program(bf16, (64, 64), 64), num_pieces=pieces)
        assert made.facts["cluster"] == 1
        assert any(isinstance(op, Fixup) for op in made.walk())


@pytest.mark.parametrize(("tile", "pieces"), TILES, ids=str)
def test_their_rings_neither_deadlock_nor_overwrite(tile: tuple[int, int], pieces: int) -> None:
    assert check_function(lowered(gemm_program(f16, tile, 64), num_pieces=pieces)) > 10


@pytest.mark.parametrize(
    ("blocks", "tiles", "turns", "wanted"),
    [
        (128, 32, 4 * MIN_CLUSTER_ITERATIONS, 4),
        (128, 32, 4 * MIN_CLUSTER_ITERATIONS - 1, 1),  # pieces would be too short
        (132, 33, 128, 4),
        (132, 34, 128, 1),  # more than the GPU holds
        (128, 128, 128, 1),
        (4, 1, 1000, 4),
    ],
)
def test_there_are_all_pieces_or_one(blocks: int, tiles: int, turns: int, wanted: int) -> None:
    made = split_k.splits(4, MIN_CLUSTER_ITERATIONS, whole=True)
    assert everywhere(Launch(blocks).run(made, tiles, 0, turns, 1), i32) == wanted


def test_a_launch_has_a_thread_block_for_each_piece_or_as_many_as_fit() -> None:
    """Two rounds of quarter tile blocks take half the time of one round of whole ones; four take no less."""
    residency = PersistentGrid(lowered(gemm_program(bf16, (64, 128), 64), num_pieces=4).facts)
    for tiles, wanted in ((1, 4), (32, 128), (33, 132), (64, 256), (97, 128), (128, 128), (1000, 128)):
        assert residency.blocks(tiles, 128) == wanted
    assert residency.workspace(128) == 0


class Rank(Emulated):
    """A thread block of a cluster. An address in another has the number of the block in its upper bits.

    Attributes:
        rank: its number.
        announced: bytes that are to arrive.
        arrived: those that have.
    """

    def __init__(self, threads: int, rank: int, cluster: Sequence[Rank]) -> None:
        super().__init__(threads)
        self.rank = rank
        self.cluster = cluster
        self.announced = self.arrived = 0

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        if not isinstance(function, ir.InlineAsm):
            return super().call(function, operands, attrs)
        text, values = function.asm, [self._of(each) for each in operands]
        if text.startswith(("mapa", "st.")) and not self._active.any():
            return Vector(I32, values[0])
        if "%cluster_ctarank" in text:
            return Vector(I32, np.full(self._threads, self.rank, np.uint32))
        if text.startswith("mapa"):
            return Vector(I32, values[0] | values[1] << np.uint32(24))
        if "expect_tx" in text:
            assert self._active.sum() == 1
            self.announced += int(values[1][0])
        elif access := re.search(r"st\.async.*\[\$0\+(\d+)\]", text):
            *_, barrier = values
            there = self.cluster[int(values[0][0]) >> 24]
            assert (barrier == (there.rank << 24 | BARRIER)).all()
            for number, elements in enumerate(values[1:-1]):
                where = _places(values[0] & LOCAL, int(access[1]) + 4 * number)
                there.memory[where] = np.ascontiguousarray(elements).view(np.uint8).reshape(-1, 4)
                there.arrived += where.size
        elif found := re.search(r"st\.shared.*\[\$0\+(\d+)\]", text):
            for number, elements in enumerate(values[1:]):
                where = _places(values[0], int(found[1]) + 4 * number)
                self.memory[where] = np.ascontiguousarray(elements).view(np.uint8).reshape(-1, 4)
        elif access := re.search(r"ld\.shared(?:\.v(\d))?\.(\w)32 .*\+(\d+)\]", text):
            kind, numpy_kind = (F32, np.float32) if access[2] == "f" else (I32, np.uint32)
            read = [self.memory[_places(values[0], int(access[3]) + 4 * i)] for i in range(int(access[1] or 1))]
            parts = [Vector(kind, each.copy().view(numpy_kind)[:, 0]) for each in read]
            return Vector(None, parts) if access[1] else parts[0]
        else:
            assert "try_wait.parity.acquire.cluster" in text, text
        return None


LOCAL, BARRIER = np.uint32((1 << 24) - 1), 512


def _places(at: Array, beyond: int) -> Array:
    return at[:, None].astype(np.int64) + beyond + np.arange(4)


@pytest.mark.parametrize(
    ("sums", "parts"),
    [
        (group_accumulator((64, 128), 1), 16),
        (group_accumulator((64, 128), 1), 4),
        (group_accumulator((128, 64), 2), 8),
        (group_accumulator((64, 96), 1), 3),
        (group_accumulator((64, 16), 1).permute((1, 0)), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [f32, i32], ids=str)
def test_the_sums_of_all_blocks_are_added_up(sums: Layout, parts: int, dtype: Any) -> None:
    blocks, place = 3, 1024
    ranks: list[Rank] = []
    ranks += [Rank(sums.threads, rank, ranks) for rank in range(blocks)]
    tiles = [draw(i32, sums.shape, "small", seed).astype(dtype.numpy) for seed in range(blocks)]
    deal_out = intrinsics.scatter(dtype, sums, parts, blocks, place=place, offset=BARRIER)
    for rank, tile in zip(ranks, tiles, strict=True):
        deal_out.generate(rank, [scatter(tile, sums, dtype)])
    part = part_layout(sums, parts)
    assert [rank.announced for rank in ranks] == [rank.arrived for rank in ranks]
    assert max(rank.arrived for rank in ranks) == cluster_bytes(sums, parts, blocks) * (blocks - 1) // blocks
    add = intrinsics.reduce(dtype, sums, parts, blocks, place)
    for number in range(parts):
        found = add.generate(ranks[number % blocks], [Vector(I32, np.full(sums.threads, number, np.uint32))])
        columns = slice(number * part.shape[1], (number + 1) * part.shape[1])
        assert np.array_equal(collect(found, part, dtype), np.add.reduce(tiles)[:, columns])


@pytest.mark.parametrize(("tile", "pieces"), TILES[::2], ids=str)
def test_they_are_compiled_to_what_is_meant(tile: tuple[int, int], pieces: int, tmp_path: Path) -> None:
    made = compiled(gemm_program(bf16, tile, 64), num_pieces=pieces)
    assert_clean(made)
    opcodes = instructions(made, tmp_path)
    assert any("GMMA" in each for each in opcodes)
    assert any(each.startswith("STAS") for each in opcodes), sorted(opcodes)
    assert not any(each.startswith(("ATOM", "RED", "MEMBAR.ALL.GPU", "MEMBAR.SC")) for each in opcodes), sorted(opcodes)
    assert "workspace" not in [each.name for each in source(gemm_program(bf16, tile, 64), num_pieces=pieces).parameters]


def test_bytes_and_f32_meet_there_too() -> None:
    assert_clean(compiled(integers(), num_pieces=4))
    for dtype, tile in ((f32, (64, 64)), (f32, (128, 64))):
        program = gemm_program(dtype, tile, 32)
        assert lowered(program, num_pieces=4).facts["cluster"] == 4
        assert check_function(lowered(program, num_pieces=4)) > 10
        assert_clean(compiled(program, num_pieces=4))


def test_a_wait_for_sums_that_never_come_ends_too() -> None:
    made = source(gemm_program(bf16, (64, 64), 64), num_pieces=2, limit_waits=True)
    (line,) = made.text.split("scatter_partials = ")[1:]
    assert "limited=True" in line.split("\n\n")[0].split(" = ")[0]
    assert compiled(gemm_program(bf16, (64, 64), 64), num_pieces=2, limit_waits=True).facts["speaks"]


def test_a_result_is_not_stored_over_sums_that_another_warp_has_yet_to_add_up() -> None:
    """A thread block's sums arrive in the places that it stores from; row sums need no other warp's part."""
    lowering = lowered(row_sums(), num_pieces=4)
    check_stores(lowering)
    assert any(isinstance(op, TmaStore) for op in lowering.walk())
    for block in {id(each): each for op in lowering.walk() for each in op.regions}.values():
        block.operations[:] = [op for op in block.operations if not isinstance(op, Barrier)]
    with pytest.raises(ProtocolError, match="is written over sums that other warps have yet to reduce"):
        check_stores(lowering)
