"""The cases that upstream runs of reductions, scans and shapes, with its inputs and results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def run(text: str, shape: tuple[int, ...], *inputs: Any, backend: str, dtype: Any = np.float32) -> Any:
    """What a kernel of one tile block stores into its only output."""
    names = "".join(f", {name}: Tensor" for name, _ in zip("xyz", inputs, strict=False))
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    out = np.full(shape, -77, dtype)
    launch(kernel(f"def case(out: Mut{names}):\n{lines}"), (out, shape), *inputs, backend=backend)
    return out


def test_the_sum_of_128_ones(backend: str) -> None:
    out = run("out.store(ct.reduce_sum(x.load_tile((128,), (0,)), 0))", (1,), np.ones(128, np.float32), backend=backend)
    assert out.tolist() == [128]


def test_the_largest_of_0_to_127(backend: str) -> None:
    x = np.arange(128, dtype=np.float32)
    text = "t = x.load_tile((128,), (0,))\nout.store(ct.reduce(t, 0, float('-inf'), lambda a, b: max(a, b)))"
    assert run(text, (1,), x, backend=backend).tolist() == [127]


def test_the_running_sums_of_128_ones(backend: str) -> None:
    out = run("out.store(ct.scan_sum(x.load_tile((128,), (0,)), 0))", (128,), np.ones(128, np.float32), backend=backend)
    assert out.tolist() == list(range(1, 129))


def test_sums_that_accumulate_over_tiles(backend: str) -> None:
    text = (
        "part, total = x.partition((32,)), 0.0\n"
        "for k in range(ct.num_tiles(part, 0)):\n"
        "    total += ct.reduce(part.load(k), 0, 0.0, lambda a, b: a + b)\n"
        "out.store(total)"
    )
    assert run(text, (1,), np.ones(128, np.float32), backend=backend).tolist() == [128]


def test_64_ones_beside_64_twos(backend: str) -> None:
    ones = np.ones(64, np.float32)
    text = "out.store(ct.cat(x.load_tile((64,), (0,)), y.load_tile((64,), (0,)), 0))"
    assert run(text, (128,), ones, 2 * ones, backend=backend).tolist() == [1] * 64 + [2] * 64


def test_a_scalar_that_is_broadcast(backend: str) -> None:
    text = "t = x.load_tile((128,), (0,))\nout.store(t + ct.broadcast_scalar(ct.scalar_to_tile(10.0), t.shape))"
    assert run(text, (128,), np.arange(128, dtype=np.float32), backend=backend).tolist() == list(range(10, 138))


def test_counting(backend: str) -> None:
    assert run("out.store(ct.iota((128,)))", (128,), backend=backend, dtype=np.int32).tolist() == list(range(128))


def test_a_tile_of_8_by_16_turned(backend: str) -> None:
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    out = run("out.store(ct.permute(x.load_tile((8, 16), (0, 0)), (1, 0)))", (16, 8), x, backend=backend)
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize(
    ("shape", "tile", "wanted"),
    [((32,), (8,), (4,)), ((64, 128), (16, 32), (4, 4)), ((100,), (32,), (4,)), ((1,), (128,), (1,))],
)
def test_how_many_tiles_there_are(
    shape: tuple[int, ...], tile: tuple[int, ...], wanted: tuple[int, ...], backend: str
) -> None:
    counts = [f"ct.num_tiles(x.partition({tile}), {axis})" for axis in range(len(shape))]
    text = f"t = {counts[0]}\n" + "".join(f"t = t * 1000 + {each}\n" for each in counts[1:]) + "out.store(t)"
    out = run(text, (1,), np.zeros(shape, np.float32), backend=backend, dtype=np.int32)
    assert out.tolist() == [sum(count * 1000 ** (len(wanted) - 1 - at) for at, count in enumerate(wanted))]


def test_ceil_div_is_right_where_a_sum_would_overflow(backend: str) -> None:
    text = "t = x.load_tile((2,), (0,))\nout.store(ct.ceil_div(t, 2))"
    x = np.array([2**31 - 1, -(2**31)], np.int32)
    assert run(text, (2,), x, backend=backend, dtype=np.int32).tolist() == [2**30, -(2**30)]
