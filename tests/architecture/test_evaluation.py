"""Text becomes code, and bytes objects, in a few files only, none of which reads what it evaluates from a file."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, modules

EVALUATES = {
    "cutile/backend/cpu/build.py": "the text that this process, or the one that started it, has just generated",
    "cutile/backend/cuda/build.py": "the same",
    "cutile/backend/cuda/intrinsics/fragment.py": "a function with as many parameters as a caller in this file says",
    "cutile/compile/ahead.py": "messages of the process that started this one, over its own pipe",
    "cutile/frontend/captures.py": "comparisons of captured values, from names in a kernel's own source",
    "cutile/frontend/constant_calls.py": "an expression of constants in a kernel's own source, from its syntax tree",
    "cutile/frontend/source.py": "a file that Python has imported, compiled to be compared; nothing runs",
    "cutile/launch/checks.py": "what the compiler found in this process; no file holds it",
    "cutile/launch/fastpath.py": "functions made of signatures, of numbers, and of what the compiler has just found",
    "cutile/torch/launches.py": "a function made of a signature",
}
"""Where that happens, and what is evaluated there."""

NAMES = frozenset({"eval", "exec", "compile", "__import__"})
UNPICKLING = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})


def evaluating(root: Path) -> Iterator[tuple[str, int]]:
    """Each file and line that calls what makes code of text, or imports what makes objects of bytes."""
    for module in modules(root, *PACKAGES):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
                yield module.where, node.lineno
        for each in module.imports:
            if each.top in UNPICKLING:
                yield module.where, each.line


def test_nothing_else_makes_code_of_text() -> None:
    assert {file for file, _ in evaluating(ROOT)} == EVALUATES.keys()


def test_every_way_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "cutile" / "cache.py"
    file.parent.mkdir()
    ways = [
        "eval(text)",
        "exec(text)",
        "f(compile(text))",
        "__import__(text)",
        "import pickle",
        "from marshal import loads",
    ]
    file.write_text("\n".join([*ways, "re.compile(text)", "import json"]))
    assert sorted(line for _, line in evaluating(tmp_path)) == [1, 2, 3, 4, 5, 6]
