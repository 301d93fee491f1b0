"""Every place that an operation or an element type needs: which are there, and what to write in the others.

    python -m tests.new_op erf
    python -m tests.new_op erf --family math        where neither a class nor a function says which family it is
    python -m tests.new_op sigmoid --composition    it will be composed of other operations
    python -m tests.new_op f8e5m2 --dtype           an element type

Compiles nothing, and imports neither Numba nor a GPU's libraries. The tests find the same gaps, one at a time.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cutile as ct
from cutile import dtypes, language
from cutile.backend.cpu.emit._text import RESERVED
from cutile.backend.cpu.emit.module import EXPRESSIONS, STATEMENTS
from cutile.backend.cuda.emit.kernel import EMITTERS
from cutile.command.ops import sections
from cutile.dtypes import BY_NAME, f32, f64
from cutile.frontend.elsewhere import FUNCTIONS
from cutile.frontend.registry import OPERATIONS
from cutile.host.foreign import _CODES, _FLOATS  # pyright: ignore[reportPrivateUsage]
from cutile.ir.core import Op
from cutile.language.declare import DECLARED
from cutile.ops import OPS
from cutile.ops.matmul import ACCUMULATORS, SCALED, SCALES
from cutile.ops.registry import family as family_of_op
from tests.ops.test_complete import MOVED, OF_ITS_OWN, SAMPLES, uses
from tests.ops.test_definitions import COMPILE_TIME
from tests.ops.test_samples import ROWS, TESTED_ELSEWHERE
from tests.samples.values import CASES

ROOT = Path(__file__).parents[1]
NOT_EXCHANGED = ("tf32", "f4e2m1fn")
"""Element types that DLPack has no code for, or packs."""
NOT_MULTIPLIED = ("bool", "i16", "i32", "i64", "u16", "u32", "u64", "f4e2m1fnx2")
"""Element types without products: integers whose sums would not fit, and pairs, which are taken apart."""
VALUES = ("arith", "math", "compare")
"""Families whose values are tested on special numbers: tests/samples/values.py."""


@dataclass(frozen=True)
class Place:
    """Where something has to stand.

    Attributes:
        file: from the root of the repository.
        what: what to write there.
        exists: whether it stands there.
    """

    file: str
    what: str
    exists: bool


def keys(file: str, name: str) -> set[str]:
    """The keys of a dict at the top of a file, which is not imported: strings, or names."""
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, ast.AnnAssign):
            assert isinstance(node.value, ast.Dict)
            return {
                str(key.value) if isinstance(key, ast.Constant) else ast.unparse(key) for key in node.value.keys if key
            }
    raise LookupError(f"{file} has no table {name}")


def family_of(name: str) -> str | None:
    """The family that a class or a function of the name is in; None where there is neither."""
    ops = classes(name)
    if ops:
        return family_of_op(ops[0])
    return DECLARED[name].function.__module__.rpartition(".")[2] if name in DECLARED else None


def family_or_default(name: str) -> str:
    """The family of a name; math for a new one, as most new operations are functions of floats."""
    return family_of(name) or "math"


def classes(name: str) -> list[type[Op]]:
    """The operations that are spelled so."""
    return [op for op in OPS.values() if name in op.spelled]


def places(name: str, kind: str, composition: bool = False) -> Iterator[Place]:
    """Everything that a function `name` of the language in the family `kind` needs, in the order of writing it.

    A composition is written of other operations, and a function of the front end of none: they have no class.
    """
    ops, declared = classes(name), name in DECLARED
    composed = composition or (declared and (name in COMPILE_TIME or DECLARED[name].composed))
    if not composed:
        words = f'a class with spelled=("{name}",): types, meaning in NumPy, accuracy'
        yield Place(f"cutile/ops/{kind}.py", words, bool(ops))
    home = f"cutile/language/{DECLARED[name].function.__module__.rpartition('.')[2] if declared else kind}.py"
    yield Place(home, f"a declared function `{name}`, with its docstring", declared)
    yield Place(home, f'"{name}" in `__all__`', name in language.__all__)
    if declared:
        missing = lacking(name, kind)
        yield Place(home, "in the docstring: " + (", ".join(missing) or "all that it needs"), not missing)
    handler = f"cutile/frontend/families/{'elementwise' if kind in (*VALUES, 'rounding') else kind}.py"
    words = "its lines, under @composed" if composed else "a handler, unless @operation(FLOATS) or its kin derives it"
    yield Place(handler, words, name in OPERATIONS)
    if not composed:
        yield from of_backends(name, kind, ops)
    known = {*(row.op for row in ROWS), *(case.op for case in CASES), *TESTED_ELSEWHERE}
    tested = all(op.name in known for op in ops) if ops else composed and has_sample(name)
    words = "a row or a case: an expression, and what it is worth in NumPy"
    yield Place(samples_of(kind), words, tested)
    page = (ROOT / "docs/reference/language.md").read_text(encoding="utf-8")
    command = "python -m cutile ops --markdown > docs/reference/language.md"
    yield Place("docs/reference/language.md", command, f"\n### `{name}(" in page)
    yield Place("cutile/frontend/elsewhere.py", f"no hint for {name!r}, which is a name of ours", name not in FUNCTIONS)


def samples_of(kind: str) -> str:
    """The file of a family's samples; of a family without one, that of the values."""
    own = f"tests/samples/{kind}.py"
    return own if kind not in VALUES and (ROOT / own).exists() else "tests/samples/values.py"


