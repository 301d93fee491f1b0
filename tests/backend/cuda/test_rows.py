"""Rows that are reduced: quotients, layouts, loads ahead, barriers, machine code."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from benchmarks.memory import kernels
from cutile.backend.cuda.intrinsics import arith, grid, math
from cutile.backend.cuda.intrinsics.llvm import F32, I16, I32
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import ClusterTileBlockId, PadEdges, ProductHalf, RowExp, RowExpSum, RowExpUnit, StageTile
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import DTypeLike, bf16, f16, i32, u32
from cutile.ir.core import Function, Op
from cutile.ir.types import Type
from cutile.ir.verify import verify
from cutile.ops.cast import Convert
from cutile.ops.grid import TileBlockId
from cutile.ops.memory import LoadTile
from cutile.ops.pointer import LoadPointer
from cutile.ops.reduce import Reduce
from cutile.ops.view import LoadView
from tests.backend.cuda.emulated import Emulated, Vector
from tests.backend.cuda.programs import compiled, instructions, lowered, shipped, written
from tests.backend.cuda.staged import run_lowered
from tests.support.programs import mut, scalar, tensor

THREADS = 1 << 17
WIDTH = 8


class Recorder(Emulated):
    """The builder that says which threads have divided last."""

    dividing: Any = None

    def fdiv(self, x: Any, y: Any) -> Vector:
        self.dividing = self._active
        return super().fdiv(x, y)


def computed(function: Any, *tiles: Any, builder: Emulated | None = None) -> Any:
    """What an intrinsic makes of rows of f32, or of 16 bits, one to each thread."""

    def vector(column: Any) -> Vector:
        column = np.ascontiguousarray(column)
        if column.dtype == np.float32:
            return Vector(F32, column)
        return Vector(I32, column) if column.itemsize == 4 else Vector(I16, column.view(np.uint16))

    columns = [Vector(None, [vector(column) for column in each.T]) for each in tiles]
    return np.stack([each.data for each in function.generate(builder or Emulated(len(tiles[0])), columns).data], 1)


def drawn(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng()
    shape = (THREADS, WIDTH)
    y = rng.integers(0, 1 << 32, shape, np.uint32).view(np.float32)
    if kind == "ordinary":
        return rng.random(shape, np.float32), rng.uniform(1, 1e5, shape).astype(np.float32)
    if kind == "any bits":
        return rng.integers(0, 1 << 32, shape, np.uint32).view(np.float32), y
    # Quotients within a few units of where bf16 rounds up or down.
    middle = (rng.integers(0, 1 << 16, shape, np.uint32) << 16) + 0x8000 + rng.integers(-6, 7, shape).astype(np.uint32)
    y = rng.uniform(1, 2, shape).astype(np.float32) * np.float32(2.0) ** rng.integers(-20, 21, shape)
    return (middle.view(np.float32) * y.astype(np.float64)).astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("kind", ["ordinary", "any bits", "near ties"])
@np.errstate(all="ignore")
def test_quotients_by_reciprocals_round_to_the_same_bf16(kind: str, packs: bool) -> None:
    x, y = drawn(kind)
    made, exact = computed(arith.row_quotient(WIDTH, packs), x, y).view(bf16.numpy), (x / y).astype(bf16.numpy)
    same = (made.view(np.uint16) == exact.view(np.uint16)) | (np.isnan(made) & np.isnan(exact))
    assert same.all()


@pytest.mark.parametrize("packs", [False, True])
@np.errstate(all="ignore")
def test_most_quotients_are_not_divided(packs: bool) -> None:
    builder = Recorder(THREADS)
    computed(arith.row_quotient(WIDTH, packs), *drawn("ordinary"), builder=builder)
    assert 0 < builder.dividing.mean() < 0.001  # a thread with a near tie divides all of its own


# -- exponentials ---------------------------------------------------------------------------------


@np.errstate(all="ignore")
def test_exponentials_are_within_two_units() -> None:
    """With a correctly rounded power; with the hardware's, all floats were within 1.94 units on an H200."""
    rng = np.random.default_rng()
    near = rng.integers(0, np.float32(87).view(np.uint32) + 1, (THREADS, WIDTH), np.uint32).view(np.float32)
    ordinary = rng.uniform(0, 87, (THREADS, WIDTH)).astype(np.float32)
    for x in (near, ordinary):
        exact = np.exp(-x.astype(np.float64))
        units = np.abs(computed(math.negative_exp(WIDTH), x) - exact) / np.spacing(exact.astype(np.float32))
        assert units.max() < 1.3


