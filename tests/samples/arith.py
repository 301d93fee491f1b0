"""Arithmetic and bits as Python spells them, beside constants and on other shapes. Values are in `values.py`."""

import numpy as np

from cutile.dtypes import bf16, bool_, f16, f32, i8, i32, i64, u8, u16, u32, u64
from tests.samples.row import Row

SOME = (f32, bf16, i32, u8)

ROWS = (
    Row("add", "2 + x", lambda x, y: x + x.dtype.type(2), SOME),
    Row("mul", "x ** 3", lambda x, y: x * (x * x), (i8, u64)),
    Row("div", "x / y", np.divide, (f16, f32)),
    Row("floor_div", "x // 3", lambda x, y: x // x.dtype.type(3), (i8, i64, u16)),
    Row("mod", "x % 7", lambda x, y: x % x.dtype.type(7), (i8, i64, u16)),
    Row("min", "min(x, y)", np.fmin, SOME, domain="small"),
    Row("max", "max(x, y)", np.fmax, SOME, domain="small"),
    Row("min", "ct.min_tile(x, y)", np.fmin, SOME, (6, 4), domain="small"),
    Row("max", "ct.max_tile(x, 1)", lambda x, y: np.fmax(x, x.dtype.type(1)), SOME, (6, 4)),
    Row("neg", "-x", lambda x, y: np.negative(x), SOME),
    Row("abs", "abs(x)", lambda x, y: np.abs(x), SOME),
    Row("and", "x & y", np.bitwise_and, (i32, bool_)),
    Row("or", "x | y", np.bitwise_or, (i32, bool_)),
    Row("xor", "x ^ y", np.bitwise_xor, (i32, bool_)),
    Row("not", "~x", lambda x, y: np.invert(x), (i32, bool_)),
    Row("shl", "x << 3", lambda x, y: np.left_shift(x, x.dtype.type(3)), (i8, u32)),
    Row("shr", "x >> 2", lambda x, y: np.right_shift(x, x.dtype.type(2)), (i8, u32)),
    Row("shl", "x << 100", lambda x, y: np.left_shift(x, x.dtype.type(100)), (i8, u32)),
    Row("shr", "x >> 100", lambda x, y: np.right_shift(x, x.dtype.type(100)), (i8, u32)),
)
