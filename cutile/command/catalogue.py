"""Everything that a kernel may call or write, collected from where it is defined.

The language's functions and methods say how an operation is written. The operations' classes have its dtypes, accuracy
and effect; `RULES` lists the names that take other dtypes than their operation does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cutile import language
from cutile.backend.registry import BACKENDS
from cutile.dtypes import DTYPES, EVERY_DTYPE, DTypeLike, f4e2m1fnx2, f32
from cutile.ir.core import Effect, Op
from cutile.ir.types import MutType, TensorType
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
    """Whether an example uses what the name stands for.

    The word; of operators, that is anyone's example of theirs.
    """
    word = name.rpartition(".")[2]
    return not word.isidentifier() or re.search(rf"\b{word}\b", example) is not None


def _gives_view(documented: Any) -> bool:
    """Whether it only says how memory is seen, and touches none."""
    return not isinstance(documented, type) and inspect.signature(documented).return_annotation in VIEWS


def _signature(function: Any) -> str:
    """How a function is called.

    No quotes around annotations, no underscores before names.
    """
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


OF_INDICES = ("check_tile", "check_index", "assume_within")
"""Operations on indices: they say nothing of elements, and touch none."""

Rule = Callable[[DTypeLike], bool]


def _integer(dtype: DTypeLike) -> bool:
    return dtype.is_integer


def _float(dtype: DTypeLike) -> bool:
    return dtype.format is not None


def _any(dtype: DTypeLike) -> bool:
    return True


def _computed(dtype: DTypeLike) -> bool:
    return dtype in DTYPES


def _converted(dtype: DTypeLike) -> bool:
    return dtype is not f4e2m1fnx2


def _bits(dtype: DTypeLike) -> bool:
    return not dtype.is_bool


def _apart(dtype: DTypeLike) -> bool:
    return _bits(dtype) and dtype is not f4e2m1fnx2


def _bytes(dtype: DTypeLike) -> bool:
    return dtype is f4e2m1fnx2 or (_integer(dtype) and dtype.bits == 8)


RULES: dict[str, Rule] = {
    "bitcast": _bits,
    "constant": _converted,
    "convert_scalar": _converted,
    "convert_tile": _converted,
    "cuda_tile_assert": _computed,  # not 0, as a condition
    "cuda_tile_print": _computed,
    "exti": lambda dtype: dtype.is_bool or (_integer(dtype) and dtype.bits < 64),
    "ftof": _float,
    "ftoi": _float,
    "iota": _integer,
    "itof": lambda dtype: dtype.is_bool or _integer(dtype),
    "mmaf": lambda dtype: _float(dtype) and dtype in Mma.dtypes(),
    "mmai": lambda dtype: _integer(dtype) and dtype in Mma.dtypes(),
    "pack": _apart,
    "print_tko": _computed,
    "scan_sum": lambda dtype: dtype in DTYPES and not dtype.is_bool,
    "select": _any,  # of what is chosen; the condition is bool
    "trunci": lambda dtype: _integer(dtype) and dtype.bits > 8,
    "unpack": _bytes,
    "Tile.astype": _converted,
    "Tile.pack": _apart,
    "Tile.unpack": lambda dtype: dtype is f4e2m1fnx2,
}
"""By the name of what takes other types than its operation does."""


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
        return tuple(dtype for dtype in EVERY_DTYPE if _updated(name, dtype))
    constraints = [each.constraint for each in op.fields.values() if each.kind == "operand"]
    tensor = TensorType(f32, (None,), (None,), 4)
    memory = (tensor, MutType(tensor, (1,)))
    if any(each is not None and each.accepts(type) for each in constraints for type in memory):
        return EVERY_DTYPE
    declared = DECLARED.get(name)
    if declared is not None and declared.takes is not None:
        return tuple(dtype for dtype in op.dtypes() if dtype.kind in declared.takes.names)
    return op.dtypes()


def _updated(name: str, dtype: DTypeLike) -> bool:
    update = re.fullmatch(r"atomic_(add|and|or|xor|max|min|xchg)", name)
    if update is None:  # any update, or a comparison, which is of words
        sums = "cas" not in name and takes("addf", dtype)
        return sums or takes("xchg", dtype)
    return takes(update[1], dtype) or (update[1] == "add" and takes("addf", dtype))
