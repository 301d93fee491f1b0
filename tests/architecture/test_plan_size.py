"""How many lines of code plan the loops of a GPU's kernels: at most as many as there are, and that goes down only."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT

PLANS = [
    "budget",
    "layout_assignment",
    "lower",
    "lowering_context",
    "multistage",
    "multistage_rules",
    "op_facts",
    "op_lowering",
    "plans",
    "smem_allocator",
    "smem_layout",
    "smem_sizes",
    "staged_operands",
    "wgmma_instructions",
]
"""The files beside `pipeline/` that decide how a loop runs, wherever they are in `cutile/backend/`."""
MAX_LINES = 5362
"""Lines of code, without comments, docstrings and blank lines. The aim is 3,600."""
MAX_DEPTH = 2
"""Classes above which a class stands, itself with them, of those in these files."""

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def planning() -> list[Path]:
    backend = ROOT / "cutile" / "backend"
    files = sorted(path for path in backend.rglob("*.py") if path.parent.name == "pipeline" or path.stem in PLANS)
    return [path for path in files if path.parts[-2] in ("cuda", "gpu", "pipeline")]


def code_lines(text: str) -> int:
    """Lines that hold code.

    Example:
        >>> code_lines('def f():\\n    "What it does."\\n\\n    # why\\n    return 1\\n')
        2
    """
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in LAYOUT]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def classes(files: list[Path]) -> Iterator[tuple[str, list[str]]]:
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield node.name, [base.id for base in node.bases if isinstance(base, ast.Name)]


def test_the_files_that_plan_loops_do_not_grow() -> None:
    files = planning()
    assert {path.stem for path in files if path.parent.name != "pipeline"} == set(PLANS), "say what has moved"
    lines = {path.name: code_lines(path.read_text()) for path in files}
    listed = ", ".join(f"{name} {count}" for name, count in sorted(lines.items(), key=lambda item: -item[1]))
    assert sum(lines.values()) <= MAX_LINES, f"{sum(lines.values())} lines: {listed}"
    assert sum(lines.values()) > MAX_LINES - 200, f"{sum(lines.values())} lines: lower MAX_LINES to that"


def test_no_class_stands_on_more_than_one_other() -> None:
    bases = dict(classes(planning()))

    def depth(name: str) -> int:
        return 1 + max((depth(base) for base in bases[name] if base in bases), default=0)

    assert {name: depth(name) for name in bases if depth(name) > MAX_DEPTH} == {}
