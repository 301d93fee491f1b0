"""The kernels of docs/recipes are as short as the pages say; that they run, test_code_blocks.py shows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, program, run
from tests.support.devices import on

MAX_LINES = 30
PAGES = sorted((ROOT / "docs" / "recipes").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_kernels_are_short(page: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(program(page))) if isinstance(node, ast.FunctionDef)]
    kernels = [function for function in functions if function.decorator_list]
    assert kernels
    lines = {each.name: (each.end_lineno or 0) - each.lineno + 1 for each in kernels}
    assert max(lines.values()) < MAX_LINES, lines


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_they_run_on_a_gpu(page: Path) -> None:
    with on("cuda"):
        run(page, frozenset())


def test_each_page_says_how_exact_its_results_are() -> None:
    for page in PAGES:
        sections = page.read_text(encoding="utf-8").split("\n## ")[1:]
        assert all("olerance" in each or "xact." in each or "unless" in each for each in sections), page.name
