"""`cuda_async/core` is closed: it imports itself, the driver's face and the leaves, and nothing built on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, modules

LEAVES = frozenset({"errors", "brief", "config", "site", "locks"})
"""Modules that import nothing of the package but one another: who draws, composes or records is none of them."""

BELOW = LEAVES | {"core", "driver"}


def reaching_out(root: Path) -> Iterator[str]:
    """Yield each import of the core, late and type-only ones included, that leads out of it."""
    for module in modules(root, "cuda_async"):
        part = module.name.split(".")[1:2]
        allowed = BELOW if part == ["core"] else LEAVES if part and part[0] in LEAVES else None
        if allowed is None:
            continue
        for imported in module.imports:
            package, _, rest = imported.name.partition(".")
            there = rest.split(".")[0]
            if package == "cutile" or (package == "cuda_async" and there not in allowed):
                yield f"{module.where}:{imported.line}: {imported.name} is not below {part[0]}"


def test_the_core_is_closed() -> None:
    assert list(reaching_out(ROOT)) == []


def test_each_breach_is_reported(tmp_path: Path) -> None:
    core = tmp_path / "cuda_async" / "core"
    core.mkdir(parents=True)
    (core / "run.py").write_text("from cuda_async.core.event import Event\nfrom cuda_async.locks import new_lock\n")
    (core / "event.py").write_text("def f():\n    from cuda_async.graph import CudaGraph\n")
    (core.parent / "locks.py").write_text("import threading\nfrom cuda_async.core.run import Run\n")
    (core.parent / "graph.py").write_text("from cuda_async.core.run import Run\n")
    assert list(reaching_out(tmp_path)) == [
        "cuda_async/core/event.py:2: cuda_async.graph.CudaGraph is not below core",
        "cuda_async/locks.py:2: cuda_async.core.run.Run is not below locks",
    ]
