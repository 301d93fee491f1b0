"""Values from outside the kernel, and whether they have changed since.

`Captures` notes names, attributes, code and defaults. `compile_time` turns such a value into one of the front end, or
refuses it.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutile.dtypes import DTypeMeta
from cutile.errors import KernelTypeError
from cutile.frontend.values import Record, Table, items_of
from cutile.ir.core import Value
from cutile.language.variable import DeviceVariable

MISSING: Any = object()
"""Stands for the value of a name that has none; None would be a value."""

_PACKAGE = __name__.partition(".")[0]


KEYS = "(*$,)"
"""The `Read.expression` of a dict's keys in their order."""


@dataclass(frozen=True)
class Read:
    """One thing that was read, as an expression of one object.

    Attributes:
        owner: the object: a module's variables, a module, a class, a function, a cell, ...
        expression: how it was read, with `$` for the object: `$.name`, `$['key']`, `$()`, `(*$,)`.
        value: the value of the expression then.
    """

    owner: Any
    expression: str
    value: Any

    def of(self, owner: str) -> str:
        """The expression, with a name for the object."""
        return self.expression.replace("$", owner)

    def test(self, owner: str, value: str) -> tuple[str, Any]:
        """A quick test that nothing has changed, as text, and its value.

        If the test fails, `unchanged` decides.

        Args:
            owner: the name that the text uses for the object.
            value: the name that it uses for the test's value.
        """
        if self.expression != KEYS:
            return f"{self.of(owner)} is {value}", self.value
        if all(type(key) is str for key in self.value):
            return f"[*{owner}] == {value}", [*self.value]
        # By identity, since 1, 1.0 and True are equal, and so are 0.0 and -0.0.
        return f"[*map(id, {owner})] == {value}", [*map(id, self.value)]

    def unchanged(self) -> bool:
        """Whether the expression has the value that was compiled in."""
        try:
            return same(eval(self.of("owner"), {"owner": self.owner}), self.value)
        except Exception:  # the name is gone, or the user's code raises: compiling again reports which
            return False


