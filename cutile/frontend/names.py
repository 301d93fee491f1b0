"""What a name in a kernel means: a local, a variable of an enclosing function, a global, a builtin. Captures are recorded."""

from __future__ import annotations

import builtins
import enum
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutile.dtypes import DTypeMeta
from cutile.errors import KernelTypeError

MISSING: Any = object()


@dataclass(frozen=True)
class Capture:
    """A name from outside the kernel, with the value that was compiled in."""

    function: Callable[..., Any]
    name: str
    value: Any

    def unchanged(self) -> bool:
        """Whether the name still means the same value."""
        now = lookup(self.function, self.name)
        return now is self.value or (type(now) is type(self.value) and _same(now, self.value))


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, int | float | str | tuple | bool) and repr(a) == repr(b)


@dataclass
class Captures:
    """Every outside name that a compilation read."""

    found: dict[tuple[int, str], Capture] = field(default_factory=dict[tuple[int, str], Capture])

    def record(self, function: Callable[..., Any], name: str, value: Any) -> None:
        """Remember one."""
        self.found.setdefault((id(function), name), Capture(function, name, value))

    def unchanged(self) -> bool:
        """Whether every captured name still means what it meant."""
        return all(each.unchanged() for each in self.found.values())


def lookup(function: Callable[..., Any], name: str) -> Any:
    """What `name` means in the scope around `function`; MISSING if nothing."""
    code: types.CodeType = function.__code__  # type: ignore[attr-defined]
    if name in code.co_freevars:
        cell = function.__closure__[code.co_freevars.index(name)]  # type: ignore[attr-defined]
        try:
            return cell.cell_contents
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
    if value is None or isinstance(value, bool | int | float | str | DTypeMeta | types.ModuleType | type | enum.Enum):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype):
        return value
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value
        return tuple(compile_time(item, name) for item in items)
    if callable(value):
        return value
    raise KernelTypeError(
        f"{name!r} is a {type(value).__name__} from outside the kernel, which a kernel cannot hold",
        remedy="A kernel may use numbers, strings, tuples of them, dtypes, modules and functions from outside. "
        "Pass arrays and tensors as arguments.",
    )
