"""What an expression in a kernel evaluates to while it is compiled.

Compile-time values are plain Python objects: numbers, strings, tuples, dtypes, functions. All else is one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from cutile.ir.core import Value
from cutile.ir.types import TileType

Number = bool | int | float


@dataclass(frozen=True)
class TensorRef:
    """A read-only tensor parameter."""

    value: Value


@dataclass(frozen=True)
class MutRef:
    """A partitioned tensor parameter: this block's own tile."""

    value: Value


@dataclass(frozen=True)
class PartitionRef:
    """A tensor seen as a grid of tiles of `shape`."""

    value: Value
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TokenRef:
    """A token. All are alike: every access of a tile block stays in program order, whatever a token says."""


TOKEN = TokenRef()
"""The one token."""


@dataclass(frozen=True)
class Method:
    """A method of a tile, tensor or partition, bound to it."""

    owner: Any
    name: str


@dataclass(frozen=True)
class Range:
    """`range(...)` with at least one bound known only when the kernel runs, or to be kept as a loop."""

    start: Any
    stop: Any
    step: Any


@dataclass(frozen=True)
class Undefined:
    """A variable that only some paths define; `why` is for the error when it is used."""

    why: str


def items_of(value: Any) -> tuple[Any, ...]:
    """A tuple, as one whose items may be anything."""
    return tuple(value)


def is_tile(value: Any) -> TypeGuard[Value]:
    """Whether `value` is a tile (or scalar) known only when the kernel runs."""
    return isinstance(value, Value) and isinstance(value.type, TileType)


def describe(value: Any) -> str:
    """A short description for errors."""
    if isinstance(value, Value):
        return ("scalar " if isinstance(value.type, TileType) and value.type.is_scalar else "tile ") + str(value.type)
    if isinstance(value, TensorRef):
        return f"tensor of {value.value.tensor.dtype} with {value.value.tensor.rank} axes"
    if isinstance(value, MutRef):
        return f"Mut of {value.value.mut.dtype} with tiles of {value.value.mut.tile}"
    if isinstance(value, PartitionRef):
        return f"partition into tiles of {value.shape}"
    if isinstance(value, TokenRef):
        return "token"
    if isinstance(value, Method):
        return f"method {value.name!r}"
    if isinstance(value, Undefined):
        return "undefined variable"
    return f"{type(value).__name__} {value!r}"