def has_sample(name: str) -> bool:
    """Whether a sample is written with a composition, or a test of its own computes its values."""
    return name in (*COMPILE_TIME, *MOVED, *OF_ITS_OWN) or any(uses(name, text) for _, text, _ in SAMPLES)


def of_backends(name: str, kind: str, ops: list[type[Op]]) -> Iterator[Place]:
    """What each backend needs: a row in its table of functions, or an emitter for each operation."""
    if kind == "math":
        cuda, cpu = "cutile/backend/cuda/intrinsics/math.py", "cutile/backend/cpu/intrinsics/math.py"
        row = {"pow": "power"}.get(name, name)
        table = "LIBDEVICE_OF_TWO" if ops and "y" in ops[0].fields else "LIBDEVICE"
        yield Place(cuda, f'a row "{name}" in `{table}`', name in keys(cuda, table))
        yield Place(cpu, f'a row "{row}" in `FUNCTIONS`', row in keys(cpu, "FUNCTIONS"))
        if row in formulas(cpu):
            measured = "tests/backend/cpu/test_math.py"
            exists = f'"{row}"' in (ROOT / measured).read_text(encoding="utf-8")
            yield Place(measured, f'a row "{row}" in `ROWS`, or `ROWS_OF_TWO`: it is a formula of our own', exists)
        return
    if kind == "arith":
        yield from of_arithmetic(name, [op for op in ops if family_of_op(op) == "arith"])
        ops = [op for op in ops if family_of_op(op) != "arith"]
        if not ops:
            return
    tables: dict[str, set[type[Op]]] = {"cuda": {*EMITTERS}, "cpu": {*EXPRESSIONS, *STATEMENTS}}
    shared = {"cuda": "tiles", "cpu": "reduce" if kind == "sort" else "elementwise"}
    for target, table in tables.items():
        own = f"cutile/backend/{target}/emit/{kind}.py"
        file = own if (ROOT / own).exists() else f"cutile/backend/{target}/emit/{shared[target]}.py"
        for op in ops:
            exists = op in table or mentioned(op, f"cutile/backend/{target}") or mentioned(op, "cutile/passes")
            yield Place(file, f"an emitter for `{op.__name__}`", exists)
        if not ops:
            yield Place(file, "an emitter for the class", False)


def of_arithmetic(name: str, ops: list[type[Op]]) -> Iterator[Place]:
    """What arithmetic needs: instructions by its name.

    The emitters call them so. Those that do more name the class.
    """
    cuda, cpu = (f"cutile/backend/{target}/intrinsics/arith.py" for target in ("cuda", "cpu"))
    rows = {*keys(cuda, "BINARY"), *keys(cuda, "UNARY")}
    for op_name, word in {op.name: op.__name__ for op in ops}.items() or [(name, "")]:
        exists = op_name in rows or has_emitter(word, "cutile/backend/cuda/emit/tiles.py")
        yield Place(cuda, f'a row "{op_name}" in `UNARY` or `BINARY`', exists)
        exists = op_name in RESERVED or has_emitter(word, "cutile/backend/cpu/emit/elementwise.py")
        yield Place(cpu, f"an intrinsic `{op_name}`, in `__all__` too", exists)


