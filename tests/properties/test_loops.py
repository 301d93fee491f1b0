"""Kernels of several products in loops: pipelines are proved and run by NumPy, results right to the last bit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings

from tests.properties.generator import RandomKernel, loops
from tests.properties.planned import PIPELINES, RING, executed, lower, prove
from tests.properties.running import check, run
from tests.properties.search import main
from tests.properties.worker import DRAWN

UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.slow
@pytest.mark.parametrize(("drawn", "count"), [("loops", 15), ("interleaved", 50)])
def test_pipelines_of_random_products_are_proved_and_right(drawn: str, count: int) -> None:
    plans: Counter[str] = Counter()

    @seed(3)
    @settings(max_examples=count, suppress_health_check=UNHURRIED, phases=[Phase.generate], deadline=None)
    @given(case=DRAWN[drawn]())
    def each(case: RandomKernel) -> None:
        note(str(case))
        lowered = lower(case)
        plans[lowered.plan] += 1
        prove(lowered.after)
        if lowered.plan == PIPELINES and lowered.after is not None:
            check(case, run(case, "reference").arrays, executed(case, lowered.after, 2, case.seed))

    each()
    assert plans[PIPELINES] > count // 6, plans  # what is not drawn is not shown


@pytest.mark.slow
def test_random_loops_of_one_group_touch_nothing_too_early() -> None:
    plans: Counter[str] = Counter()

    @seed(2)
    @settings(max_examples=10, suppress_health_check=UNHURRIED, phases=[Phase.generate], deadline=None)
    @given(case=loops())
    def each(case: RandomKernel) -> None:
        note(str(case))
        lowered = lower(case, "sm_80")
        plans[lowered.plan] += 1
        prove(lowered.after)
        if lowered.plan == RING and lowered.after is not None:
            check(case, run(case, "reference").arrays, executed(case, lowered.after))

    each()
    assert plans[RING] > 3, plans


@pytest.mark.slow
def test_random_loops_are_right(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--draw", "loops", "--backend", "cpu", "--count", "2", "--seed", "3"]) == 0
    assert "cpu: 2 kernels, 0 disagreements\n" in capfd.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("drawn", ["loops", "eights", "interleaved"])
def test_random_loops_are_right_on_a_gpu(drawn: str) -> None:
    command = [sys.executable, "-m", "tests.properties.search", "--draw", drawn, "--backend", "cuda", "--count", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert "0 disagreements" in done.stdout, done.stdout + done.stderr
    assert "pipelines" in done.stdout
