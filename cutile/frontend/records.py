"""Dataclasses and named tuples in kernels: making them, their fields and methods. They are values: no field changes."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import types
from typing import Any

from cutile.frontend.frame import Frame
from cutile.frontend.names import compile_time
from cutile.frontend.registry import FOLDED, method
from cutile.frontend.structure import field_names, rebuilt
from cutile.frontend.values import Method, Record, describe, items_of

_MISSING: Any = object()


def construct(frame: Frame, kind: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
    """`kind(...)`: a dataclass or named tuple, with its own defaults."""
    names = field_names(kind) or ()
    is_dataclass = bool(dataclasses.is_dataclass(kind))
    if is_dataclass:
        _refuse_code(frame, kind, node)
    signature = inspect.signature(kind if is_dataclass else kind.__new__)
    if not is_dataclass:  # __new__ takes the class first
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        frame.type_error(f"{kind.__name__}(): {error}", node, f"Its fields are {', '.join(names)}.")
    values: list[Any] = []
    for name in names:
        if name in bound.arguments:
            values.append(bound.arguments[name])
        else:
            values.append(compile_time(_default(kind, signature, name), f"{kind.__name__}.{name}"))
    return Record(kind, tuple(values)) if is_dataclass else kind._make(values)


def _default(kind: Any, signature: inspect.Signature, name: str) -> Any:
    if bool(dataclasses.is_dataclass(kind)):
        field = next(each for each in dataclasses.fields(kind) if each.name == name)
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return field.default
    return signature.parameters[name].default


def _refuse_code(frame: Frame, kind: type, node: ast.AST) -> None:
    """Refuse classes whose making runs code of the user's."""
    own = "__post_init__" if hasattr(kind, "__post_init__") else ""
    init = kind.__dict__.get("__init__")
    if init is not None and not getattr(init, "__qualname__", "").endswith("__init__"):
        own = "__init__"
    if isinstance(init, types.FunctionType) and init.__code__.co_filename != "<string>":
        own = "__init__"  # dataclasses make theirs from a string
    if any(isinstance(each, dataclasses.InitVar) for each in kind.__annotations__.values()):
        own = "an InitVar"
    if own:
        frame.type_error(
            f"{kind.__name__} has {own}, and a kernel makes plain dataclasses only",
            node,
            "Compute the fields in a function that returns the dataclass.",
        )


def attribute(frame: Frame, owner: Any, name: str, node: ast.AST) -> Any:
    """A field, a property or a method of a dataclass or named tuple; of a plain tuple, nothing."""
    kind = owner.kind if isinstance(owner, Record) else type(owner)
    names = field_names(kind) or ()
    items = owner.items if isinstance(owner, Record) else items_of(owner)
    if name in names:
        return items[names.index(name)]
    if name == "_replace" and names and not isinstance(owner, Record):
        return Method(owner, name)
    found = inspect.getattr_static(kind, name, _MISSING)
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        return frame.invoke(found.fget, owner, node=node)
    if isinstance(found, types.FunctionType) and names:
        return functools.partial(found, owner)
    if isinstance(found, staticmethod | classmethod):
        return getattr(kind, name)
    if found is not _MISSING and names and not callable(found):
        return compile_time(found, name)
    if isinstance(owner, tuple) and not names:
        frame.type_error(
            f"a tuple has no attribute {name!r} in a kernel",
            node,
            "Tuples do not change: write t = (*t, x) to append, len(t) for the length, t[i] for an item.",
        )
    frame.type_error(f"{kind.__name__} has no attribute {name!r}", node, f"Its fields are {', '.join(names)}.")


def replaced(frame: Frame, owner: Any, changes: dict[str, Any], what: str) -> Any:
    """The dataclass or named tuple with some fields changed."""
    kind = owner.kind if isinstance(owner, Record) else type(owner)
    names = field_names(kind)
    if names is None:
        frame.type_error(
            f"{what}: expected a dataclass or named tuple, got {describe(owner)}", remedy="Others have no fields."
        )
    unknown = sorted(changes.keys() - set(names))
    if unknown:
        frame.type_error(
            f"{what}: {kind.__name__} has no field {unknown[0]!r}", remedy=f"Its fields are {', '.join(names)}."
        )
    items = owner.items if isinstance(owner, Record) else items_of(owner)
    return rebuilt(owner, tuple(changes.get(name, item) for name, item in zip(names, items, strict=True)))


@method(tuple, "_replace")
def _replace(frame: Frame, owner: Any, **changes: Any) -> Any:
    return replaced(frame, owner, changes, "_replace")


def _dataclass_replace(frame: Frame, owner: Any, /, **changes: Any) -> Any:
    if not isinstance(owner, Record):
        remedy = "A named tuple has _replace; others have no fields."
        frame.type_error(f"replace: expected a dataclass, got {describe(owner)}", remedy=remedy)
    return replaced(frame, owner, changes, "replace")


FOLDED[dataclasses.replace] = _dataclass_replace
