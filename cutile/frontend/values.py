"""Values of expressions, as the front end has them while it compiles a kernel.

Compile-time values are plain Python objects: numbers, strings, tuples, dtypes, functions. A tile or scalar is a `Value`
of the IR. Every other value is of a class below.
"""

from __future__ import annotations

import ast
import enum
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeGuard

from cutile.dtypes import DTypeLike, DTypeMeta, f4e2m1fnx2, f32, f64
from cutile.errors import Location, as_text
from cutile.ir import Constant, Op, TileType, Value
from cutile.language.variable import DeviceVariable
from cutile.ops.arith import Abs, Add, Div, Max, Min, Mul, Neg, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Select
from cutile.ops.shape import Broadcast, Permute, Reshape


class Described:
    """Base of values whose class is in another module, and has its own description."""

    @property
    def description(self) -> str:
        """What errors call it."""
        raise NotImplementedError


@dataclass(frozen=True)
class TensorRef:
    """A read-only tensor parameter."""

    value: Value


@dataclass(frozen=True)
class SharedRef(TensorRef):
    """A tensor parameter that any tile block may write."""


@dataclass(frozen=True)
class MutRef:
    """A partitioned tensor parameter: this block's own tile."""

    value: Value


@dataclass(frozen=True)
class PartitionRef:
    """A tensor seen as a grid of tiles of `shape`.

    Attributes:
        value: the tensor.
        shape: the shape of a tile, in the order of its axes.
        padding: the elements that loads give past the edges, as the word of a `padding` marker.
        order: axis `k` of a tile is axis `order[k]` of the tensor; None where the axes are in order.
        steps: elements from one tile to the next, in the order of the tile's axes; None for the tile's extents.
        writes: "" for reading only; "own" for the block's own tile, where indices count from 0; "full" for the tensor.
    """

    value: Value
    shape: tuple[int, ...]
    padding: str = "zero"
    order: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None
    writes: str = ""


@dataclass(frozen=True)
class WindowRef(PartitionRef):
    """Windows whose first one does not begin at element 0.

    Attributes:
        starts: the first element of the first window, in the order of the tile's axes; negative before the tensor.
    """

    starts: tuple[int, ...] = ()


@dataclass(frozen=True)
class TensorParts:
    """A tensor or partition as a loop carries it: as scalars; see `tensor_parts.py`.

    Attributes:
        form: the `tensor_parts.Form`, with the constants of its type.
        template: the tensor or partition in whose place it stands.
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
    """The index of a tile that this block alone writes; a stream has minted it.

    Attributes:
        stream: the `mapped._Stream` that minted it.
        owners: the mapped partitions that it indexes.
        coordinates: one per axis; None along axes that are owned whole.
    """

    stream: Any
    owners: tuple[Value, ...]
    coordinates: tuple[Value | None, ...]


@dataclass(frozen=True, eq=False)
class IndexComponent:
    """A minted index along one axis; usable wherever an integer is.

    `parent` is the index that it is a component of; None along an owned axis.
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
    """A token; all are alike, since accesses of a tile block stay in program order."""


TOKEN = TokenRef()
"""The one token."""


@dataclass(frozen=True)
class Method:
    """A method of a tile, tensor or partition, bound to it."""

    owner: Any
    name: str


@dataclass(frozen=True, eq=False)
class BoundFunction:
    """A method of a dataclass or named tuple, with the object as its first argument."""

    function: types.FunctionType
    owner: Any


@dataclass(frozen=True)
class Range:
    """`range(...)`; bounds are integers or scalars."""

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


class Keywords(Table):
    """The arguments in a function's `**keywords`."""


@dataclass(frozen=True)
class Undefined:
    """A variable that has no value here.

    Attributes:
        why: the reason, for the error of a use.
        conflict: whether it has a value on every path, of different types.
        places: the assignments, for the same error.
        late: the loop that could pass it on; a use compiles the kernel again (`frame.PassOn`).
        hidden: the value that a loop carries for the variable. It is right on the paths on which the variable has one.
    """

    why: str
    conflict: bool = False
    places: tuple[tuple[str, Location], ...] = ()
    late: ast.AST | None = None
    hidden: Any = None


class Faulty:
    """A variable whose assignment failed; errors of its uses are not reported."""


FAULTY = Faulty()


def items_of(value: Any) -> tuple[Any, ...]:
    """A tuple, typed for items of any kind."""
    return tuple(value)


