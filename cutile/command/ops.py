"""`python -m cutile ops`: every operation of the kernel language.

The entries are collected from the definitions. Signatures come from the language's functions and methods; dtypes,
accuracy and effect come from the classes of operations. `RULES` has the dtypes of names that take other dtypes than
their operation.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cutile import language
from cutile.backend.registry import BACKENDS
from cutile.command.groups import GROUPS, group_of
from cutile.dtypes import DTYPES, EVERY_DTYPE, DTypeLike, f4e2m1fnx2, f32
from cutile.errors import ArgumentError
from cutile.frontend.elsewhere import FUNCTIONS, METHODS
from cutile.ir import Accuracy, Effect, MutType, Op, TensorType
from cutile.language.declare import DECLARED
from cutile.ops import OPS
from cutile.ops.atomic import takes
from cutile.ops.matmul import Mma
from cutile.ops.registry import family
from cutile.tile import Tile

VIEWS = ("Partition", "PartitionMut", "GatherScatterView", "tuple[int, ...]")

OWNERS: tuple[type, ...] = (Tile, *(each for each in vars(language).values() if inspect.isclass(each)))


@dataclass(frozen=True)
class Entry:
    """A function, method or operator of the kernel language.

    Attributes:
        name: "exp2", "Tile.reshape", or an operator as "x + y".
        family: the file of its operations, or "language" if it has none of its own.
        signature: its parameters; "" for operators.
        text: its documentation, without the example.
        example: lines that run; "" without an example.
        operations: the names of the operations that it becomes.
        dtypes: element types that the first operand may have.
        accuracy: the largest error in units in the last place, by dtype; empty where nothing rounds.
        note: a condition of the accuracy; "" for most.
        composed: whether it is composed of other operations; these are not listed.
        effect: "pure", "reads" or "writes".
        backends: the backends that have it.
    """

    name: str
    family: str
    signature: str
    text: str
    example: str
    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    accuracy: dict[str, float]
    note: str
    composed: bool
    effect: str
    backends: tuple[str, ...]


def catalogue() -> tuple[Entry, ...]:
    """Every entry: functions by name, then methods, then operators."""
    return (*_functions(), *_methods(), *_operators())


def _functions() -> Iterator[Entry]:
    for name in sorted(language.__all__):
        function = getattr(language, name)
        if hasattr(function, "__cutile__"):
            yield _entry(name, function, _spelled(name))


def _methods() -> Iterator[Entry]:
    names: set[str] = set()
    for owner in OWNERS:
        for name, member in sorted(vars(owner).items()):
            function = member.fget if isinstance(member, property) else member
            if name.startswith("_") or not inspect.isfunction(function) or f"{owner.__name__}.{name}" in names:
                continue
            names.add(f"{owner.__name__}.{name}")
            full = f"{owner.__name__}.{name}"
            yield _entry(full, function, _spelled(full), isinstance(member, property))


def _operators() -> Iterator[Entry]:
    operators = {form: op for op in OPS.values() for form in op.spelled if not form.replace(".", "").isidentifier()}
    for form, op in sorted(operators.items()):
        yield _entry(form, op, (op,), plain=True)


def _spelled(form: str) -> tuple[type[Op], ...]:
    return tuple(op for op in OPS.values() if form in op.spelled)


def _entry(name: str, documented: Any, ops: tuple[type[Op], ...], plain: bool = False) -> Entry:
    text, example = _split(inspect.getdoc(documented) or "")
    if not example:
        examples = (_split(inspect.getdoc(op) or "")[1] for op in ops)
        example = next((each for each in examples if each and shows(name, each)), "")
    dtypes: dict[DTypeLike, None] = {}
    for op in ops:
        dtypes.update(dict.fromkeys(dtypes_of(name, op)))
    declared = DECLARED.get(name)
    composed = declared is not None and declared.composed
    bounds = [accuracy_of(name)] if composed else [op.accuracy for op in ops]
    if composed:
        rule = RULES.get(name, _computes)
        kinds = declared.takes.names if declared is not None and declared.takes else None
        dtypes = {dtype: None for dtype in EVERY_DTYPE if rule(dtype) and (kinds is None or dtype.kind in kinds)}
    accuracy = {
        dtype.name: max(bound.of(dtype.name) for bound in bounds)
        for dtype in dtypes
        if any(bound.of(dtype.name) for bound in bounds)
    }
    home = getattr(documented, "__module__", "").rpartition(".")[2]
    effects = (op.effect_of for op in ops if op.name not in OF_INDICES)
    effect = Effect.NONE if _gives_view(documented) else max(effects, default=Effect.NONE)
    return Entry(
        name=name,
        family=family(ops[0]) if ops else home if composed else "language",
        signature="" if plain else _signature(documented),
        text=text,
        example=example,
        operations=tuple(op.name for op in ops),
        dtypes=tuple(dtype.name for dtype in dtypes),
        accuracy=accuracy,
        note="; ".join(dict.fromkeys(bound.note for bound in bounds if bound.note)),
        composed=composed,
        effect={Effect.NONE: "pure", Effect.READ: "reads"}.get(effect, "writes"),
        backends=tuple(BACKENDS),  # each runs all of them: tests/ops/test_complete.py holds them to it
    )


def accuracy_of(name: str) -> Accuracy:
    """The largest error of an operation, or of a composition, by its name."""
    declared = DECLARED.get(name)
    if declared is not None and declared.composed:
        return Accuracy(note=declared.note, **declared.ulps)
    return OPS[name].accuracy


def shows(name: str, example: str) -> bool:
    """Whether an example uses a name as a word; true for operators."""
    word = name.rpartition(".")[2]
    return not word.isidentifier() or re.search(rf"\b{word}\b", example) is not None


def _gives_view(documented: Any) -> bool:
    """Whether a function returns a view of memory, and accesses none."""
    return not isinstance(documented, type) and inspect.signature(documented).return_annotation in VIEWS


def _signature(function: Any) -> str:
    """A function's signature, without quotes, and without underscores before names."""
    text = re.sub(r"\b_(?=[A-Za-z]{2})", "", str(inspect.signature(function))).replace("= ''", '= ""')
    return text.replace("'", "").replace("(self, ", "(").replace("(self)", "()")


