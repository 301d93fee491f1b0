"""Constants that a kernel is compiled for.

What may be one, and when two of them are the same.

Python has `1 == 1.0 == True` and `0.0 == -0.0`, which mean different kernels: keys have types and texts.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from cutile.dtypes import DType, DTypeMeta
from cutile.errors import GenericsError
from cutile.frontend.captures import is_frozen

_PLAIN = (bool, int, float, str, types.NoneType, enum.Enum, DTypeMeta, types.FunctionType)


def constant(value: Any, kinds: tuple[type, ...], what: str) -> Any:
    """A constant as a kernel sees it.

    NumPy's numbers become Python's, lists become tuples.

    Args:
        value: a bool, int, float, string, enum, dtype, function or None, a tuple or a frozen dataclass of them.
        kinds: of which types it may be; any where there are none.
        what: what it is, for errors: "k: generic 'MODE'".

    Raises:
        GenericsError: it is nothing that a kernel can be compiled for, or of another type.
    """
    value = _plain(value, what)
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise GenericsError(f"{what} must be {_article(names)}{names}, got {value!r}")
    return value


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item(), what)
    if isinstance(value, tuple | list):
        items = [_plain(each, what) for each in value]  # pyright: ignore[reportUnknownVariableType]
        make: Any = getattr(value, "_make", None)  # pyright: ignore[reportUnknownArgumentType]
        return tuple(items) if make is None else make(items)
    if is_frozen(value):
        for field in dataclasses.fields(value):
            _plain(getattr(value, field.name), f"{what}: its field {field.name!r}")
        return value
    raise GenericsError(
        f"{what} must be a constant (a bool, int, float, string, enum, dtype, function or None, a tuple or a frozen "
        f"dataclass of them), got {type(value).__name__}: {value!r}"
    )


def _is_a(value: Any, kind: type) -> bool:
    if kind is DType:
        return isinstance(value, DTypeMeta)
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def _article(names: str) -> str:
    return "" if names.startswith("None") else "an " if names[0] in "aeiou" else "a "


def constant_key(value: Any) -> Hashable:
    """What two constants have in common exactly if one kernel serves both."""
    if type(value) is int or isinstance(value, str | types.NoneType | DTypeMeta | types.FunctionType):
        return value
    if isinstance(value, enum.Enum):
        return type(value), value.name
    if isinstance(value, bool | float):
        return type(value), repr(value)
    if isinstance(value, list):
        value = tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, tuple):
        return type(value), *map(constant_key, value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if is_frozen(value):
        return type(value), *(constant_key(getattr(value, each.name)) for each in dataclasses.fields(value))
    return value


def generics_key(generics: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """The values of generics, as part of a key."""
    return tuple((name, value if type(value) is int else constant_key(value)) for name, value in generics.items())
