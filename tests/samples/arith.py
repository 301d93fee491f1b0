"""Arithmetic and bits."""

import numpy as np

from cutile.dtypes import bool_, f32, f64
from tests.samples.row import FLOATS, INTS, NUMBERS, Row

SIGNED_INTS = INTS[:4]

ROWS = (
    Row("add", "x + y", np.add),
    Row("add", "2 + x", lambda x, y: x + x.dtype.type(2)),
    Row("sub", "x - y", np.subtract),
    Row("mul", "x * y", np.multiply),
    Row("mul", "x ** 3", lambda x, y: x * (x * x), INTS),
    Row("div", "x / y", np.divide, FLOATS),
    Row("floor_div", "x // y", np.floor_divide, INTS),
    Row("mod", "x % y", np.mod, INTS),
    Row("floor_div", "x // 3", lambda x, y: x // x.dtype.type(3), INTS),
    Row("mod", "x % 7", lambda x, y: x % x.dtype.type(7), INTS),
    Row("floor_div", "x // y", lambda x, y: np.floor(x / y), (f32, f64)),
    Row("min", "min(x, y)", np.fmin),
    Row("max", "max(x, y)", np.fmax),
    Row("min", "ct.min_tile(x, y)", np.fmin, NUMBERS, (6, 4)),
    Row("max", "ct.max_tile(x, 1)", lambda x, y: np.fmax(x, x.dtype.type(1)), NUMBERS, (6, 4)),
    Row("neg", "-x", lambda x, y: np.negative(x)),
    Row("abs", "abs(x)", lambda x, y: np.abs(x)),
    Row("fma", "ct.fma(x, y, x)", lambda x, y: x * y + x, (f32, f64), ulps=2, domain="positive"),
    Row("and", "x & y", np.bitwise_and, (*INTS, bool_)),
    Row("or", "x | y", np.bitwise_or, (*INTS, bool_)),
    Row("xor", "x ^ y", np.bitwise_xor, (*INTS, bool_)),
    Row("not", "~x", lambda x, y: np.invert(x), (*INTS, bool_)),
    Row("shl", "x << 3", lambda x, y: np.left_shift(x, x.dtype.type(3)), INTS),
    Row("shr", "x >> 2", lambda x, y: np.right_shift(x, x.dtype.type(2)), INTS),
    Row("shl", "x << 100", lambda x, y: np.left_shift(x, x.dtype.type(100)), INTS),
    Row("shr", "x >> 100", lambda x, y: np.right_shift(x, x.dtype.type(100)), INTS),
)
