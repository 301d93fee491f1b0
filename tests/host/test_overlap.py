"""A tensor of which two indices name one element is read and not written, whichever door it comes through."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from cuda_async import Device, OwnershipError
from cutile import api, f32
from cutile.host.views import common_element, may_overlap
from cutile.launch.views import View
from kernels.saxpy import saxpy


class Wrapped:
    """Another library's tensor: it has `__dlpack__`, and is no NumPy array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Extents, and strides in elements."""

OVERLAPPING: dict[str, Layout] = {
    "rows that overlap": ((4, 8), (4, 1)),
    "windows": ((5, 3), (1, 1)),
    "windows backwards": ((5, 3), (-1, 1)),
    "one row for all": ((4, 8), (0, 1)),
    "columns that meet": ((4, 4), (2, 3)),
    "three axes": ((2, 3, 4), (7, 3, 2)),
}
DISTINCT: dict[str, Layout] = {
    "rows": ((4, 8), (8, 1)),
    "backwards": ((4, 8), (-8, -1)),
    "columns": ((4, 8), (1, 4)),
    "every other": ((4, 3), (8, 2)),
    "interleaved": ((2, 3), (3, 2)),
    "one row": ((1, 8), (0, 1)),
}


def array_of(layout: Layout) -> Any:
    """NumPy's array of a layout, in memory that reaches far enough both ways."""
    shape, strides = layout
    memory = np.zeros(129, np.float32)
    return as_strided(memory[64:], shape, [4 * stride for stride in strides])


def look(layout: Layout) -> api.Tensor:
    """Such a view of one of our tensors."""
    x = api.zeros((129,), f32).sync()
    return api.TensorView(View(x.storage, 256, f32, *layout), x)


TENSORS: dict[str, Callable[[Layout], Any]] = {
    "numpy": lambda layout: api.from_foreign(array_of(layout)),
    "dlpack": lambda layout: api.from_dlpack(Wrapped(array_of(layout))),
    "a view": look,
}
DOORS: dict[str, Callable[[Any], object]] = {
    "partition": lambda x: x.partition((2,) * x.ndim),
    "mut": lambda x: x.mut.partition((2,) * x.ndim),
    "api.partition": lambda x: api.partition(x, (2,) * x.ndim),
    "fill": lambda x: api.fill(x.mut, 1),
    "memcpy": lambda x: api.memcpy(x.mut, api.zeros(x.shape).sync()),
    "device_vec": lambda x: api.device_vec([x], mut=True),
    "dlpack": lambda x: x.mut.__dlpack__(),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", TENSORS)
def test_what_overlaps_is_refused_at_every_door(host: Device, kind: str, door: str) -> None:
    if kind == "a view" and door == "partition":
        pytest.skip("a view is refused there as a view")
    for layout in OVERLAPPING.values():
        tensor = TENSORS[kind](layout)
        with pytest.raises(OwnershipError, match=r"name the same element, \(.*\) and \(.*\) among them: .* dup\(\)"):
            DOORS[door](tensor)


@pytest.mark.parametrize("kind", TENSORS)
def test_what_overlaps_is_read_and_its_copy_written(host: Device, kind: str) -> None:
    tensor = TENSORS[kind](OVERLAPPING["windows"])
    copy = tensor.dup().sync()
    assert saxpy(copy.partition((2, 2)), 1.0, tensor).sync().x is tensor


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", TENSORS)
def test_what_does_not_is_taken(host: Device, kind: str, door: str) -> None:
    if kind == "a view" and door == "partition":
        pytest.skip("a view is refused there as a view")
    for layout in DISTINCT.values():
        made = DOORS[door](TENSORS[kind](layout))
        if door in ("fill", "memcpy", "device_vec"):
            made.sync()  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-12, 12)), max_size=5))
def test_it_is_found_exactly(axes: list[tuple[int, int]]) -> None:
    shape, strides = tuple(extent for extent, _ in axes), tuple(stride for _, stride in axes)

    def place(index: tuple[int, ...]) -> int:
        return sum(step * stride for step, stride in zip(index, strides, strict=True))

    indices = list(product(*map(range, shape)))
    common = common_element(shape, strides)
    assert (common is not None) == (len({place(index) for index in indices}) < math.prod(shape))
    assert may_overlap(shape, strides) or common is None
    if common is not None:
        left, right = common
        assert left != right
        assert place(left) == place(right)
        assert {left, right} <= set(indices)


def test_large_and_strange_layouts() -> None:
    assert common_element((1 << 20, 1 << 20), (1 << 20, 1)) is None
    assert common_element((1 << 20, 1 << 20), ((1 << 20) - 1, 1)) == ((0, (1 << 20) - 1), (1, 0))
    assert common_element((1 << 16, 1 << 15), (3, 1 << 18)) is None
    assert common_element((999,) * 6, (7, 11, 13, 17, 19, 23)) == ((), ())  # too long to find out, and so refused


def test_an_empty_view_does_not_overlap() -> None:
    assert common_element((0, 4), (0, 1)) is None
    assert common_element((4, 0, 4), (1, 0, 1)) is None