@np.errstate(all="ignore")
def test_what_is_out_of_range_goes_the_long_way() -> None:
    rng = np.random.default_rng()
    x = rng.uniform(0, 50, (THREADS, WIDTH)).astype(np.float32)
    odd = np.array([np.nan, np.inf, -np.inf, -1, 87.1, 104, -0.0, 88.9, -89], np.float32)
    rows = rng.integers(0, WIDTH, THREADS)
    x[np.arange(THREADS), rows] = odd[np.arange(THREADS) % len(odd)]
    np.testing.assert_array_equal(computed(math.negative_exp(WIDTH), x), np.exp(-x))


@pytest.mark.parametrize(("dtype", "most"), [(bf16, 3.0), (f16, 1.3)])
@np.errstate(all="ignore")
def test_exponentials_of_rows_are_near_a_power(dtype: DTypeLike, most: float) -> None:
    """By correctly rounded powers of 2, within so many units from 0 to `MAX_UNSCALED_TOP`."""
    rng = np.random.default_rng()
    m = np.repeat(rng.uniform(-70, 140, (THREADS, 1)).astype(dtype.numpy), WIDTH, 1)
    x = (m.astype(np.float32) - rng.uniform(0, 86, m.shape) ** rng.integers(0, 3, m.shape)).astype(dtype.numpy)
    top, wide = m.astype(np.float32), x.astype(np.float64)
    powers = computed(math.row_exp(dtype, WIDTH), x, top).astype(np.float64)
    quick = (top[:, 0] >= 0) & (top[:, 0] <= math.MAX_UNSCALED_TOP) & (top[:, 0] - wide.min(1) <= math.MAX_DIFFERENCE)
    exact = np.exp(wide[quick])
    units = np.abs(powers[quick] - exact) / np.spacing(exact.astype(np.float32))
    assert units.max() < most
    unit = computed(math.row_exp_unit(WIDTH), top).astype(np.float64)
    np.testing.assert_allclose(powers * unit, np.exp(wide - m.astype(np.float64)), rtol=6e-6, atol=4e-45)


@np.errstate(all="ignore")
def test_rows_out_of_range_go_the_long_way() -> None:
    rng = np.random.default_rng()
    odd = np.array([np.nan, np.inf, -np.inf, -87.5, 1e30, -1e30, -120, 2.0**21, 60, 100], np.float32)
    m = np.repeat(odd[np.arange(THREADS) % len(odd)][:, None], WIDTH, 1)
    x = rng.uniform(-5, 0, m.shape).astype(bf16.numpy)
    x[np.arange(THREADS), rng.integers(0, WIDTH, THREADS)] = odd[rng.integers(0, len(odd), THREADS)]
    powers = computed(math.row_exp(bf16, WIDTH), x, m)
    unit = computed(math.row_exp_unit(WIDTH), m)
    exact = np.exp(x.astype(np.float32) - m)
    inside = (m >= math.MIN_TOP) & (m <= math.MAX_TOP)
    np.testing.assert_array_equal(powers[~inside], exact[~inside])
    assert (unit[~inside] == 1).all()
    below = inside & (x.astype(np.float32).max(1, keepdims=True) <= m)
    np.testing.assert_allclose((powers * unit)[below], exact[below], rtol=4e-6, atol=1e-44)


