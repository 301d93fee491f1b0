"""Live objects: the values of a kernel's names while it runs as plain Python.

`EagerBuilder` runs operations as they are built; their results carry arrays. A `LiveTile` is a tile with its array. A
`LiveObject` is any other object of the language, such as a tensor or a partition. Both hold the front end's value of
the object, its `_meaning`, and hand operators, methods and attributes to the front end.
"""

from __future__ import annotations

import ast
import inspect
import operator
import types
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cutile.backend.interface import Grid
from cutile.backend.reference.interpret import Walker
from cutile.dtypes import f64
from cutile.errors import ArgumentTypeError
from cutile.frontend.values import IteratorItems, ListItems, Method, Range, describe, plain
from cutile.interpreter.watch import Watch
from cutile.ir import Block, Builder, Op, TileType, Type, Value
from cutile.ops.debug import percent_format, text_of
from cutile.tile import Tile

if TYPE_CHECKING:
    from cutile.interpreter.session import Session

Array = np.ndarray[Any, Any]


class EagerValue(Value):
    """A value of the IR that has been computed: it holds its array."""

    __slots__ = ("array",)

    def __init__(self, type: Type, array: Array, name: str = "") -> None:
        super().__init__(type, name)
        self.array = array


class _Arrays(MutableMapping[Value, Array]):
    """The arrays of values, for the walker.

    An eager value holds its own array. Here are the arrays of values inside the regions of operations.
    """

    def __init__(self) -> None:
        self._inside: dict[Value, Array] = {}

    def __getitem__(self, value: Value) -> Array:
        return value.array if isinstance(value, EagerValue) else self._inside[value]

    def __setitem__(self, value: Value, array: Array) -> None:
        self._inside[value] = array

    def __delitem__(self, value: Value) -> None:
        del self._inside[value]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._inside)

    def __len__(self) -> int:
        return len(self._inside)


class EagerBuilder(Builder):
    """Runs the operations of one tile block as they are built.

    Operations inside a region are only built. They run when the operation that has the region is added.
    """

    def __init__(self, parameters: Block, index: Grid, grid: Grid, watch: Watch | None) -> None:
        super().__init__(parameters)
        self._walker = Walker(_Arrays(), index, grid)
        self._watch = watch

    def add(self, op: Op, name: str = "") -> Op:
        """Check `op`, and run it unless it is inside a region.

        Raises:
            KernelTypeError: the operands do not fit.
        """
        if len(self.open_blocks) > 1:
            return super().add(op, name)
        op.check()
        types = op.infer()
        op.location = op.location or self.location
        if self._watch is not None:
            self._watch.before(op, self._walker)
        arrays = self._walker.operation(op)
        op.results = tuple(EagerValue(type, array, name) for type, array in zip(types, arrays, strict=True))
        if self._watch is not None:
            self._watch.after(op, self._walker)
        return op

    def reach(self, tensor: Value, index: Sequence[Value], mask: Value | None, what: str, *, every: bool) -> None:
        """Check the indices of an access of elements.

        Args:
            tensor: the tensor.
            index: one tile of integers for each axis.
            mask: bools, where the access takes place; None for everywhere.
            what: the access, for messages.
            every: whether every index must be in the tensor; if not, one is enough.

        Raises:
            OutOfBoundsError: not every index is in the tensor, or none is.
        """
        if self._watch is None or len(self.open_blocks) > 1:  # values in a region have no arrays yet
            return
        values = self._walker.values
        active = None if mask is None else values[mask]
        places = [values[each] for each in index]
        self._watch.reach(tensor.name, values[tensor].shape, places, active, what, every=every, place=self.location)


