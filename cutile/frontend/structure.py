"""Values made of values: tuples, named tuples and dataclasses.

They are seen as trees whose leaves are tiles and constants. Kernels make them and call their methods; no field changes.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cutile.frontend.captures import compile_time
from cutile.frontend.frame import Frame
from cutile.frontend.registry import FOLDED, method
from cutile.frontend.values import (
    IN_MEMORY,
    BoundFunction,
    IteratorItems,
    ListItems,
    Method,
    PointerRef,
    Record,
    Table,
    TensorParts,
    describe,
    hold_items,
    is_tile,
    items_of,
    plain,
)


def children(value: Any) -> tuple[Any, ...] | None:
    """The items of a tuple or the fields of a dataclass; None for a leaf."""
    if isinstance(value, tuple):
        return items_of(value)
    if isinstance(value, Record):
        return value.items
    return None


def _parts(value: Any) -> tuple[Any, ...] | None:
    """`children`, and also the scalars of which pointers and `TensorParts` consist."""
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
    if isinstance(value, ListItems):
        copy = ListItems(items)
        copy.holders = set(value.holders)
        return copy
    if isinstance(value, IteratorItems):
        again = IteratorItems(items)
        again.origin, again.used = value.origin, value.used
        return again
    make: Any = getattr(value, "_make", None)
    return items if make is None else make(items)


def leaves(value: Any) -> list[Any]:
    """The parts of a value that have no parts, from left to right."""
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
    """A value of the same structure, with a function's results for its leaves.

    Pointers and tensors are leaves here, where `refill` takes their scalars.
    """
    items = children(value)
    return function(value) if items is None else rebuilt(value, tuple(mapped(item, function) for item in items))


def kind_of(value: Any) -> Any:
    """The class of a value; for pointers, the dtype of their elements."""
    if isinstance(value, PointerRef):
        return value.dtype
    if isinstance(value, ListItems | IteratorItems):
        return tuple
    return value.kind if isinstance(value, Record) else type(value)


def iterator(frame: Frame, items: Iterable[Any]) -> IteratorItems:
    """The items of an iterator that is made here."""
    result = IteratorItems(items)
    result.origin = frame, frame.loop
    return result


def gone_through(frame: Frame, value: Any) -> Any:
    """A value that is gone through here; an iterator is marked as used up.

    Raises:
        KernelTypeError: another place goes through the iterator, or a loop does in each iteration.
    """
    if isinstance(value, IteratorItems):
        place = frame.locate(frame.node)
        maker, loop = value.origin
        again = maker is frame and loop is not frame.loop
        if again or value.used not in (None, place):
            where = "in the iteration before" if again else f"in line {value.used.line}"
            frame.type_error(
                f"this iterator was gone through {where}, and has no items after that",
                remedy="Keep the items: pairs = tuple(zip(a, b)), or a list [...] in place of a generator.",
            )
        value.used = place
    return value


def own_equality(frame: Frame, value: Any, other: Any) -> types.FunctionType | None:
    """The author's `__eq__` of a dataclass or named tuple; None without one.

    A class whose `==` asks for one and the same object is refused: kernels have no objects.
    """
    kind = kind_of(value)
    if not isinstance(value, Record | tuple) or kind is tuple:
        return None
    frame.captures.attribute(kind, "__eq__")
    equal, unequal = (inspect.getattr_static(kind, name) for name in ("__eq__", "__ne__"))
    if (equal is object.__eq__ and kind_of(other) is kind) or isinstance(unequal, types.FunctionType):
        how = "has a __ne__ of its own" if equal is not object.__eq__ else "has eq=False, so it equals itself alone"
        frame.type_error(f"==: {kind.__name__} {how}", remedy="Compare its fields one by one.")
    # The module dataclasses compiles its own methods from a string.
    is_plain = not isinstance(equal, types.FunctionType) or equal.__code__.co_filename == "<string>"
    return None if is_plain else equal


# The method of each operator, and the one for exchanged operands.
_OWN_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("__lt__", "__gt__"), ast.Gt: ("__gt__", "__lt__"),
    ast.LtE: ("__le__", "__ge__"), ast.GtE: ("__ge__", "__le__"),
    **{
        kind: (f"__{name}__", f"__r{name}__")
        for kind, name in (
            (ast.Add, "add"), (ast.Sub, "sub"), (ast.Mult, "mul"), (ast.Div, "truediv"), (ast.FloorDiv, "floordiv"),
            (ast.Mod, "mod"), (ast.Pow, "pow"), (ast.MatMult, "matmul"), (ast.BitAnd, "and"), (ast.BitOr, "or"),
            (ast.BitXor, "xor"), (ast.LShift, "lshift"), (ast.RShift, "rshift"),
        )
    },
}  # fmt: skip
OWN_PREFIXES: dict[type[ast.AST], str] = {ast.USub: "__neg__", ast.UAdd: "__pos__", ast.Invert: "__invert__"}
"""The methods of operators with one operand."""


def own_method(frame: Frame, value: Any, name: str) -> types.FunctionType | None:
    """The author's method of a dataclass or named tuple; None without one."""
    kind = kind_of(value)
    if not name or not isinstance(value, Record | tuple) or kind is tuple:
        return None
    function = inspect.getattr_static(kind, name, None)
    # The module dataclasses compiles its own methods from a string.
    if not isinstance(function, types.FunctionType) or function.__code__.co_filename == "<string>":
        return None
    frame.captures.attribute(kind, name)
    return function


