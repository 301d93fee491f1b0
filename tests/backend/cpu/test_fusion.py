"""Kernels that fusion could get wrong: order of reads and writes, shared loops, values that loops pass on."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.kernels import kernel
from tests.support.memory import launch

Array = np.ndarray[Any, Any]

BODIES = {
    "load after store": """
        y.store(ct.load_tile_like(x, y) * 2)
        z.store(y.load() + 1)
    """,
    "load before store, used after it": """
        old = y.load()
        y.store(ct.load_tile_like(x, y))
        z.store(old - y.load())
    """,
    "a store of its own transpose": """
        y.store(ct.transpose(y.load()) + ct.load_tile_like(x, y))
        z.store(y.load())
    """,
    "swapped by a branch": """
        a, b = y.load(), z.load()
        if n > 2:
            a, b = b, a * 0.5
        y.store(a)
        z.store(b)
    """,
    "swapped by a loop": """
        a, b = y.load(), z.load()
        for i in range(n):
            a, b = b * 0.5, a
        y.store(a)
        z.store(b)
    """,
    "a loop that transposes what it carries": """
        a = ct.load_tile_like(x, y)
        for i in range(n):
            a = ct.transpose(a) * 0.5 + a
        y.store(a)
        z.store(a)
    """,
    "a value and its transpose, kept": """
        t = ct.load_tile_like(x, y)
        e = ct.exp(t * 0.1)
        y.store(e / ct.reduce_sum(e, 1).reshape((8, 1)) + ct.transpose(e))
        z.store(ct.transpose(e) * ct.reduce_max(e, 0).reshape((1, 8)))
    """,
    "sums of sums": """
        t = ct.load_tile_like(x, y)
        rows = ct.reduce_sum(t, 1)
        total = ct.reduce_sum(rows * rows, 0)
        y.store(t * (1 / total))
        z.store(t - ct.reduce_sum(ct.reduce_sum(t, 0), 0) * 0.01)
    """,
    "columns, then rows": """
        t = ct.exp(ct.load_tile_like(x, y) * 0.1)
        c = t / ct.reduce_sum(t, 0).reshape((1, 8))
        y.store(c / ct.reduce_max(c, 1).reshape((8, 1)))
        z.store(ct.reduce_min(t, 0).reshape((8, 1)) + c)
    """,
    "a reduction that decides a branch": """
        t = ct.load_tile_like(x, y)
        if ct.reduce_max(ct.reduce_max(t, 1), 0) > 1.0:
            t = t - 1
        else:
            t = t + 1
        y.store(t)
        z.store(t * 2)
    """,
    "a reduction that ends a loop": """
        t = ct.load_tile_like(x, y)
        i = 0
        while ct.reduce_max(ct.reduce_max(abs(t), 1), 0) > 0.5:
            t = t * 0.5
            i += 1
        y.store(t)
        z.store(t + ct.convert_tile(i, f32))
    """,
    "running maxima": """
        m = ct.constant(float("-inf"), (8,), f32)
        s = ct.constant(0, (8,), f32)
        acc = ct.constant(0, (8, 8), f32)
        part = x.partition((8, 8))
        for k in range(ct.num_tiles(part, 1)):
            t = part.load((ct.get_tile_block_id()[0], k))
            new = max(m, ct.reduce_max(t, 1))
            scale = ct.exp(m - new)
            p = ct.exp(t - new.reshape((8, 1)))
            s = s * scale + ct.reduce_sum(p, 1)
            acc = acc * scale.reshape((8, 1)) + p
            m = new
        y.store(acc / s.reshape((8, 1)))
        z.store(acc * 0 + m.reshape((8, 1)))
    """,
    "loops in loops": """
        a = ct.load_tile_like(x, y)
        for i in range(n):
            b = a
            for j in range(i + 1):
                b = b * 0.5 + ct.reduce_sum(a, 0).reshape((1, 8)) * 0.01
            a = a - b
        y.store(a)
        z.store(a * a)
    """,
    "a general reshape": """
        t = ct.load_tile_like(x, y)
        r = ct.reduce_sum(t.reshape((4, 2, 8)), 1)
        y.store(t + r.reshape((2, 16)).transpose().reshape((8, 4)).reshape((4, 8)).reshape((32,)).reshape((8, 4))
                .reshape((8, 4, 1)).broadcast((8, 4, 2)).reshape((8, 8)))
        z.store(ct.permute(t.reshape((2, 4, 8)), (1, 0, 2)).reshape((8, 8)))
    """,
    "scans that are stored at once": """
        t = ct.load_tile_like(x, y)
        y.store(ct.scan_sum(t, 0))
        z.store(ct.scan_sum(t * 0.5, 1))
    """,
    "a scan between a load and the store": """
        old = y.load()
        s = ct.scan_sum(ct.load_tile_like(x, y), 1)
        z.store(old + ct.load_tile_like(x, y))
        y.store(s)
    """,
    "a scan from the end, and one that is used twice": """
        t = ct.load_tile_like(x, y)
        s = ct.scan_sum(t, 1)
        y.store(ct.scan_sum(t, 1, ct.reverse.REVERSE))
        z.store(s - ct.reduce_max(s, 1).reshape((8, 1)))
    """,
    "extremes of what lies past the edge": """
        i = ct.get_tile_block_id()[0]
        t = x.partition((8, 64), padding=ct.padding.POS_INF).load((i, 0))
        y.store(ct.broadcast(ct.reduce_max(t, 1).reshape((8, 1)), (8, 8)))
        s = ct.reduce_min(-t, 1) + ct.reduce_sum(x.load_tile((8, 64), (i, 0)), 1)
        z.store(ct.broadcast(s.reshape((8, 1)), (8, 8)))
    """,
    "counting": """
        rows = ct.iota((8,)).reshape((8, 1)).broadcast((8, 8))
        columns = ct.iota((8,)).reshape((1, 8)).broadcast((8, 8))
        t = ct.load_tile_like(x, y)
        y.store(ct.select(rows < columns, t, 0.0))
        z.store(ct.select((rows == columns) | (t > 0.0), 1.0, t))
    """,
}


def outcome(body: str, backend: str, dtype: Any) -> tuple[Array, Array]:
    rng = np.random.default_rng(11)
    x, y, z = (rng.standard_normal(shape).astype(dtype) for shape in ((37, 29), (37, 29), (37, 29)))
    lines = [line[8:] for line in body.strip("\n").splitlines()]
    text = "def k(y: Mut, z: Mut, x: Tensor, n: i32):\n" + "".join(f"    {line}\n" for line in lines)
    launch(kernel(text), (y, (8, 8)), (z, (8, 8)), x, 3, backend=backend)
    return y, z


@pytest.mark.parametrize("name", BODIES)
def test_f32(name: str) -> None:
    for result, expected in zip(
        outcome(BODIES[name], "cpu", "f4"), outcome(BODIES[name], "reference", "f4"), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("load before store, used after it", np.float16, 2.0**-8),
        ("swapped by a loop", ml_dtypes.bfloat16, 2.0**-5),
        ("sums of sums", np.float16, 2.0**-8),
        ("loops in loops", np.float16, 2.0**-8),
        ("loops in loops", ml_dtypes.bfloat16, 2.0**-5),
    ],
)
def test_16_bits(name: str, dtype: Any, tolerance: float) -> None:
    for result, expected in zip(
        outcome(BODIES[name], "cpu", dtype), outcome(BODIES[name], "reference", dtype), strict=True
    ):
        np.testing.assert_allclose(result.astype("f4"), expected.astype("f4"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_tensors_of_different_extents(backend: str) -> None:
    """Each store ends at its own edge, each load at its own."""
    y = np.zeros((20, 24), np.float32)
    x = np.arange(18 * 26, dtype=np.float32).reshape(18, 26)
    text = "def k(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y) + 1)\n"
    launch(kernel(text), (y, (8, 8)), x, backend=backend)
    padded = np.zeros((20, 26), np.float32)
    padded[:18] = x
    np.testing.assert_array_equal(y, padded[:, :24] + 1)


def test_three_axes() -> None:
    rng = np.random.default_rng(12)
    x = rng.standard_normal((5, 17, 9)).astype(np.float32)
    text = (
        "def k(y: Mut, x: Tensor):\n"
        "    t = ct.load_tile_like(x, y)\n"
        "    m = ct.reduce_sum(t, 1).reshape((2, 1, 4))\n"
        "    y.store(ct.permute(ct.permute(t - m, (2, 0, 1)), (1, 2, 0)))\n"
    )
    results: list[Array] = []
    for backend in ("reference", "cpu"):
        y = np.zeros_like(x)
        launch(kernel(text), (y, (2, 8, 4)), x, backend=backend)
        results.append(y)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["max", "min", "sum", "prod"])
@pytest.mark.parametrize("dtype", ["u1", "i8", "f2"])
def test_reductions_along_both_axes(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(13)
    x = (rng.integers(0, 4, (19, 21)) if dtype != "f2" else rng.uniform(0.5, 1, (19, 21))).astype(dtype)
    text = (
        "def k(y: Mut, x: Tensor):\n    t = ct.load_tile_like(x, y)\n"
        f"    rows = ct.reduce_{kind}(t, 1).reshape((8, 1))\n"
        f"    y.store(t + rows + ct.reduce_{kind}(t, 0).reshape((1, 16)))\n"
    )
    results: list[Array] = []
    for backend in ("reference", "cpu"):
        y = np.zeros_like(x)
        launch(kernel(text), (y, (8, 16)), x, backend=backend)
        results.append(y.astype("f8"))
    np.testing.assert_allclose(results[1], results[0], rtol=2e-3)


TRANSPOSED = """
    def k(y: Mut, x: Tensor):
        i, j, _ = ct.get_tile_block_id()
        y.store(ct.permute(x.partition((y.shape[1], y.shape[0])).load((j, i)), (1, 0)))
