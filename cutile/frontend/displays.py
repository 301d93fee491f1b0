"""Comprehensions and dicts.

A comprehension goes over a tuple or a constant range: its items are compiled in place, into a tuple. The keys of a dict
are constants, so that a key finds its value while the kernel is compiled. Nothing in a dict changes.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Sequence
from typing import Any

from cutile.frontend.constant_calls import is_constant
from cutile.frontend.flow import assigned
from cutile.frontend.frame import Frame
from cutile.frontend.operators import truth
from cutile.frontend.plain_numbers import length_of
from cutile.frontend.registry import method
from cutile.frontend.simple_statements import assign, refuse
from cutile.frontend.structure import gone_through, iterator
from cutile.frontend.values import ListItems, Method, Range, Table, describe, hold_items, is_tile, items_of

_METHODS = ("get", "items", "keys", "values")
_MISSING: Any = object()


def dictionary(frame: Frame, node: ast.Dict) -> Table:
    """`{key: value}`."""
    items: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            refuse(frame, node, "** in a dict", "Write the items out.")
        items[_key(frame, frame.evaluate(key), key)] = frame.evaluate(value)
    hold_items(items.values(), items)
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


MAX_ITEMS = 1 << 16
"""Items of a range that is unrolled while a kernel is compiled; each is compiled by itself.

65536 sums of tiles took 16 s for the reference backend. A longer range is an error, which says to write a loop."""


def comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> tuple[Any, ...]:
    """`[f(x) for x in items if test(x)]`, as a tuple, in a scope of its own."""
    first = frame.evaluate(node.generators[0].iter)  # this one sees the variables outside
    targets = [each.target for each in node.generators]
    if isinstance(node, ast.GeneratorExp):
        _refuse_late(frame, node, set(assigned(targets)))
    inner = frame.within(node, targets)
    items: list[Any] = []
    _generate(inner, node, node.generators, items, first)
    hold_items(items, items)
    return iterator(frame, items) if isinstance(node, ast.GeneratorExp) else ListItems(items)


def dict_comprehension(frame: Frame, node: ast.DictComp) -> Table:
    """`{f(x): g(x) for x in items}`: a comprehension of pairs of a key and a value."""
    pair = ast.copy_location(ast.Tuple(elts=[node.key, node.value], ctx=ast.Load()), node.key)
    pairs = comprehension(frame, ast.copy_location(ast.ListComp(elt=pair, generators=node.generators), node))
    return Table({_key(frame, key, node.key): value for key, value in items_of(pairs)})


def _refuse_late(frame: Frame, node: ast.GeneratorExp, own: set[str]) -> None:
    """Refuse functions that read a generator's variable.

    In Python the variable's value depends on when they are called.
    """
    for function in _items_that_are_functions(node.elt):
        bound = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        for name in ast.walk(function.body):
            if isinstance(name, ast.Name) and name.id in own - bound:
                frame.syntax_error(
                    name,
                    f"this function reads {name.id!r}, which is another item whenever the generator has gone on",
                    f"Let it keep its own: lambda ..., {name.id}={name.id}: ...; or write a list, [...].",
                )


def _items_that_are_functions(node: ast.expr) -> Iterator[ast.Lambda]:
    if isinstance(node, ast.Lambda):
        yield node
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else parts
    for each in parts:
        yield from _items_that_are_functions(each)


def _generate(
    frame: Frame,
    node: ast.ListComp | ast.GeneratorExp,
    generators: Sequence[ast.comprehension],
    items: list[Any],
    over: Any = None,
) -> None:
    """Append a comprehension's items to `items`, by the `for`s in `generators`.

    `over` is what the first `for` goes over; None if that is still to be evaluated.
    """
    if not generators:
        items.append(frame.evaluate(node.elt))
        return
    first, *rest = generators
    if first.is_async:
        frame.syntax_error(first.iter, "an async comprehension is not compiled in a kernel", "Use a plain one.")
    source = frame.evaluate(first.iter) if over is None else over
    # Each `for` goes over its items, and the `for`s after it run once for each of these.
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
"""Remedies where a function of Python goes over a range whose bounds only run time knows."""

_OF_TILES = {"any()": "Write tile.any(axis).", "all()": "Write tile.all(axis)."}
"""Remedies where a function of Python goes over a tile."""


def static_items(frame: Frame, value: Any, node: ast.AST | None, what: str = "a comprehension") -> tuple[Any, ...]:
    """The items of a tuple, or of a range whose bounds are constants."""
    if isinstance(value, tuple | str):
        return items_of(gone_through(frame, value))
    if isinstance(value, Table):
        return tuple(value.items)
    if isinstance(value, Range):
        bounds = (value.start, value.stop, value.step)
        if not any(map(is_tile, bounds)):
            if not all(isinstance(bound, int) for bound in bounds):
                bad = next(bound for bound in bounds if not isinstance(bound, int))
                frame.type_error(
                    f"range: the bounds must be integers, got {describe(bad)}",
                    node,
                    "Round and convert it: int(x) for numbers.",
                )
            count = length_of(*bounds)
            if count <= MAX_ITEMS:
                return tuple(range(*bounds))
            frame.type_error(f"{what} over {count} items", node, f"At most {MAX_ITEMS}: use a loop.")
        frame.type_error(
            f"{what} over a range whose bounds are known only when the kernel runs",
            node,
            _INSTEAD.get(what)
            or "The number of items is fixed when the kernel is compiled: use a constant or generic, or a for loop.",
        )
    remedy = "Loop over range(...), ct.static_range(...) or a tuple."
    if is_tile(value):
        remedy = _OF_TILES.get(what, "ct.reduce_sum(tile, axis) and its kin go over the elements of a tile.")
    frame.type_error(f"{what} goes over a tuple or a constant range, not over {describe(value)}", node, remedy)
