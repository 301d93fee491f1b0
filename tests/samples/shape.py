"""Shapes, and constants that take them."""

from typing import Any

import numpy as np

from cutile.dtypes import bf16, bool_, f32, f64, i8, i32, i64
from tests.samples.row import ANY, Row

SOME = (f32, f64, i8, i64, bf16)


def _inserted(x: Any, y: Any) -> Any:
    return np.concatenate([x[:18], y[6:12]])


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
    Row("cat", "ct.cat(x, y, 0).reshape((2, 24))", lambda x, y: np.stack([x, y]), SOME, result_shape=(2, 24)),
    Row(
        "cat", "ct.cat(x, y, 1)", lambda x, y: np.concatenate([x, y], 1), (f32, i8, bool_), (6, 5), result_shape=(6, 10)
    ),
    Row(
        "cat",
        "ct.cat(x * y, ct.cat(y, ct.reduce_sum(x, 0).reshape((1, 4)), 0), 0)",
        lambda x, y: np.concatenate([x * y, y, x.sum(0, dtype=x.dtype)[None]]),
        (i8, i64),
        (3, 4),
        result_shape=(7, 4),
    ),
    Row(
        "cat",
        "ct.cat((x, y, x), 0).reshape((3, 5))",
        lambda x, y: np.stack([x, y, x]),
        SOME,
        (5,),
        result_shape=(3, 5),
    ),
    Row("cat", "ct.cat((x,), axis=0)", lambda x, y: x, (f32,)),
    Row("flip", "ct.flip(x, 0)", lambda x, y: x[::-1], ANY, (7,)),
    Row("flip", "ct.flip(x + y)", lambda x, y: (x + y)[::-1, ::-1], (f32, i64), (6, 5), domain="small"),
    Row("flip", "ct.flip(x, (0, -1))", lambda x, y: x[::-1, :, ::-1], (i8,), (3, 2, 4)),
    Row("roll", "ct.roll(x, 2, 0)", lambda x, y: np.roll(x, 2, 0), ANY, (7,)),
    Row("roll", "ct.roll(ct.roll(x * y, -9, 0), 1, 1)", lambda x, y: np.roll(x * y, (-9, 1), (0, 1)), (i64,), (4, 3)),
    Row("repeat", "ct.repeat(x, 3, 0)", lambda x, y: np.repeat(x, 3, 0), (*SOME, bool_), (4, 5), result_shape=(12, 5)),
    Row("repeat", "ct.repeat(x, 2, -1)", lambda x, y: np.repeat(x, 2, 1), (f32,), (4, 5), result_shape=(4, 10)),
    Row("insert", "ct.insert(x, y, (0, 0))", lambda x, y: y, (i8,), (6, 4)),
    Row("insert", "ct.insert(x, ct.extract(y, (1,), (6,)), (3,))", lambda x, y: _inserted(x, y), (*SOME, bool_)),
    Row(
        "insert",
        "ct.insert(x, ct.extract(y, (0, 0), (3, 2)), (ct.get_tile_block_id()[0] + 9, ct.get_tile_block_id()[0] - 1))",
        lambda x, y: np.block([[x[:3]], [y[:3, :2], x[3:, 2:]]]),
        (f32, i64),
        (6, 4),
    ),
    Row(
        "iota", "x + ct.iota((24,), x.dtype, 2, 3)", lambda x, y: x + (2 + 3 * np.arange(24)).astype(x.dtype), (i8, i64)
    ),
    Row(
        "iota",
        "x + ct.iota(24, ct.i32, ct.get_num_tile_blocks()[0], step=-1)",
        lambda x, y: x + 1 - np.arange(24),
        (i32,),
    ),
    Row("extract", "ct.extract(x, (2,), (6,))", lambda x, y: x[12:18], SOME, result_shape=(6,)),
    Row(
        "extract",
        "ct.extract(x + y, (ct.get_tile_block_id()[0] + 1, 0), (2, 4))",
        lambda x, y: (x + y)[2:4],
        (f32, i64),
        (6, 4),
        result_shape=(2, 4),
        domain="small",
    ),
    Row(
        "extract",
        "ct.extract(x, (ct.get_num_tile_blocks()[0] + 9, ct.get_tile_block_id()[0] - 3), (2, 2))",
        lambda x, y: x[4:6, :2],
        (f32, i8),
        (6, 4),
        result_shape=(2, 2),
    ),
    Row(
        "extract",
        "ct.extract(x, (ct.convert_tile(ct.get_tile_block_id()[0] - 7, ct.u64), ct.get_tile_block_id()[0]), (2, 2))",
        lambda x, y: x[4:6, :2],
        (f32,),
        (6, 4),
        result_shape=(2, 2),
    ),
    Row(
        "insert",
        "ct.insert(x, ct.extract(y, (0,), (6,)), (ct.convert_tile(ct.get_tile_block_id()[0] - 7, ct.u64),))",
        lambda x, y: np.concatenate([x[:18], y[:6]]),
        (i32,),
    ),
    Row(
        "broadcast",
        "x + ct.broadcast_scalar(ct.tile_to_scalar(ct.scalar_to_tile(ct.reduce_max(x, 0))), x.shape)",
        lambda x, y: x + x.max(),
        (f32, i64),
        domain="small",
    ),
    Row("reshape", "ct.reshape(x, ct.permute_array((3, 8), (1, 0))).reshape((24,))", lambda x, y: x, (f32,)),
    Row(
        "tensor_dim",
        "x + ct.get_shape_dim(ct.get_tensor_shape(y_in), 1)",
        lambda x, y: x + np.int32(4),
        (i32,),
        (6, 4),
    ),
    Row("constant", "x + ct.constant(3, (24,), x.dtype)", lambda x, y: x + x.dtype.type(3), SOME),
    Row("iota", "x + ct.iota((24,)).astype(x.dtype)", lambda x, y: x + np.arange(24).astype(x.dtype), SOME),
    Row("iota", "x + ct.iota((4,), x.dtype)", lambda x, y: x + np.arange(4, dtype=x.dtype), (i8, i64), (6, 4)),
)
