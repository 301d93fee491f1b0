"""Who may import whom, as tables, and the reader that reports each breach with file and line.

Read ``MAY_IMPORT`` top to bottom: it is the architecture. Late imports and type-only imports count too.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import PACKAGES, Module, modules

_LEAF = frozenset({"errors", "config", "tile", "dtypes", "conversion"})
_BACKEND_FACE = frozenset({"backend.interface", "backend.registry"})  # data types, and which target a device is

# Part of cutile -> the parts of cutile, or cuda_async, that it may import. A dotted name allows that module alone.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset({"cuda_async.errors"}),  # a leaf too: both packages show objects and guess names alike
    "config": frozenset({"errors"}),
    "tile": frozenset({"errors"}),
    "dtypes": frozenset({"errors", "tile"}),
    "conversion": frozenset({"errors", "dtypes"}),
    "language": _LEAF,
    "block_scan": _LEAF | {"language"},
    "ir": _LEAF,
    "ops": _LEAF | {"ir"},
    "frontend": _LEAF | {"language", "ir", "ops"},
    "analysis": _LEAF | {"ir", "ops"},
    "passes": _LEAF | {"ir", "ops", "analysis"},
    "backend": _LEAF | {"installation", "ir", "ops", "analysis", "passes", "cuda_async.locks"},
    "interpreter": _LEAF | {"language", "ir", "ops", "frontend", "backend"},
    "compile": _LEAF
    | {
        "cuda_async.errors",
        "cuda_async.locks",
        "installation",
        "ir",
        "ops",
        "frontend",
        "passes",
        "backend",
        "interpreter",
    },
    "launch": _LEAF
    | _BACKEND_FACE
    | {"language", "frontend.parameters", "frontend.signature", "compile", "cuda_async"},
    "entry": _LEAF | _BACKEND_FACE | {"language", "frontend", "compile", "launch", "entry_types"},
    "entry_types": frozenset({"entry", "launch"}),  # for type checkers: nothing imports it when a program runs
    "composite": frozenset({"errors", "compile.ahead", "launch", "tune", "cuda_async"}),
    "autotune": frozenset({"errors", "bench", "composite", "entry", "launch.searching", "launch.launchable", "tune"}),
    "installation": frozenset({"cuda_async"}),
    "command": _LEAF
    | {
        "language",
        "ir",
        "ops",
        "frontend.parameters",
        "frontend.signature",
        "frontend.elsewhere",
        "backend",
        "compile",
        "launch",
        "entry",
        "host",
        "installation",
    }
    | {"cuda_async"},
    "__main__": frozenset({"command"}),
    "host": _LEAF | {"language", "block_scan", "backend.interface", "compile.facts", "launch", "entry", "cuda_async"},
    "bench": frozenset({"errors", "cuda_async"}),
    # Imported by nobody: tensors of the host side, in parts.
    "sharding": _LEAF | {"host", "launch", "cuda_async"},
    # Imported by nobody, and the only part that imports Ray.
    "ray": _LEAF | {"host", "cuda_async"},
    # Imported by nobody, and the only part that imports torch: what stands above all others may use them all.
    "torch": _LEAF
    | {"backend.interface", "compile.facts", "compile.declared", "frontend.parameters"}
    | {"launch", "entry", "host", "cuda_async"},
    "tune": frozenset({"errors", "config", "dtypes", "backend.registry", "compile", "launch", "bench", "cuda_async"}),
}

SIBLINGS = {  # folder -> parts of it that must not know one another
    "cutile.backend": frozenset({"reference", "cpu", "cuda"}),
    "cuda_async.driver": frozenset({"cuda", "host", "sim"}),
}
KNOWS_ALL_SIBLINGS = frozenset({"cutile.backend.registry", "cuda_async.driver", "cuda_async.driver.registry"})

FOLDERS = ("cuda_async", "cutile", "kernels", "benchmarks", "tests")
"""The folders of a checkout: each imports those before it and no others."""
PROGRAM = "kernels.__main__"
"""`python -m kernels`, which starts the demo and the comparison of `benchmarks/`."""

PUBLIC_MODULES = frozenset(
    {
        "cutile",
        "cutile.bench",
        "cutile.torch",
        "cutile.tune",
        "cuda_async",
        "cuda_async.graph",
        "cuda_async.unsafe",
        "cuda_async.collective",
        "cuda_async.testing",
    }
)


def part(name: str) -> str:
    """Return the row of the table: ``cutile.ir.core`` is ``ir``, ``cuda_async.op`` is ``cuda_async``."""
    head, *rest = name.split(".")
    return rest[0] if head == "cutile" and rest else head


def one_way(root: Path) -> Iterator[str]:
    """Yield each import that points down the map."""
    for module in modules(root, *PACKAGES):
        if module.is_facade:
            continue  # a public facade re-exports from anywhere in its package
        here = part(module.name)
        if here not in MAY_IMPORT and here != "cuda_async":
            yield f"{module.where}: {here} has no row in MAY_IMPORT; add it here and in docs/architecture.md"
            continue
        allowed = MAY_IMPORT.get(here, frozenset())
        for imported in module.imports:
            there = part(imported.name)
            inside = imported.name.removeprefix("cutile.")
            face = any(inside == each or inside.startswith(f"{each}.") for each in allowed)
            if imported.top in PACKAGES and there != here and not face:
                yield f"{module.where}:{imported.line}: {here} must not import {there}"


def unresolved(root: Path) -> Iterator[str]:
    """Yield each import of a module that is not there. Late imports count: nothing else would find those in time."""
    for module in modules(root, *PACKAGES, "kernels", "benchmarks", "tests"):
        for line, name in module.imported_modules():
            folder = root.joinpath(*name.split("."))
            if name.split(".")[0] in PACKAGES and not folder.is_dir() and not folder.with_suffix(".py").is_file():
                yield f"{module.where}:{line}: there is no module {name}"


def reads_only(root: Path) -> Iterator[str]:
    """Yield each import by an analysis of what makes or changes IR."""
    for module in modules(root, "cutile/analysis"):
        for imported in module.imports:
            if imported.name.startswith(("cutile.ir.builder", "cutile.ir.builder")):
                yield f"{module.where}:{imported.line}: an analysis changes no IR"


def folders_one_way(root: Path) -> Iterator[str]:
    """Yield each import of a folder of the checkout by one that stands before it in ``FOLDERS``."""
    for place, folder in enumerate(FOLDERS):
        for module in modules(root, folder):
            for imported in module.imports:
                if imported.top in FOLDERS[place + 1 :] and (module.name, imported.top) != (PROGRAM, "benchmarks"):
                    yield f"{module.where}:{imported.line}: {folder} must not import {imported.top}"


def no_siblings(root: Path) -> Iterator[str]:
    """Yield each import of one target or driver by another, or by what they share."""
    for module in modules(root, *PACKAGES):
        for folder, siblings in SIBLINGS.items():
            if not module.name.startswith(folder) or module.name in KNOWS_ALL_SIBLINGS:
                continue
            depth = folder.count(".") + 1
            mine = next(iter(module.name.split(".")[depth:]), "")
            for imported in module.imports:
                parts = imported.name.split(".")
                there = parts[depth] if len(parts) > depth and ".".join(parts[:depth]) == folder else ""
                if there in siblings and there != mine:
                    yield f"{module.where}:{imported.line}: {mine} must not import its sibling {there}"


def _may_touch(module: Module, library: str) -> bool:
    """Say whether the file is one of those that may import the library (invariant 9)."""
    parts = module.where.removesuffix(".py").split("/")
    in_backend = parts[:2] == ["cutile", "backend"] and len(parts) > 3 and parts[2] != "gpu"
    if library == "cuda":
        return parts[:3] in (["cuda_async", "driver", "cuda"], ["cutile", "backend", "cuda"])
    if library == "numba":
        return in_backend and ("intrinsics" in parts[3:] or parts[-1] in {"build", "toolchain"})
    if library == "numba.cuda":
        return _may_touch(module, "numba") and parts[2] == "cuda"
    return in_backend  # llvmlite: a cached object is loaded with it


def bindings(root: Path) -> Iterator[str]:
    """Yield each import of a CUDA binding, Numba or llvmlite outside the files that are for it."""
    for module in modules(root, *PACKAGES):
        for imported in module.imports:
            if imported.name == "numba.cuda" or imported.name.startswith("numba.cuda."):
                library = "numba.cuda"
            elif imported.top in {"cuda", "numba", "llvmlite"}:
                library = imported.top
            else:
                continue
            if not _may_touch(module, library):
                yield f"{module.where}:{imported.line}: {library} may not be imported in this file"


def public_only(root: Path, public: dict[str, frozenset[str]]) -> Iterator[str]:
    """Yield each import in ``kernels/`` that is no public name; ``public`` is each package's ``__all__``."""
    for module in modules(root, "kernels"):
        for imported in module.imports:
            if imported.top not in PACKAGES or imported.name in PUBLIC_MODULES:
                continue
            package, _, name = imported.name.rpartition(".")
            if package not in PUBLIC_MODULES or name not in public.get(package, frozenset({name})):
                yield f"{module.where}:{imported.line}: {imported.name} is not a public name"