"""


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_transposes_of_odd_extents(dtype: type) -> None:
    """Whole squares of 16 and what is left of them, within and past the edge of the last tile."""
    x: np.ndarray[Any, Any] = np.random.default_rng(3).integers(-99, 99, (150, 39)).astype(dtype)
    y: np.ndarray[Any, Any] = np.full((39, 150), 7, dtype)
    launch(kernel(dedent(TRANSPOSED)), (y, (32, 64)), x, backend="cpu")
    np.testing.assert_array_equal(y, x.T)


def test_quotients_by_what_a_loop_keeps() -> None:
    """A product with a reciprocal in f64 gives the quotient's bits, also for zeros, infinities and NaN."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e-39, -3.4e38, 1.0, -2.0, 3.0]
    values = np.array([*special, *np.random.default_rng(4).standard_normal(500)], np.float32)
    divide = kernel("def k(y: Mut, x: Tensor, s: f32):\n    y.store(ct.load_tile_like(x, y) / s)\n")
    for divisor in values[:40]:
        y = np.empty_like(values)
        launch(divide, (y, (128,)), values, float(divisor), backend="cpu")
        with np.errstate(all="ignore"):
            expected = values / divisor
        np.testing.assert_array_equal(y, expected)
        numbers = ~np.isnan(y)
        np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(expected[numbers]))


