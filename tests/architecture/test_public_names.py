"""``__all__`` is a tuple, and says exactly what a module offers."""

import ast
import builtins
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, UNSTARRED, Module, modules


def _declared(module: Module) -> ast.expr | None:
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return getattr(node, "value", None)
    return None


def _defined(module: Module) -> Iterator[str]:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def wrong_exports(root: Path) -> Iterator[str]:
    """Yield each ``__all__`` that is no tuple, lists a name twice, or leaves out a public name."""
    for module in modules(root, *PACKAGES):
        value = _declared(module)
        if value is None:
            if module.is_facade:
                yield f"{module.where}: a package's public face needs __all__"
            continue
        if not isinstance(value, ast.Tuple):
            yield f"{module.where}:{value.lineno}: __all__ must be written as a tuple"
            continue
        listed = [str(item.value) for item in value.elts if isinstance(item, ast.Constant)]
        starred = any(isinstance(item, ast.Starred) for item in value.elts)
        yield from (f"{module.where}: {name} is in __all__ twice" for name in {*listed} if listed.count(name) > 1)
        if not starred:
            yield from (
                f"{module.where}: {name} is public by its name, and missing from __all__"
                for name in _defined(module)
                if not name.startswith("_") and name not in listed
            )


def test_every_all_is_right() -> None:
    assert list(wrong_exports(ROOT)) == []


@pytest.mark.parametrize("package", [name for name in PACKAGES if (ROOT / name / "__init__.py").exists()])
def test_a_package_offers_what_it_lists_and_nothing_else(package: str) -> None:
    face = importlib.import_module(package)
    listed: tuple[str, ...] = face.__all__
    assert isinstance(listed, tuple)
    assert [name for name in listed if not hasattr(face, name)] == []
    extra = [
        name
        for name, value in vars(face).items()
        if not name.startswith("_") and name not in {*listed, *UNSTARRED} and not isinstance(value, types.ModuleType)
        if getattr(value, "__module__", "").split(".")[0] in PACKAGES
    ]
    assert extra == []


def test_a_star_import_does_not_hide_pythons_names() -> None:
    for package in PACKAGES:
        if (ROOT / package / "__init__.py").exists():
            assert [name for name in importlib.import_module(package).__all__ if name in dir(builtins)] == []


def test_each_breach_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "cutile"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text('__all__ = ["f"]\ndef f(): ...\n')
    (package / "b.py").write_text('__all__ = ("f", "f")\ndef f(): ...\ndef g(): ...\n')
    (package / "c.py").write_text("def f(): ...\n")
    assert list(wrong_exports(tmp_path)) == [
        "cutile/__init__.py: a package's public face needs __all__",
        "cutile/a.py:1: __all__ must be written as a tuple",
        "cutile/b.py: f is in __all__ twice",
        "cutile/b.py: g is public by its name, and missing from __all__",
    ]
