"""Sites: the file and line of the user's code where an object was made.

That is the nearest frame outside our own packages. Finding it is cheap, since every operation asks: no source is read.
"""

from __future__ import annotations

import re
import sys
from types import CodeType, FrameType
from typing import Any

__all__ = (
    "Place",
    "Site",
    "cell_of",
    "format_site",
    "is_internal",
    "kept_by_notebook",
    "register_internal_package",
    "site_at",
    "site_of",
    "user_site",
)

Site = tuple[str, int]
"""File name and line number."""

Place = tuple[str | CodeType, int]
"""A site; or a code object and the offset of an instruction in it, whose line is looked up only when it is needed."""

_internal = {"cuda_async", "typing"}  # typing: calls of a subscripted generic, as of `Pending[int]()`, pass through it
_files: dict[str, bool] = {}  # by a file's name, whether it is internal: each operation asks


def register_internal_package(name: str) -> None:
    """Have frames of the top-level package `name` skipped, as those of this package.

    `cutile` registers itself, so that the site of a kernel's operation is the line that calls the kernel.
    """
    _internal.add(name)
    _files.clear()


def user_site(instance: object = None) -> Site:
    """The file and line of the innermost frame outside registered packages.

    Args:
        instance: an object in the making, whose `__init__` frames are skipped: a user's own subclass may have one.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    internal = _files.get
    outer: FrameType | None = frame
    while outer is not None:
        frame = outer
        code = frame.f_code
        if not internal(code.co_filename) and not (
            is_internal(frame) or (instance is not None and code.co_name == "__init__" and _is_init_of(frame, instance))
        ):
            break
        outer = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno)


def site_of(frame: FrameType) -> Place:
    """The place of a frame if it is the user's, else of the nearest outer one that is.

    Args:
        frame: the caller of a public function, most likely the user's.
    """
    code = frame.f_code
    if _files.get(code.co_filename) is False:  # known to be a user's; `user_site` finds out whose a new file is
        return (code, frame.f_lasti)
    while _files.get(frame.f_code.co_filename):  # of this package: mostly a frame or two
        outer = frame.f_back
        if outer is None:
            return user_site()
        frame = outer
    code = frame.f_code
    return (code, frame.f_lasti) if _files.get(code.co_filename) is False else user_site()


def site_at(place: Place) -> Site:
    """The file and line of a place."""
    code, at = place
    if isinstance(code, str):
        return (code, at)
    lines = (line for start, stop, line in code.co_lines() if start <= at < stop and line is not None)
    return (code.co_filename, next(lines, code.co_firstlineno))


def is_internal(frame: FrameType) -> bool:
    """Whether a frame belongs to a registered package."""
    file = frame.f_code.co_filename
    internal = _files.get(file)
    if internal is None:
        internal = str(frame.f_globals.get("__name__", "")).partition(".")[0] in _internal
        if not file.startswith("<"):  # "<string>" names the code of many an `exec`
            _files[file] = internal
    return internal


def _is_init_of(frame: FrameType, instance: object) -> bool:
    names = frame.f_code.co_varnames  # parameters first: `self` is the first of them
    return bool(names) and frame.f_locals.get(names[0]) is instance


def format_site(place: Place) -> str:
    """A site as editors and tracebacks write it; a notebook's cell by its number.

    >>> format_site(("saxpy.py", 12))
    'saxpy.py:12'
    """
    file, line = site_at(place)
    cell = cell_of(file)
    return f"{cell}, line {line}" if cell else f"{file}:{line}"


def cell_of(file: str) -> str:
    """IPython's name of the cell whose code has this file name: `Cell In[9]`; else ""."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = shell.compile.format_code_name(file) if hasattr(shell, "compile") else None
    return " ".join(named) if named else ""


def kept_by_notebook(place: Place) -> str:
    """A sentence of a message: where a notebook keeps a cell's output; "" elsewhere."""
    number = re.search(r"In\s?\[(\d+)\]", cell_of(site_at(place)[0]))
    if number is None:
        return ""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    shown = f"Out[{number[1]}]" if int(number[1]) in shell.user_ns.get("Out", {}) else "Out[...]"
    return f" What a cell shows is kept: {shown} has it, if it has no name."
