"""Operands that lie strangely: backwards, with steps, repeated, smaller than a tile; loops without turns.

Each way has a product with the tiles of specialised warps, one with small ones, and a copy without any product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import Const, Mut, Tensor, api, bf16, f32, i32
from cutile.host.tensor import TensorView
from cutile.launch.views import TiledView, View
from kernels.gemm import gemm
from tests.support.devices import on
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

Array = np.ndarray[Any, Any]

WAYS: dict[str, Any] = {
    "backwards by rows": np.s_[::-1],
    "backwards by columns": np.s_[:, ::-1],
    "backwards altogether": np.s_[::-1, ::-1],
    "every second row": np.s_[::2],
    "every eighth column": np.s_[:, ::8],
    "every third row backwards": np.s_[::-3],
    "one row": np.s_[:1],
    "one column": np.s_[:, :1],
}


@ct.entry
def copied(y: Mut, x: Tensor):
    y.store(ct.load_tile_like(x, y))


@ct.entry
def triangular(z: Mut, x: Tensor, y: Tensor, more: i32, *, BK: Const = 64):
    """Each row of tile blocks adds up as many turns as its number, and some: the first one none."""
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(i * more):  # type: ignore[arg-type]
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


TILES = [(32, 32), pytest.param((128, 128), marks=pytest.mark.gpu)]
"""Of products: those of whole warp groups have a plan of their own on a GPU; the CPU does all alike."""


def draw(*shape: int, seed: int) -> Array:
    """Small integers, whose products add up exactly."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(bf16.numpy)


def repeated(x: ct.Tensor, shape: tuple[int, int], axis: int) -> TensorView:
    """A view of a tensor of one axis in which every row, or every column, is the same memory."""
    strides = (0, 1) if axis == 0 else (1, 0)
    view = x.__kernel_input__()
    return TensorView(View(view.storage, view.offset, view.dtype, shape, strides), x)


