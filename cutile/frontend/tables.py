"""Dicts in kernels: their keys are constants, and nothing in them changes.

A key finds its value at once.
"""

from __future__ import annotations

import ast
import enum
from typing import Any

from cutile.frontend.constant_calls import is_constant
from cutile.frontend.frame import Frame
from cutile.frontend.registry import method
from cutile.frontend.syntax import refuse
from cutile.frontend.values import Method, Table, describe

_METHODS = ("get", "items", "keys", "values")
_MISSING: Any = object()


def dictionary(frame: Frame, node: ast.Dict) -> Table:
    """`{key: value}`."""
    items: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            refuse(frame, node, "** in a dict", "Write the items out.")
        items[_key(frame, frame.evaluate(key), key)] = frame.evaluate(value)
    return Table(items)


def _key(frame: Frame, key: Any, node: ast.AST) -> Any:
    if not is_constant(key):
        frame.type_error(
            f"the key of a dict must be a constant, got {describe(key)}",
            node,
            "Which value it is, is decided when the kernel is compiled; ct.select, or a tensor, decides when it runs.",
        )
    return key


def item_of(frame: Frame, table: Table, key: Any, node: ast.AST) -> Any:
    """`table[key]`."""
    value = table.items.get(_key(frame, key, node), _MISSING)
    if value is _MISSING:
        keys = ", ".join(map(_shown, table.items))
        frame.type_error(f"the dict has no key {key!r}", node, f"Its keys are {keys}." if keys else "It is empty.")
    return value


def _shown(key: Any) -> str:
    return str(key) if isinstance(key, enum.Enum) else repr(key)


def table_method(frame: Frame, table: Table, name: str, node: ast.AST) -> Any:
    """`table.name`."""
    if name not in _METHODS:
        frame.type_error(
            f"a dict has no {name!r} in a kernel", node, f"It has {', '.join(_METHODS)}; nothing in it changes."
        )
    return Method(table, name)


@method(Table, "get")
def _get(frame: Frame, table: Table, key: Any, default: Any = None) -> Any:
    return table.items.get(_key(frame, key, frame.node), default)


@method(Table, "items")
def _items(frame: Frame, table: Table) -> Any:
    del frame
    return tuple(table.items.items())


@method(Table, "keys")
def _keys(frame: Frame, table: Table) -> Any:
    del frame
    return tuple(table.items)


@method(Table, "values")
def _values(frame: Frame, table: Table) -> Any:
    del frame
    return tuple(table.items.values())
