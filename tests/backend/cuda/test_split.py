"""Split-K of tile blocks too few to fill a GPU: the rule of the splits, and their sums in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutile.backend.cuda.grids import COUNTERS, PersistentGrid
from cutile.backend.cuda.intrinsics import split_k as intrinsics
from cutile.backend.cuda.intrinsics.llvm import I32
from cutile.backend.cuda.model.pipelines import check, check_function
from cutile.backend.cuda.model.protocol import ProtocolError, protocol
from cutile.backend.cuda.ops import Fixup, KSplits, Roles, WorkUnit
from cutile.backend.cuda.pipeline.split_k import MAX_PIECES, MIN_WORKSPACE_ITERATIONS
from cutile.dtypes import bf16, f16, i8, i32
from cutile.ir.core import Function
from cutile.ir.text import print_function
from cutile.ir.types import TensorType, TileType, Type
from cutile.ir.verify import verify
from kernels.gemm_variants import gemm_integers
from tests.backend.cuda.emulated import Emulated, Vector, everywhere
from tests.backend.cuda.programs import compiled, gemm_program, instructions, lowered, shipped, source, written
from tests.backend.cuda.test_compile import assert_clean
from tests.backend.cuda.test_specialise import GEMM, types
from tests.support.programs import mut, tensor

TILES = ((16, 64), (1, 64), (32, 128), (64, 64), (64, 128), (128, 128), (128, 256))


def integers() -> Function:
    """Bytes, along K, with sums of i32."""
    y = TensorType(i8, (None, None), (1, None), 16)
    return shipped(gemm_integers, {"z": mut(64, 64, dtype=i32), "x": tensor(2, i8), "y": y}, BK=128)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_may_be_divided(tile: tuple[int, int]) -> None:
    lowering = lowered(gemm_program(bf16, tile, 64), num_pieces=100)
    verify(lowering)
    assert lowering.facts["persistent"] == MAX_PIECES
    assert lowering.facts["workspace"] == 4 * COUNTERS
    rows = -(-tile[0] // 8) * 8
    assert lowering.facts["workspace_per_block"] == rows * tile[1] * 4
    assert sum(isinstance(op, KSplits) for op in lowering.walk()) == 2  # for those who load, and those who compute
    assert sum(isinstance(op, Fixup) for op in lowering.walk()) == 1
    assert "divided = 'up to 16 pieces of 16 iterations or more" in print_function(lowering)


@pytest.mark.parametrize(
    ("reason", "change", "tile", "options"),
    [
        ("CompileOptions(num_pieces=1) says so", ("", ""), (64, 64), {"num_pieces": 1}),
        ("3 warpgroups share the sums", ("", ""), (192, 128), {}),
        ("the sums do not begin as zeros", ("constant(0,", "constant(1,"), (64, 64), {}),
        ("the loop's bounds differ from tile block to tile block", ("range(n)", "range(i + 1)"), (64, 64), {}),
        ("the thread blocks of a cluster load together", ("", ""), (64, 64), {"num_cta_in_cga": 2}),
    ],
)
def test_why_others_are_not_stands_in_the_dump(
    reason: str, change: tuple[str, str], tile: tuple[int, int], options: dict[str, Any]
) -> None:
    wished: dict[str, Any] = {"num_pieces": 16} | options
    lowering = lowered(written(GEMM.replace(*change), types(tile)), **wished)
    assert lowering.facts["divided"].startswith(f"no: {reason}")
    assert lowering.facts["persistent"] == 1
    assert "workspace" not in lowering.facts
    assert not any(isinstance(op, KSplits | WorkUnit | Fixup) for op in lowering.walk())
    assert "workspace" not in [each.name for each in source(gemm_program(bf16, (64, 64), 64)).parameters]


AHEAD = GEMM.replace("z: Mut, ", "z: Mut, c: Mut, ").replace("    acc = ", "    c.store(c.load() + 1)\n    acc = ", 1)
"""Each tile block counts itself ahead of its products."""


@pytest.mark.parametrize("options", [{}, {"num_pieces": 4}, {"num_pieces": 16}], ids=str)
def test_what_is_written_ahead_of_the_sums_is_written_once(options: dict[str, Any]) -> None:
    """Each piece would count the tile block."""
    lowering = lowered(written(AHEAD, {**types((64, 64)), "c": mut(1, 1)}), **options)
    assert any(isinstance(op, Roles) for op in lowering.walk())
    assert lowering.facts["divided"] == "no: the kernel writes ahead of its sums"
    assert "division" not in lowering.facts
    assert not any(isinstance(op, KSplits | WorkUnit | Fixup) for op in lowering.walk())


@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_the_pieces_of_a_tile_block_are_all_its_turns(pieces: int) -> None:
    model = protocol(lowered(gemm_program(bf16, (16, 64), 64), num_pieces=16), tiles=2, iterations=9, pieces=pieces)
    assert model is not None
    assert check(model) == 2 * 9
    with pytest.raises(ProtocolError):
        check(type(model)(model.stages, model.arrivals, model.groups, model.cluster, model.loads, model.reads[:-1]))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_their_rings_neither_deadlock_nor_overwrite(tile: tuple[int, int]) -> None:
    for dtype, depth in ((bf16, 64), (f16, 128)):
        assert check_function(lowered(gemm_program(dtype, tile, depth), num_pieces=16)) > 10


class Choice(Vector):
    """A phi: its value comes from the side that the last branch took."""

    def __init__(self, branch: Launch) -> None:
        super().__init__(I32, None)
        self._branch = branch

    def add_incoming(self, value: Any, origin: str) -> None:
        """Take this value if control came from this block."""
        if (origin == "divided") == self._branch.taken:
            self.data = self._branch.data(value)


class Launch(Emulated):
    """One thread of a launch of `blocks` thread blocks.

    Both sides of a branch run, since neither has an effect, and a phi takes the value of the right one.

    Attributes:
        block: where control is.
        taken: whether the condition of the last branch held.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__(1)
        self._blocks = blocks
        self.block = "begin"
        self.taken = False

    def call(self, function: Any, operands: Any, attrs: Any = ()) -> Vector | None:
        if function == "llvm.nvvm.read.ptx.sreg.nctaid.x":
            return self.number(self._blocks)
        return super().call(function, operands, attrs)

    def append_basic_block(self, name: str) -> str:
        return name

    def cbranch(self, condition: Any, then: str, orelse: str) -> None:
        self.taken = bool(self.data(condition)[0])

    def branch(self, target: str) -> None:
        """Join the two sides of a branch."""

    def position_at_end(self, block: str) -> None:
        self.block = block

    def phi(self, kind: Any) -> Any:
        return Choice(self)

    def data(self, value: Any) -> Any:
        return self._of(value)

    def number(self, value: int) -> Vector:
        """A value that is known at the launch."""
        return self._made(I32, [value & 0xFFFFFFFF])

    def run(self, intrinsic: Any, *numbers: int) -> Vector:
        """Run an intrinsic; its results as numbers."""
        return intrinsic.generate(self, list(map(self.number, numbers)))


