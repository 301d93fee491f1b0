"""What the simulator's page says is what its command computes; its products are near those that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.simulated import MEASURED, OUT, PROGRAMS, product_seconds, rows_of, table

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_figures_of_the_command() -> None:
    rows = json.loads(OUT.read_text(encoding="utf-8"))["rows"]
    assert table(rows) in (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert rows_of(2) == rows[: len(PROGRAMS)]
    for row in rows:
        assert row["ms"] < row["ms, one stream"]


@pytest.mark.parametrize(("name", "error"), [("bf16-4096", 0.0), ("bf16-short-k", 0.1), ("bf16-deep", 0.3)])
def test_products_take_what_was_measured(name: str, error: float) -> None:
    """The last two are no cubes, so they were not among the points."""
    (case,) = (case for case in json.loads(MEASURED.read_text(encoding="utf-8"))["cases"] if case["name"] == name)
    _, rows, columns, depth = case["shape"]
    assert product_seconds(rows, columns, depth) == pytest.approx(case["seconds"], rel=error or 1e-9)
