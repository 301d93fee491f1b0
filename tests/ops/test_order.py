"""Sorts, the largest elements and the places of extremes are NumPy's on special rows, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import PaddingWarning, api
from kernels.order import largest, largest_of_rows, order_of_rows
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, INTERPRET, launch

Array = np.ndarray[Any, Any]
NAN, INF = np.nan, np.inf
ROWS = np.array(
    (
        (1, 3, 3, 2, 3, 0, -1, 3),
        (5, NAN, 7, NAN, INF, 1, 2, 3),
        (-INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF),
        (-INF, 1, -INF, 1, INF, -INF, INF, -INF),
        (NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN),
        (0.0, -0.0, 0.0, -0.0, 0.0, 0.0, -0.0, 0.0),
        (-0.0, 1e-45, -1e-45, 0.0, NAN, -INF, 3e38, -3e38),
    ),
    np.float32,
)
TEXT = """
def k(ascending: Mut, places: Mut, back: Mut, most: Mut, extremes: Mut, x: Tensor):
    t = ct.load_tile_like(x, ascending)
    ascending.store(ct.sort(t))
    places.store(ct.argsort(t, 1))
    back.store(ct.argsort(t, descending=True))
    values, where = ct.top_k(t, 3, axis=-1)
    most.store(ct.cat(values, where.astype(t.dtype), 1))
    extremes.store(ct.cat(ct.argmax(t, 1).reshape((1, 1)), ct.argmin(t, 1).reshape((1, 1)), 1))
"""
"""All of one row at once. A tile of a row has its elements in the threads of a warp."""


def backward(x: Array) -> Array:
    """The places in each row from the largest element to the least, NaN first, by Python's sort."""

    def places(row: Array) -> list[int]:
        return sorted(range(len(row)), key=lambda at: (row[at] == row[at], -row[at], at))

    return np.array(list(map(places, x)))


def ordered(x: Array, backend: str) -> dict[str, Array]:
    rows, columns = x.shape
    like = {"ascending": (columns, x.dtype), "places": (columns, np.int32), "back": (columns, np.int32)}
    like |= {"most": (6, x.dtype), "extremes": (2, np.int32)}
    outputs = {name: np.full((rows, count), 77).astype(dtype) for name, (count, dtype) in like.items()}
    launch(kernel(TEXT), *((each, (1, each.shape[1])) for each in outputs.values()), x, backend=backend)
    return outputs


@pytest.mark.parametrize("backend", [*BACKENDS, INTERPRET])
def test_special_rows(backend: str) -> None:
    outputs = ordered(ROWS, backend)
    places = ROWS.argsort(1, kind="stable")
    np.testing.assert_array_equal(outputs["places"], places)
    ascending = np.take_along_axis(ROWS, places, 1)
    np.testing.assert_array_equal(outputs["ascending"], ascending)
    numbers = ~np.isnan(ascending)  # zeros keep their signs
    assert (np.signbit(outputs["ascending"]) == np.signbit(ascending))[numbers].all()
    np.testing.assert_array_equal(outputs["extremes"], np.stack([ROWS.argmax(1), ROWS.argmin(1)], 1))
    # NaN first, then the numbers from the largest on; equal ones as they stood.
    back = backward(ROWS)
    np.testing.assert_array_equal(outputs["back"], back)
    np.testing.assert_array_equal(outputs["most"][:, :3], np.take_along_axis(ROWS, back, 1)[:, :3])
    np.testing.assert_array_equal(outputs["most"][:, 3:], back[:, :3])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("columns", [24, 200, 1000])
def test_special_rows_of_many(dtype: Any, columns: int) -> None:
    """Short rows are merged, long ones are sorted by their digits."""
    repeated: Array = np.concatenate([ROWS] * (columns // 8), axis=1)
    x: Array = np.random.default_rng(columns).permuted(repeated, axis=1)
    if np.dtype(dtype).kind != "f":
        limits = np.iinfo(dtype)
        x = np.nan_to_num(x, nan=7, posinf=9, neginf=1).clip(0, 100).astype(dtype)
        x[0, ::3], x[1, ::5] = limits.max, limits.min
    x = x.astype(dtype)
    outputs = ordered(x, "cpu")
    places = x.argsort(1, kind="stable")
    np.testing.assert_array_equal(outputs["places"], places)
    np.testing.assert_array_equal(outputs["ascending"], np.take_along_axis(x, places, 1))
    np.testing.assert_array_equal(outputs["back"], backward(x.astype(object)))
    np.testing.assert_array_equal(outputs["extremes"], np.stack([x.argmax(1), x.argmin(1)], 1))


@pytest.mark.parametrize(
    ("columns", "backend"),
    [
        (0, "reference"),
        *((16, backend) for backend in ("reference", "cpu", INTERPRET)),
        *(pytest.param(columns, "cuda", marks=pytest.mark.gpu) for columns in (0, 16)),
    ],
)
def test_the_largest_of_rows_in_pieces(columns: int, backend: str) -> None:
    """Rows longer than a piece, with ties across pieces, NaN, and an end that fills no piece.

    Rows 5 and 6 have few equal elements: the largest of their columns are searched.
    """
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 10, (7, 200)).astype(np.float32)
    x[1] = np.sort(x[1])
    x[2, [70, 199]], x[3, ::7], x[4], x[5:] = NAN, NAN, -INF, rng.permutation(400).reshape(2, 200) // 2
    x[6, [9, 73, 137]] = 1000, 1000, NAN  # one column of pieces of 64
    values, places = np.full((7, 4), 77, np.float32), np.full((7, 4), -1, np.int32)
    launch(largest, (values, (1, 4)), (places, (1, 4)), x, backend=backend, BN=64, P=4, C=columns)
    wanted = backward(x)[:, :4]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))


def test_the_host_functions() -> None:
    x = np.random.default_rng(2).standard_normal((5, 40)).astype(np.float32)
    with ct.use_backend("cpu"):
        values, places = order_of_rows(api.copy_host_to_device(x).sync()).sync()
        np.testing.assert_array_equal(places.numpy(), x.argsort(1, kind="stable"))
        np.testing.assert_array_equal(values.numpy(), np.sort(x))
        values, places = largest_of_rows(api.copy_host_to_device(x).sync(), 3).sync()
        np.testing.assert_array_equal(places.numpy(), (-x).argsort(1, kind="stable")[:, :3])


PADDED = """
def padded(y: Mut, x: Tensor):
    t = ct.load_tile(x, (8,), (0,), padding=ct.padding.{padding})
    y.store(ct.sort(t, descending={descending}))
"""


@pytest.mark.parametrize("descending", [False, True])
def test_padding_that_comes_first_is_warned_of(descending: bool) -> None:
    x, y = np.array([-3, 2, -1, 5, -7], np.float32), np.zeros(8, np.float32)
    with pytest.warns(PaddingWarning, match="3 elements past the edge of 'x' are put in order here"):
        launch(kernel(PADDED.format(padding="ZERO", descending=descending)), (y, (8,)), x, backend=INTERPRET)
    last = "NEG_INF" if descending else "POS_INF"
    launch(kernel(PADDED.format(padding=last, descending=descending)), (y, (8,)), x, backend=INTERPRET)
    np.testing.assert_array_equal(y[:5], np.sort(x)[::-1] if descending else np.sort(x))
