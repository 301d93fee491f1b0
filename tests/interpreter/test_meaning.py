"""An interpreted kernel computes what the reference backend does, bit for bit: samples, random kernels, the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

import cutile as ct
from kernels.gemm import gemm
from kernels.softmax import softmax
from tests.ops.test_samples import ROWS, run
from tests.properties.generator import RandomKernel, kernels
from tests.properties.running import run as run_random
from tests.samples.row import Row
from tests.support.draw import ulps_between
from tests.support.kernels import kernel
from tests.support.memory import launch

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_sample(row: Row) -> None:
    by_interpreter, by_reference = (run(row, row.dtypes, backend) for backend in ("interpret", "reference"))
    for (got, _), (wanted, _) in zip(by_interpreter, by_reference, strict=True):
        assert ulps_between(got, wanted) == 0


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=kernels())
def test_random_kernels(case: RandomKernel) -> None:
    note(str(case))
    wanted = run_random(case, "reference").arrays
    for name, got in run_random(case, "interpret").arrays.items():
        np.testing.assert_array_equal(got, wanted[name], name)


def test_the_librarys_gemm_and_softmax() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((20, 30)).astype(np.float32), rng.standard_normal((30, 25)).astype(np.float32)
    with ct.interpret():
        z = gemm(ct.api.zeros((20, 25)).partition((8, 16)), ct.api.from_numpy(x), ct.api.from_numpy(y), BK=8).sync()[0]
        p = softmax(ct.api.zeros((20, 30)).partition((1, 30)), ct.api.from_numpy(x)).sync()[0]
    np.testing.assert_allclose(z.unpartition().to_numpy().sync(), x @ y, rtol=1e-5, atol=1e-5)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(p.unpartition().to_numpy().sync(), e / e.sum(1, keepdims=True), rtol=1e-5)


def test_generics_of_every_kind_and_helpers_have_their_values() -> None:
    text = """
def scaled(t, by=2):
    return max(t, 0) * by
def k(out: Mut, x: Tensor, n: i32, *, BK: Const = 3):
    t = ct.load_tile_like(x, out)
    for i in range(1, n):
        t = t + i
    while n > 3:
        n = n - 1
        t = t * BK if n > 4 else t
    out.store(scaled(t, by=min(BK, 7)))
"""
    results: list[Array] = []
    for backend in ("reference", "interpret"):
        out = np.zeros(10, np.int32)
        launch(kernel(text), (out, (4,)), np.arange(-5, 5, dtype=np.int32), 6, backend=backend, BK=5)
        results.append(out)
    np.testing.assert_array_equal(results[1], results[0])


def scaler(by: int, none: object = None) -> Any:
    """A helper with a closure and a default, whose text has identities."""

    def scaled(t: Any, flag: Any, *, more: int = by + 1) -> Any:
        assert none is None or by is not none, "both come from outside"
        match flag:
            case True:
                return t * by
            case _:
                return t * more

    return scaled


def test_a_helper_with_an_identity_keeps_its_closure() -> None:
    text = """
def k(out: Mut, x: Tensor, n: i32):
    t = ct.load_tile_like(x, out)
    out.store(scaled(t, n > 2) + scaled(t, n < 2, more=7))
"""
    results: list[list[int]] = []
    for backend in ("reference", "interpret"):
        for n in (1, 2, 3):
            out = np.zeros(4, np.int32)
            launch(kernel(text, scaled=scaler(5)), (out, (4,)), np.arange(4, dtype=np.int32), n, backend=backend)
            results.append(out.tolist())
    factors = (6 + 5, 6 + 7, 5 + 7)
    assert results == 2 * [[factor * each for each in range(4)] for factor in factors]


@pytest.mark.gpu
def test_a_gpus_tensors_are_brought_and_taken_back() -> None:
    with ct.interpret():
        y = double(ct.api.arange(10, ct.i32).sync().partition((4,))).first().unpartition().sync()
    assert y.to_numpy().sync().tolist() == [2 * i for i in range(10)]


@ct.entry
def double(y: ct.Mut) -> None:
    y.store(2 * y.load())


def test_a_range_is_gone_through_again() -> None:
    text = """
