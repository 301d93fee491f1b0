"""Extents, counts, block indices and what `range` counts are plain numbers: they take the dtype beside them."""

from __future__ import annotations

import numpy as np
import pytest

import cutile as ct
from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i64
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

EVERYWHERE = [*BACKENDS, "interpret"]


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_a_mean_divides_by_the_extent(dtype: DTypeLike, backend: str) -> None:
    text = (
        "def mean(y: Mut, x: Tensor):\n"
        "    t = ct.load_tile(x, (y.shape[0], 8), (ct.get_tile_block_id()[0], 0))\n"
        "    y.store(ct.reduce_sum(t, 1) / x.shape[1])\n"
    )
    x = np.arange(24).reshape(4, 6).astype(dtype.numpy)
    y = np.zeros(4, dtype.numpy)
    launch(kernel(text), (y, (2,)), x, backend=backend)
    np.testing.assert_array_equal(y, (np.arange(24).reshape(4, 6).sum(1) / 6).astype(dtype.numpy))


NUMBERS = """
def numbers(y: Mut, x: Tensor):
    i, n = ct.get_tile_block_id()[0], x.shape[0]
    t = y.load()
    for k in range(ct.num_tiles(x.partition((4,)), 0)):
        t = t + k * (n - 1) // 2
    half = 1.0 / n + n / 2
    t = max(t, -n) * half + min(i, n) + abs(-i)
    y.store(ct.select(t > i, t, ct.ceil_div(n, 4)) - ct.get_num_tile_blocks()[0])
"""


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_numbers_of_numbers_are_numbers(backend: str) -> None:
    y, x = np.arange(8, dtype=np.float32), np.zeros(10, np.float32)
    wanted = y.copy()
    launch(kernel(NUMBERS), (y, (4,)), x, backend=backend)
    i = np.arange(8, dtype=np.float32) // 4
    for k in range(3):
        wanted = wanted + np.float32(k * 9 // 2)
    wanted = np.maximum(wanted, -10) * (np.float32(0.1) + np.float32(5)) + i + i
    np.testing.assert_array_equal(y, np.where(wanted > i, wanted, 3) - np.float32(2))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_they_widen_beside_i64(backend: str) -> None:
    text = "def f(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y) * x.shape[0] + ct.get_tile_block_id()[0])\n"
    x = np.arange(4, dtype=np.int64) * 2**40
    y = np.zeros(4, np.int64)
    launch(kernel(text), (y, (2,)), x, backend=backend)
    np.testing.assert_array_equal(y, x * 4 + np.arange(4) // 2)


LOOPS = """
def loops(y: Mut, x: Tensor, n: i32):
    k, down, strong = 0, x.shape[0], 0
    t = y.load()
    while True:
        k += 1
        down = down - 1 if down > 2 else 2
        strong = strong + n
        t = t + k * down
        if k * k > n:
            break
    size = x.shape[0] if n > 3 else 7
    y.store(t + k - down + size + ct.f32(strong))
"""


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("n", [0, 10])
def test_numbers_stay_numbers_through_loops_and_branches(n: int, backend: str) -> None:
    y, x = np.arange(8, dtype=np.float32), np.zeros(5, np.float32)
    k, down, wanted = 0, 5, y.copy()
    while True:
        k, down = k + 1, down - 1 if down > 2 else 2
        wanted = wanted + k * down
        if k * k > n:
            break
    wanted = wanted + k - down + (5 if n > 3 else 7) + k * n
    launch(kernel(LOOPS), (y, (4,)), x, n, backend=backend)
    np.testing.assert_array_equal(y, wanted)


def test_what_a_loop_gives_a_dtype_has_it() -> None:
    text = "def f(y: Mut, n: i32):\n    k = 0\n    for i in range(3):\n        k = k + n\n    y.store(y.load() * k)\n"
    with pytest.raises(ct.KernelTypeError, match="do not mix: f32 and i32"):
        launch(kernel(text), (np.ones(4, np.float32), (4,)), 2)


@pytest.mark.parametrize(
    ("expression", "dtype", "message"),
    [
        ("t * n", f32, "do not mix: f32 and i32"),  # n was given a dtype
        ("t * (n + x.shape[0])", f32, "do not mix: f32 and i32"),
        ("t * x.shape[0]", ct.u8, "do not mix: u8 and i32"),  # may not fit
        ("t * (1.0 / x.shape[0])", f64, "do not mix: f64 and f32"),  # would be too coarse
        ("t & x.shape[0]", i64, ""),
    ],
)
def test_what_was_given_a_dtype_keeps_it(expression: str, dtype: DTypeLike, message: str) -> None:
    text = f"def f(y: Mut, x: Tensor, n: i32):\n    t = y.load()\n    y.store({expression})\n"
    y = np.ones(4, dtype.numpy)
    if not message:
        launch(kernel(text), (y, (4,)), y.copy(), 2)
        return
    with pytest.raises(ct.KernelTypeError, match=message):
        launch(kernel(text), (y, (4,)), y.copy(), 2)
