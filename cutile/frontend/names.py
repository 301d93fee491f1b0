"""What a value from outside the kernel is in it.

A constant, a tuple, a dataclass, a function, or refused.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any

import numpy as np

from cutile.dtypes import DTypeMeta
from cutile.errors import KernelTypeError
from cutile.frontend.captures import Captures, is_frozen
from cutile.frontend.values import Record, Table, items_of
from cutile.language.variable import DeviceVariable

_CONSTANTS: Any = (bool, int, float, str, DTypeMeta, types.ModuleType, type, enum.Enum, np.dtype, DeviceVariable)


def compile_time(value: Any, name: str, captures: Captures) -> Any:
    """A captured object as a compile-time value; `captures` notes what was read of it.

    Raises:
        KernelTypeError: it is nothing that a kernel can hold.
    """
    item_: Any = value
    if value is None or isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, np.generic):
        return item_.item()
    if isinstance(value, tuple):
        items = tuple(compile_time(item, name, captures) for item in items_of(item_))
        make: Any = getattr(item_, "_make", None)
        return items if make is None else make(items)
    if isinstance(value, dict):
        captures.read(item_, "len($)", len(item_))
        if all(isinstance(key, bool | int | float | str) for key in item_):
            read = {key: captures.read(item_, f"$[{key!r}]", each) for key, each in item_.items()}
            return Table({key: compile_time(each, name, captures) for key, each in read.items()})
        raise KernelTypeError(
            f"{name!r} comes from outside the kernel, and is a dict with keys that are no numbers and no strings",
            remedy="A kernel sees changes of dicts with such keys alone: look the value up outside.",
        )
    if is_frozen(item_):
        kind: Any = captures.read(item_, "$.__class__", item_.__class__)
        fields = (captures.attribute(item_, each.name) for each in dataclasses.fields(kind))
        return Record(kind, tuple(compile_time(each, name, captures) for each in fields))
    if dataclasses.is_dataclass(item_):
        raise KernelTypeError(
            f"{name!r} comes from outside the kernel and may change, being a dataclass that is not frozen",
            remedy="Decorate the class with @dataclass(frozen=True).",
        )
    if callable(value):
        return value
    raise KernelTypeError(
        f"{name!r} comes from outside the kernel and is of type {type(item_).__name__}, which a kernel cannot hold",
        remedy="A kernel may use numbers, strings, tuples of them, dtypes, modules and functions from outside. "
        "Pass arrays and tensors as arguments.",
    )
