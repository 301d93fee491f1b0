"""Calls of plain Python functions that Python computes while a kernel is compiled.

Such a function may have loops, dicts and recursion.

    def swizzle(n): return functools.reduce(math.gcd, [n, 48], 96)
    ct.static_assert(swizzle(BM) <= 16)

A function is computed under two conditions. Its arguments are constants, and each name that it reads is a constant, a
function of Python's without effects, or another such function. It may also read an object that cannot change, or the
class of such objects, if the same holds for the fields, methods and operators that it may use. The names are noted, so
that a kernel is compiled again when one changes. Any other function is compiled in place (`inline.py`).
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
"""Syntax with effects, or whose code runs on after the call; a function that has any is not computed."""

_Note = Callable[[Captures], object]
"""Notes in `Captures` a value that a function reads. It runs only if the computed result is used."""

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
    reads = _Reads()
    if not reads.of_function(function):
        return NOT_CONSTANT
    used = _attributes_in(source_of(wrapped_by_cache(function) or function).tree.body)
    # An argument may be a member of an enumeration, whose class the function uses.
    if not all(reads.of_value(argument, used) for argument in (*args, *kwargs.values())):
        return NOT_CONSTANT
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        raise _raised(frame, function, error, node) from error
    constant = as_constant(result)
    if constant is not NOT_CONSTANT:
        reads.note(frame.captures)
    return constant


def methods_of(value: Any) -> tuple[str, ...]:
    """The names of Python's methods that a constant has in a kernel."""
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
    names, reads = facts.names, _Reads()
    used = _attributes_in([expression])
    for name, *attributes in _names_in([expression], set(names)):
        value = frame.local(name)
        if value is MISSING:
            if not reads.of_name(frame.function, (name, *attributes), used):
                return NOT_CONSTANT
            names[name] = lookup(frame.function, name)
        else:
            names[name] = value
    # The kernel's own variables, and the attributes of them that `_Facts` has named.
    if not all(is_constant(each) for name, each in names.items() if frame.local(name) is not MISSING or name[0] == " "):
        return NOT_CONSTANT
    try:
        result = eval(compile(ast.Expression(expression), frame.source.file, "eval"), names)
    except Exception as error:
        reason = f": {error}" if str(error) else ""
        message = f"static_eval raises {type(error).__name__}{reason}"
        remedy = "Python computes it while the kernel is compiled."
        raise KernelTypeError(message, frame.locate(node), remedy) from error
    reads.note(frame.captures)
    return as_constant(result)