# -- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [i32, u32])
def test_halves_of_a_product_are_those_of_64_bits(dtype: DTypeLike) -> None:
    rng = np.random.default_rng()
    x, y = (rng.integers(0, 1 << 32, (THREADS, WIDTH), np.uint32) for _ in range(2))
    halves = [computed(arith.product_half(dtype, WIDTH, upper=upper), x, y) for upper in (False, True)]
    whole = x.view(dtype.numpy).astype(np.int64 if dtype is i32 else np.uint64) * y.view(dtype.numpy)
    np.testing.assert_array_equal(halves[0], whole.astype(np.uint32))
    np.testing.assert_array_equal(halves[1], (whole >> 32).astype(np.uint32))


def test_halves_that_go_on_take_one_multiplication(tmp_path: Path) -> None:
    given = {"y": mut(4096, dtype=bf16), "x": tensor(1, bf16), "seed": scalar(u32), "keep": scalar(u32)}
    function = shipped(kernels.dropout, given | {"scale": scalar()})
    halves = all_of(lowered(function), ProductHalf)
    assert [op.upper for op in halves].count(True) == len(halves) // 2 > 0
    x = np.random.default_rng().standard_normal(4096).astype(bf16.numpy)
    numbers = [np.asarray(each) for each in (np.uint32(7), np.uint32(3 << 30), np.float32(4 / 3))]
    wanted, found = run(function, lowered(function), [np.zeros_like(x), x, *numbers], (1, 1, 1))
    np.testing.assert_array_equal(found, wanted)
    executable = compiled(function)
    assert executable.facts["spills"] == 0
    opcodes = instructions(executable, tmp_path)
    low = sum(n for each, n in opcodes.items() if each == "IMAD")
    assert low < 100 < opcodes["IMAD.WIDE.U32"]  # 142 and 145 where each half is a multiplication


# -- kernels --------------------------------------------------------------------------------------


def softmax(columns: int = 4096, rows: int = 1, dtype: DTypeLike = bf16) -> Function:
    return shipped(kernels.softmax, {"y": mut(rows, columns, dtype=dtype), "x": tensor(2, dtype)})


IN_PIECES = """
def softmax(y: Mut, x: Tensor):
    row = ct.get_tile_block_id()[0]
    part, out = x.partition((1, 256), padding=ct.padding.NEG_INF), y.partition_mut((1, 256))
    top, total = ct.constant(float("-inf"), (1,), f32), ct.constant(0, (1,), f32)
    for k in range(ct.num_tiles(part, 1)):
        t = part.load((row, k))
        higher = ct.max_tile(top, ct.reduce_max(t, 1))
        total = total * ct.exp(top - higher) + ct.reduce_sum(ct.exp(t - higher[:, None]), 1)
        top = higher
    for k in range(ct.num_tiles(part, 1)):
        out.store(ct.exp(part.load((row, k)) - top[:, None]) / total[:, None], (0, k))
"""


def all_of(function: Function, kind: type[Op]) -> list[Any]:
    return [op for op in function.walk() if isinstance(op, kind)]


def run(function: Function, lowering: Function, arrays: list[Any], grid: tuple[int, int, int]) -> tuple[Any, Any]:
    """What the kernel writes, and what the lowered one does."""
    expected, result = arrays[0].copy(), arrays[0].copy()
    for index in np.ndindex(grid):
        values = dict(zip(function.parameters, map(np.asarray, [expected, *arrays[1:]]), strict=True))
        run_block(function, values, index, grid)
    run_lowered(lowering, [result, *arrays[1:]], grid)
    return expected, result


# -- pieces of rows -------------------------------------------------------------------------------


def test_padded_pieces_are_copied_ahead_and_padded_when_they_are_read() -> None:
    rng = np.random.default_rng()
    function = written(IN_PIECES, {"y": mut(1, 1000), "x": tensor(2)})
    lowering = lowered(function)
    verify(lowering)
    assert all_of(lowering, StageTile)
    assert not all_of(lowering, LoadView)
    assert {op.padding for op in all_of(lowering, PadEdges)} == {"neg_inf"}
    x = rng.standard_normal((3, 1000)).astype(np.float32) - 5  # zeros past the edge would be the largest
    wanted, found = run(function, lowering, [np.full_like(x, np.nan), x], (3, 1, 1))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)


