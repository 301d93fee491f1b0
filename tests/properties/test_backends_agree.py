"""Random kernels: every backend computes what the reference does. A failure prints a kernel to paste."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from cutile.dtypes import i32
from cutile.ir.text import parse, print_function
from cutile.ir.verify import verify
from cutile.ops import OPS
from cutile.passes.pipeline import run_passes
from tests.properties.kernels import RandomKernel, kernels
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch
from tests.support.programs import mut, program, scalar, tensor

Array = np.ndarray[Any, Any]


def inputs(case: RandomKernel) -> tuple[Array, Array, Array, float]:
    rng = np.random.default_rng(case.seed)
    shape = case.shape

    def array() -> Array:
        if case.dtype.kind == "float":
            return rng.uniform(-2, 2, shape).astype(case.dtype.numpy)
        return rng.integers(0 if case.dtype.kind == "uint" else -50, 50, shape).astype(case.dtype.numpy)

    a = 0.75 if case.dtype.kind == "float" else 5
    return array(), array(), array(), a


def run(case: RandomKernel, backend: str) -> Array:
    out, x, z, a = inputs(case)
    with np.errstate(all="ignore"):
        launch(kernel(case.text), (out, case.tile), x, z, a, 3, backend=backend)
    return out


@pytest.mark.parametrize("backend", BACKENDS[1:])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=kernels())
def test_a_backend_agrees_with_the_reference(backend: str, case: RandomKernel) -> None:
    note(str(case))
    check(case, run(case, "reference"), run(case, backend))


TOLERANCE = {"f64": 1e-11, "f32": 1e-4, "f16": 3e-2, "bf16": 2e-1}


def check(case: RandomKernel, wanted: Array, got: Array) -> None:
    """Compare two results: integers exactly, floats within what rounding may have grown to.

    Raises:
        AssertionError: they differ.
    """
    tolerance = TOLERANCE.get(case.dtype.name)
    if tolerance is None:
        np.testing.assert_array_equal(got, wanted)
        return
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    scale = float(np.max(np.abs(wanted), where=np.isfinite(wanted), initial=1.0))
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * scale)


@settings(max_examples=100)
@given(case=kernels())
def test_text_round_trips_and_passes_keep_valid_ir(case: RandomKernel) -> None:
    dtype = case.dtype
    types = {
        "out": mut(*case.tile, dtype=dtype), "x": tensor(2, dtype), "z": tensor(2, dtype),
        "a": scalar(dtype), "n": scalar(i32),
    }  # fmt: skip
    function = program(case.text, types)
    verify(function)
    assert parse(print_function(function), OPS) == function
    optimised = run_passes(function)
    assert parse(print_function(optimised), OPS) == optimised


@settings(max_examples=60)
@given(case=kernels())
def test_passes_keep_the_meaning(case: RandomKernel) -> None:
    """The reference walks optimised IR in `run`; here the IR as written, bit for bit the same result."""
    out, x, z, a = inputs(case)
    walk_unoptimised(case, out, x, z, a)
    np.testing.assert_array_equal(run(case, "reference"), out)


def walk_unoptimised(case: RandomKernel, out: Array, x: Array, z: Array, a: float) -> None:
    from cutile.backend.reference.interpret import run_block

    dtype = case.dtype
    types = {
        "out": mut(*case.tile, dtype=dtype), "x": tensor(2, dtype), "z": tensor(2, dtype),
        "a": scalar(dtype), "n": scalar(i32),
    }  # fmt: skip
    function = program(case.text, types)
    values = dict(
        zip(function.parameters, (out, x, z, np.asarray(a, dtype.numpy), np.asarray(3, np.int32)), strict=True)
    )
    rows, columns = (-(-extent // tile) for extent, tile in zip(case.shape, case.tile, strict=True))
    with np.errstate(all="ignore"):
        for row in range(rows):
            for column in range(columns):
                run_block(function, values, (row, column, 0), (rows, columns, 1))
