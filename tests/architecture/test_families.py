"""One word, one place: a family of operations has the same file name in every folder that deals with it."""

import importlib
from collections.abc import Iterator
from pathlib import Path

from cutile.frontend.registry import OPERATIONS
from tests.architecture.sources import ROOT

FAMILIES = frozenset(
    {"arith", "rounding", "math", "compare", "cast", "create", "shape", "memory", "view", "pointer", "bound"}
    | {"reduce", "scan", "sort", "matmul", "atomic", "grid", "control", "debug"}
)
# Families of the language that are made of other families' operations.
COMPOSED = frozenset({"element", "mapped", "partition", "shared_mut", "token", "variable"})
# Files beside the families, which the operations of a folder share. `elementwise` has some families.
# A leading underscore needs no entry.
_EMITTERS = frozenset({"elementwise", "kernel", "module", "table", "text"})
# The GPU's: the emitters of operations that name their intrinsic, and of others on tiles.
_GPU = frozenset({"generic", "tiles"})
SHARED = {
    "cutile/ops": frozenset({"registry", "elementwise", "exact", "op"}),
    "cutile/language": COMPOSED | {"annotations", "declare", "facts", "markers", "trigonometry"},
    "cutile/frontend/families": COMPOSED | {"elementwise"},
    "cutile/backend/cpu/emit": _EMITTERS,
    "cutile/backend/cpu/intrinsics": frozenset({"calls", "half"}),
    "cutile/backend/cuda/emit": _EMITTERS | _GPU,
    "tests/samples": frozenset({"row", "values", "moves", "control_functions", "control_loops", "control_sample"}),
}


# Where handlers of a family are, beside the file of its name.
ALSO = {
    "arith": ("elementwise",),
    "compare": ("elementwise",),
    "control": ("builtins", "sequences"),
    "grid": ("partition",),
    "math": ("elementwise",),
    "rounding": ("elementwise",),
    "token": ("memory",),
    "variable": ("shared_mut",),
    "view": ("partition",),
}


def strangers(root: Path) -> Iterator[str]:
    """Yield each file whose name is neither a family's nor listed as shared."""
    for folder, shared in SHARED.items():
        for path in sorted((root / folder).glob("*.py")):
            if not path.stem.startswith("_") and path.stem not in FAMILIES | shared:
                yield f"{folder}/{path.name}: neither a family of operations nor listed in SHARED"


def orphans(root: Path) -> Iterator[str]:
    """Yield each family that a target emits, or the samples test, and that ``cutile/ops`` does not define."""
    stems = {path.stem for path in (root / "cutile/ops").glob("*.py")}
    # The structured control flow is part of the IR itself: cutile/ir/control.py.
    stems |= {path.stem for path in (root / "cutile/ir").glob("control.py")}
    for folder in SHARED:
        for path in sorted((root / folder).glob("*.py")):
            if path.stem in FAMILIES and path.stem not in stems:
                yield f"{folder}/{path.name}: cutile/ops defines no family {path.stem}"


def test_family_files_carry_family_names() -> None:
    assert list(strangers(ROOT)) == []


def test_every_family_is_defined_in_ops() -> None:
    assert list(orphans(ROOT)) == []


def test_handlers_are_in_their_familys_file() -> None:
    """What kernels call of a family is handled in its file, or derived from its declaration, but for `ALSO`."""
    wrong: list[str] = []
    for name in sorted(FAMILIES | COMPOSED):
        if not (ROOT / f"cutile/language/{name}.py").exists():
            continue
        family = importlib.import_module(f"cutile.language.{name}")
        for word in filter(lambda each: hasattr(getattr(family, each), "__cutile__"), getattr(family, "__all__", ())):
            home = OPERATIONS[word].__module__.rpartition(".")[2]
            wrong += [f"{word}: {home}"] if home not in {name, "derived", *ALSO.get(name, ())} else []
    assert wrong == []


def test_each_breach_is_reported(tmp_path: Path) -> None:
    for where in ("cutile/ops/math.py", "cutile/backend/cpu/emit/trig.py", "tests/samples/reduce.py"):
        (tmp_path / where).parent.mkdir(parents=True)
        (tmp_path / where).touch()
    assert [line.split(":")[0] for line in strangers(tmp_path)] == ["cutile/backend/cpu/emit/trig.py"]
    assert [line.split(":")[0] for line in orphans(tmp_path)] == ["tests/samples/reduce.py"]