class ListItems(tuple[Any, ...]):
    """A list's items, with the frames and names, and the containers, that hold it.

    Nothing in a kernel changes. Python's `+=` changes a list under all of its names, so it is refused if there are
    several.
    """

    def __init__(self, _items: Iterable[Any] = (), /) -> None:
        self.holders: set[tuple[int, str]] = set()


def hold_items(items: Iterable[Any], container: object) -> None:
    """Note that a container holds the lists among its items."""
    for item in items:
        if isinstance(item, ListItems):
            item.holders.add((id(container), "an item"))


class IteratorItems(tuple[Any, ...]):
    """The items of an iterator: of a generator, `zip`, `enumerate`, `reversed`.

    Python can go through it only once.

    Attributes:
        origin: the frame that made it, and the loop around that place.
        used: the place that went through it; None if there was none yet.
    """

    origin: tuple[Any, Any] = (None, None)
    used: Any = None


def plain(value: Any) -> Any:
    """The integer of an index's component; any other value unchanged."""
    return value.value if isinstance(value, IndexComponent) else value


def is_tile(value: Any) -> TypeGuard[Value]:
    """Whether `value` is a tile (or scalar) known only when the kernel runs."""
    return isinstance(value, Value) and isinstance(value.type, TileType)


IN_MEMORY = (TensorRef, MutRef, MappedRef, PartitionRef, PointerRef)
"""Classes of values that stand for memory. Their elements have to be loaded before they are compared."""


def _of_partition(ref: PartitionRef) -> str:
    kind = {"": "partition", "own": "nested partition", "full": "partition of the whole tensor"}[ref.writes]
    return f"{kind} into tiles of {ref.shape}"


def _of_tuple(items: tuple[Any, ...]) -> str:
    # A `TensorRef` beside numbers would be shown as the dataclass that it is.
    if not any(isinstance(item, Value | Record | tuple | Described) or is_dataclass(item) for item in items):
        kind = "tuple" if isinstance(items, ListItems | IteratorItems) else type(items).__name__
        return f"{kind} {items!r}"
    return f"tuple ({', '.join([*map(describe, items[:4]), *(['...'] if len(items) > 4 else [])])})"


_DESCRIPTIONS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Value, lambda of: ("scalar " if isinstance(of.type, TileType) and of.type.is_scalar else "tile ") + str(of.type)),
    (SharedRef, lambda ref: f"SharedMut of {ref.value.tensor.dtype} with {ref.value.tensor.rank} axes"),
    (TensorRef, lambda ref: f"tensor of {ref.value.tensor.dtype} with {ref.value.tensor.rank} axes"),
    (MutRef, lambda ref: f"Mut of {ref.value.mut.dtype} with tiles of {ref.value.mut.tile}"),
    (PartitionRef, _of_partition),
    (MappedRef, lambda ref: f"mapped partition of {ref.value.mut.dtype} with tiles of {ref.value.mut.tile}"),
    (PartitionIndex, lambda index: "index minted by " + " and ".join(repr(owner.name) for owner in index.owners)),
    (IndexComponent, lambda of: f"component along axis {of.axis} of an index of {of.owners[0].name!r}"),
    (PointerRef, lambda ref: f"pointers to {ref.dtype} of shape {ref.value.tile.shape}"),
    (TokenRef, lambda _: "token"),
    (Method, lambda method: f"method {method.name!r}"),
    (BoundFunction, lambda bound: f"method {bound.function.__name__!r}"),
    (Keywords, lambda keywords: f"keywords ({', '.join(keywords.items) or 'none'})"),
    (Table, lambda table: f"dict of {', '.join(map(repr, table.items)) or 'nothing'}"),
    (Undefined, lambda _: "undefined variable"),
    (Range, lambda bounds: f"range({', '.join(map(describe, (bounds.start, bounds.stop, bounds.step)))})"),
    (Record, lambda record: f"{record.kind.__name__}({', '.join(map(describe, record.items))})"),
    (tuple, _of_tuple),
    (DTypeMeta, lambda dtype: f"dtype {dtype!r}"),
    (type, lambda kind: f"class {kind.__name__}"),
    (types.FunctionType, lambda function: f"function {function.__name__!r}"),
    (types.ModuleType, lambda module: f"module {module.__name__!r}"),
    (DeviceVariable, lambda variable: f"variable of {variable.dtype}"),
    (Described, lambda value: value.description),
    (object, lambda value: f"{type(value).__name__} {as_text(value)}"),
)
"""Descriptions by kind; the first kind that matches counts, so that subclasses stand before their bases."""


