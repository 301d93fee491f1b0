"""Functions made of text, and the one that packs the plain numbers of a launch.

They have a file name of their own, so that tracebacks show their lines and breakpoints hold.

Which numbers a launch hands over, one per parameter of the compiled kernel, is known when a kernel is compiled. So an
expression is made for it once: a launch evaluates `[c[0].address, c[0].shape[0], c[1], ..., g[2]]` in place of walking
a description of it. For a tensor map it has the tensor's place.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from cutile.backend.interface import Argument, Parameter
from cutile.compile.driver import Compiled
from cutile.launch.arguments import Checked
from cutile.launch.views import Grid

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


Number = Callable[[Sequence[Checked], Grid], Argument]
Numbers = Callable[[Sequence[Checked], Grid], list[Argument]]


def numbers_of(compiled: Compiled) -> Numbers:
    """What makes the numbers of a compiled kernel from checked arguments and a grid."""
    numbers = compiled.memo.get("numbers")
    if numbers is None:
        items = ", ".join(map(expression, compiled.executable.parameters))
        text = f"def pack(c, g):\n    return [{items}]\n"
        numbers = compiled.memo["numbers"] = define(f"pack numbers of {compiled.executable.entry}", text, {})
    return numbers


def expression(parameter: Parameter) -> str:
    """The number of one parameter, by the checked arguments `c` and the grid `g`."""
    # What stands in the text that is evaluated are numbers, whatever an executable holds: it may come from a file.
    axis, owner = index(parameter.axis), f"c[{index(parameter.argument)}]"
    by_kind = {
        "grid": f"g[{axis}]",
        "scalar": owner,
        "pointer": f"{owner}.address",
        "extent": f"{owner}.shape[{axis}]",
        "stride": f"{owner}.strides[{axis}]",
        "workspace": "0",  # the backend's business
        "report": "0",  # likewise
        "tensor_map": f"({owner}.address, {owner}.shape, {owner}.strides)",
    }
    return by_kind[parameter.kind]


@functools.cache
def number_of(parameter: Parameter) -> Number:
    """What makes the number of one parameter."""
    return define("pack one number", f"def pack(c, g):\n    return {expression(parameter)}\n", {})
