"""Parameters of a kernel: launch parameters, groups of them, constants, generics.

A group (a tuple, list, named tuple or dataclass of parameters) is taken apart at the launch. The front end sees a
launch parameter for each part, and an arrangement that says how the parts make up the argument again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cutile.dtypes import DTypeLike
from cutile.errors import Location

REQUIRED: Any = object()
"""Stands for a missing default."""


@dataclass(frozen=True)
class NamedExtent:
    """An extent that must agree wherever its name occurs: `Tensor[f32, "m", "k"]`."""

    name: str


Extent = int | str | NamedExtent | None
"""A constant, a generic's name, an extent by its own name, or None for a dynamic one."""


@dataclass(frozen=True)
class Generic:
    """A compile-time parameter: a constant, an element type, or a shape.

    Attributes:
        types: the types that a constant may have, as `Const[str]` says; empty for any.
    """

    name: str
    kind: Literal["const", "dtype", "shape"]
    default: Any
    location: Location
    types: tuple[type, ...] = ()

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is REQUIRED


@dataclass(frozen=True)
class Parameter:
    """A launch parameter.

    Attributes:
        name: its name in the IR.
        kind: "tensor", "mut", "shared" (written by any tile block), "scalar" or "pointer".
        dtype: the element type, a generic's name, or None for the argument's own.
        extents: the declared extents; the name of a generic that is all of them; None where nothing is declared.
        mapped: whether it takes a mapped partition.
        path: the way to a part of a group, as Python would write it: `params.weights[0]`; empty for whole arguments.
    """

    name: str
    kind: Literal["tensor", "mut", "shared", "scalar", "pointer"]
    dtype: DTypeLike | str | None
    extents: tuple[Extent, ...] | str | None
    location: Location
    mapped: bool = False
    path: str = ""

    @property
    def title(self) -> str:
        """The name for messages."""
        return self.path or self.name

    @property
    def writes(self) -> bool:
        """Whether a launch may write its argument, which is lent exclusively then."""
        return self.kind in ("mut", "shared")

    @property
    def declares(self) -> bool:
        """Whether its extents decide what is compiled; a launch only compares named ones."""
        if not isinstance(self.extents, tuple):
            return self.extents is not None
        return not all(each is None or isinstance(each, NamedExtent) for each in self.extents)


@dataclass(frozen=True)
class Fixed:
    """A constant in a group: `mode: Const`.

    Attributes:
        types: see `Generic`.
    """

    types: tuple[type, ...] = ()


@dataclass(frozen=True)
class Group:
    """A tuple or list of parameters, a named tuple, a dataclass.

    Attributes:
        kind: the class of the argument; `tuple` also stands for `list`.
        items: the parts, with the names of fields, or "" for items of a tuple.
        each: the declaration of every item of a tuple of any length; `items` is empty then.
    """

    kind: type
    items: tuple[tuple[str, Declared], ...] = ()
    each: Declared | None = None


@dataclass(frozen=True)
class Maybe:
    """A parameter for which None may be given: `bias: Tensor | None`."""

    item: Declared


Declared = Parameter | Group | Maybe | Fixed
"""What an annotation says."""


@dataclass(frozen=True)
class Piece:
    """A launch parameter, as a part of an argument."""

    name: str


@dataclass(frozen=True)
class Whole:
    """A group, made up of parts.

    `kind` is `tuple`, or the class of a named tuple or dataclass.
    """

    kind: type
    items: tuple[Arranged, ...]


@dataclass(frozen=True)
class Given:
    """A constant, as a part of an argument."""

    value: Any


Arranged = Piece | Whole | Given
"""How an argument is made of launch parameters and constants."""


def assembled(arranged: Arranged, parts: Mapping[str, Any]) -> Any:
    """An argument, as Python has it, put together from its parts.

    No code of the user's runs: neither `__init__` nor `__new__`.
    """
    if isinstance(arranged, Piece):
        return parts[arranged.name]
    if isinstance(arranged, Given):
        return arranged.value
    items = [assembled(each, parts) for each in arranged.items]
    kind: Any = arranged.kind
    if not dataclasses.is_dataclass(kind):
        return kind._make(items) if hasattr(kind, "_make") else tuple(items)
    new: Any = object.__new__
    instance: Any = new(arranged.kind)
    for field, item in zip(dataclasses.fields(instance), items, strict=True):
        object.__setattr__(instance, field.name, item)
    return instance