class LiveObject:
    """Any object of the language but a tile: a tensor, a partition, pointers, a token.

    It has operators as well: pointers have `+`, and a component of a minted index is an integer.
    """

    __hash__ = object.__hash__

    def __init__(self, session: Session, meaning: Any) -> None:
        self._session = session
        self._meaning = meaning

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python, such as copying, which the language does not have
            raise AttributeError(name)
        return self._session.attribute(self._meaning, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.call_value(self._meaning, args, kwargs)

    def __iter__(self) -> Iterator[Any]:
        yield from self._session.iterate(self._meaning)

    def __bool__(self) -> bool:
        return self._session.truth(self._meaning)

    def __format__(self, spec: str) -> str:
        number = plain(self._meaning)
        return repr(self) if number is self._meaning else format(to_live(self._session, number), spec)

    def __str__(self) -> str:
        return format(self, "")

    def __repr__(self) -> str:
        return f"<{describe(self._meaning)}>"


class LiveTile(Tile):
    """A tile that holds its elements, and prints as NumPy prints them.

    Attributes:
        array: the elements; read only.
    """

    def __init__(self, session: Session, value: EagerValue) -> None:
        self._session = session
        self._meaning = value

    @property
    def array(self) -> Array:
        """The elements, as an array of NumPy that is read only."""
        view = self._meaning.array.view()
        view.flags.writeable = False
        return view

    def __getattribute__(self, name: str) -> Any:
        # Not `__getattr__`: Python would find the stubs of `Tile` first, but the front end has their meaning.
        if name.startswith("_") or name == "array":
            return object.__getattribute__(self, name)
        return object.__getattribute__(self, "_session").attribute(object.__getattribute__(self, "_meaning"), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype, copy=copy)

    def _scalar(self, what: str) -> Any:
        if not self._meaning.tile.is_scalar:
            raise ArgumentTypeError(f"{what} of a tile of shape {self._meaning.tile.shape}: reduce it first")
        return self._meaning.array.item()

    def __bool__(self) -> bool:
        return bool(self._session.truth(self._meaning))

    def __getitem__(self, key: Any) -> Any:
        return self._session.brackets(self._meaning, key if isinstance(key, tuple) else (key,))  # pyright: ignore[reportUnknownArgumentType]

    def __iter__(self) -> Iterator[Any]:
        yield from self._session.iterate(self._meaning)

    def __index__(self) -> int:
        if not self._meaning.tile.dtype.is_integer:
            raise ArgumentTypeError(f"a scalar {self._meaning.tile.dtype} is no index")
        return int(self._scalar("an index"))

    def __int__(self) -> int:
        number = self._scalar("int()")
        dtype = self._meaning.tile.dtype
        if not dtype.is_bool and not dtype.is_integer:
            raise ArgumentTypeError(f"int() of a scalar of {dtype}: use ct.i32(x)")
        return int(number)

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __format__(self, spec: str) -> str:
        if not spec or self._meaning.tile.is_scalar:
            return format(self._scalar("a format") if spec else str(self), spec)
        dtype = self._meaning.tile.dtype
        if spec[-1] in "eEfgG" and dtype.is_integer:  # as Python does for an int
            return text_of(self.array.astype(np.float64), percent_format(spec, f64))
        return text_of(self.array, percent_format(spec, dtype))  # as compiled kernels print it

    def __str__(self) -> str:
        return str(self._meaning.array)

    def __repr__(self) -> str:
        tile = self._meaning.tile
        if tile.is_scalar:
            return f"{tile.dtype}({self._meaning.array})"
        return f"tile({np.array2string(self._meaning.array, separator=', ', prefix='tile(')}, {tile.dtype})"

    __hash__ = object.__hash__


def _has_own(value: Any, name: str) -> bool:
    """Whether an object's class, one of the author's, has a method for Python to call."""
    if isinstance(value, LiveTile | LiveObject):
        return False
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    return isinstance(inspect.getattr_static(kind, name, None), types.FunctionType)


def _forward(kind: type[ast.AST], name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        if not reflected and _has_own(other, f"__r{name}__"):
            return NotImplemented
        session = self._session  # pyright: ignore[reportPrivateUsage]
        return session.binary(kind, other, self) if reflected else session.binary(kind, self, other)

    return operator


def _compare(kind: type[ast.AST], exchanged: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        if _has_own(other, exchanged):
            return NotImplemented
        return self._session.comparison(kind, self, other)  # pyright: ignore[reportPrivateUsage]

    return operator


def _prefix(kind: type[ast.AST]) -> Callable[[Any], Any]:
    def operator(self: Any) -> Any:
        return self._session.unary(kind, self)  # pyright: ignore[reportPrivateUsage]

    return operator


_BINARY = {
    "add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "truediv": ast.Div, "floordiv": ast.FloorDiv, "mod": ast.Mod,
    "pow": ast.Pow, "and": ast.BitAnd, "or": ast.BitOr, "xor": ast.BitXor, "lshift": ast.LShift,
    "rshift": ast.RShift, "matmul": ast.MatMult,
}  # fmt: skip
_COMPARE = {"eq": ast.Eq, "ne": ast.NotEq, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE}
_EXCHANGED = {"lt": "__gt__", "le": "__ge__", "gt": "__lt__", "ge": "__le__"}
_PREFIX = {"neg": ast.USub, "pos": ast.UAdd, "invert": ast.Invert}

for _live in (LiveTile, LiveObject):
    for _name, _kind in _BINARY.items():
        setattr(_live, f"__{_name}__", _forward(_kind, _name, reflected=False))
        setattr(_live, f"__r{_name}__", _forward(_kind, _name, reflected=True))
    for _name, _kind in _COMPARE.items():
        setattr(_live, f"__{_name}__", _compare(_kind, _EXCHANGED.get(_name, "")))
    for _name, _kind in _PREFIX.items():
        setattr(_live, f"__{_name}__", _prefix(_kind))


class _Singleton(type):
    """Metaclass of a class that stands for True or False in patterns."""

    value: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, LiveTile):
            return instance._session.is_singleton(instance._meaning, cls.value)  # pyright: ignore[reportPrivateUsage]
        return instance is cls.value


class IsTrue(metaclass=_Singleton):
    """`case IsTrue():` in place of `case True:`.

    Python's pattern compares with the object True, and no live scalar is that object.
    """

    value = True


class IsFalse(metaclass=_Singleton):
    """`case IsFalse():` in place of `case False:`."""

    value = False


class _Kind(type):
    """Metaclass of a class that stands for a class of Python's in patterns."""

    python: type

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, LiveTile | LiveObject):
            return instance._session.is_instance(instance, cls.python)  # pyright: ignore[reportPrivateUsage]
        return isinstance(instance, cls.python)


# Each is a subclass of `int`, whatever it stands for: so the pattern `int(size)` binds the object itself.
KINDS = {each.__name__: _Kind(each.__name__, (int,), {"python": each}) for each in (bool, int, float)}
"""`case KINDS["int"]():` in place of `case int():`, for the classes that scalars may have."""


def holds(condition: Any) -> Any:
    """The condition of `assert`, which of a tile asks whether every element is true."""
    if isinstance(condition, LiveTile) and not condition._meaning.tile.is_scalar:  # pyright: ignore[reportPrivateUsage]
        return bool(condition.array.all())
    return condition


def is_same(left: Any, right: Any) -> bool:
    """`left is right`, which the front end refuses for tiles."""
    return _identity(ast.Is, left, right)


COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_BY_NAME = {kind.__name__: compare for kind, compare in COMPARISONS.items()}


def chained(left: Any, name: str, right: Callable[[], Any], *rest: Any) -> Any:
    """`left < right() < ...`; of tiles element by element, as in a compiled kernel."""
    middle = right()
    outcome = _BY_NAME[name](left, middle)
    if not rest:
        return outcome
    is_of_elements = isinstance(outcome, LiveTile) and not outcome._meaning.tile.is_scalar  # pyright: ignore[reportPrivateUsage]
    if is_of_elements:
        return outcome & chained(middle, *rest)
    return chained(middle, *rest) if outcome else outcome


def is_other(left: Any, right: Any) -> bool:
    """`left is not right`."""
    return _identity(ast.IsNot, left, right)


def _identity(kind: type[ast.AST], left: Any, right: Any) -> bool:
    tile = left if isinstance(left, LiveTile) else right
    if isinstance(tile, LiveTile):
        return tile._session.comparison(kind, left, right)  # pyright: ignore[reportPrivateUsage]
    return (left is right) == (kind is ast.Is)


def to_live(session: Session, meaning: Any) -> Any:
    """The live object for a value of the front end."""
    if isinstance(meaning, EagerValue) and isinstance(meaning.type, TileType):
        return LiveTile(session, meaning)
    if type(meaning) is tuple or isinstance(meaning, ListItems | IteratorItems):
        return tuple(to_live(session, each) for each in meaning)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(meaning, Method | Range) or type(meaning).__module__ == "cutile.frontend.values":
        return LiveObject(session, meaning)
    return meaning


def to_meaning(live: Any) -> Any:
    """The front end's value of a live object; other objects as they are."""
    if isinstance(live, LiveTile | LiveObject):
        return live._meaning  # pyright: ignore[reportPrivateUsage]
    if type(live) in (tuple, list):  # to the front end a list is a tuple
        return tuple(to_meaning(each) for each in live)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(live, types.FunctionType):
        return getattr(live, "of_python", live)
    if isinstance(live, np.generic):
        return live.item()  # pyright: ignore[reportUnknownVariableType]
    return live
