"""Products whose right operand is computed: their operands change places, and nothing moves but on its way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cutile import bf16, f16
from cutile.backend.cuda.intrinsics import tma
from cutile.backend.cuda.intrinsics.llvm import I32, I64
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.ops import Barrier, ConvertLayout, Dot, ReadBuffer, Roles, TmaLoad, TmaStore
from cutile.backend.cuda.pipeline.swap_ab import swap
from cutile.backend.gpu.layout import Layout
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import i8, u8, u16
from cutile.ir.core import Function, Value
from cutile.ir.types import Type
from cutile.ir.verify import verify
from cutile.ops.matmul import Mma
from kernels import prepacked
from kernels.quantised import FEW_ROWS, int4_weights, int8_weights, weights
from kernels.swiglu import swiglu
from tests.backend.cuda.emulated import Array, Emulated, Vector, scatter
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import compiled, instructions, lowered, ptx, shipped, source, written
from tests.support.programs import mut, tensor


def quantised(bits: int, *tile: int, dtype: Any = bf16) -> Function:
    kernel, whole = (int8_weights, i8) if bits == 8 else (int4_weights, u8)
    given: dict[str, Type] = {"z": mut(*tile, dtype=dtype), "x": tensor(2, dtype), "w": tensor(2, whole)}
    return shipped(kernel, {**given, "scale": tensor(2, dtype)}, GROUPS=2, LEFT=2 if tile[0] < FEW_ROWS else 1)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("tile", [(256, 128), (128, 128), (16, 64)], ids=str)
def test_computed_weights_come_from_registers_and_nothing_moves(bits: int, tile: tuple[int, int]) -> None:
    function = lowered(quantised(bits, *tile))
    verify(function)
    assert [step for step, _ in function.facts["refused"]] == ["specialised warps"]
    assert check_function(function) > 10
    assert check_layouts(function) > 3
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    dots = [op for op in roles.consumer.walk() if isinstance(op, Dot)]
    loaded = 128 if tile[0] < FEW_ROWS else 64  # each iteration has two groups of 64; of few rows x is loaded for both
    assert [(op.right_first, op.depth) for op in dots] == [(0, 64), (64 % loaded, 64)]
    # As consumers wait for them: weights and their scales first.
    loads = [op.x.name for op in roles.producer.walk() if isinstance(op, TmaLoad)]
    assert loads == ["w", "scale", "scale", *["x"] * (128 // loaded)]
    assert all(op.from_registers and op.shape == tile[::-1] for op in dots)
    assert any(isinstance(op, ReadBuffer) for op in roles.consumer.walk())
    assert not any(isinstance(op, Barrier) for op in roles.consumer.walk())
    assert not any(isinstance(op, ConvertLayout) and op.attributes["how"] == "move" for op in roles.consumer.walk())
    (store,) = (op for op in roles.consumer.walk() if isinstance(op, TmaStore))
    assert store.transposed


def test_weights_that_one_tile_block_reads_are_evicted_first() -> None:
    """Where the grid has one tile block along each axis but the weights' own; others may come from the L2 cache."""
    program = quantised(8, 16, 64)
    hints = {op.x.name: op.shared_along for op in lowered(program).walk() if isinstance(op, TmaLoad)}
    assert hints == {"w": (0, 2), "scale": None, "x": None}  # scales' rows are computed, products read x
    (load,) = (line for line in source(program).text.splitlines() if "load_w(" in line)
    assert load.strip() == "load_w(w_map, j, k, counter_1, grid_x, grid_z)"
    copies = [line for line in ptx(program).splitlines() if "cp.async.bulk.tensor" in line and ".global.tile" in line]
    assert len([line for line in copies if ".L2::cache_hint" in line]) == 1 < len(copies)


RIGHT = """
def kernel(z: Mut, x: Tensor, w: Tensor, *, BK: Const = 64):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(x.shape[1] // BK):
        right = ct.load_tile(w, (BN, BK), (INDEX)).astype(bf16).transpose()
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), right, acc)
    z.store(acc.astype(z.dtype))
"""


def test_tiles_that_a_tile_block_loads_again_are_not_evicted_first() -> None:
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": tensor(2, bf16), "w": tensor(2, i8)}
    for index, expected in (("j, k", (0, 2)), ("j, k // 2", None), ("j + i, k", None)):
        function = lowered(written(RIGHT.replace("INDEX", index), types, BK=64))
        (load,) = (op for op in function.walk() if isinstance(op, TmaLoad) and op.x.name == "w")
        assert load.shared_along == expected, index


def test_products_that_need_not_are_not_swapped() -> None:
    operand = tensor(2, bf16)
    plain = shipped(swiglu, {"z": mut(128, 128, dtype=bf16), "x": operand, "gate": operand, "up": operand})
    assert swap(plain) is plain