def own_operator(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """`left <op> right` by the author's methods; NotImplemented without them.

    Python's rules hold. The left operand's method is called first, then the right one's. For arithmetic, the right
    one's is not called if both are of one class. The right one's is called first if its class derives from the left
    one's; for arithmetic, its class has to override the method, too.
    """
    if not isinstance(left, Record | tuple) and not isinstance(right, Record | tuple):
        return NotImplemented
    direct, exchanged = _OWN_OPERATORS.get(kind, ("", ""))
    calls: list[tuple[Any, str, Any]] = [(left, direct, right), (right, exchanged, left)]
    a, b = kind_of(left), kind_of(right)
    compares = issubclass(kind, ast.cmpop)
    if a is b and not compares:
        del calls[1]
    elif a is not b and isinstance(a, type) and isinstance(b, type) and issubclass(b, a):
        methods = [inspect.getattr_static(cls, exchanged, None) for cls in (a, b)]
        if compares or methods[0] is not methods[1]:
            calls.reverse()
    for owner, name, other in calls:
        if own := own_method(frame, owner, name):
            result = frame.invoke(own, owner, other, node=frame.node)
            if result is not NotImplemented:
                return result
    return NotImplemented


def own_in_place(frame: Frame, kind: type[ast.AST], left: Any, right: Any) -> Any:
    """`left <op>= right` by `__iadd__` or its kin; NotImplemented without one."""
    name = _OWN_OPERATORS[kind][0].replace("__", "__i", 1)
    own = own_method(frame, left, name)
    return NotImplemented if own is None else frame.invoke(own, left, right, node=frame.node)


def has_own_truth(value: Record) -> bool:
    """Whether a dataclass defines which of its objects are true."""
    return any(inspect.getattr_static(value.kind, name, None) is not None for name in ("__bool__", "__len__"))


def define_operator(kind: type[ast.AST], value: Record) -> str:
    """The remedy where a dataclass has no method for an operator.

    Empty where there is none to define.
    """
    name = OWN_PREFIXES.get(kind) or _OWN_OPERATORS.get(kind, ("", ""))[0]
    if not name:
        return ""
    if isinstance(inspect.getattr_static(value.kind, name, None), types.FunctionType):
        return f"{name} of {value.kind.__name__} gives NotImplemented for the other operand."
    return f"Define {name} in {value.kind.__name__}, or combine its fields one by one."


def compared_items(value: Any) -> tuple[Any, ...] | None:
    """`children` and a dict's values, without the fields that `==` leaves out."""
    if isinstance(value, Table):
        return tuple(value.items[key] for key in sorted(value.items, key=_order))
    if not isinstance(value, Record):
        return children(value)
    # A class with eq=False has the `__eq__` of the class that it derives from, with that class's fields.
    owner: Any = next(cls for cls in value.kind.__mro__ if "__eq__" in vars(cls))
    names = {field.name for field in getattr(owner, "__dataclass_fields__", {}).values() if field.compare}
    fields = dataclasses.fields(value.kind)  # pyright: ignore[reportArgumentType]
    return tuple(item for item, field in zip(value.items, fields, strict=True) if field.name in names)


def needs_item_comparison(value: Any) -> bool:
    """Whether Python's own comparison of a value with items would be wrong.

    It would if an item is a tile or memory, or if the value is of a class of the front end's.
    """
    items = compared_items(value)
    return items is not None and (
        isinstance(value, Record | Table | ListItems)
        or any(
            is_tile(item) or isinstance(item, IN_MEMORY) or needs_item_comparison(item) for item in map(plain, items)
        )
    )


def _order(key: Any) -> tuple[bool, Any]:
    """The place of a dict's key, a number or a string, among the others."""
    return isinstance(key, str), key


def may_be_equal(left: Any, right: Any) -> bool:
    """Whether two values with items are of one kind; of dicts, have equal keys."""
    if isinstance(left, Table) and isinstance(right, Table):
        return left.items.keys() == right.items.keys()
    kinds = [
        list if isinstance(each, ListItems) else tuple if isinstance(each, tuple) else kind_of(each)
        for each in (left, right)
    ]
    return kinds[0] is kinds[1]


def same_structure(a: Any, b: Any) -> bool:
    """Whether two values differ at most in their leaves."""
    x, y = _parts(a), _parts(b)
    if x is None or y is None:
        return x is y
    return kind_of(a) is kind_of(b) and len(x) == len(y) and all(map(same_structure, x, y))


def same_constant(x: Any, y: Any) -> bool:
    """Whether two leaves are one compile-time value."""
    if is_tile(x) or is_tile(y):
        return x is y
    if type(x) is int and type(y) is int:
        return x == y  # an integer of more than 4300 digits has no text
    # By text, since 0.0 == -0.0. By == too, since different objects of the user's may have the same text.
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
    hold_items(values, values)
    return Record(kind, tuple(values)) if is_dataclass else kind._make(values)


def _signature(frame: Frame, kind: Any, is_dataclass: bool) -> inspect.Signature:
    """The parameters of a call of the class, noted as read from outside."""
    maker = "__init__" if is_dataclass else "__new__"
    function = frame.captures.read(kind, f"$.{maker}", getattr(kind, maker))
    for part in ("__code__", "__defaults__"):
        frame.captures.read(function, f"$.{part}", getattr(function, part))
    if is_dataclass:
        frame.captures.read(kind, "$.__dataclass_fields__", kind.__dataclass_fields__)
    parameters = list(inspect.signature(function).parameters.values())
    return inspect.Signature(parameters[1:])  # the first is the object, or the class


def _default(frame: Frame, kind: Any, signature: inspect.Signature, name: str) -> Any:
    """The default of a field that a call leaves out; a factory is called now."""
    if bool(dataclasses.is_dataclass(kind)):
        field = next(each for each in dataclasses.fields(kind) if each.name == name)
        factory = field.default_factory
        if factory is not dataclasses.MISSING:
            return frame.captures.read(factory, "$()", factory())
        if field.default is dataclasses.MISSING:  # `init=False`: a call cannot give it
            frame.type_error(
                f"{kind.__name__}(): its field {name!r} has no value, since it has init=False and no default",
                remedy="Give the field a default, or leave init=False out. A kernel calls no __post_init__.",
            )
        return field.default
    return signature.parameters[name].default


def _refuse_code(frame: Frame, kind: Any, node: ast.AST, is_dataclass: bool) -> None:
    """Refuse classes whose constructor runs code of the user's."""
    if not is_dataclass:
        code = getattr(kind.__new__, "__code__", None)
        own = "__init__" if kind.__init__ is not object.__init__ else ""
        if code is None or not code.co_filename.startswith("<string>"):  # collections compiles its own from a string
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
        own = "__init__"  # a function of another name, which the class's author assigned
    if isinstance(init, types.FunctionType) and init.__code__.co_filename != "<string>":
        own = "__init__"  # the module dataclasses compiles its own from a string
    if any(isinstance(each, dataclasses.InitVar) for each in kind.__annotations__.values()):
        own = "an InitVar"
    if own:
        frame.type_error(
            f"{kind.__name__} has {own}, and a kernel makes plain dataclasses only",
            node,
            "Compute the fields in a function that returns the dataclass.",
        )


def attribute(frame: Frame, owner: Any, name: str, node: ast.AST) -> Any:
    """A field, property or method of a dataclass or named tuple.

    A plain tuple has none: its attributes are refused.
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
    fixed = {x.name for x in dataclasses.fields(kind) if not x.init} if isinstance(owner, Record) else set[str]()
    if refused := sorted(changes.keys() & fixed):
        frame.type_error(
            f"{what}: the field {refused[0]!r} of {kind.__name__} has init=False, so that no call gives it",
            remedy="Leave init=False out of the field, or the field out of the call.",
        )
    hold_items(changes.values(), changes)
    if isinstance(owner, Record):  # as Python does: the class is called, with the fields that its call takes
        values = dict(zip(names, owner.items, strict=True)) | changes
        return construct(
            frame, kind, [], {x.name: values[x.name] for x in dataclasses.fields(kind) if x.init}, frame.node
        )
    return rebuilt(owner, tuple(changes.get(name, item) for name, item in zip(names, items_of(owner), strict=True)))


@method(tuple, "_replace")
def _replace(frame: Frame, owner: Any, **changes: Any) -> Any:
    return replaced(frame, owner, changes, "_replace")


def _dataclass_replace(frame: Frame, owner: Any, /, **changes: Any) -> Any:
    if not isinstance(owner, Record):
        remedy = "A named tuple has _replace; others have no fields."
        frame.type_error(f"replace: expected a dataclass, got {describe(owner)}", remedy=remedy)
    return replaced(frame, owner, changes, "replace")


FOLDED[dataclasses.replace] = _dataclass_replace
