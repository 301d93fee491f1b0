"""Views: tensors at addresses, partitions with explicit controls, windows that overlap, assumptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import OwnershipError
from cutile import api
from tests.support.devices import on
from tests.support.kernels import define, kernel
from tests.support.memory import BACKENDS, launch

Array = np.ndarray[Any, Any]


GROUPED = """
def grouped(z: Mut, xs: Tensor, ys: Tensor, sizes: Tensor, width: i32):
    group, i, j = ct.get_tile_block_id()
    depth = ct.reduce_max(sizes.load_tile((1,), (group,)), 0)
    x = ct.load_tensor(xs, group, (40, depth), (depth, 1), ct.f32)
    y = ct.load_tensor(ys, (group,), (depth, width), (width, 1), ct.f32)
    part_x, part_y = x.partition((16, 8)), y.partition((8, 16))
    acc = ct.constant(0, (16, 16), ct.f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(acc.reshape((1, 16, 16)))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_products_of_many_tensors(backend: str) -> None:
    rng = np.random.default_rng(0)
    depths = (8, 20, 33)
    xs = [rng.standard_normal((40, depth)).astype(np.float32) for depth in depths]
    ys = [rng.standard_normal((depth, 24)).astype(np.float32) for depth in depths]
    with on(backend):
        vectors = [api.device_vec([api.from_numpy(each).sync() for each in group]).sync() for group in (xs, ys)]
        z = api.zeros((3, 40, 24), ct.f32).sync()
        sizes = api.from_numpy(np.array(depths, np.int32)).sync()
        ct.entry(unsafe=True)(define(GROUPED))(z.mut.partition((1, 16, 16)), *vectors, sizes, 24).sync()
        got = z.to_numpy().sync()
    for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
        np.testing.assert_allclose(got[number], x @ y, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_that_a_kernel_writes_by_address(backend: str) -> None:
    text = (
        "def fill(done: Mut, rows: Tensor, n: i32):\n"
        "    i = ct.get_tile_block_id()[0]\n"
        "    row = ct.load_tensor(rows, i, (n,), (1,), ct.f32, alignment=16)\n"
        "    part = ct.make_partition_view_mut(row, (4,))\n"
        "    for j in range(ct.num_tiles(part, 0)):\n"
        "        part.store(part.load((j,)) + ct.convert_tile(10 * i + j, ct.f32), (j,))\n"
        "    done.store(1.0)\n"
    )
    with on(backend):
        rows = [api.ones((n,), ct.f32).sync() for n in (10, 10)]
        vector = api.device_vec(rows, mut=True).sync()
        op = ct.entry(unsafe=True)(define(text))(api.zeros((2,), ct.f32).sync().partition((1,)), vector, 10)
        with pytest.raises(OwnershipError, match=r"its argument 'rows\[1\]'"):
            rows[1].to_numpy().sync()  # lent until the launch is done
        op.sync()
        for i, row in enumerate(rows):
            np.testing.assert_array_equal(row.to_numpy().sync(), 1 + 10 * i + np.arange(10) // 4)


def test_what_a_vector_of_tensors_takes() -> None:
    with pytest.raises(ct.ArgumentError, match="there are no tensors"):
        api.device_vec([])
    with pytest.raises(ct.ArgumentTypeError, match=r"different dtypes \(f16, f32\)"):
        api.device_vec([api.ones((2,), ct.f32).sync(), api.ones((2,), ct.f16).sync()])
    vector = api.device_vec([api.ones((2,), ct.f32).sync()]).sync()
    assert len(vector) == 1
    assert vector.inner.dtype is ct.i64
    assert vector.inner.to_numpy().sync()[0] == next(iter(vector)).__kernel_input__().address


def test_tensors_by_address_are_for_unsafe_kernels() -> None:
    text = (
        "def f(y: Mut, rows: Tensor):\n    y.store(ct.load_tensor(rows, 0, (4,), (1,), ct.f32).load_tile((4,), (0,)))\n"
    )
    with pytest.raises(ct.KernelTypeError, match="load_tensor"):
        launch(kernel(text), (np.zeros(4, np.float32), (4,)), np.zeros(1, np.int64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("tile", "step"), [((4, 6), (2, 3)), ((4, 8), (1, 4)), ((2, 2), (5, 7))])
def test_windows_that_overlap(tile: tuple[int, int], step: tuple[int, int], backend: str) -> None:
    """A window begins at each multiple of the step, and is padded past the edges."""
    x = np.arange(77, dtype=np.float32).reshape(7, 11) + 1
    rows, columns = (-(-extent // each) for extent, each in zip(x.shape, step, strict=True))
    size = tile[0] * tile[1]
    text = (
        "def windows(y: Mut, x: Tensor):\n"
        f"    view = ct.make_strided_view(x, {tile}, {step}, padding=ct.padding.NEG_INF)\n"
        "    i, j, _ = ct.get_tile_block_id()\n"
        "    window = ct.load_strided_view_tko(view, (i, j), latency=ct.Latency(2))\n"
        f"    y.store(window.reshape((1, 1, {size})))\n"
    )
    y = np.zeros((rows, columns, size), np.float32)
    launch(kernel(text), (y, (1, 1, size)), x, backend=backend)
    padded = np.pad(x, [(0, t) for t in tile], constant_values=-np.inf)
    for i in range(rows):
        for j in range(columns):
            a, b = i * step[0], j * step[1]
            np.testing.assert_array_equal(y[i, j], padded[a : a + tile[0], b : b + tile[1]].ravel())


@pytest.mark.parametrize("backend", BACKENDS)
def test_partitions_with_all_controls(backend: str) -> None:
    text = (
        "def controls(y: Mut, x: Tensor):\n"
        "    view = ct.make_partition_view(x, (4, 2), ct.padding.POS_INF, (1, 0), ct.get_tensor_token(x))\n"
        "    out = y.partition_mut((4, 1))\n"
        "    rows, columns = ct.get_index_space_shape(out)\n"
        "    i, j, _ = ct.get_tile_block_id()\n"
        "    tile = ct.load_view_tko(view, (i, j), ct.ordering.WEAK, ct.scope.DEVICE, None, ct.tma.DISABLED)\n"
        "    token = ct.store_view_tko(out, ct.reduce_min(tile, 1).reshape((4, 1)), (0, columns - 1))\n"
        "    ct.set_tensor_token(y, ct.join_tokens(token))\n"
    )
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    y = np.full((8, 3), -1, np.float32)
    launch(kernel(text), (y, (4, 1)), x, backend=backend)
    padded = np.pad(x.T, [(0, 1), (0, 1)], constant_values=np.inf)
    np.testing.assert_array_equal(y, padded.reshape(8, 3, 2).min(2))


ASSUMING = """
def assuming(y: Mut, x: Tensor, n: i32):
    n = ct.assume_bounds(n, 0, 100)
    n = ct.assume_bounds_upper(ct.assume_bounds_lower(ct.assume_div_by(n, {by}), 0), 100)
    tile = ct.assume_same_elements(x.load_tile((8,), (0,)), ({group},))
    row = ct.assume_div_by_every_along(ct.iota((8,)), {by}, 4, 0)
    y.store(tile + ct.convert_tile(row + n, y.dtype))
"""


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_assumptions_that_hold_change_nothing(backend: str, check: bool) -> None:
    y, x = np.zeros(8, np.float32), np.repeat([3, 5], 4).astype(np.float32)
    assuming = ct.entry(check_accesses=check)(define(ASSUMING.format(by=4, group=4)))
    launch(assuming, (y, (8,)), x, 12, backend=backend)
    np.testing.assert_array_equal(y, x + np.arange(8) + 12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_raw_pointers(backend: str) -> None:
    text = (
        "def add(z: ct.Ptr[ct.f32], x: ct.Ptr[ct.f32], y: ct.Ptr[ct.f32], n: i32):\n"
        "    i = ct.get_tile_block_id()[0]\n"
        "    a = ct.make_tensor_view(x, (n,), (1,), alignment=16).partition((4,))\n"
        "    b = ct.make_tensor_view(ct.assume_div_by(y, 16), (n,), (1,)).partition((4,))\n"
        "    out = ct.make_partition_view_mut(ct.make_tensor_view(z, (n,), (1,), alignment=16), (4,))\n"
        "    out.store(a.load((i,)) + b.load((i,)), (i,))\n"
    )
    with on(backend):
        x, y, z = (api.ones((30,), ct.f32).sync() for _ in range(3))
        op = ct.entry(unsafe=True)(define(text))(*(each.device_pointer() for each in (z, x, y)), 29).grid((8,))
        op.sync()
        np.testing.assert_array_equal(z.to_numpy().sync(), [2.0] * 29 + [1.0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_slices_without_elements_are_empty_whatever_is_known(backend: str) -> None:
    """An extent of 0 is a constant of the kernel, and a longer one is not."""
    text = (
        "def cut(y: Mut, x: Tensor, *, START: Const = 0, STOP: Const = 0):\n"
        "    part = x.slice(0, START, STOP).partition((2,))\n"
        "    t = ct.constant(0, (2,), ct.f32)\n"
        "    for i in range(ct.num_tiles(part, 0)):\n"
        "        t = t * 10.0 + part.load((i,))\n"
        "    y.store(t + 1000 * x.slice(0, START, STOP).shape[0])\n"
    )
    cut = kernel(text)
    for extent in (0, 1, 5):
        x = np.arange(1, extent + 1, dtype=np.float32)
        for start, stop in ((1, -1), (0, 1), (3, 2), (-1, 9), (7, 9)):
            part = x[start:stop]
            expected = np.zeros(2, np.float32)
            for i in range(0, len(part), 2):
                expected = expected * 10 + np.pad(part[i : i + 2], (0, max(0, i + 2 - len(part))))
            y = np.zeros(2, np.float32)
            launch(cut, (y, (2,)), x, START=start, STOP=stop, backend=backend)
            np.testing.assert_array_equal(y, expected + 1000 * len(part), f"x[{start}:{stop}] of {extent}")