def has_emitter(word: str, file: str) -> bool:
    """Whether a class has a row of its own in the tables of a file of emitters."""
    return (
        bool(word)
        and re.search(rf"^    (arith\.)?{word}: ", (ROOT / file).read_text(encoding="utf-8"), re.M) is not None
    )


def formulas(file: str) -> set[str]:
    """Names in a file's `FUNCTIONS` whose formula stands there.

    The others call the C library or LLVM.
    """
    text = (ROOT / file).read_text(encoding="utf-8")
    return set(re.findall(r'^    "(\w+)": (?:_function|_in_f32)\(', text, re.M))


def mentioned(op: type[Op], folder: str) -> bool:
    """Whether a folder lowers an operation: it names the class, or one that it is derived from."""
    names = "|".join(each.__name__ for each in op.__mro__[: op.__mro__.index(Op)])
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))
    return any(re.search(rf"\b({names})\b", text) for text in texts)


def lacking(name: str, kind: str) -> list[str]:
    """The sections that the docstring of a function lacks, and the parameters that it says nothing of."""
    parts = dict(sections(inspect.getdoc(DECLARED[name].function) or ""))
    if kind not in (*VALUES, "cast"):
        documented = [parts, *(dict(sections(inspect.getdoc(op) or "")) for op in classes(name))]
        return [] if any({"Example", "Examples"} & {*each} for each in documented) else ["Example"]
    said = {word for words in re.findall(r"^([\w, ]+):", parts.get("Args", ""), re.M) for word in words.split(", ")}
    headings = [each for each in ("Args", "Returns", "Raises", "Example") if each not in parts]
    return headings + [each for each in DECLARED[name].signature.parameters if each not in said]


def places_of_dtype(name: str) -> Iterator[Place]:
    """Everything that an element type needs, in the order of writing it; last what products of it need."""
    dtype = BY_NAME.get(name)
    class_name = "bool_" if name == "bool" else name  # `bool` is Python's
    leaf, codes, products = "cutile/dtypes.py", "cutile/host/foreign.py", "cutile/ops/matmul.py"
    yield Place(leaf, "a class, with bits, kind, NumPy's type and the format of a float", hasattr(dtypes, class_name))
    yield Place(leaf, "its place in `DTYPES` or `STORAGE_DTYPES`", dtype is not None)
    yield Place("cutile/__init__.py", "the import, and the name in `__all__`", class_name in dir(ct))
    exchanged = dtype is not None and (dtype.kind in _CODES or name in _FLOATS or name in NOT_EXCHANGED)
    yield Place(codes, "a row in `_FLOATS`, if DLPack has a code for it", exchanged)
    page = (ROOT / "docs/element_types.md").read_text(encoding="utf-8")
    yield Place("docs/element_types.md", "a row in the table", f"`{class_name}`" in page)
    multiplies = dtype is not None and dtype in (*ACCUMULATORS, *SCALED, *SCALES)
    multiplies = multiplies or (dtype is not None and name in NOT_MULTIPLIED)
    yield Place(products, "a row in `ACCUMULATORS`, if products take it", multiplies)
    if dtype in ACCUMULATORS:
        atoms, fragments = "cutile/backend/cuda/wgmma_instructions.py", "cutile/backend/cuda/intrinsics/fragments.py"
        by_fma = dtype in (f32, f64)  # no warpgroup multiplies them
        yield Place(atoms, "a row in `MMA_ATOMS`", by_fma or name in keys(atoms, "MMA_ATOMS"))
        yield Place(fragments, "a row in `NAMES`", by_fma or name in keys(fragments, "NAMES"))


def main(words: list[str] | None = None) -> int:
    """Print the list; 1 where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.new_op", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="of the function, as kernels write it: erf; or of the element type")
    parser.add_argument("--dtype", action="store_true", help="it is an element type")
    parser.add_argument("--composition", action="store_true", help="it is composed of other operations")
    parser.add_argument("--family", default=None, help="the file it belongs to; math where nothing says so")
    options = parser.parse_args(words)
    name: str = options.name
    family = options.family or family_or_default(name)
    needed = list(places_of_dtype(name) if options.dtype else places(name, family, options.composition))
    missing = [place for place in needed if not place.exists]
    for place in needed:
        print(f"{'  ok     ' if place.exists else '  MISSING'} {place.file}: {place.what}")
    print(f"ct.{name}: {len(missing)} of {len(needed)} places missing" if missing else "nothing is missing")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