def _split(text: str) -> tuple[str, str]:
    """A docstring's prose, and the code of its example."""
    for heading in ("Examples:", "Example:"):
        before, colon, after = text.partition(heading)
        if colon:
            lines = [line.strip() for line in after.strip("\n").splitlines() if line.strip()]
            return before.strip(), "\n".join(lines)
    return text.strip(), ""


OF_INDICES = ("check_tile", "check_index", "assume_within")
"""Operations on indices, which have no dtype of elements and access no memory."""

Rule = Callable[[DTypeLike], bool]


def _is_integer(dtype: DTypeLike) -> bool:
    return dtype.is_integer


def _is_float(dtype: DTypeLike) -> bool:
    return dtype.format is not None


def _any(dtype: DTypeLike) -> bool:
    return True


def _computes(dtype: DTypeLike) -> bool:
    return dtype in DTYPES


def _converts(dtype: DTypeLike) -> bool:
    return dtype is not f4e2m1fnx2


def _has_bits(dtype: DTypeLike) -> bool:
    return not dtype.is_bool


def _packs(dtype: DTypeLike) -> bool:
    return _has_bits(dtype) and dtype is not f4e2m1fnx2


def _unpacks(dtype: DTypeLike) -> bool:
    return dtype is f4e2m1fnx2 or (_is_integer(dtype) and dtype.bits == 8)


