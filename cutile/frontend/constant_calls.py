"""Calls of plain Python functions that Python computes while a kernel is compiled.

Such a function may have loops, dicts and recursion.

    def swizzle(n): return functools.reduce(math.gcd, [n, 48], 96)
    ct.static_assert(swizzle(BM) <= 16)

A function is computed under two conditions. Its arguments are constants, and each name that it reads is a constant, a
function of Python's without effects, or another such function. An object that cannot change, or a class of such, counts
by what the function may use of it: fields, methods, operators. The names are noted, so that a kernel is compiled again
when one changes. Any other function is compiled in place (`inline.py`).
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import linecache
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from cutile.dtypes import DTypeMeta
from cutile.errors import KernelError, KernelTypeError, Location
from cutile.frontend.captures import MISSING, Captures, is_frozen, lookup
from cutile.frontend.frame import Frame
from cutile.frontend.inline import source_of
from cutile.frontend.source import column_of
from cutile.frontend.structure import field_names
from cutile.frontend.values import items_of

# Functions that have effects, or whose results depend on more than their arguments and the noted names.
_EFFECTS = {
    "print",
    "input",
    "open",
    "exec",
    "eval",
    "compile",
    "__import__",
    "breakpoint",
    "globals",
    "locals",
    "vars",
    *("setattr", "delattr", "exit", "quit", "id", "hash", "help", "memoryview", "super", "object", "property"),
}
_BUILTINS = {
    value for name, value in vars(builtins).items() if callable(value) and name not in _EFFECTS and name[:1] != "_"
}
"""Python's functions whose results depend on their arguments alone."""

_LIBRARIES = {
    *("bisect", "cmath", "enum", "fractions", "functools", "heapq", "itertools", "math", "numpy", "operator"),
    *("statistics", "collections", "decimal", "string", "textwrap", "re"),
}
"""Modules whose functions are taken to have no effects."""

_CACHED = type(functools.lru_cache(maxsize=None)(lambda: None))  # the module does not export the class

_REFUSED = (
    ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef,
    ast.Import, ast.ImportFrom, ast.ClassDef, ast.With,
)  # fmt: skip
"""Syntax with effects, or whose code runs on after the call; a function with some is not computed."""

_Note = Callable[[Captures], object]
"""Notes in `Captures` a value that a function reads. It runs once the result is used: a call may yet be compiled."""
NOT_CONSTANT: Any = object()
"""The result of `computed` where the call has to be compiled."""


def is_constant(value: Any) -> bool:
    """Whether a value of the front end is also the value that Python has."""
    if isinstance(value, tuple):
        return all(map(is_constant, items_of(value)))
    return value is None or isinstance(value, bool | int | float | str | enum.Enum | DTypeMeta)


def computed(frame: Frame, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], node: ast.AST) -> Any:
    """The result of a call, computed now; `NOT_CONSTANT` where it has to be compiled.

    Raises:
        KernelTypeError: the function raises; with the line that does.
    """
    if not all(map(is_constant, (*args, *kwargs.values()))):
        return NOT_CONSTANT
    notes = _notes_of(function, ())
    if notes is None:
        return NOT_CONSTANT
    used = _attributes_in(source_of(wrapped_by_cache(function) or function).tree.body)
    for argument in (*args, *kwargs.values()):
        more = _notes_of_value(argument, used, ())  # an enumeration's member has methods
        if more is None:
            return NOT_CONSTANT
        notes += more
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        raise _raised(frame, function, error, node) from error
    constant = as_constant(result)
    if constant is not NOT_CONSTANT:
        for note in notes:
            note(frame.captures)
    return constant


