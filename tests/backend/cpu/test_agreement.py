"""Programs that random search found the CPU backend to compute otherwise than the reference, made short."""

from __future__ import annotations

import numpy as np
import pytest

from cutile.dtypes import DTypeLike, f32, f64
from tests.support.kernels import kernel
from tests.support.memory import launch


@pytest.mark.parametrize("expression", ["(a ^ t) & u", "(a | t) & u", "(a | t) ^ u", "a & (t ^ u)", "a ^ (t | u) & t"])
def test_operators_on_bits_keep_their_parentheses(expression: str) -> None:
    text = f"""
def k(out: Mut, x: Tensor, y: Tensor, a: i64):
    t, u = ct.load_tile_like(x, out), ct.load_tile_like(y, out)
    out.store({expression})
"""
    x, y = np.arange(-50, 50), np.arange(100) * 7 % 61
    out = np.zeros(100, np.int64)
    launch(kernel(text), (out, (32,)), x, y, 5, backend="cpu")
    np.testing.assert_array_equal(out, eval(expression, {"t": x, "u": y, "a": 5}))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ["min", "max"])
def test_an_extreme_of_what_cannot_be_nan_still_drops_nan(name: str, dtype: DTypeLike) -> None:
    """Columns beyond the last whole vector take another path through the machine code."""
    text = f"""
def k(out: Mut, x: Tensor):
    t = {name}(ct.load_tile_like(x, out), 2)
    out.store(ct.reduce_{name}(t, 0).reshape((1, -1)).broadcast(t.shape))
"""
    x = np.random.default_rng(3).uniform(-4, 4, (6, 29)).astype(dtype.numpy)
    x[1, ::3] = np.nan
    out = np.zeros_like(x)
    launch(kernel(text), (out, (2, 33)), x, backend="cpu")
    drop, reduce = (np.fmin, np.min) if name == "min" else (np.fmax, np.max)
    wanted = reduce(drop(x, 2).reshape(3, 2, 29), axis=1, keepdims=True)
    np.testing.assert_array_equal(out.reshape(3, 2, 29), np.broadcast_to(wanted, (3, 2, 29)))


def test_a_choice_between_one_value_and_itself_is_that_value() -> None:
    text = """
def k(out: Mut, n: i32):
    t = out.load()
    out.store((t if n > 2 else t) + 1)
"""
    out = np.zeros(8, np.float32)
    launch(kernel(text), (out, (4,)), 3, backend="cpu")
    np.testing.assert_array_equal(out, 1)


def test_a_scalar_computed_inside_a_loop_is_computed_again_outside_of_it() -> None:
    text = """
def k(out: Mut, n: i32):
    t = out.load()
    u = -t
    for i in range(n):
        if n > 3:
            u = t
    v = -(t if n > 0 else u)
    for i in range(n):
        if n > 3:
            break
        v = v + t
    out.store(v)
"""
    for n, wanted in ((2, 1.0), (5, -1.0), (-1, 1.0)):
        out = np.ones(8, np.float32)
        launch(kernel(text), (out, (4,)), n, backend="cpu")
        np.testing.assert_array_equal(out, wanted)


def test_tiles_of_three_axes_that_grow_keep_little_memory() -> None:
    """Blocks are joined along any axis; memory as wide as each of them may get was 96 GiB a thread."""
    text = """
def k(out: Mut, x: Tensor, n: i32):
    t = ct.load_tile_like(x, out)
    if n > 2:
        t = ct.tanh(t) * t
    out.store(t)
"""
    x = np.random.default_rng(4).uniform(-2, 2, (5, 43, 30)).astype(np.float32)
    for tile in ((1, 8, 4), (2, 5, 7)):
        out = np.zeros_like(x)
        launch(kernel(text), (out, tile), x, 3, backend="cpu")
        np.testing.assert_allclose(out, np.tanh(x) * x, rtol=1e-5, atol=1e-6)


def test_a_tensor_chosen_for_tiles_of_one_element_has_a_plan_to_tell() -> None:
    """A branch that gives an address and an extent stands in the loop over blocks, where elements are computed."""
    text = """
def k(out: Mut, x: Tensor, z: Tensor, n: i32):
    part = z if n > 3 else x.slice(0, 0, n)
    out.store(part.load_tile((1,), (n - 1,)))
"""
    x, z, out = np.arange(3.0), np.arange(10.0, 15.0), np.zeros(2)
    for n, wanted in ((2, 1.0), (4, 13.0)):
        launch(kernel(text), (out, (1,)), x, z, n, backend="cpu")
        np.testing.assert_array_equal(out, wanted)
