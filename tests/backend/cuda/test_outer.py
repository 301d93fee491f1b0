"""SIMT products of f32 by specialised warps: layouts of the sums, the threads' reads, machine code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics import simt
from cutile.backend.cuda.intrinsics.llvm import I32, ir
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.pipeline.accumulators import simt_accumulator
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.mainloop_rules import plan_mainloop
from cutile.backend.cuda.smem_layout import WARPGROUP, BufferStages, SmemLayout
from cutile.backend.cuda.target import Refused, architecture
from cutile.backend.gpu.layout import Layout
from cutile.backend.interface import CompileOptions
from cutile.dtypes import f32, i8
from cutile.ir.core import Function
from cutile.ir.types import Type
from kernels.gemm import gemm
from kernels.gemm_fused import gemm_fused
from tests.backend.cuda.emulated import Array, Emulated, Vector, collect, scatter
from tests.backend.cuda.programs import compiled, innermost_loop, instructions, lowered, shipped
from tests.backend.cuda.test_compile import assert_clean
from tests.support.draw import draw
from tests.support.programs import mut, tensor

STORED = ((True, False), (True, True), (False, False), (False, True))
EACH_STORED = pytest.mark.parametrize("by_k", STORED, ids=("by rows", "along K", "across K", "by columns"))


def layout(shape: tuple[int, int], warps: int, by_k: tuple[bool, bool]) -> Layout:
    found = simt_accumulator(shape, warps, by_k)
    assert found is not None
    return found


def in_panels(smem_layout: SmemLayout, tile: Array) -> Array:
    """The bytes of a tile, (mn, k), as TMA writes them: 16-byte pieces of a row, permuted by its number."""
    memory = np.zeros(smem_layout.place_bytes, np.uint8)
    pieces = smem_layout.swizzle // 16
    rows = tile if smem_layout.k_major else tile.T
    for panel in range(smem_layout.count):
        for number, row in enumerate(rows[:, panel * smem_layout.span : (panel + 1) * smem_layout.span]):
            cut = np.ascontiguousarray(row).view(np.uint8).reshape(pieces, 16)
            first = panel * smem_layout.panel_bytes + number * smem_layout.swizzle
            for piece in range(pieces):
                place = first + (piece ^ number * pieces // 8 % pieces) * 16
                memory[place : place + 16] = cut[piece]
    return memory


class Watched(Emulated):
    """Records the addresses of reads of 16 bytes."""

    def __init__(self, threads: int, shared: int) -> None:
        super().__init__(threads, shared)
        self.reads: list[Array] = []

    def load(self, pointer: Vector) -> Vector:
        if isinstance(pointer.type.pointee, ir.VectorType):
            self.reads.append(pointer.data)
        return super().load(pointer)


@EACH_STORED
@pytest.mark.parametrize(("shape", "depth"), [((64, 64), 32), ((64, 64), 64), ((128, 64), 16), ((64, 128), 8)])
def test_the_right_elements_meet(by_k: tuple[bool, bool], shape: tuple[int, int], depth: int) -> None:
    sums = layout(shape, 4, by_k)
    left, right = operands(shape, depth, by_k)
    x, y, acc = (
        draw(i8, each, "small", seed).astype(np.float32)
        for seed, each in enumerate(((shape[0], depth), (shape[1], depth), shape))
    )
    place, slots, turn = 1024, 3, 4
    slot_bytes = left.place_bytes + right.place_bytes
    b = Watched(sums.threads, place + slots * slot_bytes)
    at = place + turn % slots * slot_bytes
    for smem_layout, tile in ((left, x), (right, y)):
        b.memory[at : at + smem_layout.place_bytes] = in_panels(smem_layout, tile)
        at += smem_layout.place_bytes
    x_stages = BufferStages(left, slots, slot_bytes, place)
    y_stages = BufferStages(right, slots, slot_bytes, place + left.place_bytes)
    made = simt.multiply(sums, x_stages, y_stages, depth)
    result = made.generate(b, [scatter(acc, sums, f32), Vector(I32, np.full(sums.threads, turn, np.uint32))])
    np.testing.assert_array_equal(collect(result, sums, f32), x @ y.T + acc)
    per_step = sum(len({offset[axis] for offset in sums.offsets}) for axis in range(2))
    assert len(b.reads) == per_step * depth // 4  # none twice
    for read in b.reads:
        for warp in read.reshape(-1, 32):
            banks = Counter(int(each) // 16 % 8 for each in set(warp.tolist()))
            assert max(banks.values()) == 1, "lanes of a warp wait for one another"


def operands(shape: tuple[int, int], depth: int, by_k: tuple[bool, bool]) -> tuple[SmemLayout, SmemLayout]:
    left, right = (
        SmemLayout(depth if along else extent, extent if along else depth, 4, along)
        for along, extent in zip(by_k, shape, strict=True)
    )
    return left, right


def test_threads_hold_sums_that_take_few_reads() -> None:
    for by_k in STORED:
        made = layout((128, 256), 8, by_k)
        assert [len({offset[axis] for offset in made.offsets}) for axis in range(2)] in ([8, 16], [16, 8])
    assert simt_accumulator((24, 40), 4, (True, False)) is None


def gemm_of(tile: tuple[int, int], depth: int, by_k: tuple[bool, bool]) -> Function:
    """z = x @ y of f32, stored as said."""
    x = tensor(2) if by_k[0] else replace(tensor(2), strides=(1, None))
    y = replace(tensor(2), strides=(1, None)) if by_k[1] else tensor(2)
    return shipped(gemm, {"z": mut(*tile), "x": x, "y": y}, BK=depth)


@EACH_STORED
def test_f32_is_multiplied_by_specialised_warps(by_k: tuple[bool, bool]) -> None:
    lowering = lowered(gemm_of((128, 256), 32, by_k))
    names = [op.name for op in lowering.walk()]
    assert "cuda.simt_mma" in names
    assert "cuda.wgmma" not in names
    assert check_function(lowering) > 0


def test_one_warp_group_has_a_small_tile_to_itself() -> None:
    made = lowered(gemm_of((64, 64), 32, (True, False)))
    assert made.facts["threads"] == 2 * WARPGROUP
    assert check_function(made) > 0


@pytest.mark.parametrize(
    ("tile", "reason"),
    [((256, 256), "a thread would hold 256 sums"), ((40, 40), "40 x 40 sums do not divide among 4 warps")],
)
def test_what_does_not_fit_says_why(tile: tuple[int, int], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        plan_mainloop(Kernel(gemm_of(tile, 32, (True, False))), architecture("sm_90a"), CompileOptions())


@pytest.mark.slow
@pytest.mark.parametrize(("by_k", "depth"), [*((each, 32) for each in STORED), (STORED[0], 64)])
def test_little_but_multiply_adds_is_in_the_loop(by_k: tuple[bool, bool], depth: int, tmp_path: Path) -> None:
    executable = compiled(gemm_of((128, 128), depth, by_k))
    assert_clean(executable)
    opcodes = instructions(executable, tmp_path)
    adds = sum(count for name, count in opcodes.items() if name.startswith("FFMA"))
    assert adds == 64 * depth
    assert opcodes["LDS.128"] == adds // 16
    assert innermost_loop(executable, "FFMA", tmp_path) <= 1.09 * adds


@pytest.mark.slow
def test_what_follows_the_product_is_cut_into_pieces(tmp_path: Path) -> None:
    types: dict[str, Type] = {"z": mut(128, 256), "x": tensor(2), "y": tensor(2), "bias": tensor(1)}
    function = shipped(gemm_fused, types | {"residual": tensor(2)}, BK=32, BIAS=1, RESIDUAL=1, ACTIVATION=2)
    made = compiled(function)
    assert_clean(made)
    assert instructions(made, tmp_path)["UTMALDG.2D"] > 0
