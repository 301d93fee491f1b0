"""Dataclasses and named tuples in kernels: making them, their fields and methods.

They are values: no field changes.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from typing import Any

from cutile.frontend.captures import compile_time
from cutile.frontend.frame import Frame
from cutile.frontend.registry import FOLDED, method
from cutile.frontend.structure import field_names, rebuilt
from cutile.frontend.values import BoundFunction, Method, Record, describe, items_of

_MISSING: Any = object()


def construct(frame: Frame, kind: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
    """`kind(...)`: a dataclass or named tuple, with its own defaults."""
    names = field_names(kind) or ()
    is_dataclass = bool(dataclasses.is_dataclass(kind))
    _refuse_code(frame, kind, node, is_dataclass)
    signature = _signature(frame, kind, is_dataclass)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        frame.type_error(f"{kind.__name__}(): {error}", node, f"Its fields are {', '.join(names)}.")
    values: list[Any] = []
    for name in names:
        if name in bound.arguments:
            values.append(bound.arguments[name])
        else:
            default = _default(frame, kind, signature, name)
            values.append(compile_time(default, f"{kind.__name__}.{name}", frame.captures))
    return Record(kind, tuple(values)) if is_dataclass else kind._make(values)


def _signature(frame: Frame, kind: Any, is_dataclass: bool) -> inspect.Signature:
    """What a call of the class takes.

    It was read from outside, as the class's fields were.
    """
    maker = "__init__" if is_dataclass else "__new__"
    function = frame.captures.read(kind, f"$.{maker}", getattr(kind, maker))
    for part in ("__code__", "__defaults__"):
        frame.captures.read(function, f"$.{part}", getattr(function, part))
    if is_dataclass:
        frame.captures.read(kind, "$.__dataclass_fields__", kind.__dataclass_fields__)
    parameters = list(inspect.signature(function).parameters.values())
    return inspect.Signature(parameters[1:])  # the first is the object, or the class


def _default(frame: Frame, kind: Any, signature: inspect.Signature, name: str) -> Any:
    if bool(dataclasses.is_dataclass(kind)):
        field = next(each for each in dataclasses.fields(kind) if each.name == name)
        factory = field.default_factory
        if factory is not dataclasses.MISSING:
            return frame.captures.read(factory, "$()", factory())
        return field.default
    return signature.parameters[name].default


def _refuse_code(frame: Frame, kind: Any, node: ast.AST, is_dataclass: bool) -> None:
    """Refuse classes whose making runs code of the user's."""
    if not is_dataclass:
        made = getattr(kind.__new__, "__code__", None)
        own = "__init__" if kind.__init__ is not object.__init__ else ""
        if made is None or not made.co_filename.startswith("<string>"):  # collections makes its own from a string
            own = "__new__"
        if own:
            frame.type_error(
                f"{kind.__name__} has {own}, and a kernel makes plain named tuples only",
                node,
                "Compute the fields in a function that returns the named tuple.",
            )
        return
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
    """A field, a property or a method of a dataclass or named tuple.

    Of a plain tuple, nothing.
    """
    kind = owner.kind if isinstance(owner, Record) else type(owner)
    names = field_names(kind) or ()
    items = owner.items if isinstance(owner, Record) else items_of(owner)
    if name in names:
        return items[names.index(name)]
    if name == "_replace" and names and not isinstance(owner, Record):
        return Method(owner, name)
    member = inspect.getattr_static(kind, name, _MISSING)
    if member is not _MISSING and hasattr(kind, name):
        frame.captures.attribute(kind, name)
    if isinstance(member, property) and isinstance(member.fget, types.FunctionType):
        return frame.invoke(member.fget, owner, node=node)
    if isinstance(member, types.FunctionType) and names:
        return BoundFunction(member, owner)
    if isinstance(member, staticmethod | classmethod):
        return getattr(kind, name)
    if member is not _MISSING and names and not callable(member):
        return compile_time(member, name, frame.captures)
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
