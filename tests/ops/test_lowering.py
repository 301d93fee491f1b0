"""Every operation lowers for GPUs, as its tests on a GPU launch it: what these would find first, found without one."""

from __future__ import annotations

import pytest

import cutile as ct
from cuda_async import Device
from cutile import api
from cutile.dtypes import DTypeLike, bool_, f32, i8, u64
from tests.ops.test_moves import text_of as moves
from tests.ops.test_samples import ROWS, text_of
from tests.samples.moves import MOVES
from tests.samples.row import Row
from tests.support.kernels import define, kernel

ARCHITECTURES = ("sm_80", "sm_90a")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_sample_lowers(row: Row) -> None:
    dtypes = row.dtypes[::3]  # which of them hardly matters here: layouts go by shapes and widths
    shape = row.result_shape or row.shape
    with Device.host():
        operands = [
            operand
            for dtype in dtypes
            for operand in (
                api.zeros(shape, row.result or dtype).sync().partition(shape),
                api.zeros(row.shape, dtype).sync(),
                api.zeros(row.shape, dtype).sync(),
            )
        ]
        op = kernel(text_of(row, len(dtypes)))(*operands)
    try:
        assert op.render("lowered", ARCHITECTURES[ROWS.index(row) % 2]).startswith("func @sample(")
    finally:
        op.discard()


@pytest.mark.parametrize("dtype", [bool_, i8, f32, u64], ids=str)
def test_moves_lower(dtype: DTypeLike) -> None:
    with Device.host():
        x, y, m = (api.zeros(shape, dtype).sync() for shape in ((24,), (24,), (4, 6)))
        addresses = api.device_vec([x]).sync()
        outputs = [api.zeros((24,), dtype).sync() for _ in MOVES]
        pairs = [each for o in outputs for each in (o.mut.partition((24,)), o.device_pointer())]
        op = ct.entry(unsafe=True)(define(moves()))(*pairs, x, y, m, x.device_pointer(), addresses)
    try:
        assert op.render("lowered", "sm_90a").startswith("func @moves(")
    finally:
        op.discard()
