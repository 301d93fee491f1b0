"""Every lock is made by `cuda_async.locks`: it is open in the child of a fork, and lets a signal's handler in.

A lock that is taken without `with` is given back wherever Ctrl-C comes.
"""

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


def unguarded_locks(root: Path) -> Iterator[str]:
    """Calls of a lock's `acquire` behind which Ctrl-C would lose the lock.

    Such a call stands in the first statement of a `try`. The `finally` calls `release`, and takes the RuntimeError of a
    lock that was not acquired: no variable tells that safely, since Ctrl-C may come before it is assigned.
    """
    for module in modules(root, *PACKAGES):
        if module.where == HOME:
            continue
        guarded: set[ast.Call] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Try):
                released = set(map(ast.unparse, _released(node.finalbody)))
                guarded.update(each for each in _acquiring(node.body[0]) if ast.unparse(_lock(each)) in released)
        for call in _acquiring(module.tree):
            if call not in guarded:
                yield (
                    f"{module.where}:{call.lineno}: take the lock by `with`, or first in a `try` that releases it in "
                    "a `try` of its own, with `except RuntimeError`"
                )


def _acquiring(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of locks' `acquire`; those of pipelines have arguments of their own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(not _is_bool(argument) for argument in node.args):
            continue
        timing = {each.arg for each in node.keywords} <= {"blocking", "timeout"}
        if timing and isinstance(node.func, ast.Attribute) and node.func.attr == "acquire":
            yield node


def _is_bool(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant) and isinstance(argument.value, bool)


def _lock(call: ast.Call) -> ast.expr:
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def _released(statements: list[ast.stmt]) -> Iterator[ast.expr]:
    """The locks that statements release, whether or not they were acquired."""
    for statement in statements:
        if not isinstance(statement, ast.Try):
            continue
        if not any(each.type and ast.unparse(each.type) == "RuntimeError" for each in statement.handlers):
            continue
        for node in ast.walk(ast.Module(statement.body, [])):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "release":
                yield node.func.value


def test_no_lock_is_lost_by_ctrl_c() -> None:
    assert list(unguarded_locks(ROOT)) == []


BEGIN = "try:\n    settled = a.lock.acquire(blocking=False)\n    f(settled)\nfinally:\n"
SAFE_END = "    try:\n        a.lock.release()\n    except RuntimeError:\n        pass\n"
TEXTS = {
    "ahead": f"settled = a.lock.acquire(blocking=False)\ntry:\n    f(settled)\nfinally:\n{SAFE_END}",
    "asked": "if lock.acquire(blocking=False):\n    try:\n        f()\n    finally:\n        lock.release()\n",
    "late": BEGIN.replace("try:\n", "try:\n    f(0)\n") + SAFE_END,
    "other": BEGIN + SAFE_END.replace("a.lock", "b.lock"),
    "pipeline": "pipeline.acquire(counter, 16)\n",
    "safe": BEGIN + SAFE_END,
    "unset": f"{BEGIN}    if settled:\n        a.lock.release()\n",
}
"""Modules that take a lock, by their name."""


def test_each_lock_that_ctrl_c_may_lose_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    for name, text in TEXTS.items():
        (package / f"{name}.py").write_text(f'"""Locks."""\n{text}')
    reported = [line.split(":")[0] for line in unguarded_locks(tmp_path)]
    assert reported == [f"cutile/{name}.py" for name in ("ahead", "asked", "late", "other", "unset")]