@pytest.mark.parametrize(
    ("blocks", "tiles", "turns", "pieces"),
    [
        (132, 16, 128, 8),  # 128 of 132 thread blocks
        (132, 64, 128, 2),
        (132, 67, 128, 1),  # two pieces of each would be more than there are thread blocks
        (132, 132, 1000, 1),
        (132, 1, 10_000, MAX_PIECES),
        (132, 16, 4 * MIN_WORKSPACE_ITERATIONS, 4),  # pieces are not too short
        (132, 16, MIN_WORKSPACE_ITERATIONS, 1),
        (132, 16, 0, 1),
        (5000, COUNTERS + 1, 1000, 1),  # more than are counted
    ],
)
def test_there_are_as_many_pieces_as_fill_the_gpu(blocks: int, tiles: int, turns: int, pieces: int) -> None:
    made = intrinsics.splits(MAX_PIECES, MIN_WORKSPACE_ITERATIONS)
    assert everywhere(Launch(blocks).run(made, tiles, 0, turns, 1), i32) == pieces
    assert everywhere(Launch(blocks).run(made, tiles, 5, 5 + 3 * turns, 3), i32) == pieces


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 128, 1), (0, 37, 1), (3, 50, 4), (7, 7, 1), (9, 2, 3)])
@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
def test_the_units_of_work_are_all_turns_of_all_tile_blocks(start: int, stop: int, step: int, pieces: int) -> None:
    iterations: dict[int, list[int]] = {}
    for unit in range(2 * pieces):
        made = Launch(1).run(intrinsics.work_unit(), unit, start, stop, step, pieces)
        tile, piece, first, last = (int(everywhere(each, i32)) for each in made.data)
        assert piece == unit % pieces
        iterations.setdefault(tile, []).extend(range(first, last, step))
    assert iterations == {tile: list(range(start, stop, step)) for tile in (0, 1)}


def test_no_more_thread_blocks_are_launched_than_the_gpu_holds() -> None:
    residency = PersistentGrid(lowered(gemm_program(bf16, (16, 64), 64), num_pieces=16).facts)
    assert [residency.blocks(tiles, 132) for tiles in (1, 4, 16, 1000)] == [MAX_PIECES, 64, 132, 132]
    assert residency.workspace(132) == 4 * COUNTERS + 132 * 16 * 64 * 4


@pytest.mark.parametrize("function", [gemm_program(bf16, (16, 64), 64), gemm_program(f16, (128, 256), 64), integers()])
def test_they_are_compiled_to_what_is_meant(function: Function, tmp_path: Path) -> None:
    made = compiled(function, num_pieces=16)
    assert_clean(made)
    found = instructions(made, tmp_path)
    assert any("GMMA" in each for each in found)
    assert any(each.startswith("ATOM") for each in found), sorted(found)


def test_a_kernel_of_bytes_adds_whole_numbers() -> None:
    types: list[Type] = [op.x.type for op in lowered(integers(), num_pieces=16).walk() if isinstance(op, Fixup)]
    assert [each.dtype for each in types if isinstance(each, TileType)] == [i32]
