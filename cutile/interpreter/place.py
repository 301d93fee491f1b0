"""Where the kernel's author is: the innermost line of the running stack that is not this package's."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType

from cutile.errors import KernelNameError, Location
from cutile.frontend import elsewhere

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_HIDDEN = (_PACKAGE, str(Path(linecache.__file__).parent / "contextlib.py"))


def current_place() -> Location:
    """The line that called the language, with the columns of the expression."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return _place(frame.f_code, frame.f_lasti, frame.f_lineno)


@contextmanager
def misspelt_names() -> Generator[None]:
    """Refuse a name that a module does not have in the words of the compiler, which a plain AttributeError has not.

    Raises:
        KernelNameError: with the line, and the nearest name.
    """
    try:
        yield
    except AttributeError as error:
        if not isinstance(error.obj, ModuleType) or error.name is None:
            raise
        trace, seen = error.__traceback__, error.__traceback__
        while trace is not None:
            if not trace.tb_frame.f_code.co_filename.startswith(_HIDDEN):  # nor a module's own __getattr__
                seen = trace
            trace = trace.tb_next
        assert seen is not None, "it was raised in the kernel"
        where = _place(seen.tb_frame.f_code, seen.tb_lasti, seen.tb_lineno)
        remedy = elsewhere.in_module(error.obj, error.name)
        raise KernelNameError(f"module {error.obj.__name__!r} has no {error.name!r}", where, remedy) from error


def _place(code: CodeType, instruction: int, number: int) -> Location:
    line, column, end_line, end_column = _span(code, instruction, number)
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    if end_line != line or end_column <= column:
        column, end_column = len(text) - len(text.lstrip()), len(text)
    return Location(code.co_filename, line, column, end_column, text, code.co_name)


def _span(code: CodeType, instruction: int, line: int) -> tuple[int, int, int, int]:
    """Line and column where the running instruction's expression begins and ends."""
    for position, span in enumerate(code.co_positions()):
        if position * 2 == instruction:
            first, last, column, end = span
            if None not in (first, last, column, end):
                return first or line, column or 0, last or line, end or 0
    return line, 0, line, 0