RULES: dict[str, Rule] = {
    "argmax": _computes,
    "argmin": _computes,
    "bitcast": _has_bits,
    "clamp": lambda dtype: _computes(dtype) and not dtype.is_bool,
    "constant": _converts,
    "convert_scalar": _converts,
    "convert_tile": _converts,
    "cuda_tile_assert": _computes,  # not 0, as a condition
    "cuda_tile_print": _computes,
    "exti": lambda dtype: dtype.is_bool or (_is_integer(dtype) and dtype.bits < 64),
    "ftof": _is_float,
    "ftoi": _is_float,
    "iota": _is_integer,
    "itof": lambda dtype: dtype.is_bool or _is_integer(dtype),
    "mmaf": lambda dtype: _is_float(dtype) and dtype in Mma.dtypes(),
    "mmai": lambda dtype: _is_integer(dtype) and dtype in Mma.dtypes(),
    "pack": _packs,
    "print_tko": _computes,
    **dict.fromkeys(("insert", "repeat"), _any),
    "x @ y": lambda dtype: dtype in Mma.dtypes(),
    "matmul": lambda dtype: dtype in Mma.dtypes(),
    "mean": lambda dtype: dtype.is_float,
    "var": lambda dtype: dtype.is_float,
    **dict.fromkeys(("philox", "rand", "randint", "randn"), _is_integer),
    **dict.fromkeys(("cummax", "cumprod", "cumsum", "scan_sum"), lambda dtype: dtype in DTYPES and not dtype.is_bool),
    "select": _any,  # of what is chosen; the condition is bool
    "trunci": lambda dtype: _is_integer(dtype) and dtype.bits > 8,
    "unpack": _unpacks,
    "round(x)": lambda dtype: _computes(dtype) and not dtype.is_bool,
    "Tile.all": _computes,
    "Tile.any": _computes,
    "Tile.astype": _converts,
    "Tile.pack": _packs,
    "Tile.unpack": lambda dtype: dtype is f4e2m1fnx2,
}
"""Dtypes by name, of entries that take other dtypes than their operation."""


def dtypes_of(name: str, op: type[Op]) -> tuple[DTypeLike, ...]:
    """The element types that an operand may have, as far as `op` is concerned.

    The operand is the name's first, or the tensor that it works on.
    """
    if op.name in OF_INDICES or family(op) == "grid":
        return ()
    rule = RULES.get(name)
    if rule is not None:
        return tuple(filter(rule, EVERY_DTYPE))
    if family(op) == "atomic":
        return tuple(dtype for dtype in EVERY_DTYPE if _updates(name, dtype))
    constraints = [each.constraint for each in op.fields.values() if each.kind == "operand"]
    tensor = TensorType(f32, (None,), (None,), 4)
    memory = (tensor, MutType(tensor, (1,)))
    if any(each is not None and each.accepts(type) for each in constraints for type in memory):
        return EVERY_DTYPE
    declared = DECLARED.get(name)
    if declared is not None and declared.takes is not None:
        return tuple(dtype for dtype in op.dtypes() if dtype.kind in declared.takes.names)
    return op.dtypes()