def methods_of(value: Any) -> tuple[str, ...]:
    """The names of the methods of Python's that a constant has in a kernel."""
    if isinstance(value, tuple):
        kind = cast("type[Any]", type(value))  # pyright: ignore[reportUnknownArgumentType]
        return ("count", "index") if is_constant(value) and field_names(kind) is None else ()
    if not isinstance(value, str | int | float) or isinstance(value, enum.Enum):
        return ()
    public = (name for name in dir(type(value)) if name[0] != "_" and callable(getattr(value, name)))
    # The others take or give bytes or dicts, which are no constants, or belong to the class and not to a value.
    other = ("as_integer_ratio", "conjugate", "encode", "format_map", "from_bytes", "from_number", "fromhex")
    return tuple(name for name in public if name not in (*other, "maketrans", "to_bytes", "translate"))


def method_of(value: Any, name: str) -> Any:
    """A constant's method, such as `"relu6".startswith`; None without one."""
    return getattr(value, name) if name in methods_of(value) else None


def is_method_of_constant(function: Any) -> bool:
    """Whether a function is a `method_of` a constant."""
    owner = getattr(function, "__self__", None)
    return isinstance(function, types.BuiltinMethodType) and function.__name__ in methods_of(owner)


class _Facts(ast.NodeTransformer):
    """Replaces attributes of a kernel's variables, such as `y.shape`, by their values.

    Python cannot evaluate them: it has no tiles and tensors of the front end.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.names: dict[str, Any] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        head: ast.expr = node
        while isinstance(head, ast.Attribute):
            head = head.value
        if not isinstance(head, ast.Name) or self._frame.local(head.id) is MISSING:
            return ast.copy_location(ast.Attribute(self.visit(node.value), node.attr, node.ctx), node)
        name = f" {len(self.names)}"  # with a blank, so that no variable has it
        self.names[name] = self._frame.evaluate(node)
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def evaluated(frame: Frame, node: ast.expr) -> Any:
    """The value of an expression, computed now by Python.

    `NOT_CONSTANT` where it has to be compiled.

    Raises:
        KernelTypeError: the expression raises.
    """
    facts = _Facts(frame)
    expression = facts.visit(copy.deepcopy(node))
    names, notes = facts.names, list[_Note]()
    used = _attributes_in([expression])
    for name, *attributes in _names_in([expression], set(names)):
        value = frame.local(name)
        if value is MISSING:
            more = _notes_of_name(frame.function, (name, *attributes), used, ())
            if more is None:
                return NOT_CONSTANT
            notes += more
            names[name] = lookup(frame.function, name)
        else:
            names[name] = value
    if not all(is_constant(each) for name, each in names.items() if frame.local(name) is not MISSING or name[0] == " "):
        return NOT_CONSTANT
    try:
        result = eval(compile(ast.Expression(expression), frame.source.file, "eval"), names)
    except Exception as error:
        reason = f": {error}" if str(error) else ""
        message = f"static_eval raises {type(error).__name__}{reason}"
        remedy = "Python computes it while the kernel is compiled."
        raise KernelTypeError(message, frame.locate(node), remedy) from error
    for note in notes:
        note(frame.captures)
    return as_constant(result)


def as_constant(value: Any) -> Any:
    """A value that Python computed, as a kernel's constant; `NOT_CONSTANT` of others.

    Lists and ranges become tuples, and NumPy's numbers Python's.
    """
    if isinstance(value, np.generic):
        return value.item()  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple | list):
        items = [as_constant(each) for each in items_of(value)]
        if any(each is NOT_CONSTANT for each in items):
            return NOT_CONSTANT
        make: Any = getattr(value, "_make", None)  # pyright: ignore[reportUnknownArgumentType]
        return tuple(items) if make is None else make(items)
    if isinstance(value, range):
        return tuple(value)
    return value if is_constant(value) else NOT_CONSTANT


def is_computed(function: Any) -> bool:
    """Whether a call with constants is computed by Python."""
    return _notes_of(function, ()) is not None


def wrapped_by_cache(function: Any) -> Any:
    """The function in a `functools.lru_cache` or `cache`; None of anything else."""
    return function.__wrapped__ if isinstance(function, _CACHED) else None


def _notes_of(function: Any, active: tuple[Any, ...]) -> list[_Note] | None:
    """How to note the names that a function reads; None where it is not computed.

    `active`: the functions and classes whose names are being followed, outermost first.
    """
    if any(each is function for each in active):  # recursion
        return []
    inner = wrapped_by_cache(function)
    if inner is not None:
        return _notes_of(inner, (*active, function))
    if not isinstance(function, types.FunctionType) or hasattr(function, "__cutile__"):
        return None
    try:
        tree = source_of(function).tree
    except KernelError:
        return None
    for node in itertools.chain.from_iterable(map(ast.walk, tree.body)):
        if isinstance(node, _REFUSED):
            return None
    notes: list[_Note] = [
        lambda captures: captures.read(function, "$.__code__", function.__code__),
        lambda captures: captures.read(function, "$.__defaults__", function.__defaults__),
    ]
    for key, value in (function.__kwdefaults__ or {}).items():
        notes.append(
            lambda captures, key=key, value=value: captures.read(function, f"$.__kwdefaults__[{key!r}]", value)
        )
    if not all(map(is_constant, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))):
        return None
    used = _attributes_in(tree.body)
    for chain in _outside_names(function, tree):
        more = _notes_of_name(function, chain, used, (*active, function))
        if more is None:
            return None
        notes += more
    return notes


def _outside_names(function: types.FunctionType, tree: ast.FunctionDef) -> Iterator[tuple[str, ...]]:
    """The names that a function reads from outside, each with its attributes.

    `m.table` gives ("m", "table").
    """
    code = function.__code__
    return _names_in(tree.body, {*code.co_varnames, *code.co_cellvars})


def _names_in(body: Sequence[ast.AST], own: set[str]) -> Iterator[tuple[str, ...]]:
    """The names that syntax reads and does not bind, each with its attributes."""
    for node in itertools.chain.from_iterable(map(ast.walk, body)):
        if isinstance(node, ast.arg):
            own = {*own, node.arg}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own = {*own, node.id}
        elif isinstance(node, ast.FunctionDef | ast.ExceptHandler) and node.name:
            own = {*own, node.name}

    def visit(node: ast.AST) -> Iterator[tuple[str, ...]]:
        chain: list[str] = []
        head = node
        while isinstance(head, ast.Attribute):
            chain.insert(0, head.attr)
            head = head.value
        if isinstance(head, ast.Name):
            if head.id not in own:
                yield (head.id, *chain)
            return
        for child in ast.iter_child_nodes(head):
            yield from visit(child)

    for statement in body:
        yield from visit(statement)


def _attributes_in(body: Sequence[ast.AST]) -> frozenset[str]:
    """The names of all attributes that syntax reads, of whatever objects."""
    nodes = itertools.chain.from_iterable(map(ast.walk, body))
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))


def _notes_of_name(
    function: Any, chain: tuple[str, ...], used: frozenset[str], active: tuple[Any, ...]
) -> list[_Note] | None:
    """`_notes_of` for a name that a function reads, with its attributes.

    `used`: the names of the attributes that the function reads, of whatever objects.
    """
    name, *attributes = chain
    value = lookup(function, name)
    if value is MISSING:
        return None
    notes: list[_Note] = [lambda captures: captures.name(function, name)]
    while attributes and isinstance(value, types.ModuleType | type):
        # Attributes of these libraries are taken not to change. `numpy.random` depends on more than its arguments.
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _LIBRARIES:
            return None if "random" in attributes else notes
        attribute, owner = attributes.pop(0), value
        if not hasattr(owner, attribute):
            return None
        value = getattr(owner, attribute)
        notes.append(_attribute_note(owner, attribute))
    more = _notes_of_value(value, used, active)
    return None if more is None else notes + more


def _notes_of_value(value: Any, used: frozenset[str], active: tuple[Any, ...]) -> list[_Note] | None:
    """`_notes_of` for the value of a name: a constant, a class, or a function."""
    if isinstance(value, enum.Enum):
        return _notes_of_class(type(value), used, active)
    if is_constant(value) or isinstance(value, np.generic):
        return []
    if is_frozen(value):
        notes = _notes_of_class(value.__class__, used, active)
        for field in dataclasses.fields(value):
            more = _notes_of_value(getattr(value, field.name, None), used, active)
            notes = None if notes is None or more is None else notes + more
        return notes
    if isinstance(value, type):
        if value.__module__ == "builtins" or issubclass(value, BaseException) or isinstance(value, DTypeMeta):
            return []
        kind: Any = value  # pyright: ignore[reportUnknownVariableType]
        has_constants = issubclass(kind, enum.Enum) or field_names(kind) is not None
        return _notes_of_class(kind, used, active) if has_constants else None
    if isinstance(value, tuple):
        parts = [_notes_of_value(item, used, active) for item in items_of(value)]
        return None if None in parts else [note for part in parts if part is not None for note in part]
    try:
        if value in _BUILTINS:
            return []
    except TypeError:
        return None
    if (getattr(value, "__module__", None) or "").partition(".")[0] in _LIBRARIES and not hasattr(value, "__code__"):
        return []
    return _notes_of(value, active)


def _notes_of_class(kind: type, used: frozenset[str], active: tuple[Any, ...]) -> list[_Note] | None:
    """`_notes_of` for what a function may use of a class.

    These are the attributes that the function names, and operators. Fields belong to the objects. An operator that
    cannot be followed, such as an `__iter__` that yields, is taken not to be used: the syntax does not tell on which
    objects operators are.
    """
    if any(each is kind for each in active):  # a class that its own attributes or methods name
        return []
    active = (*active, kind)
    notes: list[_Note] = []
    fields = field_names(kind) or ()
    operators = {name for base in kind.__mro__ for name in vars(base) if name[:2] == name[-2:] == "__"}
    for name in sorted((used | operators) - {*fields}):
        member = inspect.getattr_static(kind, name, MISSING)
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType):
            if (function.__module__ or "").partition(".")[0] in {*_LIBRARIES, "dataclasses"}:
                continue  # of a base class such as `enum.Enum`, or made for a dataclass
            more = _notes_of(function, active)
        elif name in used and member is not MISSING and not callable(member) and not inspect.isdatadescriptor(member):
            more = _notes_of_value(member, used, active)
        else:
            continue
        if more is not None:
            notes += [_attribute_note(kind, name), *more]
        elif name in used:
            return None
    return notes


def _attribute_note(owner: Any, name: str) -> _Note:
    return lambda captures: captures.attribute(owner, name)


def _raised(frame: Frame, function: Any, error: Exception, node: ast.AST) -> KernelTypeError:
    """An error of the user's function as a kernel's error, at the line that raised."""
    name = getattr(function, "__name__", repr(function))
    place = frame.locate(node)
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        # The innermost frame that is no library's and has a text: the user's own line.
        inside = code is not computed.__code__ and linecache.getline(code.co_filename, trace.tb_lineno)
        if inside and "site-packages" not in code.co_filename:
            line, _, column, end = list(code.co_positions())[trace.tb_lasti // 2]  # a code unit has two bytes
            text = inside.rstrip("\n")
            start = len(text) - len(text.lstrip()) if column is None else column_of(text, column)
            stop = len(text) if end is None else column_of(text, end)
            stop = stop if stop > start else len(text)  # an expression of several lines may end further left
            place = Location(
                code.co_filename, line or trace.tb_lineno, start, stop, text, code.co_name, frame.locate(node)
            )
        trace = trace.tb_next
    reason = f": {error}" if str(error) else ""
    return KernelTypeError(
        f"{name}() raises {type(error).__name__}{reason}",
        place,
        "It is called with constants, so Python computes it while the kernel is compiled.",
    )
