"""Facts that kernels are specialized by: tensors' layout classes, and constants.

A tensor counts by its layout class, and by its extents where the signature asks for them. Layout classes are interned:
equal ones are the same object, so that they compare and hash by identity in the key that every launch looks up.

A kernel is compiled for the values of constants. In Python `1 == 1.0 == True` and `0.0 == -0.0`, but these are
different constants: keys tell them apart by their types and texts.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from cutile.dtypes import DType, DTypeLike, DTypeMeta, as_dtype
from cutile.errors import GenericsError
from cutile.frontend.captures import GIVE_FIELD_A_VALUE, field_without_value, is_frozen
from cutile.ops.memory import MAX_EXTENT

_PLAIN = (bool, int, float, str, types.NoneType, enum.Enum, DTypeMeta, types.FunctionType, types.BuiltinFunctionType)


def constant(value: Any, kinds: tuple[type, ...], what: str) -> Any:
    """A constant as a kernel sees it.

    NumPy's numbers become Python's, lists become tuples.

    Args:
        value: a bool, int, float, string, enum, dtype, function or None, a tuple or a frozen dataclass of them.
        kinds: the types that it may have; empty for any.
        what: its name in errors: "k: generic 'MODE'".

    Raises:
        GenericsError: it is no constant, or of another type.
    """
    value = _plain(value, what)
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise GenericsError(f"{what} must be {_article(names)}{names}, got {value!r}")
    return value


def _plain(value: Any, what: str) -> Any:
    """`constant`, for a value of any type that constants may have."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(cast("object", value), np.generic):
        value = value.item()  # of a longdouble it is a longdouble
        if isinstance(value, _PLAIN):
            return value
    if isinstance(value, tuple | list):
        items = [_plain(each, what) for each in value]  # pyright: ignore[reportUnknownVariableType]
        make: Any = getattr(value, "_make", None)  # pyright: ignore[reportUnknownArgumentType]
        return tuple(items) if make is None else make(items)
    if is_frozen(value):
        absent = field_without_value(value)
        if absent is not None:
            raise GenericsError(
                f"{what} is a {type(value).__name__} whose field {absent!r} has no value, and must be a constant; "
                f"{GIVE_FIELD_A_VALUE[0].lower()}{GIVE_FIELD_A_VALUE[1:-1]}"
            )
        for field in dataclasses.fields(value):
            _plain(getattr(value, field.name), f"{what}: its field {field.name!r}")  # for its error alone
        return value
    raise GenericsError(
        f"{what} must be a constant (a bool, int, float, string, enum, dtype, function or None, a tuple or a frozen "
        f"dataclass of them), got {type(value).__name__}: {value!r}{_instead_of(value)}"
    )


def _instead_of(value: Any) -> str:
    """The remedy for a type or function of another library, after a semicolon."""
    from cutile.frontend import elsewhere  # here, since it imports the whole language, and errors alone need it

    try:
        return f"; give ct.{as_dtype(value).__name__}"
    except (TypeError, ValueError):
        remedy = elsewhere.for_function(value) if callable(value) else None
    if remedy is None:
        return ""
    name = remedy.removeprefix("Write ct.").removesuffix(", the language's own.")
    return f"; give ct.{name}" if name.isidentifier() else f"; {remedy[0].lower()}{remedy[1:].removesuffix('.')}"


def _is_a(value: Any, kind: type) -> bool:
    if kind is DType:
        return isinstance(value, DTypeMeta)
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)  # an int is a float, as for type checkers
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def _article(names: str) -> str:
    return "" if names.startswith("None") else "an " if names[0] in "aeiou" else "a "