def _updates(name: str, dtype: DTypeLike) -> bool:
    update = re.fullmatch(r"atomic_(add|sub|and|or|xor|max|min|xchg)", name)
    if update is None:  # `atomic_cas` compares words, the other names do any update
        sums = "cas" not in name and takes("addf", dtype)
        return sums or takes("xchg", dtype)
    update_of = {"sub": "add"}.get(update[1], update[1])
    return takes(update_of, dtype) or (update_of == "add" and takes("addf", dtype))


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser("ops", help="what a kernel may write", description=__doc__)
    parser.add_argument("name", nargs="?", help="show all about one: exp2, Tile.reshape")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--markdown", action="store_true", help="docs/reference/language.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the list, or one entry."""
    entries = catalogue()
    if options.name:
        entries = tuple(each for each in entries if options.name in (each.name, each.name.rpartition(".")[2]))
        if not entries:
            names = [part for each in catalogue() for part in (each.name, each.name.rpartition(".")[2])]
            guesses = difflib.get_close_matches(str(options.name), names, n=1)
            remedy = f"did you mean {guesses[0]!r}?" if guesses else "`python -m cutile ops` lists what it has"
            name = str(options.name).rpartition(".")[2]
            elsewhere = METHODS.get(name) if str(options.name).startswith("Tile.") else FUNCTIONS.get(name)
            remedy = f"write {elsewhere}" if elsewhere else remedy
            raise ArgumentError(f"the language has no {options.name!r}; {remedy}")
    if options.json:
        print(json.dumps([dataclasses.asdict(each) for each in entries], indent=1))
    elif options.markdown:
        print(page(entries), end="")
    elif options.name:
        print("\n\n".join(map(_whole, entries)))
    else:
        print("\n".join(map(_line, entries)))
        print(f"\n{len(entries)} entries; `python -m cutile ops NAME` shows all about one.")
    return 0


def _line(entry: Entry) -> str:
    return f"{entry.name + entry.signature}  {shown_dtypes(entry.dtypes)}".rstrip()


def shown_dtypes(names: Sequence[str]) -> str:
    """Element types in a line."""
    return " ".join(names)


def _whole(entry: Entry) -> str:
    lines = [entry.name + entry.signature, "", *("    " + line for line in entry.text.splitlines())]
    if entry.dtypes:
        lines += ["", f"    dtypes     {shown_dtypes(entry.dtypes)}"]
    if entry.accuracy:
        lines.append("    accuracy   " + ", ".join(f"{name} {bound:g} ulp" for name, bound in entry.accuracy.items()))
    if entry.note:
        lines.append(f"               {entry.note}")
    lines.append(f"    effect     {entry.effect}")
    lines.append(f"    backends   {', '.join(entry.backends)}")
    if entry.example:
        lines += ["", *("    " + line for line in entry.example.splitlines())]
    return "\n".join(lines)


HEAD = """# The kernel language

All functions, methods and operators that a kernel may use. `python -m cutile ops --markdown` writes this page from the
definitions; a test compares them. Every operation works on every backend, `reference`, `cpu` and `cuda`, unless its
row says otherwise. In examples `run(f, x, ...)` computes `f` on tiles with the given elements; `x_in` is the tensor
that `x` was loaded from, `x_at` a pointer to its first element (the kernel then has `@entry(unsafe=True)`), and
`result` the `Mut` that gets the value.

