"""Whether a kernel says that it stores anything.

Also if no such line was compiled for its arguments.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable
from typing import Any

from cutile.errors import KernelError
from cutile.frontend.captures import MISSING, lookup
from cutile.frontend.inline import source_of
from cutile.frontend.source import FunctionSource

_EFFECT = re.compile("store|scatter|atomic|print|assert|copy|write")
"""In the names of the operations that do something."""


def may_store(function: Callable[..., Any], source: FunctionSource) -> bool:
    """Whether the function, or one that it calls by name, has a line that stores."""
    return _may(function, source.tree, set())


def _may(function: Callable[..., Any], tree: ast.AST, seen: set[Any]) -> bool:
    seen.add(function)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if _EFFECT.search(name):
            return True
        called = _meaning(function, node.func)
        if isinstance(called, types.FunctionType) and called not in seen and not hasattr(called, "__cutile__"):
            try:
                inner = source_of(called).tree
            except KernelError:  # the text of a function that was not compiled need not be known
                continue
            if _may(called, inner, seen):
                return True
    return False


def _meaning(function: Callable[..., Any], node: ast.expr) -> Any:
    """What a name, or an attribute of a module, means outside of the function."""
    if isinstance(node, ast.Name):
        return lookup(function, node.id)
    if isinstance(node, ast.Attribute):
        owner = _meaning(function, node.value)
        return getattr(owner, node.attr, MISSING) if isinstance(owner, types.ModuleType) else MISSING
    return MISSING
