"""Assignment: names and tuples of names. Tiles are values, so nothing else can be assigned to."""

from __future__ import annotations

import ast
from typing import Any

from cutile.frontend.frame import Frame
from cutile.frontend.syntax import refuse
from cutile.frontend.values import describe, items_of
from cutile.ir.core import Value


def assign(frame: Frame, target: ast.expr, value: Any) -> None:
    if isinstance(target, ast.Name):
        if isinstance(value, Value) and not value.name and target.id != "_":
            value.name = target.id
        frame.variables[target.id] = value
        return
    if isinstance(target, ast.Tuple | ast.List):
        if not isinstance(value, tuple):
            frame.type_error(f"cannot unpack {describe(value)}", target, "Only tuples unpack.")
        items = items_of(value)
        if any(isinstance(each, ast.Starred) for each in target.elts):
            refuse(frame, target, "* in an assignment")
        if len(items) != len(target.elts):
            frame.type_error(f"cannot unpack {len(items)} values into {len(target.elts)} names", target)
        for each, item in zip(target.elts, items, strict=True):
            assign(frame, each, item)
        return
    what = "an assignment to an element" if isinstance(target, ast.Subscript) else "an assignment to an attribute"
    frame.syntax_error(
        target,
        f"{what} is not compiled in a kernel",
        "Tiles are values: compute a new one and store it with y.store(tile).",
    )
