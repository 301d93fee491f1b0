"""The source text of a function, taken once: its file, its lines, its syntax tree, and places in it."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import tokenize
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cutile.errors import KernelSyntaxError, Location


@dataclass(frozen=True)
class FunctionSource:
    """The text of one function as it was when this was made; later edits of the file change nothing.

    Attributes:
        name: the function's name.
        file: where it was written.
        lines: its source lines by line number in that file.
        tree: its definition, with columns counted in the dedented text.
        margin: how far the text was indented.
        first_line: the line number of the text's first line.
    """

    name: str
    file: str
    lines: dict[int, str]
    tree: ast.FunctionDef
    margin: int
    first_line: int
    cache: dict[int, Location] = field(default_factory=dict[int, Location], compare=False)

    def locate(self, node: ast.AST, caller: Location | None = None) -> Location:
        """The place of a node; `caller` is where this function was inlined."""
        line = getattr(node, "lineno", 1) + self.first_line - 1
        start = getattr(node, "col_offset", 0) + self.margin
        end = getattr(node, "end_col_offset", None)
        text = self.lines.get(line, "")
        single = getattr(node, "end_lineno", None) == getattr(node, "lineno", None)
        stop = end + self.margin if end is not None and single else len(text)
        return Location(self.file, line, start, stop, text, self.name, caller)


def take_source(function: Callable[..., Any]) -> FunctionSource:
    """Read the source of `function` now: from its file, a notebook cell, or `linecache`.

    Raises:
        KernelSyntaxError: there is no source text, or it is not a plain `def`.
    """
    name = getattr(function, "__name__", repr(function))
    if hasattr(function, "__wrapped_kernel__") or isinstance(function, type):
        what = "a class" if isinstance(function, type) else "a kernel already"
        raise KernelSyntaxError(f"kernel {name!r} is {what}", remedy="Decorate a plain `def` statement, once.")
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code is not None:
        return _take_lambda(code)
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # the last two: text of something else
        raise _missing(name, code.co_filename if code else "?") from None
    text = textwrap.dedent("".join(lines))
    margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise KernelSyntaxError(
            f"kernel {name!r}: its source text cannot be read on its own: {error}",
            remedy="Write it as a plain `def` statement.",
        ) from error
    tree = body[0] if len(body) == 1 else None
    if isinstance(tree, ast.AsyncFunctionDef):
        raise KernelSyntaxError(f"kernel {name!r} is an async function", remedy="Write it as a plain `def` statement.")
    if not isinstance(tree, ast.FunctionDef) or tree.name != name:
        # Python found some text under the file name that the function says, but not this function's.
        raise _missing(name, code.co_filename if code else "?")
    file = code.co_filename if code else "<unknown>"
    numbered = {first_line + offset: line.rstrip("\n") for offset, line in enumerate(lines)}
    linecache.getlines(file)  # keep the text for tracebacks, whatever happens to the file
    return FunctionSource(name, file, numbered, tree, margin, first_line)


def _take_lambda(code: types.CodeType) -> FunctionSource:
    """A lambda as a function that returns its expression. There may be others on its line: its columns tell."""
    text = "".join(linecache.getlines(code.co_filename))
    try:
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Lambda)]
    except SyntaxError as error:
        raise _missing("<lambda>", code.co_filename) from error
    places = _places(code)
    found = [node for node in nodes if node.lineno == code.co_firstlineno and _holds(node.body, places)]
    if len(found) != 1:
        raise _missing("<lambda>", code.co_filename)
    node = found[0]
    statement = ast.copy_location(ast.Return(value=node.body), node.body)
    made = ast.FunctionDef(name="<lambda>", args=node.args, body=[statement], decorator_list=[])
    lines = text.splitlines()
    numbered = {number: lines[number - 1] for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return FunctionSource("<lambda>", code.co_filename, numbered, ast.copy_location(made, node), 0, 1)


_Place = tuple[tuple[int, int], tuple[int, int]]
"""Where something begins and where it ends: line and column."""


def _places(code: types.CodeType) -> list[_Place]:
    """The places of a function's instructions, of those that have one."""
    return [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None
        if column is not None and end_column is not None and end_column > column
    ]


def _holds(body: ast.expr, places: Sequence[_Place]) -> bool:
    """Whether places lie in an expression, and one of them begins it."""
    assert body.end_lineno is not None, "it was parsed"
    assert body.end_col_offset is not None, "it was parsed"
    first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    inside = all(first <= begin and end <= last for begin, end in places)
    return inside and any(begin == first for begin, _ in places)


def _missing(name: str, file: str) -> KernelSyntaxError:
    return KernelSyntaxError(
        f"kernel {name!r}: its source text cannot be found (it says it was defined in {file!r})",
        remedy="Define it in a file or a notebook cell. For text run with exec(), compile it under a file name and "
        "register that in linecache first: linecache.cache[name] = (len(text), None, text.splitlines(True), name).",
    )