@pytest.mark.parametrize("bits", [8, 4])
def test_swapped_products_mean_the_same(bits: int) -> None:
    """By NumPy, on edges of rows and columns."""
    function = quantised(bits, 32, 64, dtype=f16)
    swapped = swap(function)
    verify(swapped)
    assert [op.acc.tile.shape for op in swapped.walk() if isinstance(op, Mma)] == [(64, 32)] * 2
    random = np.random.default_rng(0)
    x = random.standard_normal((40, 128)).astype(np.float16)
    w = random.integers(0, 256, (72, 128 * bits // 8), np.uint8)
    scale = random.random((2, 72)).astype(np.float16)
    results: list[Array] = []
    for program in (function, swapped):
        z = np.full((40, 72), np.nan, np.float16)
        given = (z, x, w.view(np.int8) if bits == 8 else w, scale)
        values: dict[Value, Any] = dict(zip(program.parameters, given, strict=True))
        for block in np.ndindex(2, 2):
            run_block(program, values, (*block, 0), (2, 2, 1))
        results.append(z.astype(np.float32))
    np.testing.assert_allclose(results[0], results[1], rtol=2e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_nothing_spills_and_nothing_is_serialised(bits: int, tmp_path: Any) -> None:
    """Tiles of few rows are compiled in `test_divided_pipelines.py`."""
    built = compiled(quantised(bits, 256, 128))
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    names = instructions(built, tmp_path)
    assert all(any(each.startswith(start) for each in names) for start in ("HGMMA", "UTMALDG", "UTMASTG", "STSM"))


class _Engine(Emulated):
    """Adds matrices turned on their way to shared memory, and TMA, which stores boxes of a tensor."""

    def __init__(self, threads: int, target: Array, box: tuple[int, int]) -> None:
        super().__init__(threads)
        self.target, self.box = target, box

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        text = str(function)
        if "stmatrix" in text:
            self._turned(operands[0].data, [each.data for each in operands[1:]])
        elif "cp.async.bulk.tensor" in text:
            for thread in np.flatnonzero(self._active):
                self._stored(*(int(each.data[thread].view(np.int32)) for each in operands[1:]))
        elif not any(word in text for word in ("wait_group", "fence", "bar.warp")):
            return super().call(function, operands, attrs)
        return None

    def _turned(self, places: Array, words: list[Array]) -> None:
        for warp in range(self._threads // 32):
            for matrix, word in enumerate(words):
                rows = word[warp * 32 : warp * 32 + 32].view(np.uint16).reshape(8, 8)  # row: lane // 4
                for row in range(8):
                    at = int(places[warp * 32 + matrix * 8 + row])
                    self.memory[at : at + 16] = np.ascontiguousarray(rows[:, row]).view(np.uint8)

    def _stored(self, source: int, x: int, y: int) -> None:
        rows, columns = self.box
        for row in range(rows):
            for piece in range(columns // 8):
                at = source + row * columns * 2 + (piece ^ row // 4 % 2) * 16
                self.target[y + row, x + piece * 8 : x + piece * 8 + 8] = self.memory[at : at + 16].view(np.uint16)


@pytest.mark.parametrize(
    ("tile", "groups"), [((256, 128), 2), ((16, 64), 1), ((8, 64), 1), ((40, 256), 2), ((32, 192), 3)], ids=str
)
def test_results_are_stored_by_columns(tile: tuple[int, int], groups: int) -> None:
    rows, columns = tile
    layout: Layout = group_accumulator((columns, rows), groups).permute((1, 0))
    span = next(each for each in (64, 32, 16, 8) if rows % each == 0)
    store = tma.store_transposed(bf16, layout, span=span, buffers=2, place=1024)
    value = np.arange(rows * columns, dtype=np.uint16).reshape(tile)
    target = np.zeros((2 * rows, 3 * columns), np.uint16)
    engine = _Engine(layout.threads, target, (span, 16))
    fragment = scatter(value.view(bf16.numpy), layout, bf16)
    index = [Vector(I32, np.full(layout.threads, each, np.uint32)) for each in (1, 2)]
    engine._active = np.arange(layout.threads) < 128 * groups
    store.generate(engine, [fragment, Vector(I64, np.zeros(layout.threads, np.uint64)), *index])
    np.testing.assert_array_equal(target[rows:, 2 * columns :], value)
    assert not target[:rows].any()
    assert not target[:, : 2 * columns].any()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("tile", [(256, 128), (16, 64)], ids=str)
def test_swapped_products_are_right_by_all_warps(bits: int, tile: tuple[int, int]) -> None:
    """By NumPy, with the barriers and stages that a GPU has, on edges of rows and columns."""
    function = lowered(quantised(bits, *tile))
    random = np.random.default_rng(0)
    rows, columns, depth = tile[0] + 44, tile[1] + 72, 192
    x = random.standard_normal((rows, depth)).astype(bf16.numpy)
    w = random.integers(0, 256, (columns, depth * bits // 8), np.uint8)
    w = w.view(np.int8) if bits == 8 else w
    scale = (random.random((depth // 64, columns)) / 64).astype(bf16.numpy)
    z = np.full((rows, columns), np.nan, bf16.numpy)
    grid = (-(-rows // tile[0]), -(-columns // tile[1]), 1)
    execute(function, [z, x, w, scale], grid, blocks=2, seed=0)
    wanted = x.astype(np.float64) @ weights(w, scale).T
    error = np.linalg.norm(z.astype(np.float64) - wanted) / np.linalg.norm(wanted)
    assert error < 6e-3


def prepacked_weights(bits: int, *tile: int, groups: int = 2) -> Function:
    operand = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(*tile, dtype=bf16), "x": operand, "w": tensor(2, u16), "scale": operand}
    left = groups if tile[0] < FEW_ROWS else 1
    return shipped(prepacked.prepacked_weights, types, BITS=bits, GROUPS=groups, LEFT=left)


@pytest.mark.parametrize(("bits", "tile"), [(8, (128, 128)), (4, (128, 128)), (4, (16, 64))], ids=str)
def test_prepacked_weights_are_read_eight_at_a_time_and_nothing_moves(
    bits: int, tile: tuple[int, int], tmp_path: Any
) -> None:
    function = prepacked_weights(bits, *tile)
    lowering = lowered(function)
    assert check_function(lowering) > 10
    (roles,) = (op for op in lowering.walk() if isinstance(op, Roles))
    moves = [op for op in roles.consumer.walk() if op.attributes.get("how") == "move"]
    assert all(op.results[0].tile.size == tile[1] for op in moves)  # of scales alone
    built = compiled(function)
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    names = instructions(built, tmp_path)
    wide = "LDS.128" if bits == 8 else "LDS.64"  # of 64 of K
    assert names[wide] >= 2 * 2
    assert names["HFMA2.BF16_V2"] == 32  # 128 of K of a row: one for two weights, of four in a thread for 16 of K


@pytest.mark.parametrize("bits", [8, 4])
def test_prepacked_weights_mean_the_same(bits: int) -> None:
    """By NumPy, with barriers and copies that arrive late."""
    random = np.random.default_rng(1)
    plain = random.integers(0, 256, (72, 256 * bits // 8), np.uint8)
    whole = plain.view(np.int8) if bits == 8 else plain
    x = random.integers(-4, 5, (24, 256)).astype(bf16.numpy)
    scale = np.ones((4, 72), bf16.numpy)
    function = prepacked_weights(bits, 16, 64)
    z = np.full((24, 72), np.nan, bf16.numpy)
    execute(lowered(function), [z, x, prepacked.prepack(whole), scale], (2, 2, 1), blocks=2)
    exact = x.astype(np.float64) @ weights(whole, scale).T
    np.testing.assert_array_equal(z, exact.astype(np.float32).astype(bf16.numpy))  # whole numbers below 2**24


SHUFFLED = """
def shuffled(z: Mut, x: Tensor, w: Tensor):
    BM, BN = z.shape
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(x.shape[1] // 64):
        right = ct.load_tile(w, (BN, 64), (0, k)).astype(bf16)
        right = ct.permute(right.reshape((BN, *{cuts})), (0, *{axes})).reshape((BN, 64))
        acc = ct.mma(ct.load_tile(x, (BM, 64), (0, k)), right.transpose(), acc)
    z.store(acc)
"""


@pytest.mark.parametrize("seed", range(8))
def test_operands_in_any_order_of_their_depth_are_right(seed: int) -> None:
    """Cut into random axes, and joined in another order: of what threads hold, or through shared memory."""
    random = np.random.default_rng(seed)
    bits = [1] * 6
    while len(bits) > 2 and random.random() < 0.7:  # join neighbours
        at = int(random.integers(len(bits) - 1))
        bits[at : at + 2] = [bits[at] + bits[at + 1]]
    cuts = tuple(1 << count for count in bits)
    axes = tuple(int(axis) for axis in random.permutation(len(cuts)))
    text = SHUFFLED.format(cuts=cuts, axes=tuple(axis + 1 for axis in axes))
    types: dict[str, Type] = {"z": mut(64, 64), "x": tensor(2, bf16), "w": tensor(2, i8)}
    x = random.integers(-4, 5, (64, 128)).astype(bf16.numpy)
    w = random.integers(-4, 5, (64, 128)).astype(np.int8)
    right = w.reshape(64, 2, *cuts).transpose(0, 1, *(axis + 2 for axis in axes)).reshape(64, 128)
    z = np.full((64, 64), np.nan, np.float32)
    execute(lowered(written(text, types)), [z, x, w], (1, 1, 1))
    np.testing.assert_array_equal(z, x.astype(np.float64) @ right.astype(np.float64).T)
