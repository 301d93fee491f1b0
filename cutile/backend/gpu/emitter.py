"""Generated code: its look, and the emitter of operations with an intrinsic.

Expressions are data, and are written as black formats code. Each of the user's lines is quoted once, in a comment. A
map leads from generated lines back to the user's.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cutile.dtypes import DTypeLike
from cutile.ir import Op, ResourceType

WIDTH = 88
"""Characters of a line, as for black."""
INDENT = "    "


@dataclass(frozen=True)
class Call:
    """A call: the function's name, and the arguments."""

    function: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


Expression = str | Call
"""A name or a literal, as text; or a call."""


def quoted(value: object) -> str:
    """A value as black would write it: strings in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        items = [quoted(each) for each in cast("tuple[object, ...]", value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    return repr(value)


def wrap(prefix: str, expression: Expression, suffix: str, indent: str) -> list[str]:
    """The lines of `prefix expression suffix`.

    It is a single line if that is short enough. Else all arguments are on one line below, and if that is too long, each
    is on a line of its own.
    """
    line = f"{indent}{prefix}{expression}{suffix}"
    if len(line) <= WIDTH or isinstance(expression, str) or not expression.arguments:
        return [line]
    inner = indent + INDENT
    head, tail = f"{indent}{prefix}{expression.function}(", f"{indent}){suffix}"
    together = inner + ", ".join(map(str, expression.arguments))
    if len(together) <= WIDTH:
        return [head, together, tail]
    return [head, *(line for each in expression.arguments for line in wrap("", each, ",", inner)), tail]


class Names:
    """Hands out identifiers, each once.

    `reserved` are the names of the user's values: no other value gets them.
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self._used: set[str] = set()
        self._reserved = set(reserved)

    def user(self, name: str) -> str:
        """A name for a value that the user called `name`: the same, or with a number."""
        return self._free(name, set())

    def invented(self, stem: str) -> str:
        """A name, from `stem`, that is none of the user's."""
        return self._free(stem, self._reserved)

    def _free(self, stem: str, avoid: set[str]) -> str:
        stem = stem + "_" if keyword.iskeyword(stem) else stem
        name, count = stem, 0
        while name in self._used or name in avoid:
            count += 1
            name = f"{stem}_{count}"
        self._used.add(name)
        return name


class Body:
    """The lines of the kernel's body, and the number of the user's line of each.

    `source` has the user's lines, by number.
    """

    def __init__(self, source: dict[int, str]) -> None:
        self.lines: list[str] = []
        self.origin: list[int | None] = []
        self._source = source
        self._quoted: set[int] = set()
        self._line: int | None = None
        self._depth = 1

    @property
    def indent(self) -> str:
        """The present indentation."""
        return INDENT * self._depth

    def enter(self) -> None:
        """One level deeper."""
        self._depth += 1

    def leave(self) -> None:
        """One level back."""
        self._depth -= 1

    def at(self, line: int | None) -> None:
        """Say from which line of the user the next ones come; quote it the first time."""
        if line is None:
            return
        self._line = line
        text = self._source.get(line, "").strip()
        if line not in self._quoted and text:
            self._quoted.add(line)
            self._add([f"{self.indent}# {text}"])

    def write(self, prefix: str, expression: Expression = "", suffix: str = "") -> None:
        """A statement, over as many lines as it needs."""
        self._add(wrap(prefix, expression, suffix, self.indent))

    def _add(self, lines: Sequence[str]) -> None:
        self.lines += lines
        self.origin += [self._line] * len(lines)


DESCRIBE_THE_RESULT = ("dtype", "shape")
"""Attributes that describe a result. A factory that needs them names them among its `facts`."""


