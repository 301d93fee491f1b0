"""Shapes, and constants that take them."""

import numpy as np

from cutile.dtypes import bf16, bool_, f32, f64, i8, i64
from tests.samples.row import Row

SOME = (f32, f64, i8, i64, bf16)

ROWS = (  # `create` too: constants and iota are only of use in some shape
    Row("reshape", "x.reshape((4, 6)).reshape((24,))", lambda x, y: x, SOME),
    Row("reshape", "ct.reshape(x, (2, -1)).reshape((24,))", lambda x, y: x, (*SOME, bool_)),
    Row("permute", "x.transpose().reshape((6, 4))", lambda x, y: x.T.reshape(6, 4), SOME, (6, 4)),
    Row("permute", "x.reshape((4, 6)).transpose().reshape((24,))", lambda x, y: x.reshape(4, 6).T.reshape(24), SOME),
    Row(
        "permute",
        "ct.permute(x, (2, 0, 1)).reshape((2, 3, 4))",
        lambda x, y: x.transpose(2, 0, 1).reshape(2, 3, 4),
        SOME,
        (2, 3, 4),
    ),
    Row(
        "broadcast",
        "x + ct.reduce_max(y, 1).reshape((6, 1))",
        lambda x, y: x + y.max(1)[:, None],
        (f32, i64),
        (6, 4),
        domain="small",
    ),
    Row(
        "broadcast",
        "x + ct.reduce_max(y, 0)",
        lambda x, y: x + y.max(0)[None, :],
        (f32, i64),
        (6, 4),
        domain="small",
    ),
    Row(
        "broadcast", "ct.broadcast(ct.reduce_max(x, 0), (24,))", lambda x, y: np.full(24, x.max()), SOME, domain="small"
    ),
    Row("constant", "x + ct.constant(3, (24,), x.dtype)", lambda x, y: x + x.dtype.type(3), SOME),
    Row("iota", "x + ct.iota((24,)).astype(x.dtype)", lambda x, y: x + np.arange(24).astype(x.dtype), SOME),
    Row("iota", "x + ct.iota((4,), x.dtype)", lambda x, y: x + np.arange(4, dtype=x.dtype), (i8, i64), (6, 4)),
)