def twice(numbers):
    total = 0
    for i in numbers:
        total += i
    for i in numbers:
        total += 10 * i
    return total
def k(out: Mut, x: Tensor):
    n = x.shape[0]
    out.store(ct.broadcast(twice(range(n)) + 1000 * twice(range(2)) + 100000 * len(range(2, 20, 5)), (1,)))
"""
    for backend in ("interpret", "reference"):
        y = np.zeros(1, np.int32)
        launch(kernel(text), (y, (1,)), np.zeros(4, np.float32), backend=backend)
        assert y.tolist() == [66 + 11000 + 400000]


@pytest.mark.parametrize("backend", ["interpret", "reference"])
def test_an_assertion_of_a_tile_is_of_every_element(backend: str) -> None:
    text = """
def k(y: Mut, x: Tensor, n: i32):
    t = ct.load_tile_like(x, y)
    assert 0 <= t < 9
    assert 0 < n < 9
    assert t.reshape((2, 2)) < n, "too large"
    y.store(t)
"""
    y = np.zeros(4, np.int32)
    launch(kernel(text), (y, (4,)), np.arange(4, dtype=np.int32), 4, backend=backend)
    assert y.tolist() == [0, 1, 2, 3]
    with pytest.raises(AssertionError, match="too large"):
        launch(kernel(text), (y, (4,)), np.arange(4, dtype=np.int32), 3, backend=backend)


INSTANCES = {
    "x.shape[0]": "int int|float (str,(int,float)) i32 (int,i32) ct.Tile object int()",
    "x.shape[0] / 2": "float int|float (str,(int,float)) ct.Tile object float()",
    "n": "i32 (int,i32) ct.Tile object",
    "n > 2": "int bool int|float (str,(int,float)) (int,i32) ct.bool_ ct.Tile object int() int(True) bool()",
    "True": "int bool int|float (str,(int,float)) (int,i32) object int() int(True) bool()",
    "7": "int int|float (str,(int,float)) (int,i32) object int()",
    "y.load()": "ct.Tile object",
    "y.load() > 1": "ct.bool_ ct.Tile object",
    "x": "Tensor object",
    "y": "Mut object",
    "x.partition((2,))": "ct.Partition object",
    "y.partition_mut((1,))": "ct.Partition ct.PartitionMut object",
    "x.shape": "tuple object tuple()",
    "[n]": "list object list()",
    "[n, 1][:1]": "list object list()",
    "2 * [n]": "list object list()",
    "sorted((2, 1))": "list object list()",
    "{1: n}": "dict object",
    "range(3)": "range object",
}
KINDS = (
    *("int", "float", "bool", "int|float", "(str,(int,float))", "i32", "(int,i32)", "ct.bool_", "ct.Tile", "Tensor"),
    *("Mut", "ct.Partition", "ct.PartitionMut", "tuple", "list", "dict", "range", "object"),
)
PATTERNS = ("int()", "int(True)", "float()", "bool()", "tuple()", "list()")


@pytest.mark.parametrize("backend", ["reference", "cpu", "interpret"])
@pytest.mark.parametrize("value", INSTANCES)
def test_the_class_of_a_value(value: str, backend: str) -> None:
    """`isinstance` and patterns of classes tell the same on every backend, and of plain numbers what Python tells."""
    tests = [f"if isinstance(value, {kind}):" for kind in KINDS]
    tests += [f"match value:\n        case {pattern}:" for pattern in PATTERNS]
    text = f"def k(y: Mut, x: Tensor, n: i32):\n    answer = 0\n    value = {value}\n"
    for bit, test in enumerate(tests):
        text += f"    {test}\n            answer += {1 << bit}\n"
    y = np.zeros(2, np.int64)
    launch(kernel(f"{text}    y.store(y.load() + answer)\n"), (y, (2,)), np.zeros(4, np.float32), 7, backend=backend)
    names = [name for bit, name in enumerate((*KINDS, *PATTERNS)) if y[0] >> bit & 1]
    assert " ".join(names) == INSTANCES[value]
