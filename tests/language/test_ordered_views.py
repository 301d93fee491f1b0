"""Accesses of tiles that are ordered with those of other tile blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile.dtypes import DTypeLike, bf16, bool_, f16, f32, f64, i8, i32, u64
from tests.support.kernels import define, kernel
from tests.support.memory import BACKENDS, launch

LOADS = ("RELAXED", "ACQUIRE")
STORES = ("RELAXED", "RELEASE")
VIEWS = {  # of x, 7 by 9, in tiles whose last ones reach past its edges; the indices are those of the block
    "plain": ("x.partition((3, 4))", "(i, j)", (3, 4)),
    "permuted": ("x.partition_permuted((4, 3), (1, 0))", "(j, i)", (4, 3)),
    "padded": ("ct.make_partition_view(x, (3, 4), ct.padding.NAN)", "(i, j)", (3, 4)),
    "windows": ("ct.make_strided_view(x, (3, 4), (2, 3), ct.padding.NEG_INF)", "(i, j)", (3, 4)),
}


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_load_gives_what_a_weak_one_does(view: str, backend: str) -> None:
    maker, index, tile = VIEWS[view]
    size = tile[0] * tile[1]
    load = "load_strided_view_tko" if view == "windows" else "load_view_tko"
    text = (
        "def f(y: Mut, x: Tensor):\n"
        "    i, j, _ = ct.get_tile_block_id()\n"
        f"    view = {maker}\n"
        f"    tile = ct.{load}(view, {index}, ct.ordering.{{}}, ct.scope.SYSTEM)\n"
        f"    y.store(tile.reshape((1, 1, {size})))\n"
    )
    x = np.random.default_rng(1).standard_normal((7, 9)).astype(np.float32)
    expected = np.full((3, 3, size), 7, np.float32)
    launch(kernel(text.format("WEAK")), (expected, (1, 1, size)), x)
    for order in LOADS:
        got = np.full((3, 3, size), 7, np.float32)
        launch(kernel(text.format(order)), (got, (1, 1, size)), x, backend=backend)
        np.testing.assert_array_equal(got, expected)


NESTED = """
def f(y: Mut, x: Tensor):
    i, j, _ = ct.get_tile_block_id()
    inner, source = y.partition_mut({nested}), x.partition({nested})
    for a in range(ct.num_tiles(inner, 0)):
        for b in range(ct.num_tiles(inner, 1)):
            old = ct.load_view_tko(inner, (a, b), ct.ordering.{load})
            new = old + (10 * a + b + 100 * i + 1000 * j).astype(y.dtype)
            ct.store_view_tko(inner, new, (a, b), ct.ordering.{store}, ct.scope.DEVICE)
"""


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
@pytest.mark.parametrize("nested", [(2, 2), (3, 2)])
def test_a_store_leaves_what_a_weak_one_does(nested: tuple[int, int], backend: str) -> None:
    """Also where nested tiles do not divide the block's: what reaches past it stays as it was."""
    start = np.arange(70, dtype=np.float64).reshape(7, 10)
    expected = start.copy()
    launch(kernel(NESTED.format(nested=nested, load="WEAK", store="WEAK")), (expected, (4, 4)), start)
    for load, store in zip(LOADS, STORES, strict=True):
        got = start.copy()
        launch(kernel(NESTED.format(nested=nested, load=load, store=store)), (got, (4, 4)), start, backend=backend)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [bool_, i8, i32, u64, f16, bf16, f32, f64], ids=str)
def test_every_width_of_element(dtype: DTypeLike, backend: str) -> None:
    text = (
        "def f(y: Mut, x: Tensor):\n"
        "    tile = ct.load_view_tko(x.partition((20,)), 0, ct.ordering.ACQUIRE)\n"
        "    ct.store_view_tko(y.partition_mut((20,)), tile, 0, ct.ordering.RELEASE)\n"
    )
    x = (np.arange(17) % 5).astype(dtype.numpy)
    y = np.zeros_like(x)
    launch(kernel(text), (y, (20,)), x, backend=backend)
    np.testing.assert_array_equal(y, x)


CHAIN = """
def chain(y: Mut, flags: Mut):
    i, _, _ = ct.get_tile_block_id()
    rows, done = y.partition_full_mut(y.shape), flags.partition_full_mut((1, 1))
    found = y.load()
    if i > 0:
        before = ct.load_view_tko(done, (i - 1, 0), ct.ordering.ACQUIRE)
        while before.reshape(()) == 0:
            before = ct.load_view_tko(done, (i - 1, 0), ct.ordering.ACQUIRE)
        found = found + rows.load((i - 1, 0))
    rows.store(found, (i, 0))
    ct.store_view_tko(done, ct.constant(1, (1, 1), i32), (i, 0), ct.ordering.RELEASE)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_sees_what_came_before_the_flag_that_it_acquires(backend: str) -> None:
    """Each tile block waits for the one before it, adds that one's row to its own, and lets the next one go."""
    x = np.random.default_rng(2).integers(0, 9, (300, 64)).astype(np.float32)
    y, flags = x.copy(), np.zeros((300, 1), np.int32)
    launch(ct.entry(unsafe=True)(define(CHAIN)), (y, (1, 64)), (flags, (1, 1)), backend=backend)
    np.testing.assert_array_equal(y, x.cumsum(0))


FLAGS = """
def chain(y: Mut, flags: Mut):
    i, _, _ = ct.get_tile_block_id()
    rows, done = y.partition_full_mut(y.shape), flags.partition_full_mut((1, 512))
    one = flags.partition_full_mut((1, 1))
    found = y.load()
    if i > 0:
        watched = (i * 37) % 512
        before = ct.load_view_tko(one, (i - 1, watched), ct.ordering.ACQUIRE)
        while before.reshape(()) == 0:
            before = ct.load_view_tko(one, (i - 1, watched), ct.ordering.ACQUIRE)
        found = found + rows.load((i - 1, 0))
    rows.store(found, (i, 0))
    ct.store_view_tko(done, ct.constant(1, (1, 512), i32), (i, 0), ct.ordering.RELEASE)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_element_of_a_released_tile_is_a_flag(backend: str) -> None:
    """As above; of the flags that one store releases, each block waits for another one."""
    x = np.random.default_rng(3).integers(0, 9, (200, 2048)).astype(np.float32)
    y, flags = x.copy(), np.zeros((200, 512), np.int32)
    launch(ct.entry(unsafe=True)(define(FLAGS)), (y, (1, 2048)), (flags, (1, 512)), backend=backend)
    np.testing.assert_array_equal(y, x.cumsum(0))


def test_a_tile_that_is_not_there_is_refused_as_ever() -> None:
    text = (
        "def f(y: Mut, x: Tensor, n: i32):\n    y.store(ct.load_view_tko(x.partition((4,)), n, ct.ordering.ACQUIRE))\n"
    )
    y: Any = (np.zeros(4, np.float32), (4,))
    with pytest.raises(ct.LaunchError, match="a tile index goes up to 2"):
        launch(kernel(text), y, np.zeros(8, np.float32), 2)
