"""The source tree as data: modules, their imports at any depth, their names. No judgement here."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cutile", "cuda_async")
UNSTARRED = frozenset({"pow", "zip"})  # public, and not in __all__: a star import would hide Python's own


@dataclass(frozen=True)
class Import:
    """One imported name, absolute: ``from ..ir import core`` in ``cutile.ops.math`` is ``cutile.ir.core``."""

    line: int
    name: str

    @property
    def top(self) -> str:
        return self.name.split(".")[0]


@dataclass(frozen=True)
class Module:
    """One Python file below ``root``."""

    root: Path
    path: Path

    @property
    def where(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def name(self) -> str:
        return ".".join(self.path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")

    @property
    def is_facade(self) -> bool:
        return self.where in {f"{package}/__init__.py" for package in PACKAGES}

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))

    def imported_modules(self) -> Iterator[tuple[int, str]]:
        """Yield the line and the absolute name of every module that is imported by name or from."""
        parent = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = parent[: len(parent) - node.level + 1] if node.level else []
                yield node.lineno, ".".join([*base, *([node.module] if node.module else [])])

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import, late ones and ``import_module("...")`` with a literal name included."""
        return tuple(self._imports())

    def _imports(self) -> Iterator[Import]:
        parent = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (Import(node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = parent[: len(parent) - node.level + 1] if node.level else []
                stem = ".".join([*base, *([node.module] if node.module else [])])
                yield from (Import(node.lineno, f"{stem}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Call) and node.args:
                called = ast.unparse(node.func).rsplit(".", 1)[-1]
                argument = node.args[0]
                if (
                    called in {"import_module", "__import__"}
                    and isinstance(argument, ast.Constant)
                    and isinstance(argument.value, str)
                ):
                    yield Import(node.lineno, argument.value)


@cache
def _module(root: Path, path: Path, changed_ns: int) -> Module:
    """A file, parsed once for all rules: some thousand files take seconds, and a dozen rules look at them."""
    return Module(root, path)


def forget() -> None:
    """Drop the parsed files: 200 MB that only the rules need."""
    _module.cache_clear()


def modules(root: Path, *folders: str) -> list[Module]:
    """Return the Python files below ``folders`` of ``root``, in path order, without golden files."""
    return [
        _module(root, path, path.stat().st_mtime_ns)
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        if "golden" not in path.relative_to(root).parts
    ]
