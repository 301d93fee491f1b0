"""The search for kernels on which backends disagree: it finds, makes small, counts, and outlives its processes."""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from tests.properties import worker
from tests.properties.crew import Crew
from tests.properties.generator import RandomKernel
from tests.properties.running import check
from tests.properties.search import batches, main
from tests.properties.worker import Agreed, Batch, Disagreed, Disagreement, Finished, Said, Tried


@pytest.mark.slow
def test_what_fails_is_made_small_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(case: RandomKernel, backends: tuple[str, ...]) -> Agreed:
        if "reduce_max" in case.body:
            raise Disagreement("cpu", case, AssertionError("wrong"))
        return Agreed(dict.fromkeys(backends, 0.5))

    monkeypatch.setattr(worker, "compare", spoiled)
    said: list[Said] = []
    worker.search(Batch(3, 60, ("cpu",)), said.append)
    failures = [each for each in said if isinstance(each, Disagreed)]
    assert len(failures) == 2  # as it was met, and as small as it gets
    assert len(failures[1].text) < len(failures[0].text)
    assert failures[1].text.count("\n") < 20
    assert "reduce_max" in failures[1].text
    assert said[-1] == Finished()
    assert Agreed({"cpu": 0.5}) in said


def test_a_failure_stays_found_when_there_is_no_time_to_make_it_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(case: RandomKernel, backends: tuple[str, ...]) -> Agreed:
        raise Disagreement("cpu", case, AssertionError("wrong"))

    monkeypatch.setattr(worker, "compare", spoiled)
    said: list[Said] = []
    worker.search(Batch(3, 60, ("cpu",), shrinking=0.0), said.append)
    first, second = (each for each in said if isinstance(each, Disagreed))
    assert first == second


def faulty(pipe: Connection) -> None:
    """A process that agrees once, then dies at each batch's second kernel, and fails that of batch 1."""
    while (batch := pipe.recv()) is not None:
        pipe.send(Tried("kernel a"))
        pipe.send(Agreed({"cpu": 1.0}))
        pipe.send(Tried("kernel b"))
        if batch.number == 0:
            os._exit(1)
        if batch.number == 1:
            pipe.send(Disagreed("cpu", "kernel b is wrong"))
        else:
            pipe.send(Agreed({"cpu": 3.0}))
        pipe.send(Finished())


@pytest.mark.slow
def test_processes_that_die_are_replaced_and_all_is_counted() -> None:
    shown: list[Disagreed] = []
    work = iter([Batch(number, 2, ("cpu",)) for number in range(4)])
    results = Crew(work, shown.append, faulty).run(2, limit=60)
    assert results.count == 8
    assert shown == results.failures
    assert sorted((each.backend, each.text) for each in shown) == [
        ("a process", "kernel b\nthe process ended"),
        ("cpu", "kernel b is wrong"),
    ]
    assert sorted(results.seconds["cpu"]) == [1.0] * 4 + [3.0] * 2
    assert results.slowest == {"cpu": "kernel b"}


def test_batches_cover_what_was_asked_for() -> None:
    made = list(batches(("cpu",), 7, 60))
    assert [(each.number, each.count) for each in made] == [(7, 25), (8, 25), (9, 10)]


@pytest.mark.slow
def test_a_search_writes_its_figures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "found.json"
    assert main(["--backend", "cpu,interpret", "--count", "2", "--seed", "9", "--output", str(output)]) == 0
    assert "cpu: 2 kernels, 0 disagreements\ninterpret: 2 kernels, 0 disagreements\n" in capfd.readouterr().out
    report = json.loads(output.read_text())
    assert report["kernels"] == 2
    assert report["failures"] == []
    spread = report["backends"]["cpu"]["compile_seconds"]
    assert 0 < spread["median"] <= spread["p90"] <= spread["longest"]
    assert "numba" in report["versions"]


def test_a_wrong_result_is_seen() -> None:
    from cutile.dtypes import f32, i32
    from tests.properties.generator.arguments import Output

    for dtype, near, far in ((f32, 1.00001, 1.01), (i32, 1, 2)):
        case = RandomKernel("", (Output("out", dtype, (2,), tile=(2,)),), 0)
        expected = {"out": np.ones(2, dtype.numpy)}
        check(case, expected, {"out": np.full(2, near, dtype.numpy)})
        with pytest.raises(AssertionError, match="of out"):
            check(case, expected, {"out": np.full(2, far, dtype.numpy)})
