"""The source text of a function, read once: its lines and its syntax tree.

The code object has the line of the definition. If the file was edited since, the definition that compiles to the same
code is looked for.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import linecache
import tokenize
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.errors import KernelSyntaxError, Location

_FUTURE = functools.reduce(
    lambda a, b: a | b, (vars(__future__)[name].compiler_flag for name in __future__.all_feature_names)
)
"""The flags of `from __future__ import ...`: code keeps them, and `compile` takes them."""

Lines = tuple[list[str], int]
"""The lines of a definition, and the number of the first."""


def lines_of(code: types.CodeType) -> Lines:
    """The block of lines that begins where the code object says.

    Raises OSError, SyntaxError or TokenError where no source is found.
    """
    typed = _typed(code)
    if typed:
        return inspect.getblock(typed[code.co_firstlineno - 1 :]), code.co_firstlineno
    linecache.checkcache(code.co_filename)  # a notebook or an editor may have changed the file
    lines = linecache.getlines(code.co_filename)
    if not lines:  # the module is in an archive: `inspect` searches all modules for the loader that has its text
        return inspect.getsourcelines(code)
    if code.co_firstlineno > len(lines):
        raise OSError(f"{code.co_filename} ends before line {code.co_firstlineno}")
    return inspect.getblock(lines[code.co_firstlineno - 1 :]), code.co_firstlineno


def _typed(code: types.CodeType) -> list[str]:
    """The lines typed at a prompt or given by `-c`; empty for code of a file.

    Python 3.14 keeps such lines by code object, where earlier versions keep them by file name.
    """
    find: Callable[[types.CodeType], list[str]] | None = getattr(linecache, "_getlines_from_code", None)
    return find(code) if find is not None else []


def matching_lines(code: types.CodeType) -> Lines | None:
    """The lines of the definition in the present file that compiles to this code."""
    lines = linecache.getlines(code.co_filename)
    for definition in _definitions_in_file(code):
        if definition.co_name == code.co_name and same_code(definition, code):
            return inspect.getblock(lines[definition.co_firstlineno - 1 :]), definition.co_firstlineno
    return None


def is_defined(code: types.CodeType) -> bool:
    """Whether the present file defines a function of this name anywhere."""
    return any(definition.co_name == code.co_name for definition in _definitions_in_file(code))


def is_rewritten(code: types.CodeType, lines: Lines) -> bool:
    """Whether an import hook has added names to the code of these lines.

    pytest does that to each `assert`. The code then differs from the text, although nobody has edited the text.
    """
    definitions = _definitions_in_file(code)
    plain = next((x for x in definitions if (x.co_name, x.co_firstlineno) == (code.co_name, lines[1])), None)
    if plain is None:
        return True  # a cell with magic commands, text that was registered in parts: there is nothing to compare with
    written, running = set(plain.co_names + plain.co_varnames), set(code.co_names + code.co_varnames)
    return written < running  # a hook adds names and removes none; equal sets mean that a user edited the text


def same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two code objects do the same; their line numbers may differ."""
    if a.co_code != b.co_code or len(a.co_consts) != len(b.co_consts):
        return False
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount")
    return all(getattr(a, name) == getattr(b, name) for name in names) and all(
        same_code(x, y)
        if isinstance(x, types.CodeType) and isinstance(y, types.CodeType)
        else type(x) is type(y) and repr(x) == repr(y)  # by text: 0.0 == -0.0, and nan is not nan
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )


def _definitions_in_file(code: types.CodeType) -> Sequence[types.CodeType]:
    """The code of every function in the present text of the code's file."""
    text = "".join(linecache.getlines(code.co_filename))
    return _definitions(text, code.co_filename, code.co_flags & _FUTURE)


@functools.lru_cache(maxsize=8)
def _definitions(text: str, file: str, flags: int) -> Sequence[types.CodeType]:
    """The code of every function in a text; empty where the text does not compile."""
    try:
        return tuple(_nested(compile(text, file, "exec", flags, dont_inherit=True)))
    except (SyntaxError, ValueError):
        return ()


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


