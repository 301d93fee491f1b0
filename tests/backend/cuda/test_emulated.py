"""Intrinsics that move and combine elements, run on NumPy: the right elements meet in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics import arith, compare, dot, fold, reduce, shape
from cutile.backend.cuda.intrinsics.llvm import I32, register_type
from cutile.backend.cuda.mma_layouts import group_accumulator, mma_accumulator
from cutile.backend.gpu.layout import Layout, blocked, outer_accumulator
from cutile.dtypes import DTypeLike, bf16, f32, f64, i8, i32, i64, u8
from tests.backend.cuda.emulated import Emulated, Vector, collect, everywhere, numpy_type, scatter
from tests.samples.values import CASES
from tests.support.draw import draw
from tests.support.values import differences, operands

LAYOUTS = {
    "vectors": blocked((8, 64), 4, 4),
    "columns": blocked((64, 8), 2, 2, order=(0, 1)),
    "odd": blocked((5, 33), 2),
    "repeated": blocked((24, 40), 1, 4),
    "free threads": blocked((3, 4), 4),
    "product": mma_accumulator((32, 48), 4),
    "outer product": outer_accumulator((20, 36), 2),
    "three axes": blocked((3, 7, 10), 2, 2),
    "one axis": blocked((777,), 4, 2),
    "short": blocked((3,), 2),
}
EACH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def axes(layout: Layout) -> range:
    return range(layout.rank)


def integers(layout: Layout, dtype: DTypeLike = i32, seed: int = 1) -> Any:
    """Small whole numbers, whose sums are exact in every dtype."""
    return draw(i8, layout.shape, "small", seed).astype(dtype.numpy)


def reduced(result: Vector, layout: Layout, axis: int, dtype: DTypeLike) -> Any:
    if layout.rank == 1:
        return everywhere(result, dtype)
    return collect(result, layout.collapse(axis).drop(axis), dtype)


@pytest.mark.parametrize("shape_", [(64, 32), (64, 128), (128, 64)], ids=str)
@pytest.mark.parametrize("neighbours", [2, 4])
def test_eights_are_packed_as_products_take_them(shape_: tuple[int, int], neighbours: int) -> None:
    """PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk32": four neighbours in a word, rows 0 and 8 in turn."""
    layout = group_accumulator(shape_, 1, neighbours)
    tile = np.random.default_rng().integers(0, 256, shape_).astype(np.uint8)
    count = layout.registers // 4
    packed = dot.pack_quads(u8, layout).generate(Emulated(layout.threads), [scatter(tile, layout, u8)])
    words = np.stack([np.ascontiguousarray(word.data).view(np.uint8).reshape(-1, 4) for word in packed.data])
    warp, lane = np.divmod(np.arange(layout.threads), 32)
    columns = shape_[1] // 8  # words of a row and of the one 8 below, for 64 rows
    for number in range(count):
        below, place = divmod(number, columns)
        row = 64 * below + 16 * warp + lane // 4 + 8 * (place % 2)
        first = 16 * (place // 2) + 4 * (lane % 4)
        np.testing.assert_array_equal(words[number], tile[row[:, None], first[:, None] + np.arange(4)])


@EACH
@pytest.mark.parametrize("dtype", [i32, i64, f32, f64, i8], ids=str)
def test_a_sum(layout: Layout, dtype: DTypeLike) -> None:
    tile = integers(layout, dtype)
    for axis in axes(layout):
        made = reduce.reduce("reduce_sum", dtype, layout, axis, 0, True)
        result = made.generate(Emulated(layout.threads), [scatter(tile, layout, dtype)])
        np.testing.assert_array_equal(reduced(result, layout, axis, dtype), tile.sum(axis, dtype=tile.dtype))


@EACH
def test_an_extreme_that_propagates_nan(layout: Layout) -> None:
    tile = draw(f64, layout.shape, "any", 4)
    for axis in axes(layout):
        made = reduce.reduce("reduce_max_nan", f64, layout, axis, 0, True)
        with np.errstate(all="ignore"):
            result = made.generate(Emulated(layout.threads), [scatter(tile, layout, f64)])
        np.testing.assert_array_equal(reduced(result, layout, axis, f64), np.maximum.reduce(tile, axis=axis))


def first_largest() -> tuple[Any, tuple[int, ...]]:
    """`a if a[0] >= b[0] else b` of a value and its place: it does not commute."""
    keep = compare.compare("ge", i32, 0)
    pick = compare.select(i32, 0)
    return ((keep, (0, 2)), (pick, (4, 0, 2)), (pick, (4, 1, 3))), (5, 6)


@EACH
def test_the_first_place_of_the_largest(layout: Layout) -> None:
    steps, results = first_largest()
    tile = integers(layout)
    for axis in axes(layout):
        places = np.broadcast_to(
            np.arange(layout.shape[axis]).reshape([-1] + [1] * (layout.rank - 1 - axis)), tile.shape
        )
        made = fold.fold(steps, results, (i32, i32), (-(2**31), -1), layout, axis, 64, True)
        given = [scatter(each.astype(np.int32), layout, i32) for each in (tile, places)]
        value, place = made.generate(Emulated(layout.threads), given).data
        np.testing.assert_array_equal(reduced(value, layout, axis, i32), tile.max(axis))
        np.testing.assert_array_equal(reduced(place, layout, axis, i32), tile.argmax(axis))


def affine() -> tuple[Any, tuple[int, ...]]:
    """`(a0 * b0, a1 * b0 + b1)`: one affine map after another, in order."""
    times, plus = arith.binary("mul", i64, 0), arith.binary("add", i64, 0)
    return ((times, (0, 2)), (times, (1, 2)), (plus, (5, 3))), (4, 6)


def maps(factor: Any, addend: Any, axis: int) -> Any:
    """The maps up to each place along an axis, applied to 0; integers wrap."""
    factor, addend = np.moveaxis(factor, axis, 0), np.moveaxis(addend, axis, 0)
    held, totals = np.zeros_like(addend[0]), np.empty_like(addend)
    with np.errstate(over="ignore"):
        for place in range(len(addend)):
            held = held * factor[place] + addend[place]
            totals[place] = held
    return np.moveaxis(totals, 0, axis)


@EACH
def test_a_fold_keeps_the_order(layout: Layout) -> None:
    steps, results = affine()
    factor, addend = integers(layout, i64, 2), integers(layout, i64, 3)
    for axis in axes(layout):
        made = fold.fold(steps, results, (i64, i64), (1, 0), layout, axis, 0, False)
        given = [scatter(each, layout, i64) for each in (factor, addend)]
        _, result = made.generate(Emulated(layout.threads), given).data
        wanted = np.take(maps(factor, addend, axis), -1, axis)
        np.testing.assert_array_equal(reduced(result, layout, axis, i64), wanted)


SCANNED = LAYOUTS | {
    "eight warps, eight segments": blocked((8192,), 8),
    "eight warps, six segments": blocked((6144,), 8),
    "eight warps of vectors": blocked((8192,), 8, 4),
    "sixteen warps": blocked((8192,), 16),
    "rows of eight warps": blocked((2, 2048), 8),
    "rows of two times eight warps": blocked((4, 1024), 16),
}


@pytest.mark.parametrize("layout", SCANNED.values(), ids=SCANNED)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_keeps_the_order(layout: Layout, reverse: bool) -> None:
    steps, results = affine()
    factor, addend = integers(layout, i64, 2), integers(layout, i64, 3)
    for axis in axes(layout):
        made = fold.scan(steps, results, (i64, i64), (1, 0), layout, axis, reverse, 16, True)
        given = [scatter(each, layout, i64) for each in (factor, addend)]
        _, result = made.generate(Emulated(layout.threads), given).data
        wanted = maps(factor, addend, axis)
        if reverse:
            wanted = np.flip(maps(np.flip(factor, axis), np.flip(addend, axis), axis), axis)
        np.testing.assert_array_equal(collect(result, layout, i64), wanted)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_what_is_no_number(reverse: bool) -> None:
    """Infinities and NaN reach only the sums behind them; lanes past the edge add nothing."""
    layout = LAYOUTS["one axis"]
    tile = integers(layout, f32)
    tile[[100, 300, 500]] = -np.inf, np.inf, np.nan
    made = fold.scan(((arith.binary("add", f32, 0), (0, 1)),), (2,), (f32,), (0.0,), layout, 0, reverse, 0, False)
    with np.errstate(all="ignore"):
        result = made.generate(Emulated(layout.threads), [scatter(tile, layout, f32)])
        wanted = np.cumsum(tile[::-1])[::-1] if reverse else np.cumsum(tile)
    np.testing.assert_array_equal(collect(result, layout, f32), wanted)


@EACH
@pytest.mark.parametrize("dtype", [bf16, f64], ids=str)
def test_a_tile_through_a_swizzle(layout: Layout, dtype: DTypeLike) -> None:
    warps, shape_ = layout.warps, layout.shape
    wide = next(v for v in (8, 4, 2, 1) if not any(extent % v for extent in shape_))
    tile = np.arange(np.prod(shape_), dtype=np.uint64).astype(np.dtype(f"u{dtype.bits // 8}")).reshape(shape_)
    tile = tile.view(dtype.numpy)
    for order in (range(layout.rank), reversed(range(layout.rank))):
        target = blocked(shape_, warps, wide, list(order))
        for one, other in ((layout, target), (target, layout)):
            made = shape.swizzle(dtype, one, other, 128, True)
            result = made.generate(Emulated(one.threads), [scatter(tile, one, dtype)])
            assert collect(result, other, dtype).tobytes() == tile.tobytes()


@pytest.mark.parametrize("dtype", [u8, f32], ids=str)
def test_tiles_side_by_side_and_parts_of_them(dtype: DTypeLike) -> None:
    left, right = blocked((6, 10), 2, 2), blocked((6, 4), 2, 4)
    whole, part = blocked((6, 14), 2, order=(0, 1)), blocked((3, 7), 2)
    x, y = integers(left, dtype), integers(right, dtype, 9)
    joined = shape.cat(dtype, left, right, whole, 1, 32, True)
    b = Emulated(whole.threads)
    result = joined.generate(b, [scatter(x, left, dtype), scatter(y, right, dtype)])
    expected = np.concatenate([x, y], 1)
    np.testing.assert_array_equal(collect(result, whole, dtype), expected)
    cut = shape.extract(dtype, whole, part, 0, True)
    for row, column in ((0, 0), (1, 1), (0, 1), (-5, 9)):
        index = [Vector(I32, np.full(whole.threads, at, np.int64).astype(np.uint32)) for at in (row, column)]
        top, first = min(max(row, 0), 1) * 3, min(max(column, 0), 1) * 7
        found = collect(cut.generate(b, [result, *index]), part, dtype)
        np.testing.assert_array_equal(found, expected[top : top + 3, first : first + 7])


BY_ARITH = ("add", "sub", "mul", "div_trunc", "floor_div", "div_ceil", "mod", "rem", "mul_hi", "min", "max")


@pytest.mark.parametrize("dtype", [i8, u8, i32, f32, f64], ids=str)
def test_arithmetic_on_special_values(dtype: DTypeLike) -> None:
    """The same cases as on every backend, of operations with two operands that need no PTX."""
    count = 2048
    x, y, z = operands(dtype, count)
    spelled = {"add": "ct.addi(x, y)" if dtype.kind != "float" else "ct.addf(x, y)"}
    for name in BY_ARITH:
        cases = [each for each in CASES if each.op == name and dtype in each.dtypes and each.numpy is not None]
        cases = [each for each in cases if "nan=" not in each.expression and "ENABLED" not in each.expression]
        cases = [
            each
            for each in cases
            if "ftz" not in each.expression and each.expression == spelled.get(name, each.expression)
        ]
        if not cases:
            continue
        intrinsic = arith.binary(name, dtype, 0).element
        kind = register_type(dtype)
        given = [Vector(kind, each.copy().view(numpy_type(kind))) for each in (x, y)]
        with np.errstate(all="ignore"):
            result = intrinsic(Emulated(count), *given).data.view(dtype.numpy)
            assert cases[0].numpy is not None
            expected = cases[0].numpy(x, y, z)
        wrong = np.flatnonzero(differences(result, expected))
        zeros = name in ("min", "max") and dtype.kind == "float"  # NumPy's stand-ins do not order zeros
        wrong = wrong[(x[wrong] != 0) | (y[wrong] != 0)] if zeros else wrong
        assert not len(wrong), (
            f"{name}: {x[wrong[0]]!r}, {y[wrong[0]]!r}: {result[wrong[0]]!r}, not {expected[wrong[0]]!r}"
        )