# -- exponentials of rows -------------------------------------------------------------------------

POWERS = """
def kernel(y: Mut, x: Tensor):
    t = ct.load_tile_like(x, y).astype(f32)
    top = {top}
    e = ct.exp(t - top)
    y.store(({result}).astype(y.dtype))
"""
OF_ROW = "ct.reduce_max(t, 1)[:, None]"
OF_ALL = "ct.reduce_max(ct.reduce_max(t, 1), 0).reshape((1, 1))"
QUOTIENT = "e / ct.reduce_sum(e, 1)[:, None]"
SQUARED = "t * ct.reduce_sum(e, 1)[:, None]"


@pytest.mark.parametrize(
    ("top", "result", "powers", "units"),
    [
        (OF_ROW, QUOTIENT, 1, 0),
        (f"ct.max_tile({OF_ROW}, 1.5)", QUOTIENT, 1, 0),
        (OF_ALL, QUOTIENT, 1, 0),
        (OF_ROW, SQUARED, 1, 1),  # a sum that is used
        (OF_ALL, "e / ct.reduce_sum(e, 0)[None, :]", 1, 0),
        (OF_ROW, "e / ct.reduce_sum(e, 0)[None, :]", 0, 0),  # of several rows
        (OF_ROW, "e / ct.reduce_sum(e, 1)[None, :]", 0, 0),
        (OF_ROW, "t * ct.reduce_sum(e, 0)[None, :]", 0, 0),
        (OF_ROW, "e", 0, 0),  # exponentials that are used
        (OF_ROW, f"{QUOTIENT} + ct.reduce_sum(e, 1)[:, None]", 0, 0),
        ("ct.reduce_max(t, 0)[:, None]", QUOTIENT, 0, 0),  # of another row
        (f"-{OF_ROW}", QUOTIENT, 0, 0),
        (f"ct.min_tile({OF_ROW}, 1.5)", QUOTIENT, 0, 0),
    ],
)
def test_exponentials_of_rows_count_from_a_whole_number(top: str, result: str, powers: int, units: int) -> None:
    text = POWERS.format(top=top, result=result)
    function = written(text, {"y": mut(16, 16, dtype=bf16), "x": tensor(2, bf16)})
    lowering = lowered(function)
    assert (len(all_of(lowering, RowExp)), len(all_of(lowering, RowExpUnit))) == (powers, units)
    x = np.random.default_rng().standard_normal((16, 16)).astype(bf16.numpy)
    wanted, found = run(function, lowering, [np.zeros_like(x), x], (1, 1, 1))
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=2**-7)


# -- layouts and loads ----------------------------------------------------------------------------


def test_a_warp_reduces_rows_of_its_own() -> None:
    lowering = lowered(softmax(1024, 4))
    assert lowering.facts["warps"] == 4
    assert lowering.facts["shared_bytes"] == 0
    assert not any(
        layout.free_warps for layout in layouts_of(lowering).values() if layout.rank == 2 and layout.shape[1] > 1
    )


@pytest.mark.parametrize("columns", [2048, 16384])
def test_a_row_of_many_steps_is_looked_at_once(columns: int) -> None:
    """Each tile is an operand of the next three times: one look for each use would be 3**40."""
    text = "def k(y: Mut, x: Tensor):\n    t = ct.load_tile_like(x, y).astype(f32)\n" + "    t = t * t - t\n" * 40
    text += "    y.store((t * ct.reduce_sum(t, 1)[:, None]).astype(y.dtype))\n"
    function = lowered(written(text, {"y": mut(1, columns, dtype=bf16), "x": tensor(2, bf16)}))
    assert all_of(function, Reduce)


