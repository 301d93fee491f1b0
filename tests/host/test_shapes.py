"""Shapes, strides and indices mean what NumPy means by them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cutile as ct
from cuda_async import Device, LaunchConfig, Storage, StreamPoolRoundRobin, value
from cuda_async import zip as zip_ops
from cutile import api
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.shapes import (
    Layout,
    as_shape,
    index_layout,
    is_contiguous,
    reshape_shape,
    row_major_strides,
    slice_layout,
    transpose_layout,
)

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)


def numbered(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


def picked(shape: tuple[int, ...], layout: Layout) -> np.ndarray[Any, Any]:
    """The elements that a layout picks of a contiguous array."""
    offset, extents, strides = layout
    flat = numbered(shape).reshape(-1)
    bytes_ = tuple(stride * flat.itemsize for stride in strides)
    return np.ndarray(extents, flat.dtype, flat, offset * flat.itemsize, bytes_)


@given(SHAPES, st.data())
def test_an_index_selects_what_numpy_selects(shape: tuple[int, ...], data: st.DataObject) -> None:
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    wanted = numbered(shape)[key]
    layout = index_layout(key, shape, row_major_strides(shape))
    np.testing.assert_array_equal(picked(shape, layout), wanted)


@given(SHAPES, st.data())
def test_a_slice_is_a_rectangular_part(shape: tuple[int, ...], data: st.DataObject) -> None:
    bounds = [
        tuple(sorted(data.draw(st.lists(st.integers(0, extent), min_size=2, max_size=2, unique=True))))
        for extent in shape[: data.draw(st.integers(0, len(shape)))]
    ]
    layout = slice_layout(bounds, shape, row_major_strides(shape))
    wanted = numbered(shape)[tuple(slice(*pair) for pair in bounds)]
    np.testing.assert_array_equal(picked(shape, layout), wanted)


@given(SHAPES, st.data())
def test_transposing_reorders_the_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    layout = transpose_layout(axes, shape, row_major_strides(shape))
    np.testing.assert_array_equal(picked(shape, layout), numbered(shape).transpose(axes))


@given(SHAPES)
def test_contiguity_is_numpys(shape: tuple[int, ...]) -> None:
    for array in (numbered(shape), numbered(shape).T, numbered(shape)[::-1], numbered(shape)[..., :1]):
        strides = tuple(stride // array.itemsize for stride in array.strides)
        assert is_contiguous(array.shape, strides) == array.flags.c_contiguous


def test_a_shape_is_an_extent_or_a_sequence() -> None:
    assert as_shape(5) == (5,)
    assert as_shape([np.int64(4), 8]) == (4, 8)
    assert as_shape(()) == ()


@pytest.mark.parametrize(
    ("shape", "error", "words"),
    [
        ((-3,), ArgumentError, "axis 0 of (-3,) is negative"),
        ((2**31,), ArgumentError, "spread it over two axes"),
        ((2.0, 3), ArgumentTypeError, "expected an extent or a sequence of extents such as (4, 8), got (2.0, 3)"),
        (None, ArgumentTypeError, "got None"),
        ("ab", ArgumentTypeError, "got 'ab'"),
    ],
)
def test_a_bad_shape_is_refused(shape: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        as_shape(shape)


def test_reshape_finds_the_extent_that_is_left() -> None:
    assert reshape_shape((4, -1), (2, 16), (16, 1), method="reshape") == (4, 8)
    assert reshape_shape(32, (2, 16), (16, 1), method="reshape") == (32,)
    assert reshape_shape((), (1, 1), (1, 1), method="reshape") == ()


@pytest.mark.parametrize(
    ("new", "old", "strides", "words"),
    [
        ((5, 6), (4, 8), (8, 1), "shape (5, 6) with 30 elements does not fit a tensor of shape (4, 8) with 32"),
        ((5, -1), (4, 8), (8, 1), "shape (5, -1) does not fit a tensor of shape (4, 8) with 32 elements"),
        ((-1, -1), (4, 8), (8, 1), "shape (-1, -1) does not fit"),
        ((0, -1), (4, 8), (8, 1), "shape (0, -1) does not fit"),
        ((4, 0), (4, 8), (8, 1), "shape (4, 0) with 0 elements does not fit"),
        ((32,), (8, 4), (1, 8), "shape (8, 4) and strides (1, 8) do not follow one another in memory"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(
    new: tuple[int, ...], old: tuple[int, ...], strides: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(words)):
        reshape_shape(new, old, strides, method="reshape")


@pytest.mark.parametrize(
    ("spans", "error", "words"),
    [
        ([(0, 1)] * 3, ArgumentError, "3 ranges for the 2 axes of shape (4, 8)"),
        ([(1, 5)], ArgumentError, "range 1:5 of axis 0, which has 4 elements, is out of bounds"),
        ([(3, 1)], ArgumentError, "is out of bounds"),
        ([(-1, 2)], ArgumentError, "is out of bounds"),
        ([range(0, 4, 2)], ArgumentError, "step of 2; write tensor[start:stop:step]"),
        ([3], ArgumentTypeError, "axis 0: expected range(start, stop) or (start, stop), got 3"),
        ([(None, 3)], ArgumentTypeError, "axis 0: expected whole numbers, as in (2, 6), got (None, 3)"),
        (
            [(np.arange(2), 3)],
            ArgumentTypeError,
            "axis 0: expected whole numbers, as in (2, 6), got (array([0, 1]), 3)",
        ),
        ([slice(0, 2, np.arange(2))], ArgumentTypeError, "axis 0: expected whole numbers"),
    ],
)
def test_a_range_outside_its_axis_is_refused(spans: list[Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        slice_layout(spans, (4, 8), (8, 1))


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (4, IndexError, "index 4 of axis 0 is out of bounds: it has 4 elements"),
        ((0, -9), IndexError, "index -9 of axis 1"),
        ((0, 0, 0), IndexError, "3 indices for the 2 axes"),
        (([0, 1],), ArgumentTypeError, "not indexed by arrays"),
        (np.array([0, 1]), ArgumentTypeError, "not indexed by arrays"),
        ((0, np.array([True, False])), ArgumentTypeError, "not indexed by arrays"),
        (True, ArgumentTypeError, "expected an integer"),
        ((..., ...), ArgumentTypeError, "one `...`"),
    ],
)
def test_a_bad_index_is_refused(key: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        index_layout(key, (4, 8), (8, 1))


@ct.entry
def seven(y: ct.Mut):
    """y = 7."""
    y.store(7.0)  # pyright: ignore[reportArgumentType]


WHOLE_NUMBERS: dict[str, Callable[[Any], object]] = {
    "a shape": lambda n: api.zeros((n, n)).sync().shape,
    "a reshape": lambda n: api.zeros((2 * n,)).sync().reshape((2, n)).shape,
    "an index": lambda n: api.zeros((4,)).sync()[n].shape,
    "a slice": lambda n: api.zeros((4,)).sync()[n:].shape,
    "a tile": lambda n: api.zeros((4,)).sync().partition((n,)).shape,
    "a generic": lambda n: seven(api.zeros((4,)).sync().mut.partition(("N",))).generics(N=n).sync().y.numpy().tolist(),
    "a grid": lambda n: seven(api.zeros((4,)).sync().mut.partition((2,))).grid((n,)).sync().y.grid(),
    "a grid of one axis": lambda n: seven(api.zeros((4,)).sync().mut.partition((2,))).grid(n).sync().y.grid(),
    "a map": lambda n: repr(api.zeros((4, 4)).sync().partition((2, 2)).map((1, n), n)),
    "a map of one axis": lambda n: repr(api.zeros((4,)).sync().partition((1,)).map(n, n)),
    "a seed": lambda n: api.rand((2,), seed=n).sync().numpy().tolist(),
    "a value": lambda n: api.full(n, (2,)).sync().numpy().tolist(),
    "streams": lambda n: len(StreamPoolRoundRobin(Device.host(), n).streams),
    "parts of a result": lambda n: len(zip_ops(value(1), value(2)).unzip(n)),
    "bytes": lambda n: Storage.allocate(Device.host().new_stream(), n).nbytes,
    "a launch's blocks": lambda n: LaunchConfig(n, (n, 1, 1)),
}


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array])
@pytest.mark.parametrize("place", WHOLE_NUMBERS)
def test_whole_numbers_of_numpy_are_whole_numbers(place: str, kind: Any) -> None:
    make = WHOLE_NUMBERS[place]
    if kind is np.array and place == "a generic":
        pytest.skip("generics of any kind are compared and hashed, and an array is not")
    assert make(kind(2)) == make(2)


def test_axes_that_are_no_permutation_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no permutation of the 2 axes"):
        transpose_layout((0, 0), (4, 8), (8, 1))


def test_a_tile_far_larger_than_its_tensor_is_warned_of() -> None:
    y = api.zeros((8,)).sync()
    with pytest.warns(RuntimeWarning, match=r"a tile of \(268435456,\) .* tensor of shape \(8,\)") as caught:
        y.partition((1 << 28,))
    assert caught[0].filename == __file__
    y.reclaim()
    y.partition((1 << 19,))