def as_constant(value: Any) -> Any:
    """A value that Python computed, as a kernel's constant; `NOT_CONSTANT` for others.

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
    return _Reads().of_function(function)


def wrapped_by_cache(function: Any) -> Any:
    """The function in a `functools.lru_cache` or `cache`; None for anything else."""
    return function.__wrapped__ if isinstance(function, _CACHED) else None


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


class _Reads:
    """The names that a function reads, and the functions that it calls.

    Each method answers whether Python may compute with something: a function, a name, a value, a class.
    """

    def __init__(self) -> None:
        self._notes: list[_Note] = []
        # The answers so far, by the id of a function and "", or by the id of a class and an attribute. An answer
        # is True while it is being found, so that recursion ends.
        self._answers: dict[tuple[int, str], bool] = {}

    def note(self, captures: Captures) -> None:
        """Note all that was read."""
        for note in self._notes:
            note(captures)

    def of_function(self, function: Any) -> bool:
        """Whether calls of a function with constants are computed."""
        key = (id(function), "")
        if key not in self._answers:
            self._answers[key] = True
            inner = wrapped_by_cache(function)
            self._answers[key] = self._of_code(function) if inner is None else self.of_function(inner)
        return self._answers[key]

    def _of_code(self, function: Any) -> bool:
        if not isinstance(function, types.FunctionType) or hasattr(function, "__cutile__"):
            return False
        try:
            tree = source_of(function).tree
        except KernelError:
            return False
        if any(isinstance(node, _REFUSED) for node in itertools.chain.from_iterable(map(ast.walk, tree.body))):
            return False
        defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
        if not all(map(is_constant, (*defaults, *keywords.values()))):
            return False
        self._notes.append(lambda captures: captures.read(function, "$.__code__", function.__code__))
        self._notes.append(lambda captures: captures.read(function, "$.__defaults__", function.__defaults__))
        for key, value in keywords.items():
            text = f"$.__kwdefaults__[{key!r}]"
            self._notes.append(lambda captures, text=text, value=value: captures.read(function, text, value))
        used = _attributes_in(tree.body)
        return all(self.of_name(function, chain, used) for chain in _outside_names(function, tree))

    def of_name(self, function: Any, chain: tuple[str, ...], used: frozenset[str]) -> bool:
        """Whether a function may read a name, with its attributes.

        `used`: the names of the attributes that the function reads, of whatever objects.
        """
        name, *attributes = chain
        value = lookup(function, name)
        if value is MISSING:
            return False
        self._notes.append(lambda captures: captures.name(function, name))
        while attributes and isinstance(value, types.ModuleType | type):
            # Attributes of these libraries are taken not to change. `numpy.random` depends on more than its arguments.
            if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _LIBRARIES:
                return "random" not in attributes
            attribute = attributes.pop(0)
            if not hasattr(value, attribute):
                return False
            self._note_attribute(value, attribute)
            value = getattr(value, attribute)
        return self.of_value(value, used)

    def of_value(self, value: Any, used: frozenset[str]) -> bool:
        """Whether a function may read a value: a constant, a class, or a function."""
        if isinstance(value, enum.Enum):
            return self._of_class(type(value), used)
        if is_constant(value) or isinstance(value, np.generic):
            return True
        if is_frozen(value):
            fields = (getattr(value, field.name, None) for field in dataclasses.fields(value))
            return self._of_class(value.__class__, used) and all(self.of_value(item, used) for item in fields)
        if isinstance(value, type):
            if value.__module__ == "builtins" or issubclass(value, BaseException) or isinstance(value, DTypeMeta):
                return True
            kind: Any = value  # pyright: ignore[reportUnknownVariableType]
            return (issubclass(kind, enum.Enum) or field_names(kind) is not None) and self._of_class(kind, used)
        if isinstance(value, tuple):
            return all(self.of_value(item, used) for item in items_of(value))
        try:
            if value in _BUILTINS:
                return True
        except TypeError:
            return False
        module = (getattr(value, "__module__", None) or "").partition(".")[0]
        return (module in _LIBRARIES and not hasattr(value, "__code__")) or self.of_function(value)

    def _of_class(self, kind: type, used: frozenset[str]) -> bool:
        """Whether a function may use a class.

        It may use the attributes that it names, and operators. An operator that cannot be followed, such as an
        `__iter__` that yields, is taken not to be used: the syntax does not show the objects of an operator.
        """
        operators = {name for base in kind.__mro__ for name in vars(base) if name[:2] == name[-2:] == "__"}
        for name in sorted((used | operators) - {*(field_names(kind) or ())}):  # fields belong to the objects
            key = (id(kind), name)
            if key not in self._answers:
                self._answers[key] = True
                self._answers[key] = self._of_member(kind, name, used)
            if name in used and not self._answers[key]:
                return False
        return True

    def _of_member(self, kind: type, name: str, used: frozenset[str]) -> bool:
        """Whether a function may use a class's member of this name, if there is one."""
        member = inspect.getattr_static(kind, name, MISSING)
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType):
            # A library's function comes from a base class such as `enum.Enum`, or was made for a dataclass.
            if (function.__module__ or "").partition(".")[0] in {*_LIBRARIES, "dataclasses"}:
                return True
            may_use = self.of_function(function)
        elif name in used and member is not MISSING and not callable(member) and not inspect.isdatadescriptor(member):
            may_use = self.of_value(member, used)
        else:
            return True
        if may_use:
            self._note_attribute(kind, name)
        return may_use

    def _note_attribute(self, owner: Any, name: str) -> None:
        self._notes.append(lambda captures: captures.attribute(owner, name))


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
