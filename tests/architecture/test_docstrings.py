"""The first line of a docstring is short: it is what listings, editors and readers in a hurry see."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, modules

WIDTH = 80  # characters of a first line, without quotes and indentation

# Files and folders that have longer ones still. Entries go; none comes.
STILL: tuple[str, ...] = ("cutile/backend/cuda/",)

# Folders in those above that have none.
DONE = tuple(f"cutile/backend/cuda/{folder}/" for folder in ("emit", "intrinsics", "model", "ops"))

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
    lines = long_first_lines(ROOT)
    assert [line for line in lines if line.startswith(DONE) or not line.startswith(STILL)] == []


def test_the_list_of_what_is_left_is_true() -> None:
    left = list(long_first_lines(ROOT))
    clean = [entry for entry in STILL if not any(line.startswith(entry) for line in left)]
    assert clean == [], "nothing is left to do there: take these out of STILL"


def test_each_breach_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    (package / "short.py").write_text(f'"""{"a" * WIDTH}\n\n{"b" * 2 * WIDTH}"""\n')
    (package / "long.py").write_text(f'"""A."""\n\n\ndef f():\n    """{"a" * (WIDTH + 1)}"""\n')
    assert [line.split(": ")[0] for line in long_first_lines(tmp_path)] == ["cutile/long.py:4"]