@dataclass(frozen=True)
class Intrinsic:
    """A function that a factory in `intrinsics/` makes, and the call of it.

        acquire = pipeline.acquire(stages=4, offset=0, nbytes=49152)  # once, at the top of the file
        acquire(counter)                                              # where the operation stands

    The factory takes `facts` by position. Keywords follow: the places of operands that are resources, then the
    attributes whose values are not their defaults. The function takes the other operands in their order. The attributes
    `dtype` and `shape` describe a result: the factory gets them only if `facts` name them.

    Attributes:
        factory: module and function, such as "pipeline.acquire".
        facts: positional arguments of the factory. Each is one of "name", "dtype" (of the first operand, or the
            attribute), "result" (the result's dtype), "count" (elements per thread; 0 for a scalar), "layout",
            "source" and "smem_layout", or the name of an attribute or of a resource. `=` behind it makes it a keyword.
        stem: the function's name in the file, with attributes in braces. If it is empty, the factory's own name.
        call: arguments of the function, if these are not the operands in their order. Each is the name of an operand,
            of an attribute that holds the name of a parameter, or of a parameter of the kernel.
        pipeline: attributes of a pipeline among the operands that become keywords.
        omit: attributes that the factory does not take.
    """

    factory: str
    facts: tuple[str, ...] = ()
    stem: str = ""
    call: tuple[str, ...] = ()
    pipeline: tuple[str, ...] = ("stages", "offset")
    omit: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resources:
    """How a target writes operands that are resources: shared memory and its barriers.

    Attributes:
        fact: gives a fact that the emitter does not know, as arguments of the factory.
        places: gives the places of the resources among the operands, as keywords of the factory.
        dtype: gives an operation's dtype: its attribute, or the dtype of its first operand.
    """

    fact: Callable[[str, Op, Any], Iterator[str]]
    places: Callable[[Op, Intrinsic, Any], Iterator[str]]
    dtype: Callable[[Op], DTypeLike]


def declared_emitter(intrinsic: Intrinsic, resources: Resources) -> Callable[[Op, Any], Call]:
    """The emitter of the operations that become this intrinsic.

    It is called with an operation and the target's kernel, which has `bind`, `use`, `dtype`, `layout` and `count`.
    """

    def emit(op: Op, kernel: Any) -> Call:
        facts = [text for fact in intrinsic.facts for text in _fact(fact, op, kernel, resources)]
        keywords = [*resources.places(op, intrinsic, kernel), *_attributes(op, intrinsic)]
        stem = intrinsic.stem.format(**op.attributes, name=op.name) or intrinsic.factory.split(".")[1]
        function = kernel.bind(stem, intrinsic.factory, *facts, *keywords)
        return Call(function, tuple(_arguments(op, intrinsic, kernel)))

    return emit


def _fact(fact: str, op: Op, kernel: Any, resources: Resources) -> Iterator[str]:
    """A fact as an argument of the factory; "source" gives one for each source."""
    attributes = op.attributes
    match fact:
        case "name":
            yield quoted(op.name)
        case "dtype":
            yield kernel.dtype(resources.dtype(op))
        case "result":
            yield kernel.dtype(op.result.tile.dtype)
        case "count":
            yield str(kernel.count(op))
        case "layout":
            yield kernel.layout(attributes["layout"])
        case "source":
            sources: str | tuple[str, ...] = attributes["source"]
            yield from map(kernel.layout, (sources,) if isinstance(sources, str) else sources)
        case _ if fact.endswith("="):
            yield from numbers(op, fact.removesuffix("="))
        case _ if fact in attributes:
            yield repr(attributes[fact])
        case _:
            yield from resources.fact(fact, op, kernel)


def _attributes(op: Op, intrinsic: Intrinsic) -> Iterator[str]:
    """The attributes as keywords, except those that have their default."""
    left_out = {
        *DESCRIBE_THE_RESULT,
        *intrinsic.omit,
        *intrinsic.call,
        *(fact.removesuffix("=") for fact in intrinsic.facts),
    }
    for name, field in op.fields.items():
        if field.kind == "attribute" and name not in left_out:
            value = op.attributes[name]
            if field.required or value != field.default:
                yield f"{name}={value!r}"


def _arguments(op: Op, intrinsic: Intrinsic, kernel: Any) -> Iterator[Expression]:
    """The arguments of the function's call."""
    if not intrinsic.call:
        yield from (kernel.use(value) for value in op.operands if not isinstance(value.type, ResourceType))
    for name in intrinsic.call:
        if name in op.attributes:
            yield str(op.attributes[name])
        elif name in op.fields:
            yield kernel.use(getattr(op, name))
        else:
            yield name


def numbers(op: Op, *names: str) -> list[str]:
    """These attributes as keywords, even where they have their default."""
    return [f"{name}={op.attributes[name]!r}" for name in names]
