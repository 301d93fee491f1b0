"""Tensors without elements: made, moved and cut as NumPy has them; a launch that would write none does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuda_async
import cutile as ct
from cutile import Mut, Tensor, api, f16, f32
from cutile.launch.target import interpret
from tests.ops.test_conversion import on
from tests.support.memory import BACKENDS

MADE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "zeros": (lambda: api.zeros((0,)), (0,)),
    "full": (lambda: api.full(1.5, (3, 0)), (3, 0)),
    "arange": (lambda: api.arange(0), (0,)),
    "arange of unsigned": (lambda: api.arange(0, ct.u8), (0,)),
    "linspace": (lambda: api.linspace(0, 1, 0), (0,)),
    "eye": (lambda: api.eye(0), (0, 0)),
    "rand": (lambda: api.rand((0, 4)), (0, 4)),
    "randn": (lambda: api.randn(0.0, 1.0, (2, 0)), (2, 0)),
    "from_numpy": (lambda: api.from_numpy(np.zeros((0, 2), np.int32)), (0, 2)),
    "strided": (lambda: api.from_numpy(np.zeros((4, 6), np.int32)[::2, 3:3]), (2, 0)),
    "from_dlpack": (lambda: api.from_dlpack(np.ones((3, 0))), (3, 0)),
    "dup": (lambda: api.zeros((0, 5)).sync().dup(), (0, 5)),
    "reshape": (lambda: api.zeros((2, 0)).sync().reshape((0, 7)), (0, 7)),
    "rest": (lambda: api.zeros((2, 0)).sync().reshape((-1,)), (0,)),
    "transpose": (lambda: api.zeros((2, 0)).sync().transpose(), (0, 2)),
    "index": (lambda: api.zeros((4, 3)).sync()[4:], (0, 3)),
    "slice": (lambda: api.zeros((4, 3)).sync().slice([(2, 2)]), (0, 3)),
}


@pytest.mark.parametrize("name", MADE)
def test_they_are_made_and_read(name: str) -> None:
    make, shape = MADE[name]
    made = make()
    tensor = made.sync() if hasattr(made, "sync") else made
    assert tensor.shape == shape
    assert tensor.to_numpy().sync().shape == shape
    assert str(shape) in repr(tensor)


@ct.entry
def more(y: Mut, x: Tensor):
    y.store(ct.load_tile_like(x, y) + 1.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 8), (5, 0)])
def test_a_launch_over_no_tiles_does_nothing(shape: tuple[int, int], backend: str) -> None:
    """Nothing is compiled either; the second call takes what the first one found out."""
    with on(backend):
        for _ in range(2):
            x = api.zeros(shape).sync()
            out = more(api.zeros(shape).sync().partition((4, 4)), x).first().unpartition().sync()
            assert out.to_numpy().sync().shape == shape
        full = more(api.zeros((4, 4)).sync().partition((4, 4)), api.full(2.0, (4, 4)).sync())
        np.testing.assert_array_equal(full.first().unpartition().sync().to_numpy().sync(), np.full((4, 4), 3.0))


def test_nor_does_an_interpreted_one() -> None:
    with interpret():
        out = more(api.zeros((0, 8)).sync().partition((4, 4)), api.zeros((0, 8)).sync())
        assert out.first().unpartition().sync().shape == (0, 8)


def test_the_values_come_beside_those_of_others() -> None:
    some = more(api.zeros((2, 2)).sync().partition((2, 2)), api.zeros((2, 2)).sync()).first()
    none = more(api.zeros((0, 2)).sync().partition((2, 2)), api.zeros((0, 2)).sync()).first()
    one, two = cuda_async.zip(some, none).sync()
    assert one.unpartition().to_numpy().sync().tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert two.unpartition().to_numpy().sync().shape == (0, 2)


@ct.entry
def sums(y: Mut, z: Mut, x: Tensor, e: Tensor):
    """Loops over the tiles of e, of which there are none; x beside padding; who asks finds no extent."""
    i, total = ct.get_tile_block_id()[0], ct.constant(0.0, y.shape, f32)
    for k in range(ct.num_tiles(e.partition((2, 4)), 1)):
        total += ct.reduce_sum(e.load_tile((2, 4), (i, k)), 1)
    y.store(total + e.shape[0] * 10 + e.shape[1])
    t = ct.load_tile_like(x, z) + ct.clamp(e.load_tile(z.shape, (i, 0), ct.padding.POS_INF), 0.0, 1.0)
    t += ct.gather(e, (ct.iota(2)[:, None], 0), padding_value=4.0) + (x if i > 0 else e).load_tile(z.shape, (0, 0))
    z.store(t + e.slice(1, 0, i + 1).load_tile(z.shape, (0, 0)))


@ct.entry
def product(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    left, right = x.partition((64, 64)), y.partition((64, 64))
    total = ct.constant(0.0, z.shape, f32)
    for k in range(ct.num_tiles(left, 1)):
        total = ct.mma(left.load((i, k)), right.load((k, j)), total)
    z.store(total.astype(z.dtype))


def of_nothing(shape: tuple[int, int]) -> tuple[Any, Any]:
    """What `sums` writes of a tensor without elements and one of ones."""
    y, z = api.full(7.0, (4,)).sync(), api.full(7.0, (4, 4)).sync()
    sums(y.mut.partition((2,)), z.mut.partition((2, 4)), np.ones((4, 4), np.float32), api.zeros(shape).sync()).sync()
    return y.numpy(), z.numpy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_no_elements_is_read_as_padding(backend: str) -> None:
    """The kernel is another one for each axis that has none."""
    expected = np.array([[6.0] * 4] * 2 + [[7.0] * 4] * 2)  # the second block reads ones, not padding, once more
    with on(backend):
        for shape in ((0, 5), (4, 0)):
            y, z = of_nothing(shape)
            np.testing.assert_array_equal(y, np.full(4, shape[0] * 10 + shape[1]))
            np.testing.assert_array_equal(z, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_product_over_nothing_is_zero(backend: str) -> None:
    with on(backend):
        for depth in (0,) if backend == "cpu" else (70, 0):
            z = api.full(7.0, (64, 64), f16).sync()
            product(
                z.mut.partition((64, 64)), api.ones((64, depth), f16).sync(), api.ones((depth, 64), f16).sync()
            ).sync()
            assert (z.numpy() == depth).all()


def test_the_product_over_nothing_loads_nothing_on_a_gpu() -> None:
    z = api.zeros((64, 64), f16).sync().mut.partition((64, 64))
    x, y = api.zeros((64, 0), f16).sync(), api.zeros((0, 64), f16).sync()
    assert "= load" not in product.inspect(z, x, y, stage="passes", arch="sm_90a")


@ct.entry
def two(y: Mut, z: Mut):
    y.store(y.load() + 1.0)
    z.store(z.load() + 1.0)


@ct.entry
def first(y: Mut, x: Tensor):
    y.store(x.partition((4,)).load((0,)))


def test_what_is_no_tile_is_still_refused() -> None:
    y = api.zeros((4,)).sync()
    with pytest.raises(ct.LaunchError, match=r"up to 0, and argument 'x' has 0 tiles of 4 along axis 0 \(extent 0\)\n"):
        first(y.mut.partition((4,)), api.zeros((0,)).sync()).sync()
    empty = api.zeros((0,)).sync()
    with pytest.raises(ct.LaunchError, match="disagree on the grid"):
        two(y.mut.partition((4,)), empty.mut.partition((4,))).sync()
    with pytest.raises(ct.LaunchError, match=r"exceeds the partial-coverage partition grid \(0, 1, 1\) of 'z'"):
        two(y.mut.partition((4,)), empty.mut.partition_prefix((4,))).sync()
    with pytest.raises(ct.LaunchError, match=r"exceeds the partial-coverage partition grid \(0, 1, 1\) of 'z'"):
        two(y.mut.partition_prefix((4,)), empty.mut.partition_prefix((4,))).grid(1).sync()
