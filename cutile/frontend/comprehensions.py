"""Comprehensions over what is known when the kernel is compiled: items are compiled in place, into a tuple."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from cutile.frontend.assign import assign
from cutile.frontend.frame import Frame
from cutile.frontend.operators import truth
from cutile.frontend.scan import assigned
from cutile.frontend.values import Range, describe, is_tile, items_of

MAX_ITEMS = 1 << 16


def comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> tuple[Any, ...]:
    """`[f(x) for x in items if test(x)]`, as a tuple. Its variables are its own."""
    first = frame.evaluate(node.generators[0].iter)  # this one sees the variables outside
    own = assigned([each.target for each in node.generators])
    before = {name: frame.variables.pop(name) for name in own if name in frame.variables}
    items: list[Any] = []
    try:
        _generate(frame, node, node.generators, items, first)
    finally:
        for name in own:
            frame.variables.pop(name, None)
        frame.variables.update(before)
    return tuple(items)


def _generate(
    frame: Frame,
    node: ast.ListComp | ast.GeneratorExp,
    generators: Sequence[ast.comprehension],
    items: list[Any],
    over: Any = None,
) -> None:
    if not generators:
        items.append(frame.evaluate(node.elt))
        return
    first, *rest = generators
    if first.is_async:
        frame.syntax_error(first.iter, "an async comprehension is not compiled in a kernel", "Use a plain one.")
    source = frame.evaluate(first.iter) if over is None else over
    for item in static_items(frame, source, first.iter):
        assign(frame, first.target, item)
        if all(_holds(frame, test) for test in first.ifs):
            _generate(frame, node, rest, items)


def _holds(frame: Frame, test: ast.expr) -> bool:
    decided = truth(frame, frame.evaluate(test), test)
    if not isinstance(decided, bool):
        frame.type_error(
            "the condition of a comprehension must be known when the kernel is compiled",
            test,
            "The number of items is fixed: keep the item, and use ct.select to replace it.",
        )
    return decided


_INSTEAD = {
    "enumerate()": "Count yourself: an index of range(n) is a number already.",
    "reversed()": "Write range(stop - 1, start - 1, -1).",
    "zip()": "Loop over one range, and compute the other number from its index.",
}
"""What to write where a function of Python goes over a range that is not known."""


def static_items(frame: Frame, value: Any, node: ast.AST | None, what: str = "a comprehension") -> tuple[Any, ...]:
    """The items of a tuple, or of a range whose bounds are constants."""
    if isinstance(value, tuple):
        return items_of(value)
    if isinstance(value, Range):
        bounds = (value.start, value.stop, value.step)
        if not any(map(is_tile, bounds)):
            items = range(*bounds)
            if len(items) <= MAX_ITEMS:
                return tuple(items)
            frame.type_error(f"{what} over {len(items)} items", node, f"At most {MAX_ITEMS}: use a loop.")
        frame.type_error(
            f"{what} over a range whose bounds are known only when the kernel runs",
            node,
            _INSTEAD.get(what)
            or "The number of items is fixed when the kernel is compiled: use a constant or generic, or a for loop.",
        )
    remedy = "Loop over range(...), ct.static_range(...) or a tuple."
    if is_tile(value):
        remedy = "ct.reduce_sum(tile, axis) and its kin go over the elements of a tile."
    frame.type_error(f"{what} goes over a tuple or a constant range, not over {describe(value)}", node, remedy)
