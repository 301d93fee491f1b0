"""Small products of every plan: right on the CPU, planned as is meant; and under compute-sanitizer on a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_async import Device
from cutile.backend.cuda.pipeline.split_k import MAX_CLUSTER_PIECES
from kernels.gemm import gemm
from tests.properties import sanitize, small_products
from tests.properties.planned import PIPELINES, plan_of
from tests.properties.sanitize import TOOLS, USUAL_PLACE, read
from tests.properties.small_products import CASES, Small

ABSENT = 'Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call to '


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_product_has_the_plan_that_is_meant(case: Small) -> None:
    with Device.host():
        lowered = case.lowered("sm_90a")
    assert plan_of(lowered) == case.plan, lowered.splitlines()[0]
    pieces = case.pieces or 1
    nearby = pieces if pieces <= MAX_CLUSTER_PIECES else 1
    assert f"cluster = {max(case.cluster, nearby)}" in lowered or case.plan != PIPELINES
    assert ("division = " in lowered) == (case.pieces is None)


@pytest.mark.parametrize("case", [each for each in CASES if each.make is not gemm], ids=lambda case: case.name)
def test_small_products_are_what_they_say(case: Small) -> None:
    with Device.host():
        case.run()


def test_some_of_them_run_by_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert small_products.main(["--only", "f64"]) == 0
    assert capsys.readouterr().out == "right: f64\n1 products are right\n"


@pytest.mark.gpu
def test_small_products_are_right_on_a_gpu() -> None:
    command = [sys.executable, "-m", "tests.properties.small_products", "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout.endswith(f"\n{len(CASES)} products are right\n"), done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("tool", TOOLS)
def test_a_sanitizer_finds_nothing(tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a few products, since they are slow under it; on all of them by command."""
    if shutil.which("compute-sanitizer") is None and not Path(USUAL_PLACE).exists():
        pytest.skip("there is no compute-sanitizer, which is part of the CUDA toolkit")
    code = sanitize.main(["--tool", tool, "--only", "edges", "--limit", "100", "--keep", str(tmp_path)])
    assert code == 0, capsys.readouterr().out + (tmp_path / f"{tool}.log").read_text(encoding="utf-8")


def test_functions_that_a_driver_lacks_are_told_from_errors() -> None:
    log = f"""\
========= COMPUTE-SANITIZER
========= {ABSENT}cuGetProcAddress_v2.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: main [0x1]
=========
========= {ABSENT}cuGetProcAddress_v2.
2 products are right
========= ERROR SUMMARY: 2 errors
"""
    found = read(log)
    assert (found.absent, found.clean) == (2, True)
    other = read(log.replace("cuGetProcAddress_v2.\n2 products", "cuLaunchKernel.\n2 products"))
    assert (other.absent, other.clean) == (1, False)
    assert list(other.errors) == [f"{ABSENT}cuLaunchKernel."]


@pytest.mark.parametrize(
    "line",
    [
        "Invalid __global__ write of size 16 bytes",
        "Error: Race reported between Write access at gemm+0x10 and Read access at gemm+0x20 [16 hazards]",
        "Warning: Race reported between Write access at gemm+0x10 and Read access at gemm+0x20 [1 hazards]",
        "Barrier error detected. Divergent thread(s) in block.",
        "Target application returned an error",
    ],
)
def test_what_a_tool_finds_is_an_error(line: str) -> None:
    report = read(f"1 products are right\n========= {line}\n=========     at gemm\n========= ERROR SUMMARY: 1 error\n")
    assert not report.clean
    assert report.errors == {line: 1}
    assert line in str(report)


@pytest.mark.parametrize(
    "log", ["", "3 products are right\n", "========= ERROR SUMMARY: 0 errors\n", "right: one\n========= ended\n"]
)
def test_what_did_not_run_to_the_end_is_not_clean(log: str) -> None:
    assert not read(log).clean
    assert "NOT CLEAN" in str(read(log))


def test_a_run_that_hangs_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "sanitizer"
    script.write_text("#!/bin/sh\necho begun\necho right: one\nsleep 600 &\nwait\n", encoding="utf-8")
    script.chmod(0o755)
    start = time.monotonic()
    log = sanitize.watch(str(script), "memcheck", "", 0.2)  # ends once nobody is left who could still say something
    assert time.monotonic() - start < 300
    assert "begun" in log
    assert "the last one that did: one" in str(read(log))
    assert "ended after 0.2 seconds" in log
    assert not read(log).clean
