"""docs/reference/runtime_rules.md names tests that exist, and one at least for each rule."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "reference" / "runtime_rules.md"
TESTS = ROOT / "tests" / "cuda_async"


def rules(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each row of the tables: the rule, and the tests it names."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and cells[0] != "Rule" and not cells[0].startswith("---"):
            yield cells[0], re.findall(r"`([^`]*\.py[^`]*)`", cells[1])


def missing(text: str, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a page about the tests in `folder`."""
    for rule, tests in rules(text):
        if not tests:
            yield f"no test: {rule}"
        for test in tests:
            file, _, name = test.partition("::")
            path = folder / file
            if not path.exists():
                yield f"{test}: there is no such file"
            elif name not in {
                node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)
            }:
                yield f"{test}: there is no such test"


def test_every_rule_has_tests_that_exist() -> None:
    text = PAGE.read_text("utf-8")
    assert list(missing(text, TESTS)) == []
    assert re.findall(r"^## (\d)\.", text, re.MULTILINE) == list("1234567")
    assert len(list(rules(text))) > 35


def test_each_breach_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_b(): ...\n")
    table = (
        "| Rule | Tests |\n| --- | --- |\n| one | `test_a.py::test_b` |\n| two | |\n"
        "| three | `test_a.py::test_c`, `test_d.py::test_e` |\n"
    )
    assert list(missing(table, tmp_path)) == [
        "no test: two",
        "test_a.py::test_c: there is no such test",
        "test_d.py::test_e: there is no such file",
    ]
