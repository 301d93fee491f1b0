"""Calls of `range` that a compiled kernel takes for tuples of constants.

They are those that no `for` statement goes over:

    [t[i] for i in range(3)]   sum(range(4))   zip(range(2), tiles)   [*range(3)]

Python makes the same call of all of them, so the place of the call tells.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys

_Place = tuple[int, int, int, int]
_TAKES = {"all", "any", "enumerate", "list", "reversed", "set", "sorted", "sum", "tuple", "zip"}
"""Functions of Python over items that are known when a kernel is compiled."""


def is_constant_range(depth: int) -> bool:
    """Whether the running call of `range`, `depth` frames above, is of constants."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    code = frame.f_code
    line, end_line, column, end = list(code.co_positions())[frame.f_lasti // 2]
    return (line, column, end_line, end) in _places("".join(linecache.getlines(code.co_filename)))


@functools.lru_cache(maxsize=8)
def _places(text: str) -> frozenset[_Place]:
    """The places of such calls in a file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return frozenset()
    places: set[_Place] = set()
    for node in ast.walk(tree):
        items: list[ast.expr] = []
        if isinstance(node, ast.comprehension):
            items = [node.iter]
        elif isinstance(node, ast.Starred):
            items = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TAKES:
            items = node.args
        for item in items:
            if isinstance(item, ast.Call):
                assert item.end_lineno is not None, "it was parsed"
                assert item.end_col_offset is not None, "it was parsed"
                places.add((item.lineno, item.col_offset, item.end_lineno, item.end_col_offset))
    return frozenset(places)