def describe(value: Any) -> str:
    """A short description for errors."""
    return next(text(value) for kind, text in _DESCRIPTIONS if isinstance(value, kind))


def noun(value: Any) -> str:
    """What errors call a tile: `tile`, `scalar`, or `scalar 'n'` by its name."""
    if not value.tile.is_scalar:
        return "tile"
    return f"scalar {value.name!r}" if value.name.isidentifier() else "scalar"


def converted(value: Any, dtype: str, name: str = "tile") -> str:
    """How a kernel converts a value: `ct.f32(n)`, `ct.convert_tile(tile, ct.f32)`."""
    if not value.tile.is_scalar:
        return f"ct.convert_tile({name}, ct.{dtype})"
    return f"ct.{dtype}({value.name if value.name.isidentifier() else 'x'})"


def shift_for_power(base: Any, exponent: Any) -> str:
    """The remedy for integers in place of `2 ** n`; empty for other bases."""
    if not isinstance(base, int) or base < 2 or base & (base - 1) or not is_tile(exponent):
        return ""
    name = exponent.name if exponent.name.isidentifier() else "exponent"
    bits = base.bit_length() - 1
    return f"Shift in place of it: 1 << {name}." if bits == 1 else f"Shift in place of it: 1 << {bits} * {name}."


def meeting(first: Value, second: Value, weak: bool) -> str:
    """The remedy where dtypes meet: convert to the dtype that loses least.

    Floats come before integers, and more bits before fewer. But the author chose no dtype for a `weak` second value: of
    two integers, it takes the first one's dtype.
    """
    if weak and first.tile.dtype.is_integer and second.tile.dtype.is_integer:
        dtype = first.tile.dtype.name
        number = f"ct.{dtype}(number)" if second.tile.is_scalar else converted(second, dtype)
        return f"{dtype} may not hold this plain number. Convert it: {number}."
    low, high = sorted(
        (first, second),
        key=lambda each: (each.tile.dtype.kind == "float", each.tile.dtype.kind != "bool", each.tile.dtype.bits),
    )
    a, b = low.tile.dtype, high.tile.dtype
    # Of equal kinds and widths, neither is the one to convert.
    name = "one" if a.kind == b.kind and a.bits == b.bits else f"the tile of {a}"
    return f"Convert {f'the {noun(low)}' if low.tile.is_scalar else name}: {converted(low, b.__name__)}."


def to_tile(value: Any) -> str:
    """The remedy where a tile was expected: how to get one from `value`."""
    if isinstance(value, TensorRef):
        return "Load a tile of it first: x.load_tile(shape, index), or ct.load_tile_like(x, y)."
    if isinstance(value, MutRef):
        return "Load this block's tile first: y.load()."
    if isinstance(value, PartitionRef):
        return "Load one of its tiles first: part.load(index)."
    if isinstance(value, tuple):
        return "It is a tuple: take an item of it, or unpack it."
    if isinstance(value, Range):
        return "A range is for loops: compare with its bounds, or make a tuple of constants, tuple(range(3))."
    if isinstance(value, enum.Enum):
        return "It is no number: take its .value, or have Python combine members, ct.static_eval(Flags.A | Flags.B)."
    if isinstance(value, Method) or callable(value):
        return "Call it: the parentheses are missing."
    if value is None:
        return "A function without `return` gives None: return the tile. To ask for None, write `is None`."
    if isinstance(value, DeviceVariable):
        return "Load its value first: value, _ = g.load()."
    if isinstance(value, str):
        return "Text is for print, whose f-strings format values."
    return "Operators take tiles, and numbers, strings and tuples that are known now."


_MOVES = (Broadcast, Reshape, Permute)
_ROUND_ALIKE = (*_MOVES, Select, Neg, Abs, Max, Min)
"""Operations that may be exchanged with rounding to nearest: both orders give the same number."""

_KEEP_BARE = (*_ROUND_ALIKE, Add, Sub, Mul, Div)
"""Operations whose result is bare if their operands are."""


@dataclass(frozen=True)
class _Choice:
    """One of two numbers; an `if` chooses it when the kernel runs."""

    condition: Value
    then: float
    orelse: float


