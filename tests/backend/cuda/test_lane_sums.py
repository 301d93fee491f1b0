"""Sums of rows that loops carry: lanes add up their parts after the loop, where nobody reads them before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api
from cutile.backend.cuda import lane_sums
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.ops import SumLanes
from cutile.dtypes import bf16, f32, i32
from cutile.ir import Function
from cutile.ir.types import Type
from cutile.ops.reduce import ReduceSum
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import lowered, written
from tests.backend.cuda.test_executed import whole
from tests.support.devices import on
from tests.support.kernels import define
from tests.support.programs import mut, scalar, tensor

WEIGHED = """
def weighed(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc, total = ct.constant(0, (64, 64), f32), ct.constant(START, (64, 1), f32)
    zeros = ct.constant(0, (64, 128), f32)
    for k in range(n):
        s = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(y, (64, 128), (k, j)), zeros)
        s = ct.min_tile(ct.max_tile(s, -2), 2)
        SUM
        acc = ct.mma(ct.convert_tile(s, x.dtype), ct.load_tile(y, (128, 64), (k, j)), acc)
    z.store(ct.convert_tile(acc + RESULT, z.dtype))
"""
SUM = "total = total * 0.5 + ct.reduce_sum(s, 1).reshape((64, 1))"
CASES = {
    "scaled": (SUM, "0", "total"),
    "added": ("total = total + ct.reduce_sum(s, 1).reshape((64, 1))", "0", "total"),
    "the factor second": ("total = ct.reduce_sum(s, 1).reshape((64, 1)) + 2.0 * total", "0", "total"),
    "under a branch": (f"if k % 2 == 0:\n            {SUM}", "0", "total"),
    "read with a factor": (SUM, "0", "total * 3.0"),
    "read by two": (SUM, "0", "ct.max_tile(total, 1.0) + total"),
    "read by a reduction": (SUM, "0", "ct.reduce(total, 0, 0.0, lambda p, q: p + q).reshape((1, 1))"),
    "read by a scan": (SUM, "0", "ct.scan(total, 0, ct.reverse.FORWARD, 0.0, lambda p, q: p + q)"),
}
NOT_DEFERRED = {
    "read in the loop": (f"{SUM}\n        s = s + total", "0", "total"),
    "from one": (SUM, "1", "total"),
    "squared": ("total = total * total + ct.reduce_sum(s, 1).reshape((64, 1))", "0", "total"),
    "more is added": ("total = total + 1.0 + ct.reduce_sum(s, 1).reshape((64, 1))", "0", "total"),
    "of few elements": (SUM.replace("reduce_sum(s", "reduce_sum(ct.extract(s, (0, 0), (64, 64))"), "0", "total"),
    "a quotient": ("total = total / 2.0 + ct.reduce_sum(s, 1).reshape((64, 1))", "0", "total"),
}


def program(line: str, start: str, result: str) -> Function:
    text = WEIGHED.replace("SUM", line).replace("START", start).replace("RESULT", result)
    types: dict[str, Type] = {"z": mut(64, 64), "x": tensor(2, bf16), "y": tensor(2, bf16), "n": scalar(i32)}
    return written(text, types)


def deferred(function: Function) -> tuple[int, int]:
    """How many sums stay in lanes, and how many times lanes are added up."""
    operations = [*function.walk()]
    in_lanes = sum(isinstance(op, ReduceSum) and bool(op.attributes.get("in_lanes")) for op in operations)
    return in_lanes, sum(isinstance(op, SumLanes) for op in operations)


def unchanged(function: Function) -> Function:
    """In place of the pass."""
    return function


@pytest.mark.parametrize("name", CASES)
def test_lanes_add_up_behind_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = lowered(program(*CASES[name]))
    check_layouts(function)
    in_lanes, added = deferred(function)
    assert in_lanes > 0
    assert added == 1
    (op,) = (op for op in function.walk() if isinstance(op, SumLanes))
    assert op.lanes == 3  # four lanes share a row of an accumulator
    z, x, y = np.zeros((100, 100), bf16.numpy), whole(100, 200), whole(300, 100, seed=1)
    execute(function, [z, x, y, np.int32(3)], (2, 2, 1))
    plain = np.zeros_like(z)
    monkeypatch.setattr(lane_sums, "defer_lane_sums", unchanged)
    execute(lowered(program(*CASES[name])), [plain, x, y, np.int32(3)], (2, 2, 1))
    np.testing.assert_array_equal(z.astype(np.float32), plain.astype(np.float32))


@pytest.mark.parametrize("name", NOT_DEFERRED)
def test_a_sum_that_is_needed_at_once_stays(name: str) -> None:
    assert deferred(lowered(program(*NOT_DEFERRED[name]))) == (0, 0)


def test_a_sum_outside_of_loops_stays() -> None:
    text = """
def rows(z: Mut, x: Tensor):
    t = ct.load_tile(x, (16, 256), (0, 0))
    z.store(ct.reduce_sum(t, 1).reshape((16, 1)))
"""
    assert deferred(lowered(written(text, {"z": mut(16, 1), "x": tensor(2, f32)}))) == (0, 0)


def test_a_long_chain_of_additions_is_looked_through_once() -> None:
    """Each one reads the one before it twice: there are 2 ** 60 ways through the chain."""
    doubled = "    t = t + t\n" * 60
    text = f"""
def rows(z: Mut, x: Tensor):
    t = ct.reduce_sum(ct.load_tile(x, (16, 256), (0, 0)), 1).reshape((16, 1))
{doubled}    z.store(t)
"""
    assert deferred(lowered(written(text, {"z": mut(16, 1), "x": tensor(2, f32)}))) == (0, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CASES, *NOT_DEFERRED])
def test_sums_are_right_on_a_gpu(name: str) -> None:
    """Whole numbers, halves and quarters: every order of additions gives the same."""
    line, start, result = (CASES | NOT_DEFERRED)[name]
    text = WEIGHED.replace("SUM", line).replace("START", start).replace("RESULT", result)
    kernel = ct.entry(define(text))
    x, y, count = whole(100, 200), whole(300, 100, seed=1), 3

    def outcome(device: str) -> Any:
        with on(device):
            z = api.zeros((100, 100), bf16).sync()
            operands = [api.from_numpy(each).sync() for each in (x, y)]
            return kernel(z.partition((64, 64)), *operands, count).first().unpartition().to_numpy().sync()

    np.testing.assert_array_equal(outcome("cuda").astype(np.float32), outcome("cpu").astype(np.float32))
