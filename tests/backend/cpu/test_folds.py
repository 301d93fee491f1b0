"""Reductions and scans by functions that associate and do not commute, along any axis, past edges too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.kernels import kernel
from tests.support.memory import launch

Array = np.ndarray[Any, Any]
COMPOSED = "lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1])"
"""Lines (slope, offset): of two the one that takes a number through both, the left one first."""

REDUCED = """
def k(y: Mut, x: Tensor):
    t = ct.load_tile(x, ({rows}, {columns}), (0, 0))
    a, b = ct.reduce((t | 1, t), {axis}, (1, 0), {composed})
    y.store(a ^ b)
"""
SCANNED = """
def k(y: Mut, x: Tensor):
    t = ct.load_tile(x, ({rows}, {columns}), (0, 0))
    a, b = ct.scan((t | 1, t), {axis}, ct.reverse.{direction}, (1, 0), {composed})
    y.store(a ^ b)
"""
STORED = """
def k(y: Mut, x: Tensor):
    y.store(ct.scan(ct.load_tile_like(x, y), {axis}, ct.reverse.FORWARD, 0, lambda a, b: ct.select(a != 0, a, b)))
"""
SHAPES = [(1, 15), (3, 16), (2, 17), (1, 33), (2, 100), (1, 1024), (17, 1), (40, 5), (5, 40)]


def _numbers(shape: tuple[int, int]) -> Array:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape, np.int32)


def _composed(x: Array) -> Array:
    """The lines so far, along the first axis; i32 wraps."""
    slopes, offsets, lines = x | 1, x, [(x[0] | 1, x[0])]
    for slope, offset in zip(slopes[1:], offsets[1:], strict=True):
        lines.append((lines[-1][0] * slope, lines[-1][1] * slope + offset))
    return np.stack([slope ^ offset for slope, offset in lines])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rest", [0, 3])
def test_a_reduction_keeps_the_order(shape: tuple[int, int], axis: int, rest: int) -> None:
    """Also where the tensor ends before the tile, with zeros behind it."""
    x = _numbers(shape)
    x[max(1, shape[0] - rest) :, max(1, shape[1] - rest) :] = 0
    inside = x[: max(1, shape[0] - rest), : max(1, shape[1] - rest)]
    padded = np.zeros_like(x)
    padded[: inside.shape[0], : inside.shape[1]] = inside
    y = np.full(shape[1 - axis], 77, np.int32)
    text = REDUCED.format(rows=shape[0], columns=shape[1], axis=axis, composed=COMPOSED)
    launch(kernel(text), (y, y.shape), np.ascontiguousarray(inside), backend="cpu")
    np.testing.assert_array_equal(y, _composed(np.moveaxis(padded, axis, 0))[-1])


@pytest.mark.parametrize("shape", [(1, 17), (40, 5), (5, 40)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("direction", ["FORWARD", "REVERSE"])
def test_a_scan_keeps_the_order(shape: tuple[int, int], axis: int, direction: str) -> None:
    x, y = _numbers(shape), np.full(shape, 77, np.int32)
    text = SCANNED.format(rows=shape[0], columns=shape[1], axis=axis, direction=direction, composed=COMPOSED)
    launch(kernel(text), (y, shape), x, backend="cpu")
    along = np.moveaxis(x, axis, 0)
    expected = _composed(along[::-1])[::-1] if direction == "REVERSE" else _composed(along)
    np.testing.assert_array_equal(y, np.moveaxis(expected, 0, axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_that_is_stored_at_once(axis: int) -> None:
    """By tiles that divide neither axis: the first of the tile's elements that is not 0, in each place."""
    x = np.random.default_rng(3).integers(0, 3, (21, 37), np.int32)
    y = np.full_like(x, 77)
    tile = [21, 37]
    tile[1 - axis] = 8
    launch(kernel(STORED.format(axis=axis)), (y, tuple(tile)), x, backend="cpu")
    along = np.moveaxis(x, axis, 0)
    expected = along.copy()
    for place in range(1, len(along)):
        expected[place] = np.where(expected[place - 1] != 0, expected[place - 1], along[place])
    np.testing.assert_array_equal(y, np.moveaxis(expected, 0, axis))


MIDDLE = """
def k(y: Mut, x: Tensor):
    t = ct.load_tile(x, (3, 20, 4), (0, 0, 0))
    y.store(ct.reduce(t, 1, 0, lambda a, b: ct.select(a != 0, a, b)))
"""


def test_the_middle_one_of_three_axes() -> None:
    x, y = np.random.default_rng(4).integers(0, 2, (3, 20, 4), np.int32), np.full((3, 4), 77, np.int32)
    x *= np.arange(1, 21, dtype=np.int32)[None, :, None]
    launch(kernel(MIDDLE), (y, y.shape), x, backend="cpu")
    first = np.where(x.any(1), np.take_along_axis(x, (x != 0).argmax(1)[:, None], 1)[:, 0], 0)
    np.testing.assert_array_equal(y, first)
