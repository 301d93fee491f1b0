"""Sorts, the largest elements, the places of extremes. NumPy compares floats as f64, which holds them all."""

from typing import Any

import numpy as np

from cutile.dtypes import bf16, f32, f64, i8, i32, i64
from tests.samples.row import ANY, Row


def _comparable(x: Any) -> Any:
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def _places(x: Any, axis: int) -> Any:
    return np.argsort(_comparable(x), axis=axis, kind="stable")


def _descending(x: Any, axis: int) -> Any:
    """The places by a stable sort of ranks: equal elements have one rank, every NaN has the last."""
    unique, ranks = np.unique(_comparable(x), return_inverse=True)
    return np.argsort(len(unique) - ranks.reshape(x.shape), axis=axis, kind="stable")


def _largest(x: Any, y: Any) -> Any:
    return np.take_along_axis(x, _descending(x, 1)[:, :3], 1)


def _both(x: Any, y: Any) -> Any:
    inside = np.take_along_axis(x, _places(x, 1), 1)
    return np.concatenate([inside, inside], 1)


ROWS = (
    Row("sort", "ct.cat(ct.sort(x), ct.take_along_axis(x, ct.argsort(x, 1), 1), 1)", _both, ANY, (6, 20),
        result_shape=(6, 40)),
    Row("sort", "ct.argsort(x, 0, descending=True)", lambda x, y: _descending(x, 0), (bf16, i8), (20, 6),
        result=i32),
    Row("sort", "ct.argsort(x, 1)", lambda x, y: _places(x, 1), (f32,), (2, 70, 3), result=i32),
    Row("sort", "ct.sort(x, descending=True) + ct.argsort(x, descending=True).astype(x.dtype)",
        lambda x, y: np.sort(x)[::-1] + _descending(x, 0).astype(x.dtype), (i32,), (1000,)),
    Row("top_k", "ct.top_k(x, 3)[0]", _largest, ANY, (6, 20), result_shape=(6, 3)),
    Row("top_k", "ct.top_k(x, 5)[1]", lambda x, y: _descending(x, 0)[:5], (bf16, i64), (1000,), result=i32,
        result_shape=(5,)),
    Row("top_k", "ct.top_k(x, 100, 0)[1]", lambda x, y: _descending(x, 0)[:100], (f64,), (300,), result=i32,
        result_shape=(100,)),
    Row("top_k", "ct.top_k(x, 1, 1)[1]", lambda x, y: _comparable(x).argmax(1)[:, None], (f32,), (4, 1), result=i32,
        result_shape=(4, 1)),
    Row("take_along_axis", "ct.take_along_axis(x, ct.iota((4,)).reshape((4, 1)).broadcast((4, 9)) * 9 - 9, 0)",
        lambda x, y: x[[0, 0, 9, 11]], (f32, i8), (12, 9), result_shape=(4, 9)),
    Row("reduce", "ct.cat(ct.argmax(x, keepdims=True), ct.argmin(x, 0, keepdims=True), 1) + ct.argmax(x)",
        lambda x, y: np.concatenate([[x.argmax()], x.argmin(0)])[None] + x.argmax(), (i32,), (3, 5), result=i32,
        result_shape=(1, 6)),
    Row("reduce", "ct.argmax(x, 1) * 32 + ct.argmin(x, 1)",
        lambda x, y: _comparable(x).argmax(1) * 32 + _comparable(x).argmin(1), ANY, (6, 20), result=i32,
        result_shape=(6,)),
)  # fmt: skip
