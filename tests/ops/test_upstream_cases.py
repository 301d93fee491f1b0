"""The cases that upstream runs, with its inputs and results, that no test of a feature has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cutile as ct
from cutile import api, f32
from tests.support.devices import on
from tests.support.kernels import define, kernel
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
    ("shape", "tile", "tiles"),
    [((32,), (8,), (4,)), ((64, 128), (16, 32), (4, 4)), ((100,), (32,), (4,)), ((1,), (128,), (1,))],
)
def test_how_many_tiles_there_are(
    shape: tuple[int, ...], tile: tuple[int, ...], tiles: tuple[int, ...], backend: str
) -> None:
    counts = [f"ct.num_tiles(x.partition({tile}), {axis})" for axis in range(len(shape))]
    text = f"t = {counts[0]}\n" + "".join(f"t = t * 1000 + {each}\n" for each in counts[1:]) + "out.store(t)"
    out = run(text, (1,), np.zeros(shape, np.float32), backend=backend, dtype=np.int32)
    assert out.tolist() == [sum(count * 1000 ** (len(tiles) - 1 - at) for at, count in enumerate(tiles))]


def test_ceil_div_is_right_where_a_sum_would_overflow(backend: str) -> None:
    text = "t = x.load_tile((2,), (0,))\nout.store(ct.ceil_div(t, 2))"
    x = np.array([2**31 - 1, -(2**31)], np.int32)
    assert run(text, (2,), x, backend=backend, dtype=np.int32).tolist() == [2**30, -(2**30)]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_ones_and_ones(dtype: Any, backend: str) -> None:
    ones = np.ones(128, dtype)
    text = "out.store(x.load_tile((128,), (0,)) + y.load_tile((128,), (0,)))"
    assert run(text, (128,), ones, ones, backend=backend, dtype=dtype).tolist() == [2.0] * 128


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_ones_of_8_bits(dtype: Any, backend: str) -> None:
    out = run("out.store(x.load_tile((128,), (0,)))", (128,), np.ones(128, dtype), backend=backend, dtype=dtype)
    assert out.astype(np.float32).tolist() == [1.0] * 128


@pytest.mark.parametrize(("first", "last"), [(128, 384), (24, 1024), (12, 512), (1, 300)])
def test_part_of_a_tensor_doubled(first: int, last: int, backend: str) -> None:
    x = np.arange(1024, dtype=np.float32)[first:last]
    y = np.full(last - first, -77, np.float32)
    launch(
        kernel("def f(y: Mut, x: Tensor):\n    y.store(2.0 * ct.load_tile_like(x, y))\n"),
        (y, (128,)),
        x,
        backend=backend,
    )
    assert y.tolist() == [2.0 * n for n in range(first, last)]


def test_500_numbers_times_3(backend: str) -> None:
    y = np.arange(500, dtype=np.float32)
    text = "def f(y: Mut, a: f32):\n    y.store(a * y.load())\n"
    launch(kernel(text), (y, (128,)), 3.0, backend=backend)
    assert y.tolist() == [3.0 * n for n in range(500)]


@pytest.mark.parametrize("length", [1, 127, 128, 129, 255, 256, 257, 1000])
def test_what_was_counted_is_read_by_many_blocks(length: int, backend: str) -> None:
    with on(backend):
        x, y = api.arange(length, f32).sync(), api.zeros((length,)).sync()
        kernel("def f(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y) + 1)\n")(
            y.mut.partition((64,)), x
        ).sync()
        assert y.to_numpy().sync().tolist() == [n + 1.0 for n in range(length)]


LAYER = """
def layer(z: Mut, x: Tensor, w: Tensor):
    part_x, part_w = x.partition((4, 4)), w.partition((4, 4))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (4, 4), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_w.load((k, j)), acc)
    z.store(max(acc, 0.0))
"""


def test_two_layers_of_ones(backend: str) -> None:
    x, hidden, out = np.ones((16, 16), np.float32), np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    made = kernel(LAYER)
    launch(made, (hidden, (4, 4)), x, np.ones_like(x), backend=backend)
    launch(made, (out, (4, 4)), hidden, np.ones_like(x), backend=backend)
    assert set(out.ravel().tolist()) == {256.0}


def test_a_softmax_of_rows_that_differ_by_a_number(backend: str) -> None:
    text = (
        "def f(y: Mut, x: Tensor):\n"
        "    t = ct.load_tile_like(x, y)\n"
        "    e = ct.exp(t - ct.reduce_max(t, 1).reshape((2, 1)).broadcast((2, 8)))\n"
        "    y.store(ct.true_div(e, ct.reduce_sum(e, 1).reshape((2, 1)).broadcast((2, 8))))\n"
    )
    x, y = np.arange(32, dtype=np.float32).reshape(4, 8), np.zeros((4, 8), np.float32)
    launch(kernel(text), (y, (2, 8)), x, backend=backend)
    e = np.exp(np.arange(8.0) - 7)
    np.testing.assert_allclose(y, np.tile(e / e.sum(), (4, 1)), rtol=1e-6)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-6)


def test_32_ones_by_pointer(backend: str) -> None:
    text = (
        "def f(z: ct.Ptr[ct.f32], x: ct.Ptr[ct.f32], y: ct.Ptr[ct.f32], n: i32):\n"
        "    i = ct.get_tile_block_id()[0]\n"
        "    a, b = (ct.make_tensor_view(p, (n,), (1,)).partition((4,)).load(i) for p in (x, y))\n"
        "    ct.make_partition_view_mut(ct.make_tensor_view(z, (n,), (1,)), (4,)).store(a + b, i)\n"
    )
    with on(backend):
        x, y, z = api.ones((32,)).sync(), api.ones((32,)).sync(), api.zeros((32,)).sync()
        made = ct.entry(unsafe=True)(define(text))
        made(*(each.device_pointer() for each in (z, x, y)), 32).grid((8,)).sync()
        assert z.to_numpy().sync().tolist() == [2.0] * 32