def constant_key(value: Any) -> Hashable:
    """A key that two constants share exactly if one kernel serves both."""
    if type(value) is int or isinstance(value, str | types.NoneType | DTypeMeta | types.FunctionType):
        return value
    if isinstance(value, enum.Enum):
        return type(value), value.name  # members of an IntEnum are equal to ints
    if isinstance(value, bool | float):
        return type(value), repr(value)
    if isinstance(value, list):
        value = tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, tuple):
        return type(value), *map(constant_key, value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if is_frozen(value):
        return type(value), *(constant_key(getattr(value, field.name)) for field in dataclasses.fields(value))  # pyright: ignore[reportUnknownVariableType]
    return value


def generics_key(generics: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """The values of generics, as part of a key."""
    # Most are ints, for which each launch is spared the call.
    return tuple((name, value if type(value) is int else constant_key(value)) for name, value in generics.items())


WIDEST = 16  # bytes; the widest access of a thread
ALIGNMENT_WITHOUT_TMA = 8
"""Bytes: the alignment that a class states for a tensor that is aligned to `WIDEST`, but must not be copied by TMA. TMA
copies tensors of alignment `WIDEST` alone; of others, threads load eight bytes at a time. There are two such cases. A
stride of 0: TMA is not known to take it. A result whose rows do not end at a multiple of `WIDEST`: TMA writes beyond
the end (seen on an H200: of 27 columns of f16 in wider rows it wrote 32)."""


class LayoutClass:
    """An element type, the axis of stride 1, an alignment, and for a `Mut` the tile.

    Made by `layout_class`, or by another class's `tiled`: nowhere else, since classes compare by identity.

    Attributes:
        dtype: the element type.
        strides: 1 on at most one axis; None on the others, whose strides are launch arguments.
        alignment: bytes that divide the address and the strides that are not 1: 16, 8, or an element's size. With 16,
            no stride is negative.
        tile: the partition's shape for a `Mut` parameter, else None.
        map: the map of a mapped partition, else None.
        exact: whether a launch's grid is the partition's own.
        empty: the axes without elements.
    """

    __slots__ = ("_tiled", "alignment", "dtype", "empty", "exact", "map", "strides", "tile")

    def __init__(
        self,
        dtype: DTypeLike,
        strides: tuple[int | None, ...],
        alignment: int,
        tile: tuple[int, ...] | None = None,
        map: tuple[int, ...] | None = None,
        exact: bool = True,
        empty: tuple[int, ...] = (),
    ) -> None:
        self.dtype = dtype
        self.strides = strides
        self.alignment = alignment
        self.tile = tile
        self.map = map
        self.exact = exact
        self.empty = empty
        self._tiled: dict[tuple[int, tuple[int, ...], tuple[int, ...] | None, bool], LayoutClass] = {}

    def tiled(
        self, shape: tuple[int, ...], tile: tuple[int, ...], map: tuple[int, ...] | None = None, exact: bool = True
    ) -> LayoutClass:
        """The class of a partition by `tile` of a tensor of this class and this shape."""
        alignment = self.alignment
        if alignment == WIDEST and len(shape) > 1 and 1 in self.strides:
            row = shape[self.strides.index(1)] * self.dtype.bits // 8
            alignment = max(self.dtype.bits // 8, ALIGNMENT_WITHOUT_TMA) if row % WIDEST else WIDEST
        key = (alignment, tile, map, exact)
        layout = self._tiled.get(key)
        if layout is None:  # `setdefault`: of two threads both return the first one's
            layout = self._tiled.setdefault(key, LayoutClass(self.dtype, self.strides, *key, self.empty))
        return layout

    def __repr__(self) -> str:
        return f"<LayoutClass {self.dtype} strides {self.strides} align {self.alignment} tile {self.tile}>"


class TensorFacts(NamedTuple):
    """A tensor argument as specialization sees it."""

    layout: LayoutClass
    shape: tuple[int, ...]


class PointerFacts(NamedTuple):
    """A pointer argument that knows the dtype of its elements."""

    dtype: DTypeLike


Fact = TensorFacts | PointerFacts | None
"""A tensor's or pointer's facts; None for a scalar, whose type the signature and the generics decide."""

_classes: dict[tuple[DTypeLike, tuple[int | None, ...], int, bool, tuple[int, ...]], LayoutClass] = {}


def layout_class(dtype: DTypeLike, shape: tuple[int, ...], strides: tuple[int, ...], address: int) -> LayoutClass:
    """The class of a tensor in memory.

    The stride of an axis with one element does not count.

    Args:
        dtype: the element type.
        shape: the extents.
        strides: the strides, in elements.
        address: the address of the element of index 0.
    """
    size = dtype.bits // 8
    last = len(shape) - 1
    unit = None
    for axis in range(last, -1, -1):
        # An extent of 1 counts as stride 1 on the last axis alone, so that a column vector has the layout of a
        # row-major matrix.
        if strides[axis] == 1 or (axis == last and shape[axis] == 1):
            unit = axis
            break
    # A negative stride counts as not aligned: TMA only steps forwards.
    aligned = address % WIDEST == 0 and all(
        extent == 1 or axis == unit or (stride >= 0 and stride * size % WIDEST == 0)
        for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True))
    )
    repeated = any(extent > 1 and stride == 0 for extent, stride in zip(shape, strides, strict=True))
    alignment = (max(size, ALIGNMENT_WITHOUT_TMA) if repeated else WIDEST) if aligned else size
    unit_stride = tuple(1 if axis == unit else None for axis in range(len(shape)))
    # A tensor that is too long for a launch has a class of its own, so that no launch takes it for one that was
    # checked. A tensor without elements has kernels of its own: others assume at least one along each axis.
    too_long = max(shape, default=1) > MAX_EXTENT
    empty = tuple(axis for axis, extent in enumerate(shape) if extent == 0)
    key = (dtype, unit_stride, alignment, too_long, empty)
    return _classes.get(key) or _classes.setdefault(key, LayoutClass(*key[:3], empty=empty))
