"""Signed bytes that NVVM loads sixteen at a time, and some of which it takes for sign-extended."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cutile as ct
from cutile import api
from cutile.dtypes import i8
from cutile.ir.types import MutType
from tests.backend.cuda.programs import ptx, written
from tests.support.devices import on
from tests.support.kernels import define
from tests.support.programs import tensor

# `extract` reads from shared memory, 16 bytes to a thread, and what is added to them comes from before a branch.
WRAPS = """
def wraps(z: ct.MappedPartitionMut, x: Tensor, y: Tensor):
    for index in z.iter_indices():
        at = index.coords()
        t = x.partition((1, 16)).load(at)
        u = ct.extract(ct.cat(t, ct.mulhii(t, t), 0), (0, 0), (1, 16))
        v = y.partition((16, 1)).load((0, at[1])).reshape((1, 16))
        z.store(ct.select(t + u < min(v, t), t, u - 1), index)
"""


def test_a_wrapped_sum_of_bytes_is_compared_as_a_byte() -> None:
    eights = tensor(2, i8)
    text = ptx(written(WRAPS, {"z": MutType(eights, (1, 16), map=(1, 1)), "x": eights, "y": eights}))
    made_by = {result: name for name, result in re.findall(r"^\s+(\S+)\s+(%rs\d+),", text, re.MULTILINE)}
    compared = re.findall(r"setp\.[lg]t\.s16\s+%p\d+, (%rs\d+), (%rs\d+);", text)
    assert len(compared) >= 16
    assert not [each for pair in compared for each in pair if made_by[each] == "add.s16"]  # but cvt.s16.s8 of one


@pytest.mark.gpu
def test_a_wrapped_sum_of_bytes_is_right_on_a_gpu() -> None:
    kernel = ct.entry(define(WRAPS))
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((1, 64), (16, 4)))
    with on("cuda"):
        z = api.zeros((1, 64), i8).sync()
        kernel(z.partition((1, 16)).map((1, 1), 2), api.from_numpy(x).sync(), api.from_numpy(y).sync()).sync()
        got = z.to_numpy().sync()
    np.testing.assert_array_equal(got, np.where(x + x < np.minimum(x, y.T.reshape(1, 64)), x, x - np.int8(1)))
