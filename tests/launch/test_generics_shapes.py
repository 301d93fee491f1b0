"""Generics that are shapes, element types and constants: inferred, given flat, given by name, contradicted."""

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile.errors import ArgumentError, GenericsError
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

SUM = """
def kernel(z: 'Mut[Tensor[E, S]]', x: 'Tensor[E, *T]', *, E: DType, S: Shape, T: Shape, BK: Const = 2):
    acc = ct.constant(0, S, E)
    part = x.partition((S[0], BK))
    for k in range(T[1] // BK):
        acc += ct.reduce_sum(part.load((ct.get_tile_block_id()[0], k)), 1).reshape((S[0], 1)) * len(S)
    z.store(acc)
"""
FILLED = """
def kernel(z: Mut, *, E: DType, S: Shape = (1, 4)):
    z.store(ct.constant(E.max if S[1] > 2 else 0, S, E).broadcast(z.shape))
"""


def made(text: str) -> Any:
    return kernel(text, Shape=ct.Shape)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_are_taken_from_the_arguments(backend: str) -> None:
    for dtype in (np.float32, np.int64):
        x = np.arange(24, dtype=dtype).reshape(6, 4)
        z = np.zeros((6, 1), dtype)
        launch(made(SUM), (z, (3, 1)), x, backend=backend)
        np.testing.assert_array_equal(z[:, 0], 2 * x.sum(1))


@pytest.mark.parametrize("values", [["f32", 1, 3], ["f32", (1, 3)], [ct.f32, [1, 3]]])
def test_a_flat_list_may_hold_extents_or_a_tuple(values: list[Any]) -> None:
    z = ct.api.zeros((2, 3), ct.f32).sync()
    out = made(FILLED)(z.partition((1, 3))).generics(values).sync()
    assert (out.z.unpartition().to_numpy().sync() == ct.f32.max).all()


def test_shapes_have_defaults_and_names() -> None:
    z = ct.api.zeros((2, 4), ct.i32).sync()
    part = made(FILLED)(z.partition((1, 4)), E=ct.i32).first().sync()
    out = made(FILLED)(part, E="i32", S=(1, 1)).sync()
    assert (out.z.unpartition().to_numpy().sync() == 0).all()


def test_contradictions_name_both() -> None:
    z = ct.api.zeros((4, 1), ct.f32).sync()
    x = ct.api.zeros((4, 4), ct.f32).sync()
    with pytest.raises(GenericsError, match=r"'S' is \(3, 1\) by the generics given, but \(2, 1\) by the partition"):
        made(SUM)(z.partition((2, 1)), x, S=(3, 1))
    with pytest.raises(GenericsError, match="'S' must be a tuple of ints"):
        made(FILLED)(z.partition((2, 1)), E=ct.f32, S=(1.5,))
    with pytest.raises((GenericsError, ArgumentError), match="takes 4 values"):
        made(SUM)(z.partition((2, 1)), x).generics(["f32", (1, 2)])


@pytest.mark.parametrize("value", [np.longdouble(2), np.clongdouble(2)])
def test_numbers_that_python_lacks_are_no_generics(value: object) -> None:
    """NumPy's item of such a scalar is the scalar."""
    scaled = kernel("def kernel(z: Mut, *, N: Const = 1):\n    z.store(z.load() * N)\n")
    z = ct.api.zeros((4, 4), ct.f32).sync()
    with pytest.raises(GenericsError, match=r"'N' must be a constant .*, got c?longdouble: "):
        scaled(z.mut.partition((2, 4)), N=value)


def test_generics_that_nothing_tells_may_come_after_the_call() -> None:
    z = ct.api.zeros((2, 3), ct.f32).sync()
    part = z.partition((1, 3))
    op = made(FILLED)(part)
    with pytest.raises(GenericsError, match="no argument tells the value of the generic 'E'"):
        op.sync()
    assert made(FILLED)(part, E="f32", S=(1, 3)).first().sync() is part  # it was given back
