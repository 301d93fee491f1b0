"""Functions made of text.

Under a file name of their own, so that tracebacks show their lines and breakpoints hold.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

__all__ = ("define",)

_MOST_TEXTS = 4096
"""Texts that are kept for tracebacks, about a kilobyte each. A process with more kernels shows no lines of the rest."""

_texts: dict[str, str] = {}


def define(what: str, text: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """Run the definition of one function, and return that.

    Args:
        what: what the function is for; part of the file name that tracebacks show, `<cutile launch: what>`.
        text: the definition.
        scope: the names that the function uses.
    """
    file = _file_of(what, text)
    exec(compile(text, file, "exec"), scope)
    return scope[text.removeprefix("def ").partition("(")[0]]


def _file_of(what: str, text: str) -> str:
    """A file name for a text.

    Equal texts share one, others that are for the same have a number.
    """
    file, number = f"<cutile launch: {what}>", 1
    while _texts.get(file, text) != text:
        number += 1
        file = f"<cutile launch: {what}, {number}>"
    if file not in _texts and len(_texts) < _MOST_TEXTS:
        _texts[file] = text
        # No time: the entry is for good, and `linecache.checkcache` does not look for a file.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return file
