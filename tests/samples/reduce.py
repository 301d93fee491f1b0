"""Reductions. Sums of floats are compared loosely, since their order is free."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutile.dtypes import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tests.samples.row import NUMBERS, Row

WIDE = (f32, f64)
SMALL = (i16, u16, u32, f16, bf16)
INTS = (i8, i32, i64, u8, u64)


def _each(name: str, numpy: str) -> tuple[Row, ...]:
    def rows(x: Any, y: Any) -> Any:
        return np.broadcast_to(getattr(np, numpy)(x, axis=1, dtype=x.dtype)[:, None], x.shape)

    def columns(x: Any, y: Any) -> Any:
        return np.broadcast_to(getattr(np, numpy)(x, axis=0, dtype=x.dtype)[None, :], x.shape)

    def small(x: Any, y: Any) -> Any:
        wide = np.float32 if x.dtype.kind not in "iu" else x.dtype
        return getattr(np, numpy)(x.astype(wide), axis=0, dtype=wide, keepdims=True).astype(x.dtype)

    by_row = f"ct.{name}(x, 1).reshape((-1, 1)).broadcast(x.shape)"
    by_column = f"ct.{name}(x, 0).reshape((1, -1)).broadcast(x.shape)"
    return (
        Row(name, by_row, rows, WIDE, (6, 20), ulps=64, domain="small"),
        Row(name, by_column, columns, WIDE, (20, 6), ulps=64, domain="small"),
        Row(name, by_row, rows, INTS, (6, 20)),
        Row(name, by_column, columns, INTS, (20, 6)),
        Row(name, f"ct.{name}(x, 0).reshape((1,))", small, SMALL, (12,), result_shape=(1,), ulps=1, domain="small"),
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


def _nan(name: str, function: Callable[..., Any]) -> tuple[Row, ...]:
    return (
        Row(
            name,
            f"ct.{name}(x, 1, ct.nan.ENABLED)",
            lambda x, y: function(x, axis=1),
            (f16, bf16, f32, f64, i8),
            (6, 20),
            result_shape=(6,),
        ),
        Row(name, f"ct.{name}(x, 0, nan=True)", lambda x, y: function(x, axis=0), (f32,), (20, 6), result_shape=(6,)),
    )


def _by_function() -> tuple[Row, ...]:
    """Reductions and scans by functions of scalars, which need not commute."""
    first = "lambda a, b: a if a[0] >= b[0] else b"
    where = "ct.iota((20,)).reshape((1, 20)).broadcast((6, 20))"
    return (
        Row(
            "reduce",
            "x + ct.reduce(x, 1, 0, lambda a, b: a + b).reshape((6, 1))",
            lambda x, y: x + x.sum(1, dtype=x.dtype)[:, None],
            INTS,
            (6, 20),
        ),
        Row(
            "reduce",
            "ct.reduce(x, 0, float('-inf'), lambda a, b: a if a > b else b)",
            lambda x, y: x.max(0),
            WIDE,
            (20, 6),
            result_shape=(6,),
            domain="small",
        ),
        Row("reduce", f"ct.reduce((x, {where}), 1, (-128, 0), {first})[1]", lambda x, y: x.argmax(1),
            (i8, i32, f32), (6, 20), result=i32, result_shape=(6,), domain="small"),
        Row("reduce", f"ct.reduce((x, ct.iota((777,))), 0, (-128, 0), {first})[1].reshape((1,))",
            lambda x, y: x.argmax(keepdims=True), (i32, f64), (777,), result=i32, result_shape=(1,), domain="small"),
        Row("reduce", "ct.reduce(x > 0, 0, False, lambda a, b: a | b).reshape((1,))",
            lambda x, y: (x > 0).any(keepdims=True), (i8,), (33,), result=bool_, result_shape=(1,)),
        Row("reduce", "ct.reduce(ct.reduce(x, 2, 1, ct.muli), 0, x.dtype.min, ct.maxi)",
            lambda x, y: x.prod(2, dtype=x.dtype).max(0), (i32, u8), (3, 4, 5), result_shape=(4,)),
        Row("scan", "ct.scan_sum(x, 0)", lambda x, y: x.cumsum(dtype=x.dtype), (*INTS, i16, u16, u32), (100,)),
        Row("scan", "ct.scan_sum(x, 1, ct.reverse.REVERSE)", lambda x, y: x[:, ::-1].cumsum(1, dtype=x.dtype)[:, ::-1],
            (i32, u8), (6, 20)),
        Row("scan", "ct.scan_sum(x * y, 0)", lambda x, y: (x * y).cumsum(0), WIDE, (20, 6), ulps=512,
            domain="positive"),
        Row("scan", "ct.scan_sum(x, 0)", lambda x, y: _in_f32(np.cumsum, x, axis=0), (f16, bf16), (100,), ulps=1,
            domain="positive"),
        Row("scan", "ct.scan(x, 1, ct.reverse.FORWARD, -128, lambda a, b: a if a > b else b)",
            lambda x, y: np.maximum.accumulate(x, 1), (i8, i32, f32), (3, 7, 5), domain="small"),
        Row("scan", "ct.scan((x, y), 0, ct.reverse.FORWARD, (1, 0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]))[1]",
            lambda x, y: _recurrence(x, y), (i32, i64), (50,)),
    )  # fmt: skip


def _recurrence(x: Any, y: Any) -> Any:
    """`h[i] = h[i - 1] * x[i] + y[i]`: a function that does not commute."""
    result = np.empty_like(y)
    held = y.dtype.type(0)
    for place in range(len(y)):
        held = held * x[place] + y[place]
        result[place] = held
    return result


def _several_axes() -> tuple[Row, ...]:
    """Reductions along several axes, and all; with the axes kept; and what is made of them."""
    shape = (3, 4, 5)
    return (
        Row("reduce_sum", "ct.reduce_sum(x, (0, 2))", lambda x, y: x.sum((0, 2), dtype=x.dtype), INTS, shape,
            result_shape=(4,)),
        Row("reduce_sum", "x - ct.reduce_sum(x, keepdims=True)", lambda x, y: x - x.sum(dtype=x.dtype),
            (i32, u8), shape),
        Row("reduce_sum", "ct.reduce_sum(x, (1, 0), True)", lambda x, y: _in_f32(np.sum, x, axis=(0, 1), keepdims=True),
            (f16, bf16), shape, result_shape=(1, 1, 5), ulps=1, domain="small"),
        Row("reduce_prod", "ct.reduce_prod(x, (-1, 0), keepdims=True)",
            lambda x, y: x.prod((0, 2), dtype=x.dtype, keepdims=True), (i64, u8), shape, result_shape=(1, 4, 1)),
        Row("reduce_max", "ct.reduce_max(x, (0, 1), keepdims=True)",
            lambda x, y: np.fmax.reduce(x, (0, 1), keepdims=True), (f32, bf16, i8), shape, result_shape=(1, 1, 5)),
        Row("reduce_min", "ct.reduce_min(x, nan=True) + 0 * y", lambda x, y: x.min() + 0 * y, (f32, i32), shape,
            domain="small"),
        Row("reduce_max", "(x > y).any((0, 2))", lambda x, y: (x > y).any((0, 2)), (f32, i8), shape, result=bool_,
            result_shape=(4,)),
        Row("reduce_max", "ct.select((x - x).any(), y, x)", lambda x, y: y if (x - x).any() else x, NUMBERS),
        Row("reduce_min", "ct.select(x.all(0), y, x)", lambda x, y: y if x.all() else x, (*NUMBERS, bool_)),
        Row("reduce_max", "(x - y).any(1, keepdims=True)", lambda x, y: (x - y).any(1, keepdims=True), (f64, u8), shape,
            result=bool_, result_shape=(3, 1, 5)),
        Row("reduce_min", "x.all((1, 2))", lambda x, y: x.all((1, 2)), (bool_, i8), shape, result=bool_,
            result_shape=(3,)),
        Row("reduce_max", "x.any((1, 2))", lambda x, y: x.any((1, 2)), (bool_, i8), shape, result=bool_,
            result_shape=(3,)),
        Row("mean", "ct.mean(x, 1)", lambda x, y: _in_f32(np.mean, x, axis=1), (f16, bf16, f32, f64), shape,
            result_shape=(3, 5), ulps=16, domain="positive"),
        Row("mean", "x * 0 + ct.mean(x, keepdims=True)", lambda x, y: x * 0 + x.mean(), (f64,), shape, ulps=16,
            domain="positive"),
        Row("var", "ct.var(x, 0).reshape((1,))", lambda x, y: _in_f32(np.var, x, keepdims=True), (f64,),
            result_shape=(1,), ulps=64, domain="positive"),
        Row("var", "ct.var(x, 0).reshape((1,))", lambda x, y: _in_f32(np.var, x, keepdims=True), (f16, bf16),
            result_shape=(1,), ulps=1, domain="positive"),
        Row("var", "ct.var(x, (0, 1))", lambda x, y: np.var(x, (0, 1)), (f32,), shape, result_shape=(5,), ulps=64,
            domain="positive"),
        Row("var", "ct.var(x + 30000, -1, keepdims=True, ddof=1)",
            lambda x, y: np.var((x + np.float32(30000)).astype(np.float64), -1, keepdims=True, ddof=1), (f32,), (3, 40),
            result_shape=(3, 1), ulps=64, domain="positive"),
        Row("scan", "ct.cumsum(x, 0)", lambda x, y: x.cumsum(0, dtype=x.dtype), (*INTS, i16, u16, u32)),
        Row("scan", "ct.cumsum(x, -1, reverse=True)", lambda x, y: np.cumsum(x[:, ::-1], axis=1)[:, ::-1],
            (f32, f64), (6, 20), ulps=64, domain="positive"),
        Row("scan", "ct.cumsum(x, -1, reverse=True)", lambda x, y: _in_f32(np.cumsum, x[:, ::-1], axis=1)[:, ::-1],
            (f16, bf16), (3, 100), ulps=1, domain="positive"),
        Row("scan", "ct.cumprod(x, 0)", lambda x, y: x.cumprod(0, dtype=x.dtype), (*INTS, i16, u16, u32)),
        Row("scan", "ct.cumprod(x, 0)", lambda x, y: np.cumprod(x, axis=0), (f32, f64), (5, 6), ulps=16,
            domain="positive"),
        Row("scan", "ct.cumprod(x, 0)", lambda x, y: _in_f32(np.cumprod, x, axis=0), (f16, bf16), (5, 6), ulps=1,
            domain="positive"),
        Row("scan", "ct.cummax(x, 0)", lambda x, y: np.maximum.accumulate(x, 0), NUMBERS),
        Row("scan", "ct.cummax(x, 1, reverse=True)", lambda x, y: np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1],
            (f32, u8), (3, 33)),
    )  # fmt: skip


def _that_read() -> tuple[Row, ...]:
    """Functions of `operator`, tiles that broadcast, and functions that read the kernel's values."""
    shape = (3, 4, 5)
    more = "lambda a, b: a if a[0] * n >= b[0] * n else b"
    return (
        Row("reduce", "ct.reduce(x, (0, 2), 0, operator.add)", lambda x, y: x.sum((0, 2), dtype=x.dtype),
            (i32, u8), shape, result_shape=(4,)),
        Row("reduce", "ct.reduce(x, None, x.dtype.min, max) + 0 * y", lambda x, y: x.max() + 0 * y, (i32, u8), shape),
        Row("scan", "ct.scan(x, 1, ct.reverse.FORWARD, 0, operator.xor)",
            lambda x, y: np.bitwise_xor.accumulate(x, 1), (i32, u8), shape),
        Row("reduce", f"[ct.reduce((x, ct.iota((5,))), (1, 2), (-128, 99), {more}, keepdims=True)[1] "
            "for n in [ct.get_num_tile_blocks()[0]]][0]",
            lambda x, y: x.max(1).argmax(1)[:, None, None], (i32, f32), shape, result=i32, result_shape=(3, 1, 1),
            domain="small"),
        Row("reduce",
            "[ct.reduce(x, 1, 0, lambda a, b: a ^ b ^ (w & 0)) for w in [ct.reduce_max(y, 1, keepdims=True)]][0]",
            lambda x, y: np.bitwise_xor.reduce(x, 1), (i32, u8), shape, result_shape=(3, 5)),
        Row("scan", "[ct.scan(x, 1, ct.reverse.FORWARD, 0, lambda a, b: a + b + w * a * b) "
            "for w in [ct.reduce_max(y, 1, keepdims=True)]][0]",
            lambda x, y: _circled(x, y.max(1, keepdims=True)), (i32, i64), (6, 9)),
    )  # fmt: skip


def _in_f32(function: Any, x: Any, **named: Any) -> Any:
    """Of f16 and bf16 in f32, rounded once."""
    return function(x.astype(np.float32) if x.dtype.itemsize < 4 else x, **named).astype(x.dtype)


def _circled(x: Any, w: Any) -> Any:
    """`a + b + w * a * b` along the rows, which associates."""
    result = x.copy()
    with np.errstate(all="ignore"):
        for place in range(1, x.shape[1]):
            a, b = result[:, place - 1 : place], x[:, place : place + 1]
            result[:, place : place + 1] = a + b + w * a * b
    return result


ROWS = (
    *_by_function(),
    *_several_axes(),
    *_that_read(),
    *_nan("reduce_max", np.maximum.reduce),
    *_nan("reduce_min", np.minimum.reduce),
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