def product(x: ct.Tensor, y: ct.Tensor, tile: tuple[int, int]) -> Array:
    poison = api.from_numpy(np.full((x.shape[0], y.shape[1]), np.nan, np.float32)).sync()
    return gemm(poison.partition(tile), x, y, BK=64).first().unpartition().sync().to_numpy().sync()


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_views(backend: str, way: str, tile: tuple[int, int]) -> None:
    whole, cut = draw(192, 256, seed=1), WAYS[way]
    x = whole[cut]
    y = draw(x.shape[1], 136, seed=2)
    with on(backend):
        result = product(api.from_numpy(whole).sync()[cut], api.from_numpy(y).sync(), tile)
        turned = product(api.from_numpy(y).sync().T, api.from_numpy(whole).sync()[cut].T, tile)
    wanted = x.astype(np.float64) @ y
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(turned, wanted.T)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_what_is_repeated(backend: str, tile: tuple[int, int], axis: int) -> None:
    row, y = draw(256, seed=1), draw(256, 72, seed=2)
    shape = (192, 256) if axis == 0 else (256, 256)
    x = np.broadcast_to(row if axis == 0 else row[:, None], shape)
    with on(backend):
        result = product(repeated(api.from_numpy(row).sync(), shape, axis), api.from_numpy(y).sync(), tile)
    np.testing.assert_array_equal(result, x.astype(np.float64) @ y)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_of_views(backend: str, way: str) -> None:
    whole, cut = draw(70, 200, seed=3), WAYS[way]
    x = whole[cut]
    with on(backend):
        y = api.from_numpy(np.full(x.shape, 9, bf16.numpy)).sync()
        result = copied(y.partition((16, 64)), api.from_numpy(whole).sync()[cut]).first().unpartition().sync()
        got = result.to_numpy().sync()
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_operands_may_be_one_tensor(backend: str) -> None:
    values = draw(136, 136, seed=4)
    with on(backend):
        x = api.from_numpy(values).sync()
        results = [product(x, y, (128, 128)) for y in (x, x.T)]
    wide = values.astype(np.float64)
    for result, wanted in zip(results, (wide @ wide, wide @ wide.T), strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 8), (8, 1, 8), (5, 16, 3), (3, 8, 200), (129, 130, 65)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_smaller_than_a_tile_or_just_larger(backend: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    x, y = draw(m, k, seed=5), draw(k, n, seed=6)
    with on(backend):
        for tile in ((128, 128), (64, 64), (16, 16)) if backend == "cuda" else ((16, 16),):
            result = product(api.from_numpy(x).sync(), api.from_numpy(y).sync(), tile)
            np.testing.assert_array_equal(result, x.astype(np.float64) @ y)


@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_tile_blocks_of_few_turns_and_of_none(backend: str, more: int) -> None:
    """Some tile blocks load nothing, so that the two sides of a ring count turns across tile blocks."""
    rows, depth = (128, 64) if backend == "cuda" else (32, 16)
    count = 24 if backend == "cuda" else 3  # more than there are multiprocessors
    m, n, k = count * rows - 1, count * 64, 2 * count * depth
    x, y = draw(m, k, seed=7), draw(k, n, seed=8)
    with on(backend):
        poison = api.from_numpy(np.full((m, n), np.nan, np.float32)).sync()
        op = triangular(
            poison.partition((rows, 64)), api.from_numpy(x).sync(), api.from_numpy(y).sync(), more, BK=depth
        )
        result = op.first().unpartition().sync().to_numpy().sync()
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    for i in range(count):
        part, end = slice(i * rows, (i + 1) * rows), i * more * depth
        np.testing.assert_array_equal(result[part], wide_x[part, :end] @ wide_y[:end])


class Cut:
    """A part of a tensor, to be written: what another library's tensor may be."""

    def __init__(self, whole: ct.Tensor, part: Any, tile: tuple[int, int]) -> None:
        self._view = whole[part].T.__kernel_input__() if part is TURNED else whole[part].__kernel_input__()
        self._tile = tile

    def __kernel_output__(self) -> TiledView:
        return TiledView(self._view, self._tile)


TURNED = np.s_[:, :]
PLACES: dict[str, Any] = {
    "turned": TURNED,
    "backwards by rows": np.s_[::-1],
    "backwards by columns": np.s_[:, ::-1],
    "every second row": np.s_[::2],
    "every third column": np.s_[:, ::3],
    "a part that is aligned": np.s_[3:200, 16:184],
    "a part that is not": np.s_[3:200, 17:180],
}


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_lie_strangely(backend: str, place: str, tile: tuple[int, int]) -> None:
    """What is around them stays as it was."""
    expected = np.full((208, 200), 77, bf16.numpy)
    target = expected.T if place == "turned" else expected[PLACES[place]]
    x, y = draw(target.shape[0], 64, seed=9) % 3, draw(64, target.shape[1], seed=10) % 3
    target[...] = (x.astype(np.float64) @ y).astype(bf16.numpy)
    with on(backend):
        whole = api.full(77, expected.shape, bf16).sync()
        a, b = api.from_numpy(x).sync(), api.from_numpy(y).sync()
        gemm(Cut(whole, PLACES[place], tile), a, b, BK=64).sync()
        np.testing.assert_array_equal(whole.to_numpy().sync(), expected)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_launch_of_some_tile_blocks_leaves_the_others_alone(backend: str, cluster: int) -> None:
    rows, columns = (128, 256) if backend == "cuda" else (16, 32)
    x, y = draw(3 * rows, 64, seed=11) % 3, draw(64, 2 * columns, seed=12) % 3
    with on(backend):
        z = api.full(77, (5 * rows, 2 * columns), bf16).sync()
        op = gemm(z.mut.partition_prefix((rows, columns)), api.from_numpy(x).sync(), api.from_numpy(y).sync(), BK=64)
        op.grid((3, 2)).compile_options(ct.CompileOptions(num_cta_in_cga=cluster)).sync()
        result = z.to_numpy().sync()
    np.testing.assert_array_equal(result[: 3 * rows], (x.astype(np.float64) @ y).astype(bf16.numpy))
    assert (result[3 * rows :] == 77).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_repeated_is_not_for_the_copy_engine(axis: int) -> None:
    with on("cpu"):
        row, y = api.zeros((256,), bf16).sync(), api.zeros((256, 128), bf16).sync()
        op = gemm(api.empty((256, 128), bf16).sync().partition((128, 128)), repeated(row, (256, 256), axis), y)
        lowered = op.render("lowered", "sm_90a")
        op.discard()
    assert "multiples of 16 bytes, each at one of its own" in lowered.splitlines()[0]
    assert "cuda.tma_load" not in lowered


def test_what_runs_backwards_is_not_for_the_copy_engine() -> None:
    with on("cpu"):
        x, y = api.zeros((192, 256), bf16).sync(), api.zeros((256, 128), bf16).sync()
        refused: list[str] = []
        for left in (x, x[::-1], x[::2], x[:, ::-1]):
            op = gemm(api.empty((left.shape[0], 128), bf16).sync().partition((128, 128)), left, y)
            lowered = op.render("lowered", "sm_90a").splitlines()[0]
            refused.append(lowered.partition("refused = ")[2].partition("]]")[0])
            op.discard()
    assert [bool(each) for each in refused] == [False, True, False, True]
    assert "do not begin at multiples of 16 bytes" in refused[1]
    assert "no axis of the left operand's tensor is known to be contiguous" in refused[3]


@pytest.mark.parametrize("backend", ["reference", "cpu", "interpret"])
def test_chains_of_comparisons_go_element_by_element(backend: str) -> None:
    """Tiles on either side, and scalars that end a chain early."""
    text = (
        "def chains(y: Mut, x: Tensor, n: i32):\n"
        "    t = x.load_tile((8,), (0,))\n"
        "    flags = (0 < t < 5, t != n <= t, n > 100 > t, -n <= t < n < 8)\n"
        "    total = ct.constant(0, (8,), i32)\n"
        "    for flag in flags:\n"
        "        total = total * 2 + ct.select(flag, 1, ct.constant(0, (8,), i32))\n"
        "    y.store(total + (100 if 0 < n < 3 < n + 2 else 200))\n"
    )
    x = np.arange(-2, 6, dtype=np.int32)
    launched = kernel(text)
    for n in (0, 2, 5):
        flags = ((x > 0) & (x < 5), (x != n) & (n <= x), x < -100, (-n <= x) & (x < n) & (n < 8))
        expected = sum(flag * 2**k for k, flag in enumerate(reversed(flags))) + (100 if 0 < n < 3 < n + 2 else 200)
        y = np.zeros(8, np.int32)
        launch(launched, (y, (8,)), x, n, backend=backend)
        np.testing.assert_array_equal(y, expected)
