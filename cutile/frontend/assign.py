"""Assignment: names, and tuples of names, nested and starred.

Tiles are values, so nothing else can be assigned to.
"""

from __future__ import annotations

import ast
from typing import Any

from cutile.frontend.frame import Frame
from cutile.frontend.structure import children
from cutile.frontend.values import TensorRef, describe, is_tile, items_of
from cutile.ir.core import Value


def assign(frame: Frame, target: ast.expr, value: Any) -> None:
    """`target = value`."""
    if isinstance(target, ast.Name):
        if isinstance(value, Value) and not value.name and target.id != "_":
            value.name = target.id
        if isinstance(value, TensorRef) and not value.value.name:
            value.value.name = target.id
        frame.variables[target.id] = value
        frame.places[target.id] = target
        return
    if isinstance(target, ast.Tuple | ast.List):
        _unpack(frame, target, value)
        return
    if isinstance(target, ast.Attribute):
        frame.syntax_error(
            target,
            "an assignment to an attribute is not compiled in a kernel",
            "Values do not change: make a new one, s = dataclasses.replace(s, field=value).",
        )
    if isinstance(target, ast.Subscript):
        owner = frame.evaluate(target.value)
        remedy = (
            "Tiles are values: compute a new one, with ct.select where some elements stay, and store that."
            if is_tile(owner)
            else "Values do not change: build a new tuple, t = (*t[:i], value, *t[i + 1:])."
            if children(owner) is not None
            else "Tensors are written through a Mut parameter: y.store(tile)."
        )
        frame.syntax_error(target, "an assignment to an element is not compiled in a kernel", remedy)
    frame.syntax_error(target, "this cannot be assigned to", "Assign to a name or a tuple of names.")


def _unpack(frame: Frame, target: ast.Tuple | ast.List, value: Any) -> None:
    if not isinstance(value, tuple):
        remedy = "Only tuples unpack." + (" A tile has no items: reshape or reduce it." if is_tile(value) else "")
        frame.type_error(f"cannot unpack {describe(value)}", target, remedy)
    items = items_of(value)
    stars = [position for position, each in enumerate(target.elts) if isinstance(each, ast.Starred)]
    if not stars:
        if len(items) != len(target.elts):
            frame.type_error(
                f"cannot unpack {len(items)} values into {len(target.elts)} names",
                target,
                "Write one name per value; `_` for those that are not needed, `*rest` for the others.",
            )
        for each, item in zip(target.elts, items, strict=True):
            assign(frame, each, item)
        return
    at = stars[0]
    after = len(target.elts) - at - 1
    if len(items) < at + after:
        frame.type_error(
            f"cannot unpack {len(items)} values into {at + after} names and a starred one",
            target,
            "Write fewer names.",
        )
    for each, item in zip(target.elts[:at], items, strict=False):
        assign(frame, each, item)
    starred = target.elts[at]
    assert isinstance(starred, ast.Starred)
    assign(frame, starred.value, items[at : len(items) - after])
    for each, item in zip(target.elts[at + 1 :], items[len(items) - after :], strict=True):
        assign(frame, each, item)
