"""Tensors without elements: made, moved and cut as NumPy has them; a launch that would write none does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuda_async
import cutile as ct
from cutile import Mut, Tensor, api, f32
from cutile.errors import ArgumentError
from cutile.launch.target import interpret
from tests.ops.test_conversion import on
from tests.support.memory import BACKENDS

MADE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "zeros": (lambda: api.zeros((0,)), (0,)),
    "full": (lambda: api.full(1.5, (3, 0)), (3, 0)),
    "arange": (lambda: api.arange(0), (0,)),
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
def totals(y: Mut, x: Tensor):
    y.store(ct.reduce_sum(x.load_tile((4,), (0,)), keepdims=True))


@pytest.mark.parametrize("x", [np.zeros(0, np.float32), api.zeros((0,), f32).sync()], ids=["array", "tensor"])
def test_an_operand_without_elements_is_named(x: Any) -> None:
    """Also after a launch with others of its kind."""
    y = api.zeros((1,)).sync()
    totals(y.partition((1,)), np.ones(4, np.float32)).sync()
    words = r"argument 'x' has no elements \(shape \(0,\)\), and what the kernel writes has"
    with pytest.raises(ArgumentError, match=words):
        totals(y.partition((1,)), x).sync()
