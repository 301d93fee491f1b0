"""Neutral ground asks no target for its name: what a device or a backend can do is a property, or a row of a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from cutile.backend.interface import NEUTRAL_OPTIONS, CompileOptions
from cutile.backend.registry import BACKENDS, backend
from tests.architecture.sources import PACKAGES, ROOT, modules

TARGETS_OWN = ("cutile/backend/cuda/", "cuda_async/driver/")

ELSEWHERE = {
    "cutile/host/foreign.py": "PyTorch's names of the devices of its tensors",
    "cutile/torch/arguments.py": "the same",
}
"""Files that may compare with the name, and what it is the name of there."""


def _names_target(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Constant)
        and isinstance(part.value, str)
        and (part.value == "cuda" or part.value.startswith("sm_"))
        for part in ast.walk(node)
    )


def asks_for_a_target(root: Path) -> Iterator[str]:
    """Yield each comparison, prefix test, pattern and `case` on the name of a target, outside of the targets' own."""
    for module in modules(root, *PACKAGES):
        if module.where.startswith(TARGETS_OWN) or module.where in ELSEWHERE:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Compare):
                asks = _names_target(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func.attr in ("startswith", "removeprefix", "compile", "fullmatch", "match", "search")
                asks = called and any(map(_names_target, node.args))
            elif isinstance(node, ast.match_case):
                asks = _names_target(node.pattern)
            else:
                continue
            if asks:
                yield f"{module.where}:{getattr(node, 'lineno', 0)}: ask what it can do, not whether it is CUDA's"


def test_neutral_ground_asks_no_target_for_its_name() -> None:
    assert list(asks_for_a_target(ROOT)) == []


def options_read(folder: Path) -> set[str]:
    """The compile options that the files of a backend read, by their names."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    read = (
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in ("options", "_options")
    )
    return {name.removesuffix("_parts") for name in read} & {field.name for field in fields(CompileOptions)}


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_names_the_options_that_it_reads(name: str) -> None:
    """Others do not reach it: a kernel of the CPU is the same whatever a launch says of warps."""
    assert options_read(ROOT / "cutile" / "backend" / name) == backend(name).options
    assert not backend(name).options & {*NEUTRAL_OPTIONS}


def test_each_breach_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    (package / "backend" / "cuda").mkdir(parents=True)
    (package / "backend" / "cuda" / "own.py").write_text('x = kind == "cuda"\n')
    (package / "table.py").write_text('KINDS = {"cuda": 2}\nx = f("cuda", arch="sm_90a")\n')
    breaches = ['kind == "cuda"', 'kind not in ("cpu", "cuda")', 'arch.startswith("sm_")', 're.compile("sm_[0-9]+")']
    (package / "asking.py").write_text("".join(f"x = {breach}\n" for breach in breaches))
    found = [line.rpartition(":")[0] for line in asks_for_a_target(tmp_path)]
    assert found == [f"cutile/asking.py:{line}" for line in (1, 2, 3, 4)]
