"""The soak of `benchmarks/async_soak.py`, small: no wake-up is lost, nothing grows, and its judge finds faults."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import async_soak
from benchmarks.async_soak import Round, Soak
from benchmarks.steps import Steps, Timed
from cuda_async import Device, value


@pytest.mark.slow
def test_thousands_of_operations_from_a_hundred_tasks(device: Device) -> None:
    soak = Soak(device, tasks=100, operations=3000, rounds=3)
    soak.run(limit_s=60)
    assert soak.faults(timing=False) == []
    assert soak.awaited == 3000
    # Each await is a step at least, and each that suspended was woken by a timed callback.
    assert soak.steps.count >= 3000


@pytest.mark.slow
def test_the_command_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_soak, "STEP_LIMIT_US", 1e9)  # how busy this machine is, is not the matter here
    out = tmp_path / "new" / "soak.json"
    status = async_soak.main(["--tasks", "10", "--operations", "400", "--out", str(out)])
    record = json.loads(out.read_text())
    assert (status, record["faults"]) == (0, [])
    assert record["operations_awaited"] == 400
    assert record["steps"]["all_us"]["p50"] > 0


def test_the_judge_finds_faults() -> None:
    soak = Soak(Device.host(), tasks=10, operations=100, rounds=5)
    soak.rounds = [Round(1.0, n << 21, 1000 * n, 64 * n, 0) for n in range(5)]
    soak.awaited, soak.wrong, soak.lost = 99, 1, 1
    begun = time.perf_counter_ns()
    soak.steps.add(begun - 2_000_000)
    report = "\n".join(soak.faults())
    for fault in ("1 tasks never woke; 99 of 100", "1 results were wrong", "Python objects grow by 1000"):
        assert fault in report
    for fault in ("the process grows", "memory in use on the device grows by 64", "99.9th percentile"):
        assert fault in report
    soak.rounds[-1] = Round(1.0, 0, 0, 0, 0)  # a single round that did not grow: no leak
    assert "grow" not in "\n".join(soak.faults())


def test_steps_are_timed_inside_and_failures_pass() -> None:
    steps = Steps(capacity=2)

    class Twice:
        def __await__(self) -> Any:
            yield
            try:
                yield
            except KeyError:
                return "thrown in"

    driver = Timed(Twice(), steps).__await__()
    driver.send(None)
    driver.send(None)
    with pytest.raises(StopIteration, match="thrown in"):
        driver.throw(KeyError())
    assert steps.count == 3
    assert len(steps.lengths()) == 3

    async def main() -> int:
        return await Timed(value(1).map(lambda x: x // 0), steps)

    with Device.host(), pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_too_few_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="10 tasks in 5 rounds need at least 50"):
        Soak(Device.host(), tasks=10, operations=40)
