"""Reductions. Sums of floats are compared loosely, since their order is free."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutile.dtypes import bf16, f16, f32, f64, i8, i32, i64, u8, u64
from tests.samples.row import NUMBERS, Row

WIDE = (f32, f64)
INTS = (i8, i32, i64, u8, u64)


def _each(name: str, numpy: str) -> tuple[Row, ...]:
    def rows(x: Any, y: Any) -> Any:
        return np.broadcast_to(getattr(np, numpy)(x, axis=1, dtype=x.dtype)[:, None], x.shape)

    def columns(x: Any, y: Any) -> Any:
        return np.broadcast_to(getattr(np, numpy)(x, axis=0, dtype=x.dtype)[None, :], x.shape)

    by_row = f"ct.{name}(x, 1).reshape((-1, 1)).broadcast(x.shape)"
    by_column = f"ct.{name}(x, 0).reshape((1, -1)).broadcast(x.shape)"
    return (
        Row(name, by_row, rows, WIDE, (6, 20), ulps=64, domain="small"),
        Row(name, by_column, columns, WIDE, (20, 6), ulps=64, domain="small"),
        Row(name, by_row, rows, INTS, (6, 20)),
        Row(name, by_column, columns, INTS, (20, 6)),
    )


def _extreme(name: str, function: Callable[..., Any]) -> tuple[Row, ...]:
    return (
        Row(
            name,
            f"ct.{name}(x, 1).reshape((-1, 1)).broadcast(x.shape)",
            lambda x, y: np.broadcast_to(function(x, axis=1)[:, None], x.shape),
            NUMBERS,
            (6, 20),
        ),
        Row(
            name,
            f"ct.{name}(x, -2).reshape((1, -1)).broadcast(x.shape)",
            lambda x, y: np.broadcast_to(function(x, axis=0)[None, :], x.shape),
            NUMBERS,
            (20, 6),
        ),
        Row(
            name,
            f"ct.{name}(x, 0).broadcast(x.shape)",
            lambda x, y: np.broadcast_to(function(x, axis=0), x.shape),
            NUMBERS,
            (777,),
        ),
    )


ROWS = (
    *_each("reduce_sum", "sum"),
    *_each("reduce_prod", "prod"),
    *_extreme("reduce_max", np.fmax.reduce),
    *_extreme("reduce_min", np.fmin.reduce),
    Row(
        "reduce_sum",
        "ct.reduce_sum(x, 0).broadcast(x.shape)",
        lambda x, y: np.broadcast_to(x.astype(np.float32).sum().astype(x.dtype), x.shape),
        (f16, bf16),
        (100,),
        ulps=1,
        domain="small",
    ),
    Row(
        "reduce_sum",
        "ct.reduce_sum(ct.reduce_sum(x, 1), 1).reshape((2, 1, 1)).broadcast(x.shape)",
        lambda x, y: np.broadcast_to(x.sum((1, 2))[:, None, None], x.shape),
        (i32, i64),
        (2, 3, 4),
    ),
)