def test_loads_are_begun_before_one_of_them_is_used() -> None:
    given: dict[str, Type] = {"y": mut(1, 32, 128, dtype=bf16), "x": tensor(3, bf16)}
    given |= {"cos": tensor(2, bf16), "sin": tensor(2, bf16)}
    kinds = [type(op) for op in lowered(shipped(kernels.rotary, given)).walk() if isinstance(op, LoadTile | Convert)]
    assert kinds[:4] == [LoadTile] * 4
    text = """
        def kernel(y: Mut, x: Tensor, z: Tensor):
            n = ct.get_tile_block_id()[0]
            for k in ct.static_range(3):
                n = n * 3 + 1
            y.store(ct.load_tile(x, (64,), (n,)).astype(f32) + ct.load_tile(z, (64,), (n,)).astype(f32))
    """
    made = lowered(written(dedent(text), {"y": mut(64), "x": tensor(1, bf16), "z": tensor(1, bf16)}))
    assert [type(op) for op in made.walk() if isinstance(op, LoadTile | Convert)] == [LoadTile] * 2 + [Convert] * 2


# -- the grid -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(64, 1, 1), (4, 8, 2), (1, 32, 2), (8, 1, 8)])
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_tile_block_has_its_place_in_grids_of_any_axes(
    sizes: tuple[int, int, int], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = np.arange(64 * blocks, dtype=np.uint32)

    def block(_: object) -> Vector:
        return Vector(I32, launched)

    monkeypatch.setattr(grid, "block", block)
    places = np.unravel_index(launched // blocks, sizes)
    for axis in range(3):
        given = [Vector(I32, np.full(len(launched), extent, np.uint32)) for extent in sizes[1:]]
        index = grid.tile_block_id(axis, blocks, alone=True).generate(Emulated(len(launched)), given)
        np.testing.assert_array_equal(np.broadcast_to(index.data, launched.shape), places[axis])


def test_a_kernel_of_rows_divides_no_number_where_the_grid_has_one_axis() -> None:
    assert all(op.alone for op in all_of(lowered(softmax()), ClusterTileBlockId))
    assert not all_of(lowered(softmax()), TileBlockId)
    copied = lowered(shipped(kernels.copy, {"y": mut(1, 4096, dtype=bf16), "x": tensor(2, bf16)}))
    assert not all_of(copied, ClusterTileBlockId)


# -- barriers -------------------------------------------------------------------------------------

PIECES = """
def kernel(y: Mut, x: Tensor):
    part, total = x.partition((1, 1024)), ct.constant(0, (1,), f32)
    for k in range(ct.num_tiles(part, 1)):
        t = part.load((0, k))
        total = total + ct.reduce_max(t, 1){more}
    y.store(total)
"""


def test_threads_wait_once_where_reductions_follow_each_other_in_a_loop() -> None:
    parameters: dict[str, Type] = {"y": mut(1), "x": tensor(2)}
    (alone,) = all_of(lowered(written(PIECES.format(more=""), parameters)), Reduce)
    assert alone.attributes["fence"]  # others may still read what was written in the iteration before
    two = all_of(lowered(written(PIECES.format(more=" * ct.reduce_sum(t, 1)"), parameters)), Reduce)
    assert [op.attributes["fence"] for op in two] == [
        False,
        False,
    ]  # nobody comes back before all have met in the other
    assert two[0].attributes["offset"] != two[1].attributes["offset"]


# -- machine code ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_row_is_loaded_once_and_divides_rarely(arch: str, tmp_path: Path) -> None:
    executable = compiled(softmax(), arch)
    assert executable.facts["threads"] == 128
    assert executable.facts["spills"] == executable.facts["stack"] == 0
    opcodes = instructions(executable, tmp_path)
    for kind in ("LDG.E.128", "STG.E.128"):
        assert sum(n for each, n in opcodes.items() if each.startswith(kind)) == 2 * 4  # in the tensor, and at its edge
    assert opcodes["FCHK"] == 32  # divisions of each element, where a group of eight is not sure


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_exponentials_of_bf16_are_added_as_they_are_computed(arch: str, tmp_path: Path) -> None:
    given = {"loss": mut(1), "x": tensor(2, bf16), "target": tensor(1, i32)}
    function = shipped(kernels.cross_entropy, given, B=2048)
    lowering = lowered(function)
    assert (len(all_of(lowering, RowExp)), len(all_of(lowering, RowExpSum))) == (0, 1)
    x = np.random.default_rng().standard_normal((1, 4096)).astype(bf16.numpy)
    x[0, :2048] += 70
    wanted, found = run(function, lowering, [np.zeros(1, np.float32), x, np.full(1, 7, np.int32)], (1, 1, 1))
    np.testing.assert_allclose(found, wanted, rtol=2e-6)
    executable = compiled(function, arch)
    assert executable.facts["spills"] == executable.facts["stack"] == 0
    opcodes = instructions(executable, tmp_path)
    assert (
        opcodes["FFMA.RM"] == 11
    )  # the exact way of 8 elements, and what each thread has once: 18 with the same shortly


@np.errstate(all="ignore")
def test_sums_of_exponentials_are_of_every_slot() -> None:
    given = {"loss": mut(1), "x": tensor(2, bf16), "target": tensor(1, i32)}
    lowering = lowered(shipped(kernels.cross_entropy, given, B=8192))
    (total,) = all_of(lowering, RowExpSum)
    layout = layouts_of(lowering)[total.attributes["source"]]
    rng = np.random.default_rng()
    x = rng.uniform(-90, 5, (1 << 10, layout.registers)).astype(bf16.numpy)  # some of each thread's go the long way
    x[: 1 << 9] /= 2
    m = np.full(x.shape, 5, np.float32)
    sums = computed(math.row_exp_sum(bf16, layout, axis=total.attributes["axis"]), x, m)
    exact = np.exp(x.astype(np.float64)).reshape(-1, 4, 8).sum(2)
    np.testing.assert_allclose(sums, exact, rtol=1e-6)


# -- rows by index --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "alignment", "width"), [(64, 16, 8), (60, 16, 4), (64, 8, 4), (64, 4, 2), (64, 2, None), (33, 16, None)]
)
def test_neighbours_by_address_are_one_access(columns: int, alignment: int, width: int | None) -> None:
    given: dict[str, Type] = {"y": mut(8, columns, dtype=bf16), "table": tensor(2, bf16, alignment)}
    lowering = lowered(shipped(kernels.gather_rows, given | {"index": tensor(1, i32, 4)}))
    (load,) = all_of(lowering, LoadPointer)
    assert load.attributes.get("width") == width
    if width is not None:
        assert layouts_of(lowering)[load.attributes["lanes"]].vector(1) >= width


def test_what_is_not_known_to_be_neighbours_is_accessed_one_by_one() -> None:
    text = """
        def kernel(y: Mut, x: Tensor, index: Tensor):
            i = ct.load_tile_like(index, y)
            y.store(ct.gather(x, (INDEX,)))
    """
    for index, width in (
        ("i", None),
        ("ct.iota((256,)) * 2", None),
        ("ct.iota((256,)) + 1", None),
        ("ct.iota((256,)) + 4", 4),
    ):
        given: dict[str, Type] = {"y": mut(256), "x": tensor(1), "index": tensor(1, i32)}
        (load,) = all_of(lowered(written(dedent(text).replace("INDEX", index), given)), LoadPointer)
        assert load.attributes.get("width") == width, index


@pytest.mark.parametrize(("columns", "warps"), [(1024, 1), (4096, 4), (16384, 16)])
def test_a_thread_has_more_of_a_row_that_waits_for_an_index(columns: int, warps: int) -> None:
    types = {"y": mut(1, columns, dtype=bf16), "table": tensor(2, bf16), "index": tensor(1, i32)}
    assert lowered(shipped(kernels.gather_rows, types)).facts["threads"] == 32 * warps
