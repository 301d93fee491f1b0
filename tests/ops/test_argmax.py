"""The places of extremes by `reduce`, as the messages recommend them: they are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutile.frontend.elsewhere import FUNCTIONS
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, INTERPRET, launch

Array = np.ndarray[Any, Any]
NAN, INF = np.nan, np.inf
ROWS = (
    (1, 3, 3, 2, 3, 0, -1, 3),
    (5, NAN, 7, NAN, INF, 1, 2, 3),
    (-INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF),
    (-INF, 1, -INF, 1, INF, -INF, INF, -INF),
    (NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN),
    (0.0, -0.0, 0.0, -0.0, 0.0, 0.0, -0.0, 0.0),
)
SHAPES: dict[tuple[int, ...], int] = {(1, 8): 1, (8, 1): 0, (8,): 0, (2, 4): 1, (4, 2): 0, (8, 1, 1): 0}
"""Tiles of the eight numbers, and the axis along which the places are looked for."""


def remedy(name: str, shape: tuple[int, ...], axis: int, bound: str) -> str:
    """What the message says, with its placeholders filled in."""
    along = tuple(extent if at == axis else 1 for at, extent in enumerate(shape))
    places = f"ct.iota({shape[axis]}).reshape({along}).broadcast({shape})"
    text = FUNCTIONS[name].replace("tile, places), axis, ", f"t, {places}), {axis}, ")
    for word, number in (("low", bound), ("high", bound), ("count", str(shape[axis]))):
        text = text.replace(f"({word}, ", f"({number}, ").replace(f", {word})", f", {number})")
    return text


def found(name: str, x: Array, axis: int, bound: str, backend: str) -> Array:
    shape = x.shape[1:]
    result = x[0].argmax(axis).shape or (1,)
    index = ", ".join(["ct.get_tile_block_id()[0]", *"0" * len(shape)])
    text = (
        "def k(y: Mut, x: Tensor):\n"
        f"    t = x.load_tile({(1, *shape)}, ({index})).reshape({shape})\n"
        f"    y.store({remedy(name, shape, axis, bound)}.reshape({(1, *result)}))\n"
    )
    y = np.full((len(x), *result), -1, np.int32)
    launch(kernel(text), (y, (1, *result)), x, backend=backend)
    return y.reshape(len(x), *x[0].argmax(axis).shape)


@pytest.mark.parametrize("backend", [*BACKENDS, INTERPRET])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_places_of_extremes_are_those_of_numpy(shape: tuple[int, ...], backend: str) -> None:
    x = np.array(ROWS, np.float32).reshape(len(ROWS), *shape)
    axis = SHAPES[shape]
    np.testing.assert_array_equal(found("argmax", x, axis, "float('-inf')", backend), x.argmax(axis + 1))
    if shape == (1, 8):
        np.testing.assert_array_equal(found("argmin", x, axis, "float('inf')", backend), x.argmin(axis + 1))
        whole = np.array([[3, 9, -9, 9], [-128, -128, 0, 0], [-128, -128, -128, -128]], np.int8)[:, None]
        np.testing.assert_array_equal(found("argmax", whole, 1, "-128", backend), whole.argmax(2))


@pytest.mark.parametrize("backend", [*BACKENDS, INTERPRET])
@pytest.mark.parametrize("count", [1, 8])
def test_the_place_in_a_row_is_stored_as_it_comes(count: int, backend: str) -> None:
    """The result has one element and one axis: nothing reshapes it before it is stored."""
    x, y = np.arange(3 * count, dtype=np.float32).reshape(3, count) % 5, np.full(3, -1, np.int32)
    place = remedy("argmax", (1, count), 1, "float('-inf')")
    text = (
        "def k(y: Mut, x: Tensor):\n"
        f"    t = ct.load_tile(x, (1, {count}), (ct.get_tile_block_id()[0], 0))\n"
        f"    y.store({place})\n"
    )
    launch(kernel(text), (y, (1,)), x, backend=backend)
    np.testing.assert_array_equal(y, x.argmax(1))
