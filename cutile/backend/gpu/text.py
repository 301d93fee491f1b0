"""The look of generated code: expressions as data, as black formats them.

Each user line is quoted once, and a map leads back to it.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

WIDTH = 88
INDENT = "    "


@dataclass(frozen=True)
class Call:
    """A call: what is called, and its arguments."""

    function: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


Expression = str | Call


def quoted(value: object) -> str:
    """A value as black would write it: strings in double quotes, tuples of such."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        items = [quoted(each) for each in cast("tuple[object, ...]", value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    return repr(value)


def wrap(prefix: str, expression: Expression, suffix: str, indent: str) -> list[str]:
    """The lines of `prefix expression suffix`.

    On one line, or the arguments below, or one argument per line.
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

    Names that users gave are reserved for their values.
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken: set[str] = set()
        self._reserved = set(reserved)

    def user(self, name: str) -> str:
        """A name for a value that its user called `name`: that, or with a number."""
        return self._free(name, set())

    def invented(self, stem: str) -> str:
        """A name for something that has none, which no user chose."""
        return self._free(stem, self._reserved)

    def _free(self, stem: str, avoid: set[str]) -> str:
        stem = stem + "_" if keyword.iskeyword(stem) else stem
        name, count = stem, 0
        while name in self._taken or name in avoid:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


class Body:
    """The lines of the kernel's body, and which user line each came from."""

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
        """What follows comes from this user line, which is quoted the first time."""
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
