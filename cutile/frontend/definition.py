"""Where the text of a code object stands.

At the lines that it says, or, if the file was edited, wherever it is now.
"""

from __future__ import annotations
import __future__

import functools
import inspect
import linecache
import types
from collections.abc import Callable, Iterator, Sequence

_FUTURE = functools.reduce(
    lambda a, b: a | b, (vars(__future__)[name].compiler_flag for name in __future__.all_feature_names)
)
"""How `from __future__ import ...` is told to the compiler, and what code keeps of it."""

Lines = tuple[list[str], int]
"""The lines of a definition, and the number of the first."""


def lines_of(code: types.CodeType) -> Lines:
    """The lines at the place that the code says.

    Raises OSError, SyntaxError or TokenError where there are none.
    """
    typed = _typed(code)
    if typed:
        return inspect.getblock(typed[code.co_firstlineno - 1 :]), code.co_firstlineno
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    if not lines:  # a module in an archive: its loader has the text, and all modules are searched for it
        return inspect.getsourcelines(code)
    if code.co_firstlineno > len(lines):
        raise OSError(f"{code.co_filename} ends before line {code.co_firstlineno}")
    return inspect.getblock(lines[code.co_firstlineno - 1 :]), code.co_firstlineno


def _typed(code: types.CodeType) -> list[str]:
    """The text that was typed at a prompt or given by `-c`.

    Python 3.14 keeps it by code and not by file.
    """
    find: Callable[[types.CodeType], list[str]] | None = getattr(linecache, "_getlines_from_code", None)
    return find(code) if find is not None else []


def matching_lines(code: types.CodeType) -> Lines | None:
    """The lines of the definition that compiles to this code, or None.

    Read from the code's file, as it is now.
    """
    lines = linecache.getlines(code.co_filename)
    for each in _of_file(code):
        if each.co_name == code.co_name and same_code(each, code):
            return inspect.getblock(lines[each.co_firstlineno - 1 :]), each.co_firstlineno
    return None


def is_defined(code: types.CodeType) -> bool:
    """Whether the file defines a function of this name, wherever."""
    return any(each.co_name == code.co_name for each in _of_file(code))


def is_rewritten(code: types.CodeType, lines: Lines) -> bool:
    """Whether code does what these lines say and more.

    As pytest makes it of `assert`, and other import hooks.
    """
    plain = next((x for x in _of_file(code) if (x.co_name, x.co_firstlineno) == (code.co_name, lines[1])), None)
    if plain is None:
        return True  # a cell with magic commands, text that was registered in parts: there is nothing to compare with
    had, has = set(plain.co_names + plain.co_varnames), set(code.co_names + code.co_varnames)
    return had < has


def same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two code objects do the same; their places may differ."""
    if a.co_code != b.co_code or len(a.co_consts) != len(b.co_consts):
        return False
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount")
    return all(getattr(a, name) == getattr(b, name) for name in names) and all(
        same_code(x, y)
        if isinstance(x, types.CodeType) and isinstance(y, types.CodeType)
        else type(x) is type(y) and repr(x) == repr(y)
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )


def _of_file(code: types.CodeType) -> Sequence[types.CodeType]:
    """The code of every function in the file that some code comes from, as it is now."""
    text = "".join(linecache.getlines(code.co_filename))
    return _definitions(text, code.co_filename, code.co_flags & _FUTURE)


@functools.lru_cache(maxsize=8)
def _definitions(text: str, file: str, flags: int) -> Sequence[types.CodeType]:
    """The code of every function in a file; nothing where it does not compile."""
    try:
        return tuple(_nested(compile(text, file, "exec", flags, dont_inherit=True)))
    except (SyntaxError, ValueError):
        return ()


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)
