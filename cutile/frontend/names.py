"""What a name in a kernel means: a local, a variable of an enclosing function, a global, a builtin."""

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
from cutile.frontend.values import Record, items_of
from cutile.language.variables import DeviceVariable

MISSING: Any = object()
_CONSTANTS: Any = (bool, int, float, str, DTypeMeta, types.ModuleType, type, enum.Enum, np.dtype, DeviceVariable)


@dataclass(frozen=True)
class Capture:
    """A name from outside the kernel, with the value that was compiled in.

    Attributes:
        scope: the module's variables, where the name is one of them: a launch looks there first.
    """

    function: Callable[..., Any]
    name: str
    value: Any
    scope: dict[str, Any] | None = None

    def unchanged(self) -> bool:
        """Whether the name still means the same value."""
        now = lookup(self.function, self.name)
        return now is self.value or (type(now) is type(self.value) and _same(now, self.value))


def _same(a: Any, b: Any) -> bool:
    plain = isinstance(a, int | float | str | tuple | bool) or _is_frozen(a)
    return plain and repr(a) == repr(b)  # pyright: ignore[reportUnknownArgumentType]


def _is_frozen(value: Any) -> bool:
    """Whether it is an instance of a dataclass that cannot change."""
    parameters: Any = getattr(value, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


@dataclass
class Captures:
    """Every outside name that a compilation read."""

    found: dict[tuple[int, str], Capture] = field(default_factory=dict[tuple[int, str], Capture])

    def record(self, function: Callable[..., Any], name: str, value: Any) -> None:
        """Remember one."""
        scope: dict[str, Any] = function.__globals__  # type: ignore[attr-defined]
        free = name in function.__code__.co_freevars  # type: ignore[attr-defined]
        capture = Capture(function, name, value, None if free or name not in scope else scope)
        self.found.setdefault((id(function), name), capture)

    def unchanged(self) -> bool:
        """Whether every captured name still means what it meant."""
        for each in self.found.values():
            scope = each.scope
            if (scope is None or scope.get(each.name, MISSING) is not each.value) and not each.unchanged():
                return False
        return True

    def watch(self) -> Callable[[], bool]:
        """`unchanged` as one function that is quick where nothing was assigned anew: for `x` and `y` of one module

        def same():
            try:
                return s0["x"] is v0 and s0["y"] is v1 or unchanged()
            except KeyError:
                return unchanged()
        """
        captured = list(self.found.values())
        if any(each.scope is None for each in captured):  # the closure's: a cell may be empty
            return self.unchanged
        scopes = list({id(each.scope): each.scope for each in captured}.values())
        places = [next(i for i, scope in enumerate(scopes) if scope is each.scope) for each in captured]
        names: dict[str, Any] = {"unchanged": self.unchanged}
        names |= {f"s{i}": scope for i, scope in enumerate(scopes)}
        names |= {f"v{i}": each.value for i, each in enumerate(captured)}
        tests = [
            f"s{place}[{each.name!r}] is v{i}" for i, (place, each) in enumerate(zip(places, captured, strict=True))
        ]
        lines = [
            "def same():",
            "    try:",
            f"        return {' and '.join(tests) or 'True'} or unchanged()",
            "    except KeyError:",
            "        return unchanged()",
        ]
        exec("\n".join(lines), names)
        return names["same"]


def lookup(function: Callable[..., Any], name: str) -> Any:
    """What `name` means in the scope around `function`; MISSING if nothing."""
    code: types.CodeType = function.__code__  # type: ignore[attr-defined]
    if name in code.co_freevars:
        cell: Any = function.__closure__[code.co_freevars.index(name)]  # type: ignore[attr-defined]
        try:
            return cell.cell_contents  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except ValueError:
            return MISSING
    scope: dict[str, Any] = function.__globals__  # type: ignore[attr-defined]
    if name in scope:
        return scope[name]
    return getattr(builtins, name, MISSING)


def compile_time(value: Any, name: str) -> Any:
    """A captured object as a compile-time value.

    Raises:
        KernelTypeError: it is nothing that a kernel can hold.
    """
    found: Any = value
    if value is None or isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, np.generic):
        return found.item()
    if isinstance(value, tuple):
        items = tuple(compile_time(item, name) for item in items_of(found))
        make: Any = getattr(found, "_make", None)
        return items if make is None else make(items)
    if _is_frozen(found):
        kind: Any = found.__class__
        return Record(kind, tuple(compile_time(getattr(found, each.name), name) for each in dataclasses.fields(kind)))
    if dataclasses.is_dataclass(found):
        raise KernelTypeError(
            f"{name!r} comes from outside the kernel and may change, being a dataclass that is not frozen",
            remedy="Decorate the class with @dataclass(frozen=True).",
        )
    if callable(value):
        return value
    raise KernelTypeError(
        f"{name!r} comes from outside the kernel and is of type {type(found).__name__}, which a kernel cannot hold",
        remedy="A kernel may use numbers, strings, tuples of them, dtypes, modules and functions from outside. "
        "Pass arrays and tensors as arguments.",
    )