@dataclass(frozen=True)
class FunctionSource:
    """The text of one function; later edits of its file do not change it.

    Attributes:
        name: the function's name.
        file: the name of its file.
        lines: its source lines by line number in that file.
        tree: its definition. Columns are those of the file; lines count from 1.
        first_line: the line number in the file of the first line of `tree`.
    """

    name: str
    file: str
    lines: dict[int, str]
    tree: ast.FunctionDef
    first_line: int

    @property
    def signature_text(self) -> str:
        """The name and the parameters, with annotations and defaults, as they are written."""
        return f"{self.name}({ast.unparse(self.tree.args)})"

    def locate(self, node: ast.AST, caller: Location | None = None) -> Location:
        """The place of a node; `caller` is where this function was inlined.

        The place of a node of several lines is its part of the first line.
        """
        line = getattr(node, "lineno", 1) + self.first_line - 1
        text = self.lines.get(line, "")
        start = column_of(text, getattr(node, "col_offset", 0))
        end = getattr(node, "end_col_offset", None)
        single = getattr(node, "end_lineno", None) == getattr(node, "lineno", None)
        stop = column_of(text, end) if end is not None and single else len(text)
        return Location(self.file, line, start, stop, text, self.name, caller)


def column_of(text: str, offset: int) -> int:
    """The column in characters, of a syntax tree's column in bytes of UTF-8.

    Example:
        >>> column_of("é + b", 5)
        4
    """
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def take_source(function: Callable[..., Any], *, imported: bool = False) -> FunctionSource:
    """Read the source of `function` now.

    It comes from the function's file, a notebook cell, or `linecache`.

    Args:
        function: the function.
        imported: whether its file may have been edited since Python read it. If so, the text must compile to the
            function's code. A decorator runs while Python reads the file, so it need not check.

    Raises:
        KernelSyntaxError: there is no source text, it is no plain `def`, or Python runs another text.
    """
    name = getattr(function, "__name__", repr(function))
    if hasattr(function, "__wrapped_kernel__") or isinstance(function, type):
        what = "a class" if isinstance(function, type) else "a kernel already"
        raise KernelSyntaxError(f"kernel {name!r} is {what}", remedy="Decorate a plain `def` statement, once.")
    if isinstance(function, types.MethodType):
        method = take_source(function.__func__)
        raise KernelSyntaxError(
            f"kernel {name!r} is a method of {type(function.__self__).__name__!r}, which takes an object besides",
            method.locate(method.tree),
            "Write it as a plain `def` outside of the class, and pass what it needs as arguments or generics.",
        )
    code: types.CodeType | None = getattr(function, "__code__", None)
    if code is None:
        raise KernelSyntaxError(
            f"kernel {name!r} is a {type(function).__name__}, and no Python function",
            remedy="Decorate a plain `def` statement. @staticmethod and its like stand above @entry.",
        )
    if code.co_name == "<lambda>":
        return _take_lambda(code)
    lines = _lines(name, code, imported)
    tree = _parse(name, lines[0])
    if isinstance(tree, ast.AsyncFunctionDef):
        raise KernelSyntaxError(f"kernel {name!r} is an async function", remedy="Write it as a plain `def` statement.")
    if not isinstance(tree, ast.FunctionDef):
        raise _missing(name, code.co_filename)
    first_line = lines[1]
    numbered = {first_line + offset: line.rstrip("\n") for offset, line in enumerate(lines[0])}
    linecache.getlines(code.co_filename)  # fills the cache: tracebacks show this text, even of a deleted file
    return FunctionSource(name, code.co_filename, numbered, tree, first_line)


def _parse(name: str, lines: Sequence[str]) -> ast.stmt | None:
    """The only statement in some lines; None where there are several, or none."""
    text = "".join(lines)
    # An `if True:` encloses indented lines. They are not dedented: comments, strings and continued lines may begin
    # left of the definition, and columns must stay those of the file.
    indented = text.startswith((" ", "\t"))
    try:
        module = ast.parse(f"if True:\n{text}" if indented else text)
    except SyntaxError as error:
        raise KernelSyntaxError(
            f"kernel {name!r}: its source text cannot be read on its own: {error}",
            remedy="Write it as a plain `def` statement.",
        ) from error
    body = module.body
    if indented:
        ast.increment_lineno(module, -1)  # without the line of the `if`
        enclosing, *behind = body  # `behind`: lines of an edited file may end further left than they begin
        assert isinstance(enclosing, ast.If), "it stands around the text"
        body = [*enclosing.body, *behind]
    return body[0] if len(body) == 1 else None


