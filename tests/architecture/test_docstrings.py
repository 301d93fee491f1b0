"""The first line of a docstring is short: it is what listings, editors and readers in a hurry see."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, modules

WIDTH = 80  # characters of a first line, without quotes and indentation

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def long_first_lines(root: Path) -> Iterator[str]:
    """Yield each docstring of the packages whose first line is longer than `WIDTH`."""
    for module in modules(root, *PACKAGES):
        for node in ast.walk(module.tree):
            text = ast.get_docstring(node) if isinstance(node, _Documented) else None
            first = (text or "").partition("\n")[0]
            if len(first) > WIDTH:
                line = getattr(node, "lineno", 1)
                yield f"{module.where}:{line}: {len(first)} characters, of at most {WIDTH}: {first}"


def test_first_lines_are_short() -> None:
    assert list(long_first_lines(ROOT)) == []


def test_each_breach_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    (package / "short.py").write_text(f'"""{"a" * WIDTH}\n\n{"b" * 2 * WIDTH}"""\n')
    (package / "long.py").write_text(f'"""A."""\n\n\ndef f():\n    """{"a" * (WIDTH + 1)}"""\n')
    assert [line.split(": ")[0] for line in long_first_lines(tmp_path)] == ["cutile/long.py:4"]
