"""Live objects: what a kernel's names hold while it runs as plain Python.

A `LiveTile` is a tile with its array: operators, methods and attributes are the language's. Tensors, partitions and
whatever else the language has are `LiveObject`s. Both go to the front end, which knows what each may be asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from cutile.dtypes import f64
from cutile.errors import ArgumentTypeError
from cutile.frontend.values import Method, Range, describe, plain
from cutile.interpreter.eager import EagerValue
from cutile.ir.types import TileType
from cutile.ops.debug import percent_format, text_of
from cutile.tile import Tile

if TYPE_CHECKING:
    from cutile.interpreter.session import Session

Array = np.ndarray[Any, Any]


class LiveObject:
    """A tensor, a partition, pointers, a token....

    Anything of the language that is not a tile.

    Operators ask the front end, too: pointers move by `+`, a component of an index is an integer.
    """

    __hash__ = object.__hash__

    def __init__(self, session: Session, meaning: Any) -> None:
        self._session = session
        self._meaning = meaning

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
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
    """A tile that holds its elements; prints as NumPy prints them.

    Attributes:
        array: the elements; not to be written to.
    """

    def __init__(self, session: Session, value: EagerValue) -> None:
        self._session = session
        self._meaning = value

    @property
    def array(self) -> Array:
        """The elements as NumPy has them."""
        view = self._meaning.array.view()
        view.flags.writeable = False
        return view

    def __getattribute__(self, name: str) -> Any:
        # The methods and facts of `Tile` are stubs on the class: what they mean, the front end says.
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

    def __format__(self, spec: str) -> str:
        if not spec or self._meaning.tile.is_scalar:
            return format(self._scalar("a format") if spec else str(self), spec)
        dtype = self._meaning.tile.dtype
        if spec[-1] in "eEfgG" and dtype.is_integer:
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


def _forward(kind: type[ast.AST], reflected: bool) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        session = self._session  # pyright: ignore[reportPrivateUsage]
        return session.binary(kind, other, self) if reflected else session.binary(kind, self, other)

    return operator


def _compare(kind: type[ast.AST]) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
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
_PREFIX = {"neg": ast.USub, "pos": ast.UAdd, "invert": ast.Invert}

for _live in (LiveTile, LiveObject):
    for _name, _kind in _BINARY.items():
        setattr(_live, f"__{_name}__", _forward(_kind, reflected=False))
        setattr(_live, f"__r{_name}__", _forward(_kind, reflected=True))
    for _name, _kind in _COMPARE.items():
        setattr(_live, f"__{_name}__", _compare(_kind))
    for _name, _kind in _PREFIX.items():
        setattr(_live, f"__{_name}__", _prefix(_kind))


def to_live(session: Session, meaning: Any) -> Any:
    """What the kernel's author sees of what the front end made."""
    if isinstance(meaning, EagerValue) and isinstance(meaning.type, TileType):
        return LiveTile(session, meaning)
    if isinstance(meaning, Range):
        return session.iterate(meaning)
    if type(meaning) is tuple:
        return tuple(to_live(session, each) for each in meaning)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(meaning, Method) or type(meaning).__module__ == "cutile.frontend.values":
        return LiveObject(session, meaning)
    return meaning


def to_meaning(live: Any) -> Any:
    """What the front end sees of what the kernel's author holds."""
    if isinstance(live, LiveTile | LiveObject):
        return live._meaning  # pyright: ignore[reportPrivateUsage]
    if type(live) in (tuple, list):  # a kernel has tuples only, however they are written
        return tuple(to_meaning(each) for each in live)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(live, np.generic):
        return live.item()  # pyright: ignore[reportUnknownVariableType]
    return live