def _lines(name: str, code: types.CodeType, imported: bool) -> Lines:
    """The lines of a function, at the line that its code has or wherever they are now.

    Raises:
        KernelSyntaxError: no lines are found, or the file was edited.
    """
    unreadable: KernelSyntaxError | None = None
    try:
        lines: Lines | None = lines_of(code)  # by code: `inspect` follows the `__wrapped__` of a function
        tree = _parse(name, lines[0])
        # An async function passes here: the caller refuses it, with a better message.
        if not isinstance(tree, ast.AsyncFunctionDef) and getattr(tree, "name", None) != code.co_name:
            lines = None  # another definition's lines
    except KernelSyntaxError as error:
        lines, unreadable = None, error
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # the last two: lines that end within a statement
        lines = None
    if lines is not None and not imported:
        return lines
    present = matching_lines(code)
    if present is not None:
        return present
    # Nothing in the file compiles to this code. Either the file was edited, or an import hook changed the code.
    if (lines is None and is_defined(code)) or (lines is not None and not is_rewritten(code, lines)):
        raise KernelSyntaxError(
            f"the text of {name!r} in {code.co_filename!r} is not that of the function that Python runs: the file was "
            "edited since it was imported",
            remedy="Import it again (importlib.reload), or start Python anew.",
        )
    if lines is None:
        raise unreadable or _missing(name, code.co_filename)
    return lines


def as_it_is(function: Callable[..., Any]) -> types.FunctionType:
    """A copy of a function, which later changes of its code or defaults do not reach."""
    original: Any = function
    copy = types.FunctionType(
        original.__code__, original.__globals__, original.__name__, original.__defaults__, original.__closure__
    )
    copy.__kwdefaults__ = None if original.__kwdefaults__ is None else dict(original.__kwdefaults__)
    copy.__qualname__, copy.__module__, copy.__doc__ = original.__qualname__, original.__module__, original.__doc__
    return copy


def compiled_as(code: types.CodeType, source: FunctionSource, tree: ast.FunctionDef) -> types.CodeType:
    """The code of a function whose tree was changed.

    Args:
        code: the function's code.
        source: the function's source.
        tree: a changed copy of `source.tree`.
    """
    ast.increment_lineno(ast.fix_missing_locations(tree), source.first_line - 1)
    tree.decorator_list = []
    # A function around it has the variables of its closure as parameters, so that the code reads them from a closure
    # again. The blank in its name keeps it apart from the function itself.
    outside = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=name) for name in code.co_freevars],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    around = ast.FunctionDef(name=" around", args=outside, body=[tree], decorator_list=[], type_params=[])
    module = ast.fix_missing_locations(ast.Module(body=[around], type_ignores=[]))
    compiled: Any = compile  # untyped, since the stubs do not say what it returns for a tree
    definitions = _nested(compiled(module, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True))
    return next(each for each in definitions if each.co_name == code.co_name)


def _take_lambda(code: types.CodeType) -> FunctionSource:
    """The source of a lambda, as a function that returns its expression.

    A line may have several lambdas. The columns of the code's instructions tell which of them it is.
    """
    lines = linecache.getlines(code.co_filename)
    try:
        nodes = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Lambda)]
    except SyntaxError as error:
        raise _missing("<lambda>", code.co_filename) from error
    places = _places(code)
    lambdas = [node for node in nodes if node.lineno == code.co_firstlineno and _holds(node.body, places)]
    if len(lambdas) != 1:
        raise _missing("<lambda>", code.co_filename)
    node = lambdas[0]
    statement = ast.copy_location(ast.Return(value=node.body), node.body)
    definition = ast.FunctionDef(name="<lambda>", args=node.args, body=[statement], decorator_list=[], type_params=[])
    last = node.end_lineno or node.lineno
    numbered = {number: lines[number - 1].rstrip("\n") for number in range(node.lineno, last + 1)}
    # The whole file was parsed: its line numbers are those of the tree.
    return FunctionSource("<lambda>", code.co_filename, numbered, ast.copy_location(definition, node), first_line=1)


_Place = tuple[tuple[int, int], tuple[int, int]]
"""The beginning and the end of an expression: each a line and a column, in bytes."""


def _places(code: types.CodeType) -> list[_Place]:
    """The places of a function's instructions; some instructions have none."""
    return [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None
        if column is not None and end_column is not None and end_column > column
    ]


def _holds(body: ast.expr, places: Sequence[_Place]) -> bool:
    """Whether all places lie in an expression, and one begins where it begins."""
    assert body.end_lineno is not None, "it was parsed"
    assert body.end_col_offset is not None, "it was parsed"
    first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    inside = all(first <= begin and end <= last for begin, end in places)
    return inside and any(begin == first for begin, _ in places)


def _missing(name: str, file: str) -> KernelSyntaxError:
    return KernelSyntaxError(
        f"kernel {name!r}: its source text cannot be found (it says it was defined in {file!r})",
        remedy="Save it to a file, or from Python 3.13 on use python -c: text of standard input is not kept."
        if file == "<stdin>"
        else "Define it in a file or a notebook cell. For text run with exec(), compile it under a file name and "
        "register that in linecache first: linecache.cache[name] = (len(text), None, text.splitlines(True), name).",
    )