DIVIDE = kernel("def k(y: Mut, x: Tensor, s: f32):\n    y.store(ct.load_tile_like(x, y) / s)\n")


def divided(numerators: Array, divisor: float) -> None:
    """Compare quotients by a divisor, bit by bit, with NumPy's."""
    y = np.empty_like(numerators)
    launch(DIVIDE, (y, (1 << 16,)), numerators, divisor, backend="cpu")
    np.testing.assert_array_equal(y.view("u4"), (numerators / np.float32(divisor)).view("u4"))


def near_ties(divisor: float, rng: np.random.Generator) -> Array:
    """Numerators whose quotients are halfway between two f32, and their neighbours: in all binades, and both signs."""
    exponents = rng.integers(-150, 127, 4000)
    # A normal midpoint has 25 bits, and 2**-150 is half of the smallest subnormal.
    bits = np.clip(exponents + 150, 1, 25)
    midpoints = np.ldexp(2.0 * rng.integers(0, 1 << (bits - 1)) + 1, np.maximum(exponents - 25, -150))
    with np.errstate(over="ignore"):
        nearest = (midpoints * np.float64(np.float32(divisor)) * rng.choice([-1, 1], 4000)).astype("f4")
    numbers = nearest[np.isfinite(nearest)].view("u4")
    return np.concatenate([numbers, numbers + 1, np.maximum(numbers, 1) - 1]).view("f4")


TIED = [3.0, 49.0, 98.0, 255.0, 0.375, 3 * 2.0**-40, 1.5 * 2.0**100, 16777215.0, 1.9999999, 3 * 2.0**-149]


@pytest.mark.parametrize("divisor", TIED)
def test_quotients_of_subnormal_numbers(divisor: float) -> None:
    """All subnormal numerators: some quotients are halfway between two subnormal numbers."""
    divided(np.arange(1 << 23, dtype="u4").view("f4"), divisor)


def test_quotients_near_ties() -> None:
    rng = np.random.default_rng(7)
    drawn = np.ldexp(rng.uniform(1, 2, 60), rng.integers(-149, 127, 60)).astype("f4")
    with np.errstate(over="ignore"):
        for divisor in [*TIED, *drawn.tolist()]:
            divided(near_ties(divisor, rng), divisor)


def test_a_tie_of_a_constant_divisor() -> None:
    """k * 49 * 2**-149 / 98 is k half units of the smallest subnormal number."""
    x = np.arange(0, 49 * 4096, 49, dtype="u4").view("f4")
    y = np.empty_like(x)
    launch(
        kernel("def k(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y) / 98.0)\n"),
        (y, (128,)),
        x,
        backend="cpu",
    )
    np.testing.assert_array_equal(y.view("u4"), (x / np.float32(98)).view("u4"))
