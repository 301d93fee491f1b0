"""Indices of 64 bits are checked as wide as they are; where nothing checks them, what lies outside is padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api
from cutile.entry import Kernel
from cutile.errors import KernelAssertionError, LaunchError
from tests.support.kernels import define, kernel
from tests.support.memory import BACKENDS, CPU_BACKENDS, launch

Array = np.ndarray[Any, Any]
EVERYWHERE = [*BACKENDS, "interpret"]
FAR = (
    4,
    2**28,
    2**30,
    2**31,
    2**32,
    2**32 + 1,
    2**62,
    2**63 - 1,
    -1,
    -(2**30),
    -(2**31),
    -(2**32),
    1 - 2**32,
    -(2**63),
)
"""Outside of 16 elements in tiles of 4: some are tile 0 or 1 again in 32 bits, some when they are times 4."""
OUTSIDE = (2**31, 2**32, 2**63 - 1, -1, -(2**32), -(2**63))
"""Some of them."""
X = np.arange(1, 17, dtype=np.float32)


def run(compiled: Kernel, output: tuple[Array, tuple[int, ...]], *arguments: Any, backend: str) -> None:
    """`launch`; interpreted, accesses outside of a tensor are allowed as they are elsewhere."""
    if backend != "interpret":
        launch(compiled, output, *arguments, backend=backend)
        return
    given = [api.from_numpy(each).sync() if isinstance(each, np.ndarray) else each for each in arguments]
    done = compiled(api.from_numpy(output[0]).sync().partition(output[1]), *given).interpret(check=False).sync()
    output[0][...] = done[0].unpartition().to_numpy().sync()


LOADS = {
    "load_tile": "ct.load_tile(x, (4,), (n,))",
    "with a padding": "ct.load_tile(x, (4,), (n,), padding=ct.padding.NEG_ZERO)",
    "a sum": "x.load_tile((4,), ct.get_tile_block_id()[0] + n)",
    "unchecked": "x.partition((4,)).load_unchecked(n)",
    "a window": "ct.make_strided_view(x, (4,), (8,)).load_unchecked(n)",
    "rows": "rows(z, n)",
    "elements": "ct.gather(x, (max(n, n * 0 - 1),)).broadcast(y.shape)",
}
ROWS = """
def rows(z, n):
    view = ct.make_gather_scatter_view(z, (1, 4), 0)
    return ct.load_gather_scatter_view_tko(view, (ct.iota(1), n))[0].reshape((4,))


