"""Pipelines broken on purpose: the model finds the fault, and on a GPU a limited wait ends the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cutile.backend.cuda.backend import CudaBackend
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.plans import lower
from cutile.compile.driver import compile_kernel
from cutile.dtypes import bf16
from cutile.ir.core import Function
from tests.backend.cuda.chosen import SIZE, Kind, described
from tests.backend.cuda.fault_run import FAULTS
from tests.backend.cuda.programs import gemm_program, lowered


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("never given up", "are released"),
        ("never arrives", "announced are"),
        ("not loaded", "announced are"),
    ],
)
def test_the_model_finds_it(fault: str, message: str) -> None:
    lowering = lowered(gemm_program(bf16, (128, 256), 64))
    FAULTS[fault](lowering)
    with pytest.raises(ProtocolError, match=message):
        check_function(lowering)


class BuiltError(Exception):
    """The error that shows that a kernel has reached Numba."""


@pytest.mark.parametrize(("setting", "raised"), [("1", ProtocolError), ("", BuiltError), ("0", BuiltError)])
def test_a_setting_has_the_models_run_on_what_is_compiled(
    setting: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(backend: CudaBackend, *request: Any) -> Function:
        function = lower(*request)
        FAULTS["never given up"](function)
        return function

    def build(backend: CudaBackend, *source: Any) -> None:
        raise BuiltError

    request = Kind("matmul", bf16).request(described("sm_90a"), SIZE)
    monkeypatch.setenv("CUTILE_VERIFY", setting)
    monkeypatch.setenv("CUTILE_DISK_CACHE", "0")
    monkeypatch.setattr(CudaBackend, "lower", faulty)
    monkeypatch.setattr(CudaBackend, "build", build)
    with pytest.raises(raised):
        compile_kernel(request)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "never given up",
            "the stage is never released for the loads (stage counter 4): waited for over 2 s, in thread 256",
        ),
        ("never arrives", "nothing arrives of the loads (stage counter 0): waited for over 2 s, in thread "),
        ("not loaded", "nothing arrives of the loads (stage counter 0): waited for over 2 s, in thread "),
    ],
)
def test_a_limited_wait_ends_it_and_says_what_was_waited_for(fault: str, message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.backend.cuda.fault_run", fault]
    given = os.environ | {"CUTILE_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=given)
    said = ran.stdout + ran.stderr
    assert "CUDA_ERROR_ASSERT" in ran.stdout, said
    assert message in said
