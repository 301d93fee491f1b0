"""Locals are nouns: a name that says when a value came to be, and not what it is, lives for three lines at most."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, modules

FILLERS = frozenset(
    {"made", "found", "each", "kept", "given", "taken", "wanted", "chosen", "known", "asked", "some", "one"}
)
LINES = 3  # from the line that binds such a name to the last one that reads it, both counted

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _is_one(value: ast.expr | None) -> bool:
    """Whether an expression makes the number 1, which `one` names well."""
    return value is not None and any(isinstance(node, ast.Constant) and node.value == 1 for node in ast.walk(value))


def _uses(function: _Function) -> Iterator[tuple[str, int, bool]]:
    """Yield each name in a function, inner functions included, with its line and whether it is bound there."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, True
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
            yield node.name, node.lineno, True


def _lives(function: _Function) -> Iterator[tuple[str, int, int]]:
    """Yield each filler with the line that binds it and the last line that reads it, before it is bound again."""
    ones = {node.lineno for node in ast.walk(function) if isinstance(node, ast.Assign) and _is_one(node.value)}
    lines: dict[str, list[tuple[int, bool]]] = {}
    for name, line, is_bound in _uses(function):
        if name in FILLERS:
            lines.setdefault(name, []).append((line, is_bound))
    for name, uses in lines.items():
        bindings = sorted({line for line, is_bound in uses if is_bound})
        for first, following in pairwise([*bindings, 1 << 30]):
            if name != "one" or first not in ones:
                yield name, first, max(line for line, _ in uses if first <= line < following)


def fillers(root: Path) -> Iterator[str]:
    """Yield each local of the packages, kernels, benchmarks and tests that is no noun and lives too long."""
    for module in modules(root, *PACKAGES, "kernels", "benchmarks", "tests"):
        reported: set[tuple[str, int]] = set()
        for function in ast.walk(module.tree):
            if not isinstance(function, _Function):
                continue
            for name, first, last in _lives(function):
                if last - first >= LINES and (name, first) not in reported:
                    reported.add((name, first))
                    yield f"{module.where}:{first}: {name!r} lives to line {last}; say what it is, by a noun"


def test_locals_are_nouns() -> None:
    assert list(fillers(ROOT)) == []


def test_each_breach_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    (package / "short.py").write_text("def f(x):\n    made = x\n    y = 1\n    return made\n")
    (package / "long.py").write_text("def f(x):\n    made = x\n    y = 1\n    z = 1\n    return made\n")
    (package / "argument.py").write_text("def f(given):\n    y = 1\n    z = 1\n    return given\n")
    (package / "twice.py").write_text(
        "def f(x):\n    for each in x:\n        y = each\n    for each in x:\n        y = each\n"
    )
    (package / "number.py").write_text("def f(x):\n    zero, one = 0, 1\n    y = 1\n    z = 1\n    return one\n")
    assert [line.split(": ")[0] for line in fillers(tmp_path)] == ["cutile/argument.py:1", "cutile/long.py:2"]


def test_tma_has_the_name_that_nvidia_gives_it() -> None:
    """NVIDIA calls another unit the copy engine: the one behind `cudaMemcpyAsync`."""
    files = [path for folder in ("cutile", "cuda_async", "kernels") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 400
    assert [path.name for path in files if re.search(r"copy\s+engine", path.read_text(encoding="utf-8"))] == []
