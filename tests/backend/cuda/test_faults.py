"""Rings that are broken on purpose: the model finds it without a GPU, and on one a limited wait ends the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.model.rings import check_function
from cutile.dtypes import bf16
from tests.backend.cuda.fault_run import FAULTS
from tests.backend.cuda.programs import gemm_program, lowered


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("never given up", "are given up"),
        ("never arrives", "announced are"),
        ("not loaded", "announced are"),
    ],
)
def test_the_model_finds_it(fault: str, message: str) -> None:
    made = lowered(gemm_program(bf16, (128, 256), 64))
    FAULTS[fault](made)
    with pytest.raises(ProtocolError, match=message):
        check_function(made)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "never given up",
            "the stage is never given up for the loads (stage counter 4): waited for over 2 s, in thread 256",
        ),
        ("never arrives", "nothing arrives of the loads (stage counter 0): waited for over 2 s, in thread "),
        ("not loaded", "nothing arrives of the loads (stage counter 0): waited for over 2 s, in thread "),
    ],
)
def test_a_limited_wait_ends_it_and_says_what_was_waited_for(fault: str, message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.backend.cuda.fault_run", fault]
    given = os.environ | {"CUTILE_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=given)
    said = ran.stdout + ran.stderr
    assert "CUDA_ERROR_ASSERT" in ran.stdout, said
    assert message in said