Errors are in units in the last place of the dtype, relative to the exact value; f16 and bf16 are computed in f32 and
rounded once. Without an error, an operation does not round, or rounds correctly (0.5).
"""


FIRST_HOUR: dict[str, tuple[str, ...]] = {
    "Which tile this is": ("get_tile_block_id", "get_num_tile_blocks", "num_tiles"),
    "Loads": ("load_tile_like", "Mut.load", "Tensor.partition", "Partition.load", "Tensor.load_tile", "gather"),
    "Stores": ("Mut.store", "scatter", "atomic_add"),
    "New tiles": ("constant", "iota"),
    "Arithmetic": ("x * y", "x / y", "max_tile", "min_tile", "exp", "log", "sqrt", "tanh"),
    "Choice": ("x < y", "select"),
    "Shape and type": ("Tile.reshape", "Tile.transpose", "Tile.astype"),
    "Along an axis": ("reduce_sum", "reduce_max"),
    "Products": ("mma",),
}
"""Thirty entries for the first kernels, by purpose."""


def title_of(entry: Entry) -> str:
    """The title under which an entry stands on the page."""
    return group_of(entry.name, entry.family)


def page(entries: Sequence[Entry]) -> str:
    """The whole page."""
    order = [*GROUPS]
    ordered_entries = sorted(entries, key=lambda entry: order.index(title_of(entry)))
    parts = [HEAD, *_first_hour(ordered_entries)]
    for title, group in groupby(ordered_entries, key=title_of):
        parts.append(f"## {title}\n")
        parts.extend(_section(each) for each in group)
    return "\n".join(parts)


def anchor(heading: str) -> str:
    """The anchor of a heading, as links have it behind `#`.

    It holds if no heading above has the same anchor.
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(headings: Iterable[str]) -> list[str]:
    """The anchors of a page's headings, in order.

    Equal anchors get numbers from the second on.
    """
    seen: Counter[str] = Counter()
    anchors: list[str] = []
    for plain in map(anchor, headings):
        anchors.append(f"{plain}-{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return anchors


def _first_hour(order: Sequence[Entry]) -> Iterator[str]:
    by_name = {entry.name: entry for entry in order}
    place = dict(zip(by_name, anchors(entry.name + entry.signature for entry in order), strict=True))
    yield "## The first hour\n"
    yield "Most kernels need no more than these thirty entries. All entries follow, grouped by purpose.\n"
    yield "| | | |\n| --- | --- | --- |"
    for purpose, names in FIRST_HOUR.items():
        for name in names:
            entry = by_name[name]
            line = re.split(r"(?<=\.)\s", " ".join(entry.text.split("\n\n")[0].split()))[0].replace("|", "\\|")
            yield f"| {purpose} | [`{name}`](#{place[name]}) | {line} |"
            purpose = ""  # only the first row of a purpose shows it
    titles = dict.fromkeys(map(title_of, order))
    yield "\n" + ", ".join(f"[{title}](#{anchor(title)})" for title in titles) + ".\n"


SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Example", "Examples")


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The sections of a docstring, in order: heading and text.

    The heading of prose is "". The text has no indent.
    """
    heading, lines = "", list[str]()
    for line in [*text.splitlines(), "Args:"]:  # a last heading, so that the section before it is yielded
        if line.endswith(":") and line[:-1] in SECTIONS:
            body = inspect.cleandoc("\n".join(["", *lines]))
            if body:
                yield heading, body
            heading, lines = line[:-1], []
        elif heading and line and not line.startswith(" "):  # prose behind a section
            yield heading, inspect.cleandoc("\n".join(["", *lines]))
            heading, lines = "", [line]
        else:
            lines.append(line)


def items(text: str) -> str:
    """A Markdown list of the items of a section.

    An item is `name: words`, with its indented further lines.
    """
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and lines:
            lines[-1] += " " + line.strip()
        elif line.strip():
            lines.append(line.strip())
    return "\n".join("- " + re.sub(r"^(\*{0,2}[\w, ]+|`[^`]+`): ", _bold, item) for item in lines)


def _bold(match: re.Match[str]) -> str:
    names = match[1] if match[1].startswith("`") else ", ".join(f"`{name}`" for name in match[1].split(", "))
    return f"{names}: "


def _section(entry: Entry) -> str:
    lines = [f"### `{entry.name}{entry.signature}`\n"]
    for heading, text in sections(entry.text):
        list_text = items(text)
        if heading and list_text.count("\n"):
            lines.append(f"{heading}:\n\n{list_text}\n")
        else:
            lines.append(f"{heading}: {list_text.removeprefix('- ')}\n" if heading else f"{text}\n")
    facts: list[str] = []
    if entry.dtypes:
        facts.append("dtypes " + " ".join(entry.dtypes))
    inexact = {name: bound for name, bound in entry.accuracy.items() if bound > 0.501}
    if inexact:
        facts.append("error at most " + ", ".join(f"{bound:g} ulp in {name}" for name, bound in inexact.items()))
    if entry.note:
        facts.append(entry.note)
    if entry.effect != "pure":
        facts.append(f"{entry.effect} memory")
    if facts:
        lines.append(f"{'; '.join(facts)}.\n")
    if entry.example:
        lines.append(f"```pycon\n{entry.example}\n```\n")
    return "\n".join(lines)
