"""Random kernels: every backend computes what the reference does. A failure prints a kernel to paste."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from cutile.compile import driver
from cutile.ir.core import Function
from cutile.ir.text import parse, print_function
from cutile.ir.verify import verify
from cutile.ops import OPS
from cutile.passes.pipeline import run_passes
from tests.properties.generator import RandomKernel, kernels
from tests.properties.generator.kernel import read
from tests.properties.running import check, run
from tests.support.devices import on
from tests.support.memory import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS[1:])
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=kernels())
def test_a_backend_agrees_with_the_reference(backend: str, case: RandomKernel) -> None:
    note(str(case))
    check(case, run(case, "reference").arrays, run(case, backend).arrays)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=kernels())
def test_text_round_trips_and_passes_keep_valid_ir(case: RandomKernel) -> None:
    with on("reference"):
        op, _ = case.launch(case.kernel())
        written = parse(op.render("ir"), OPS)
        verify(written)
        assert parse(print_function(written), OPS) == written
        optimised = run_passes(written)
        assert parse(print_function(optimised), OPS) == optimised
        op.discard()


@settings(max_examples=28, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=kernels())
def test_passes_keep_the_meaning(case: RandomKernel) -> None:
    """The reference walks optimised IR in `run`; here the IR as written, bit for bit the same result."""

    def as_written(function: Function, **named: Any) -> Function:
        return function

    optimised = run(case, "reference").arrays
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "run_passes", as_written)
        for name, array in run(case, "reference").arrays.items():
            np.testing.assert_array_equal(array, optimised[name], name)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=kernels())
def test_a_printed_kernel_is_read_back(case: RandomKernel) -> None:
    assert read(str(case)) == case
