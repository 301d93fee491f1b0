"""Integers wrap, as NumPy's do, also where a compiler could use that they never overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

Array = np.ndarray[Any, Any]
# What an optimiser may fold away once it takes an overflow to be impossible.
FORMS: dict[str, Callable[[Any], Any]] = {
    "t + 1 > t": lambda t: t + 1 > t,
    "t - 1 < t": lambda t: t - 1 < t,
    "(t * 2) // 2": lambda t: (t * 2) // 2,
    "(t + t) // 2 == t": lambda t: (t + t) // 2 == t,
    "(t * 3) % 3": lambda t: (t * 3) % 3,
    "(t << 1) >> 1": lambda t: (t << 1) >> 1,
    "0 - t": lambda t: 0 - t,
    "(0 - t > 0) & (t < 0)": lambda t: (0 - t > 0) & (t < 0),
    "(t * t >= 0)": lambda t: t * t >= 0,
    "abs(t) // 2": lambda t: abs(t) // 2,
    "(t - 7 > 0) & (t < 0)": lambda t: (t - 7 > 0) & (t < 0),
}


def extremes(dtype: Any) -> Array:
    """Eight numbers beside the ends of the dtype, and around 0."""
    info = np.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    return np.array([least, least + 1, most // 2 + 1, 0, 1, most // 3 + 1, most - 1, most], dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint64], ids=lambda each: each.__name__)
def test_what_overflows_wraps(dtype: Any, backend: str) -> None:
    """All the forms in one kernel: each is a row of the result."""
    x, y = extremes(dtype), np.zeros((len(FORMS), 8), np.int64)
    rows = "".join(
        f"    ct.scatter(y, ({at}, ct.iota(8)), ct.convert_tile({form}, y.dtype))\n" for at, form in enumerate(FORMS)
    )
    made = kernel(f"def k(y: Mut, x: Tensor):\n    t = x.load_tile((8,), (0,))\n{rows}")
    launch(made, (y, (len(FORMS), 8)), x, backend=backend)
    with np.errstate(all="ignore"):
        for at, (form, meaning) in enumerate(FORMS.items()):
            np.testing.assert_array_equal(y[at], meaning(x).astype(np.int64), form)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("p", [2**63 - 1, 2**62, -(2**63)])
def test_scalars_wrap_as_tiles_do(p: int, backend: str) -> None:
    y = np.zeros(4, np.int64)
    text = (
        "def k(y: Mut, p: i64):\n"
        "    ct.scatter(y, ct.constant(0, (1,), i32), ct.convert_tile(p + 1 > p, ct.i64).broadcast((1,)))\n"
        "    ct.scatter(y, ct.constant(1, (1,), i32), ((p * 2) // 2).broadcast((1,)))\n"
        "    ct.scatter(y, ct.constant(2, (1,), i32), (0 - p).broadcast((1,)))\n"
        "    ct.scatter(y, ct.constant(3, (1,), i32), ct.convert_tile(p - 1 < p, ct.i64).broadcast((1,)))\n"
    )
    launch(kernel(text), (y, (4,)), p, backend=backend)
    with np.errstate(all="ignore"):
        n = np.int64(p)
        wanted = [n + np.int64(1) > n, (n * np.int64(2)) // np.int64(2), -n, n - np.int64(1) < n]
    np.testing.assert_array_equal(y, np.array(wanted, np.int64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("o", [2**63 - 1, 2**63 - 3, -(2**63), -1, 2**62, 2**32])
def test_gathers_and_scatters_stay_in_their_tensors(o: int, backend: str) -> None:
    """Indices that begin inside, leave, and come round to the least number."""
    x = np.arange(1, 5, dtype=np.uint8)
    y, z = np.full(4, 9, np.uint8), np.full(4, 9, np.uint8)
    text = (
        "def k(y: Mut, z: Mut, x: Tensor, o: i64):\n"
        "    place = ct.iota(y.shape, i64) + o\n"
        "    y.store(ct.gather(x, place))\n"
        "    ct.scatter(z, place, x.load_tile((4,), (0,)))\n"
    )
    launch(kernel(text), (y, (4,)), (z, (4,)), x, o, backend=backend)
    with np.errstate(all="ignore"):
        place = np.arange(4, dtype=np.int64) + np.int64(o)
    inside = (place >= 0) & (place < 4)
    np.testing.assert_array_equal(y, np.where(inside, x[np.where(inside, place, 0)], 0))
    wanted = np.full(4, 9, np.uint8)
    wanted[place[inside]] = x[inside]
    np.testing.assert_array_equal(z, wanted)


# Bounds of loops whose differences no i64 holds, with the turns that they take.
LOOPS = (
    (-(2**63), 2**63 - 1, 2**62), (2**63 - 1, -(2**63), -(2**62)), (5, -(2**63), 1), (0, -(2**63), -(2**61)),
    (-(2**63), 2**63 - 1, 2**63 - 1), (2**63 - 2, 2**63 - 1, 7), (3, 3, 1), (0, 9, 4),
)  # fmt: skip


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("start", "stop", "step"), LOOPS)
def test_loops_between_far_ends(start: int, stop: int, step: int, backend: str) -> None:
    y = np.zeros(2, np.int64)
    text = (
        "def k(y: Mut, a: i64, b: i64, s: i64):\n"
        "    count, total = ct.convert_tile(0, i64), ct.convert_tile(0, i64)\n"
        "    for i in range(a, b, s):\n"
        "        count, total = count + 1, total * 3 + i\n"
        "    y.store(ct.cat(count.broadcast((1,)), total.broadcast((1,)), 0))\n"
    )
    launch(kernel(text), (y, (2,)), start, stop, step, backend=backend)
    total = 0
    for i in range(start, stop, step):
        total = (total * 3 + i + 2**63) % 2**64 - 2**63
    assert y.tolist() == [len(range(start, stop, step)), total]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("start", "stop", "step"), [(2**63, 2**64 - 1, 2**61), (0, 2**64 - 1, 2**62), (7, 3, 1)])
def test_loops_of_large_unsigned_numbers(start: int, stop: int, step: int, backend: str) -> None:
    y = np.zeros(1, np.uint64)
    text = (
        "def k(y: Mut, a: u64, b: u64, s: u64):\n"
        "    total = ct.convert_tile(0, u64)\n"
        "    for i in range(a, b, s):\n"
        "        total = total * 3 + i\n"
        "    y.store(total.broadcast((1,)))\n"
    )
    launch(kernel(text), (y, (1,)), start, stop, step, backend=backend)
    total = 0
    for i in range(start, stop, step):
        total = (total * 3 + i) % 2**64
    assert y.tolist() == [total]
