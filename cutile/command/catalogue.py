"""Everything that a kernel may call or write, collected from where it is defined: the language's functions and methods
for how it is written, the operations' classes for dtypes, accuracy and effect."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cutile import language
from cutile.backend.registry import BACKENDS
from cutile.command.taken import OF_INDICES, dtypes_of
from cutile.dtypes import DTypeLike
from cutile.ir.core import Op
from cutile.ir.effects import Effect
from cutile.ops import OPS
from cutile.ops.registry import family
from cutile.tile import Tile

VIEWS = ("Partition", "PartitionMut", "GatherScatterView", "tuple[int, ...]")

OWNERS: tuple[type, ...] = (Tile, *(each for each in vars(language).values() if inspect.isclass(each)))


@dataclass(frozen=True)
class Entry:
    """One thing to write in a kernel.

    Attributes:
        name: "exp2", "Tile.reshape", or an operator as "x + y".
        family: the file of its operations, or "language" where it becomes none of its own.
        signature: how it is called; "" for operators.
        text: its documentation, without the example.
        example: lines that run, "" if there are none.
        operations: the names of the operations that it becomes.
        dtypes: element types that the first operand may have.
        accuracy: the largest error in units in the last place, by dtype; empty where nothing rounds.
        note: what the accuracy leaves open, "" for most.
        effect: "pure", "reads" or "writes".
        backends: where it works.
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
    seen: set[str] = set()
    for owner in OWNERS:
        for name, member in sorted(vars(owner).items()):
            function = member.fget if isinstance(member, property) else member
            if name.startswith("_") or not inspect.isfunction(function) or f"{owner.__name__}.{name}" in seen:
                continue
            seen.add(f"{owner.__name__}.{name}")
            full = f"{owner.__name__}.{name}"
            yield _entry(full, function, _spelled(full), isinstance(member, property))


def _operators() -> Iterator[Entry]:
    written = {form: op for op in OPS.values() for form in op.spelled if not form.replace(".", "").isidentifier()}
    for form, op in sorted(written.items()):
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
    accuracy = {
        dtype.name: max(op.accuracy.of(dtype.name) for op in ops)
        for dtype in dtypes
        if any(op.accuracy.of(dtype.name) for op in ops)
    }
    effects = (op.effect_of for op in ops if op.name not in OF_INDICES)
    effect = Effect.NONE if _gives_view(documented) else max(effects, default=Effect.NONE)
    return Entry(
        name=name,
        family=family(ops[0]) if ops else "language",
        signature="" if plain else _signature(documented),
        text=text,
        example=example,
        operations=tuple(op.name for op in ops),
        dtypes=tuple(dtype.name for dtype in dtypes),
        accuracy=accuracy,
        note="; ".join(dict.fromkeys(op.accuracy.note for op in ops if op.accuracy.note)),
        effect={Effect.NONE: "pure", Effect.READ: "reads"}.get(effect, "writes"),
        backends=tuple(BACKENDS),  # each runs all of them: tests/ops/test_complete.py holds them to it
    )


def shows(name: str, example: str) -> bool:
    """Whether an example uses what the name stands for: the word; of operators, that is anyone's example of theirs."""
    word = name.rpartition(".")[2]
    return not word.isidentifier() or re.search(rf"\b{word}\b", example) is not None


def _gives_view(documented: Any) -> bool:
    """Whether it only says how memory is seen, and touches none."""
    return not isinstance(documented, type) and inspect.signature(documented).return_annotation in VIEWS


def _signature(function: Any) -> str:
    """How a function is called: no quotes around annotations, no underscores before names."""
    text = re.sub(r"\b_(?=[A-Za-z]{2})", "", str(inspect.signature(function))).replace("= ''", '= ""')
    return text.replace("'", "").replace("(self, ", "(").replace("(self)", "()")


def _split(text: str) -> tuple[str, str]:
    """A docstring's prose, and the code of its example."""
    for heading in ("Examples:", "Example:"):
        before, found, after = text.partition(heading)
        if found:
            lines = [line.strip() for line in after.strip("\n").splitlines() if line.strip()]
            return before.strip(), "\n".join(lines)
    return text.strip(), ""