def same(a: Any, b: Any) -> bool:
    """Whether a kernel with one value compiled in is right for the other."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    # By the methods of the builtin classes, since a class derived from one may have others.
    if isinstance(a, int):
        return int.__eq__(a, b)
    if isinstance(a, str):
        return str.__eq__(a, b)
    if isinstance(a, float):  # by its text: -0.0 differs from 0.0, and nan does not from nan
        return float.__repr__(a) == float.__repr__(b)
    if isinstance(a, np.generic):
        return repr(a) == repr(b)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(a, tuple):
        x, y = items_of(a), items_of(b)  # pyright: ignore[reportUnknownArgumentType]
        return len(x) == len(y) and all(map(same, x, y))
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and same(a.__self__, b.__self__)
    if is_frozen(a):
        return all(same(getattr(a, each.name), getattr(b, each.name)) for each in dataclasses.fields(a))
    return False


def is_frozen(value: Any) -> bool:
    """Whether a value is an instance of a frozen dataclass."""
    parameters: Any = getattr(value, "__dataclass_params__", None)
    return not isinstance(value, type) and parameters is not None and parameters.frozen


GIVE_FIELD_A_VALUE = "A field with init=False gets a value in __post_init__, or from a default."


def field_without_value(instance: Any) -> str | None:
    """The first field of an instance that nothing has set; None without one.

    Such a field is declared with `init=False`, or was deleted.
    """
    return next((each.name for each in dataclasses.fields(instance) if not hasattr(instance, each.name)), None)


_PLAIN = (bool, int, float, str)
"""The classes of numbers and strings whose methods cannot be replaced."""


@dataclass
class Captures:
    """Everything from outside the kernel that a compilation read."""

    reads: dict[tuple[int, str], Read] = field(default_factory=dict[tuple[int, str], Read])

    def read(self, owner: Any, expression: str, value: Any) -> Any:
        """Remember what was read; see `Read`. Returns the value."""
        key = (id(owner), expression)
        if key not in self.reads:
            self.reads[key] = Read(owner, expression, value)
            self._read_methods(value)
        return value

    def _read_methods(self, value: Any) -> None:
        """Note the methods of a number or string whose class is the user's.

        A kernel calls them by name. Operators of constants call them, too, when Python computes these.
        """
        if isinstance(value, tuple):
            for item in items_of(value):  # pyright: ignore[reportUnknownArgumentType]
                self._read_methods(item)
        elif isinstance(value, int | float | str) and type(value) not in _PLAIN:
            for base in type(value).__mro__:
                for name, member in vars(base).items():
                    # Functions of enum, which all enumerations have, and of this package do not change.
                    home = (getattr(member, "__module__", None) or "").partition(".")[0]
                    if isinstance(member, types.FunctionType) and home not in ("enum", _PACKAGE):
                        self.attribute(type(value), name)
                        self.read(member, "$.__code__", member.__code__)

    def name(self, function: Callable[..., Any], name: str) -> Any:
        """What a name means in the scope around a function; MISSING if nothing."""
        code: types.CodeType = function.__code__  # type: ignore[attr-defined]
        scope: dict[str, Any] = function.__globals__  # type: ignore[attr-defined]
        value = lookup(function, name)
        if value is MISSING:
            return value
        if name in code.co_freevars:
            cell: Any = function.__closure__[code.co_freevars.index(name)]  # type: ignore[attr-defined]
            return self.read(cell, "$.cell_contents", value)
        if name in scope:
            return self.read(scope, f"$[{name!r}]", value)
        self.read(scope, f"({name!r} in $)", False)  # a global of that name would hide the builtin
        return self.read(builtins, f"$.{name}", value)

    def attribute(self, owner: Any, name: str) -> Any:
        """`owner.name`, of a module, a class, or an object.

        Attributes of this package do not change, and are not noted.
        """
        value = getattr(owner, name)
        home: str = getattr(owner, "__name__" if isinstance(owner, types.ModuleType) else "__module__", None) or ""
        if home.partition(".")[0] != _PACKAGE:
            if isinstance(value, types.MethodType):
                # Looked up on its object, a method is a new one each time, of the same parts. Both parts count: the
                # attribute may also hold a bound method, and later that of another object with the same function.
                self.read(owner, f"$.{name}.__func__", value.__func__)
                self.read(owner, f"$.{name}.__self__", value.__self__)
            else:
                self.read(owner, f"$.{name}", value)
        return value

    def items(self, owner: dict[Any, Any]) -> dict[Any, Any]:
        """The items of a dict whose keys are numbers and strings; its order counts."""
        self.read(owner, KEYS, tuple(owner))
        return {key: self.read(owner, f"$[{_literal(key)}]", value) for key, value in owner.items()}

    def unchanged(self) -> bool:
        """Whether everything has the value that was compiled in."""
        return all(read.unchanged() for read in self.reads.values())

    def watch(self) -> Callable[[], bool]:
        """`unchanged` as one function of identity tests, for each launch.

        The function compares values only if an identity test fails. For `S`, `m.T` and a helper it is:

        def unchanged_quickly():
            try:
                if o0['S'] is v0 and o0['m'] is v1 and o1.T is v2 and o2.__code__ is v3:
                    return True
            except Exception:
                pass
            return unchanged()

        The tests are the condition of an `if`: in a `return` each would take three bytecodes more.
        """
        reads = self.reads.values()
        owners = list({id(read.owner): read.owner for read in reads}.values())
        places = {id(owner): place for place, owner in enumerate(owners)}
        names: dict[str, Any] = {"unchanged": self.unchanged}
        names |= {f"o{i}": owner for i, owner in enumerate(owners)}
        tests: list[str] = []
        for i, read in enumerate(reads):
            text, names[f"v{i}"] = read.test(f"o{places[id(read.owner)]}", f"v{i}")
            tests.append(text)
        lines = [
            "def unchanged_quickly():",
            "    try:",
            f"        if {' and '.join(tests) or 'True'}:",
            "            return True",
            "    except Exception:",
            "        pass",
            "    return unchanged()",
        ]
        exec("\n".join(lines), names)
        return names["unchanged_quickly"]


def _literal(key: float | str) -> str:
    """A dict's key as Python's text; for an enumeration, that of its number or string."""
    if isinstance(key, str):
        return str.__repr__(key).replace("$", "\\x24")  # a `$` would stand for the dict (`Read`)
    if isinstance(key, float):
        return float.__repr__(key).replace("inf", "1e999")  # which is infinite; `inf` would be a name
    return repr(key) if isinstance(key, bool) else int.__repr__(key)


def lookup(function: Callable[..., Any], name: str) -> Any:
    """What `name` means in the scope around `function`; MISSING if nothing."""
    code: types.CodeType = function.__code__  # type: ignore[attr-defined]
    if name in code.co_freevars:
        cell: Any = function.__closure__[code.co_freevars.index(name)]  # type: ignore[attr-defined]
        try:
            return cell.cell_contents  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except ValueError:  # the function around has not assigned the name yet
            return MISSING
    scope: dict[str, Any] = function.__globals__  # type: ignore[attr-defined]
    if name in scope:
        return scope[name]
    return getattr(builtins, name, MISSING)


_CONSTANTS: Any = (bool, int, float, str, DTypeMeta, types.ModuleType, type, enum.Enum, np.dtype, DeviceVariable)


def compile_time(value: Any, name: str, captures: Captures) -> Any:
    """A captured object as a value of the front end; `captures` notes each part read.

    Raises:
        KernelTypeError: it is nothing that a kernel can hold.
    """
    untyped: Any = value  # since tests of `value` leave types with unknown parameters
    if isinstance(value, Value):  # the kernel is interpreted: its closures hold tiles
        return value
    if value is None or value is NotImplemented or isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, np.generic):
        return untyped.item()
    if isinstance(value, tuple):
        items = tuple(compile_time(item, name, captures) for item in items_of(untyped))
        make: Any = getattr(untyped, "_make", None)
        return items if make is None else make(items)
    if isinstance(value, dict):
        if all(isinstance(key, bool | int | float | str) and key == key for key in untyped):  # NaN is no number
            return Table({key: compile_time(each, name, captures) for key, each in captures.items(untyped).items()})
        raise KernelTypeError(
            f"{name!r} comes from outside the kernel, and is a dict with keys that are no numbers and no strings",
            remedy="A kernel notices a dict's changes only if its keys are numbers or strings: look it up outside.",
        )
    if is_frozen(untyped):
        kind: Any = captures.read(untyped, "$.__class__", untyped.__class__)
        absent = field_without_value(untyped)
        if absent is not None:
            raise KernelTypeError(
                f"{name!r} comes from outside the kernel, and is a {kind.__name__} whose field {absent!r} has no value",
                remedy=GIVE_FIELD_A_VALUE,
            )
        fields = (captures.attribute(untyped, each.name) for each in dataclasses.fields(kind))
        return Record(kind, tuple(compile_time(each, name, captures) for each in fields))
    if dataclasses.is_dataclass(untyped):
        raise KernelTypeError(
            f"{name!r} comes from outside the kernel and may change, being a dataclass that is not frozen",
            remedy="Decorate the class with @dataclass(frozen=True).",
        )
    if callable(value):
        return value
    remedy = "A kernel may use numbers, strings, tuples and dicts of them, dtypes, modules and functions from outside. "
    remedy += "Pass arrays and tensors as arguments."
    if isinstance(value, list | set | frozenset):
        remedy = f"Make it a tuple, which does not change: {name} = (...)."
    raise KernelTypeError(
        f"{name!r} comes from outside the kernel and is of type {type(untyped).__name__}, which a kernel cannot hold",
        remedy=remedy,
    )
