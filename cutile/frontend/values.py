"""What an expression in a kernel evaluates to while it is compiled.

Compile-time values are plain Python objects: numbers, strings, tuples, dtypes, functions. All else is one of these.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from cutile.dtypes import DTypeLike, DTypeMeta
from cutile.errors import Location
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
    """A tensor seen as a grid of tiles of `shape`.

    Attributes:
        value: the tensor.
        shape: of a tile, as loads give it and stores take it.
        padding: what loads give past the edges; the word of a `padding` marker.
        order: axis `k` of a tile is axis `order[k]` of the tensor; None where the axes are in order.
        steps: elements from tile to tile, in the order of the tile's axes; None where that is the tile's extent.
        writes: "" for reading only; "own": within the block's own tile, at indices that count there; "full": anywhere.
    """

    value: Value
    shape: tuple[int, ...]
    padding: str = "zero"
    order: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None
    writes: str = ""


@dataclass(frozen=True)
class WindowRef(PartitionRef):
    """Windows the first of which begins elsewhere than at element 0, also before it.

    Attributes:
        starts: where, in elements, in the order of the tile's axes.
    """

    starts: tuple[int, ...] = ()


@dataclass(frozen=True)
class TensorParts:
    """A tensor or partition as a loop carries it.

    The scalars that say where it is; see `tensor_parts.py`.

    Attributes:
        form: what the types tell of it.
        template: the tensor, or the partition, that it takes the place of.
        items: the scalars.
    """

    form: Any
    template: Any
    items: tuple[Value, ...]


@dataclass(frozen=True)
class MappedRef:
    """A mapped partition parameter: a stream of tiles for this block."""

    value: Value


@dataclass(frozen=True, eq=False)
class PartitionIndex:
    """An index that a stream minted: of a tile that this block alone writes.

    Attributes:
        stream: what minted it.
        owners: the mapped partitions that it indexes.
        coordinates: one per axis; None along axes that are owned whole.
    """

    stream: Any
    owners: tuple[Value, ...]
    coordinates: tuple[Value | None, ...]


@dataclass(frozen=True, eq=False)
class IndexComponent:
    """A minted index along one axis; usable wherever an integer is.

    `parent` is None along an owned axis.
    """

    value: Value
    axis: int
    owners: tuple[Value, ...]
    parent: PartitionIndex | None


@dataclass(frozen=True)
class PointerRef:
    """A tile of pointers: addresses in bytes (u64), and the dtype of what is there."""

    value: Value
    dtype: DTypeLike


@dataclass(frozen=True)
class TokenRef:
    """A token.

    All are alike: every access of a tile block stays in program order, whatever a token says.
    """


TOKEN = TokenRef()
"""The one token."""


@dataclass(frozen=True)
class Method:
    """A method of a tile, tensor or partition, bound to it."""

    owner: Any
    name: str


@dataclass(frozen=True, eq=False)
class BoundFunction:
    """A method of a dataclass or named tuple.

    A plain function, and the object that is its first argument.
    """

    function: types.FunctionType
    owner: Any


@dataclass(frozen=True, eq=False)
class Keywords:
    """What a function's `**keywords` took.

    It may be passed on as `**keywords`; a kernel has no other dicts.
    """

    items: Mapping[str, Any]


@dataclass(frozen=True)
class Range:
    """`range(...)` with a bound that run time knows, or to be kept as a loop."""

    start: Any
    stop: Any
    step: Any


@dataclass(frozen=True)
class Record:
    """An instance of a dataclass, with values of the front end in its fields."""

    kind: type
    items: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """A dict whose keys are constants. Nothing in it changes."""

    items: Mapping[Any, Any]


@dataclass(frozen=True)
class Undefined:
    """A variable that has no value here.

    Attributes:
        why: for the error when it is used.
        conflict: it has a value on every path, of different types.
        places: what was assigned where, for the same error.
        late: the loop that could pass it on, if it is asked to.
        hidden: what a loop carries for it all the same, for the paths on which it has a value.
    """

    why: str
    conflict: bool = False
    places: tuple[tuple[str, Location], ...] = ()
    late: ast.AST | None = None
    hidden: Any = None


class Faulty:
    """A variable whose value could not be compiled.

    That was reported; what uses it is not.
    """


FAULTY = Faulty()


def items_of(value: Any) -> tuple[Any, ...]:
    """A tuple, as one whose items may be anything."""
    return tuple(value)


def plain(value: Any) -> Any:
    """A component of an index as the integer that it is; anything else as it is."""
    return value.value if isinstance(value, IndexComponent) else value


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
        kind = {"": "partition", "own": "nested partition", "full": "partition of the whole tensor"}[value.writes]
        return f"{kind} into tiles of {value.shape}"
    if isinstance(value, MappedRef):
        return f"mapped partition of {value.value.mut.dtype} with tiles of {value.value.mut.tile}"
    if isinstance(value, PartitionIndex):
        return "index minted by " + " and ".join(repr(each.name) for each in value.owners)
    if isinstance(value, IndexComponent):
        return f"component along axis {value.axis} of an index of {value.owners[0].name!r}"
    if isinstance(value, PointerRef):
        return f"pointers to {value.dtype} of shape {value.value.tile.shape}"
    if isinstance(value, TokenRef):
        return "token"
    if isinstance(value, Method):
        return f"method {value.name!r}"
    if isinstance(value, BoundFunction):
        return f"method {value.function.__name__!r}"
    if isinstance(value, Keywords):
        return f"keywords ({', '.join(value.items) or 'none'})"
    if isinstance(value, Table):
        return f"dict of {', '.join(map(repr, value.items)) or 'nothing'}"
    if isinstance(value, Undefined):
        return "undefined variable"
    if isinstance(value, Record):
        return f"{value.kind.__name__}({', '.join(map(describe, value.items))})"
    if isinstance(value, tuple) and any(isinstance(item, Value | Record | tuple) for item in items_of(value)):
        items = [*map(describe, items_of(value)[:4]), *(["..."] if len(items_of(value)) > 4 else [])]
        return f"tuple ({', '.join(items)})"
    if isinstance(value, DTypeMeta):
        return f"dtype {value!r}"
    if isinstance(value, type):
        return f"class {value.__name__}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__name__!r}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__!r}"
    return f"{type(value).__name__} {value!r}"  # pyright: ignore[reportUnknownArgumentType]
