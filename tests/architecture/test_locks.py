"""Every lock is made by `cuda_async.locks`: it is open in the child of a fork, and lets a signal's handler in."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, modules

HOME = "cuda_async/locks.py"
PRIMITIVES = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"}


def bare_locks(root: Path) -> Iterator[str]:
    for module in modules(root, *PACKAGES):
        if module.where == HOME:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module in ("threading", "_thread", "multiprocessing"):
                names = {alias.name for alias in node.names} & PRIMITIVES
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                made = ast.unparse(node.func.value) in ("threading", "_thread", "multiprocessing")
                over_ours = node.func.attr == "Condition" and "new_lock" in ast.unparse(node)
                names = {node.func.attr} & PRIMITIVES if made and not over_ours else set[str]()
            else:
                continue
            for name in names:
                yield f"{module.where}:{node.lineno}: {name} is for {HOME} alone; take new_lock() or Gate"


def test_locks_are_made_in_one_place() -> None:
    assert list(bare_locks(ROOT)) == []


def test_each_breach_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    (package / "bare.py").write_text('"""Bare."""\nimport threading\nlock = threading.Lock()\n')
    (package / "named.py").write_text('"""Named."""\nfrom threading import Event\n')
    (package / "over.py").write_text('"""Ours."""\nimport threading\nx = threading.Condition(new_lock())\n')
    assert [line.split(": ")[0] for line in bare_locks(tmp_path)] == ["cutile/bare.py:3", "cutile/named.py:2"]