class Bare:
    """Bare floats: f32 values of Python's floats, whose dtype nobody wrote.

    A conversion to another dtype does not convert the f32. It rounds the numbers as they were written, once:
    `ct.broadcast(math.pi, shape).astype(ct.f64)` is pi to 53 bits. A conversion to f64 also repeats the arithmetic on
    bare floats in f64. Conversions to other dtypes take the result in f32.
    """

    def __init__(self) -> None:
        self._origins: dict[Value, Op | _Choice] = {}

    def note(self, op: Op, value: Value) -> None:
        """Note the value that `op` made of a number or a weak integer."""
        self._origins[value] = op

    def note_choice(self, condition: Value, sides: tuple[Any, Any], value: Value) -> None:
        """Note the result of an `if` whose sides give numbers that are known now."""
        then, orelse = map(self._number, sides)
        if _is_f32(value) and then is not None and orelse is not None:
            self._origins[value] = _Choice(condition, then, orelse)

    def _number(self, side: Any) -> float | None:
        """A side of an `if` as a number; None if it is none, or not known now."""
        origin = self._origins.get(side) if isinstance(side, Value) else side
        number: Any = origin.value if isinstance(origin, Constant) else origin
        return float(number) if type(number) in (int, float) else None

    def follow(self, op: Op, value: Value) -> None:
        """Note the result of an operation whose float operands are all bare."""
        if self._origins and isinstance(op, _KEEP_BARE) and _is_f32(value):
            floats = [each for each in op.operands if _is_f32(each)]
            if floats and all(each in self._origins for each in floats):
                self._origins[value] = op

    def converted(self, conversion: Convert, emit: Callable[[Op], Value]) -> Value | None:
        """The conversion of a bare float, rounded once.

        None for any other value, and for arithmetic that is rounded to f32.
        """
        if conversion.x not in self._origins or not self._rounds_once(conversion.x, conversion, {}):
            return None
        return self._anew(conversion.x, conversion, emit, {})

    def _rounds_once(self, value: Value, conversion: Convert, answers: dict[Value, bool]) -> bool:
        """Whether the numbers that a bare float is made of may be converted in its place.

        Args:
            value: the bare float.
            conversion: its conversion.
            answers: the answers so far, by value.
        """
        if value not in answers:
            dtype, op = conversion.dtype, self._origins[value]
            if isinstance(op, Constant):
                answers[value] = dtype is not f4e2m1fnx2  # `Convert` refuses a dtype of pairs, and names f32
            elif isinstance(op, _Choice):
                answers[value] = dtype.computes
            elif isinstance(op, Convert):
                answers[value] = dtype.is_float  # an integer of another width would take the low bits
            else:
                # A directed rounding gives another number after a change of sign than before it. Dtypes that are only
                # stored have no arithmetic.
                is_alike = dtype.is_float and dtype.computes and conversion.rounding is None
                kinds = _KEEP_BARE if dtype is f64 else _ROUND_ALIKE if is_alike else _MOVES
                floats = filter(_is_f32, op.operands)
                answers[value] = isinstance(op, kinds) and all(
                    self._rounds_once(operand, conversion, answers) for operand in floats
                )
        return answers[value]

    def _anew(
        self, value: Value, conversion: Convert, emit: Callable[[Op], Value], values: dict[Value, Value]
    ) -> Value:
        """A bare float in the conversion's dtype, computed from the numbers as written."""
        if value not in values:
            dtype, rounding, op = conversion.dtype, conversion.rounding, self._origins[value]
            if isinstance(op, Constant):
                values[value] = _rounded(Constant(value=op.value, dtype=f64, shape=op.shape), conversion, emit)
            elif isinstance(op, _Choice):
                numbers = (Constant(value=number, dtype=f64, shape=()) for number in (op.then, op.orelse))
                then, orelse = (_rounded(number, conversion, emit) for number in numbers)
                values[value] = emit(Select(condition=op.condition, x=then, y=orelse))
            elif isinstance(op, Convert):
                values[value] = emit(Convert(x=op.x, dtype=dtype, rounding=rounding))
            else:
                # Operands that are not f32, such as a condition, stay as they are.
                operands = [self._anew(x, conversion, emit, values) if _is_f32(x) else x for x in op.operands]
                values[value] = emit(op.copy_with(operands, (), ()))
        return values[value]

    def becomes(self, value: Value, dtype: DTypeLike) -> bool:
        """Whether a value is a bare float that may become an f64."""
        return dtype is f64 and value in self._origins


def _rounded(number: Constant, conversion: Convert, emit: Callable[[Op], Value]) -> Value:
    """A number of f64, converted."""
    exact = emit(number)
    if conversion.dtype is f64:
        return exact
    return emit(Convert(x=exact, dtype=conversion.dtype, rounding=conversion.rounding))


def _is_f32(value: Value) -> bool:
    return isinstance(value.type, TileType) and value.type.dtype is f32