"""


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("name", LOADS)
def test_what_is_loaded_far_outside_is_padding(name: str, backend: str) -> None:
    compiled = ct.entry(unsafe=True)(
        define(f"{ROWS}def f(y: Mut, x: Tensor, z: Tensor, n: i64):\n    y.store({LOADS[name]})\n")
    )
    for index in FAR:
        y = np.full(4, np.nan, np.float32)
        if name == "elements" and index == 4:
            continue
        run(compiled, (y, (4,)), X, X.reshape(4, 4), index, backend=backend)
        np.testing.assert_array_equal(y, 0, f"at {index}")


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_so_are_constants(backend: str) -> None:
    far = (2**32, -(2**32), 2**63, 3 * 2**70, -(2**64))
    loads = " + ".join(f"x.load_tile((4,), {each}) + ct.gather(x, ({each},))" for each in far)
    y = np.full(4, np.nan, np.float32)
    run(kernel(f"def f(y: Mut, x: Tensor):\n    y.store({loads})\n"), (y, (4,)), X, backend=backend)
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_far_index_in_a_loop_of_products_is_padding(backend: str) -> None:
    text = (
        "def f(z: Mut, x: Tensor, y: Tensor, n: i64):\n"
        "    acc = ct.constant(0, z.shape, ct.f32)\n"
        "    for k in range(2):\n"
        "        acc = ct.mma(x.load_tile((64, 64), (0, k + n)), y.load_tile((64, 64), (k, 0)), acc)\n"
        "    z.store(acc)\n"
    )
    compiled, ones = kernel(text), np.ones((128, 128), np.float16)
    for index, expected in ((0, 128), (1, 64), (2**26, 0), (2**32, 0), (2**32 - 1, 0), (-(2**32), 0), (2**62, 0)):
        z = np.full((64, 64), np.nan, np.float32)
        run(compiled, (z, (64, 64)), ones, ones, index, backend=backend)
        np.testing.assert_array_equal(z, expected, f"from {index}")


CHECKED = {
    "a partition": "y.store(x.partition((4,)).load({}))",
    "a window": "y.store(ct.make_strided_view(x, (4,), (2,)).load({}))",
    "an own tile": "y.partition_mut((2,)).store(1.0, {})",
    "in the order of others": "y.store(ct.load_view_tko(x.partition((4,)), {}, ct.ordering.ACQUIRE))",
}


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("name", CHECKED)
def test_a_checked_index_is_refused_by_the_launch(name: str, backend: str) -> None:
    compiled = kernel(f"def f(y: Mut, x: Tensor, n: i64):\n    {CHECKED[name].format('n')}\n")
    for index in OUTSIDE:
        with pytest.raises((LaunchError, IndexError)):
            launch(compiled, (np.zeros(4, np.float32), (4,)), X, index, backend=backend)


@pytest.mark.parametrize("backend", [*CPU_BACKENDS, "interpret"])
@pytest.mark.parametrize("name", ["a partition", "an own tile"])
def test_or_by_the_kernel_where_that_alone_knows_it(name: str, backend: str) -> None:
    text = f"def f(y: Mut, x: Tensor, t: Tensor):\n    {CHECKED[name].format('t.load_tile((1,), (0,)).reshape(())')}\n"
    compiled = kernel(text)
    for index in OUTSIDE:
        with pytest.raises((KernelAssertionError, IndexError)):
            launch(compiled, (np.zeros(4, np.float32), (4,)), X, np.array([index], np.int64), backend=backend)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_part_of_a_tile_is_the_nearest(backend: str) -> None:
    compiled = kernel("def f(y: Mut, x: Tensor, n: i64):\n    y.store(ct.extract(x.load_tile((16,), 0), (n,), (4,)))\n")
    for index in (3, *FAR):
        y = np.zeros(4, np.float32)
        run(compiled, (y, (4,)), X, index, backend=backend)
        np.testing.assert_array_equal(y, X[:4] if index < 0 else X[12:])


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_what_is_stored_far_outside_is_dropped(backend: str) -> None:
    text = (
        "def f(y: Mut, n: i64):\n"
        "    part = y.partition_full_mut((4,))\n"
        "    part.store_unchecked(1.0, n)\n"
        "    ct.scatter(y, (max(n, n * 0 - 1),), 1.0)\n"
        "    ct.atomic_red_view_tko(part, 1.0, (n,), ct.atomic.ADDF)\n"
    )
    compiled = ct.entry(unsafe=True)(define(text))
    for index in FAR[3:]:
        y = np.zeros(16, np.float32)
        run(compiled, (y, (16,)), index, backend=backend)
        np.testing.assert_array_equal(y, 0, f"at {index}")


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", [ct.u8, ct.u32, ct.u64], ids=str)
def test_unsigned_indices_are_not_negative_ones(dtype: type[ct.DType], backend: str) -> None:
    compiled = kernel(f"def f(y: Mut, x: Tensor, n: {dtype}):\n    y.store(x.load_tile((4,), n) + 1)\n")
    largest = int(np.iinfo(dtype.numpy).max)
    for index, expected in ((1, X[4:8] + 1), (largest, 1), (largest - 1, 1)):
        y = np.zeros(4, np.float32)
        run(compiled, (y, (4,)), X, index, backend=backend)
        np.testing.assert_array_equal(y, expected)
