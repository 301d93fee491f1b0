"""Values made of values.

Tuples, named tuples and dataclasses, seen as trees whose leaves are tiles and constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from cutile.frontend.values import PointerRef, Record, TensorParts, is_tile, items_of


def children(value: Any) -> tuple[Any, ...] | None:
    """The items of a tuple or the fields of a dataclass; None for a leaf."""
    if isinstance(value, tuple):
        return items_of(value)
    if isinstance(value, Record):
        return value.items
    return None


def _parts(value: Any) -> tuple[Any, ...] | None:
    """`children`, and pointers' addresses, which pass through loops and branches."""
    if isinstance(value, TensorParts):
        return value.items
    return (value.value,) if isinstance(value, PointerRef) else children(value)


def rebuilt(value: Any, items: tuple[Any, ...]) -> Any:
    """A value of the same kind as `value` with other items."""
    if isinstance(value, Record):
        return Record(value.kind, items)
    if isinstance(value, PointerRef):
        return PointerRef(items[0], value.dtype)
    if isinstance(value, TensorParts):
        return TensorParts(value.form, value.template, items)
    make: Any = getattr(value, "_make", None)
    return items if make is None else make(items)


def leaves(value: Any) -> list[Any]:
    """Everything in a value that is no container, from left to right."""
    items = _parts(value)
    if items is None:
        return [value]
    return [leaf for item in items for leaf in leaves(item)]


def refill(value: Any, new: Iterator[Any]) -> Any:
    """A value of the same structure, with its leaves taken from `new`."""
    items = _parts(value)
    if items is None:
        return next(new)
    return rebuilt(value, tuple(refill(item, new) for item in items))


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A value of the same structure with parts that a function gives.

    Pointers and tensors are whole parts.
    """
    items = children(value)
    return function(value) if items is None else rebuilt(value, tuple(mapped(item, function) for item in items))


def kind_of(value: Any) -> Any:
    """The class of a value.

    Of a dataclass, the user's; of pointers, what they lead to.
    """
    if isinstance(value, PointerRef):
        return value.dtype
    return value.kind if isinstance(value, Record) else type(value)


def same_structure(a: Any, b: Any) -> bool:
    """Whether two values differ in their leaves alone."""
    x, y = _parts(a), _parts(b)
    if x is None or y is None:
        return x is y
    return kind_of(a) is kind_of(b) and len(x) == len(y) and all(map(same_structure, x, y))


def same_constant(x: Any, y: Any) -> bool:
    """Whether two leaves are one compile-time value."""
    if is_tile(x) or is_tile(y):
        return x is y
    return x is y or (type(x) is type(y) and repr(x) == repr(y) and bool(x == y))


def same_constants(a: Any, b: Any) -> bool:
    """Whether two values are the same compile-time constants."""
    return same_structure(a, b) and all(map(same_constant, leaves(a), leaves(b)))


def made_of(kind: type, items: tuple[Any, ...]) -> Any:
    """A tuple, a named tuple, or an instance of a dataclass."""
    if dataclasses.is_dataclass(kind):
        return Record(kind, items)
    make: Any = getattr(kind, "_make", None)  # pyright: ignore[reportUnknownArgumentType]
    return items if make is None else make(items)


def field_names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass or named tuple, in order; None for any other class."""
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind))
    if not issubclass(kind, tuple):
        return None
    fields: Any = getattr(kind, "_fields", None)  # pyright: ignore[reportUnknownArgumentType]
    return None if fields is None else tuple(fields)
