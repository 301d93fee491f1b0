"""The example that tunes the library's kernels, on problems that take no time."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_async import Device
from cutile.bench import BenchOptions
from cutile.tune import Config, GridSearch
from kernels import tuned
from kernels.example import Case
from kernels.tuned import TUNABLE, tune

QUICK = BenchOptions(warmup_ms=0.5, rep_ms=2, min_reps=3, max_reps=10)
SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "saxpy": ((5000,), {"tile": (64, 1024)}),
    "softmax": ((40, 96), {"tile": (2, 8)}),
    "row_min": ((40, 300), {"tile": (2, 8)}),
    "gemm": (
        (96, 80, 100),
        {"rows": (32,), "columns": (64,), "depth": (32,), "cluster": (1,), "halved": (False,)},
    ),
}


@pytest.mark.parametrize("name", TUNABLE)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_each_kernel_is_tuned_from_its_own_choice_on(name: str, device: str) -> None:
    size, space = SMALL[name]
    with Device.parse(device):
        record, own, ratio = tune(name, Case(size), options=QUICK, space=space)
    assert record.trials[0].config == own  # the winner has faced it
    assert {trial.config for trial in record.ranking} == {own, *GridSearch(**space)}
    assert ratio > 0
    assert (ratio == 1.0) == (record.best == own)


def test_the_library_chooses_by_the_model() -> None:
    with Device.host():
        _, own, _ = tune("gemm", Case((96, 80, 100)), options=QUICK, space=SMALL["gemm"][1])
    assert own == Config(rows=256, columns=512, depth=256, cluster=1, halved=False)


def test_the_program_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["softmax", "--device", "cpu", "--size", "16", "32", "--rep-ms", "1"]
    assert tuned.main(command) == 0
    printed = capsys.readouterr().out
    assert "softmax 16x32 f32: tile=" in printed
    assert "the library's own choice is tile=1" in printed
    assert tuned.main(["gemm", "--device", "cpu", "--size", "16"]) == 2
    assert "gemm has 3 extents, got 1" in capsys.readouterr().err
