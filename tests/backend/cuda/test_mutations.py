"""Pipelines that are broken in one place: models and runs find the fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cutile.ir.core import Function
from tests.backend.cuda import mutations
from tests.backend.cuda.mutations import FAULTS, Fault, Subject, copy_of, score, subjects


@pytest.mark.slow
def test_the_models_find_every_kind_of_fault() -> None:
    """One kernel here; `python -m tests.backend.cuda.mutations` takes all."""
    reports = score(("two loops",), every=3)
    # It has one pipeline, and waits for its products at the end alone.
    assert reports.keys() == {fault.__name__ for fault in FAULTS} - {"early_release", "other_pipeline"}
    for name, counts in reports.items():
        assert counts["models"] == counts["faults"], name
        assert counts["running"] == counts["faults"] or name == "wrong_stages", name  # there is room enough here


def test_a_fault_that_nobody_finds_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    function, arguments, grid = subjects()["weighed"]
    subject = Subject(function, arguments, grid)
    assert not subject.found_by_models(copy_of(subject.lowered))
    monkeypatch.setattr(mutations, "FAULTS", (harmless,))
    assert score(("weighed",))["harmless"] == {"faults": 1, "models": 0, "running": 0, "neither": 1}


def harmless(function: Function) -> Iterator[Fault]:
    """No fault at all."""
    yield lambda: None
