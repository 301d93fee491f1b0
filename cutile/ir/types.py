"""The types of IR values.

They are frozen, hashable, and printed in the form that `text.py` parses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from cutile.dtypes import DTypeLike, DTypeMeta

__all__ = (
    "MutType", "ResourceType", "TensorType", "TileType", "Type", "attribute_text",
)  # fmt: skip


def _extent(extent: int | None) -> str:
    return "?" if extent is None else str(extent)


def _list(items: tuple[int | None, ...]) -> str:
    return "[" + ", ".join(_extent(item) for item in items) + "]"


@dataclass(frozen=True)
class TileType:
    """A tile as a value of a kernel: a dtype and a shape, `()` for a scalar."""

    dtype: DTypeLike
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_scalar(self) -> bool:
        """Whether the shape is `()`."""
        return self.shape == ()

    def with_dtype(self, dtype: DTypeLike) -> TileType:
        """The same shape with another element type."""
        return TileType(dtype, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TileType:
        """The same element type with another shape."""
        return TileType(self.dtype, shape)

    def __str__(self) -> str:
        return self.dtype.name + ("<" + "x".join(map(str, self.shape)) + ">" if self.shape else "")


@dataclass(frozen=True)
class TensorType:
    """A tensor in memory, read by any tile block.

    Attributes:
        dtype: the element type.
        shape: extents; None is dynamic (a launch argument).
        strides: in elements; an integer is known at compile time, None is a launch argument.
        alignment: bytes that divide the base address and every stride that is not 1. The launch promises this. With
            16 it also promises that all strides are positive: TMA needs both.
        stable: whether nothing writes to it while the kernel runs; false for tensors that a kernel finds at an address.
    """

    dtype: DTypeLike
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    alignment: int
    stable: bool = True

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def unit_axis(self) -> int | None:
        """The axis whose stride is known to be 1 (the last such one), or None."""
        axes = [axis for axis, stride in enumerate(self.strides) if stride == 1]
        return axes[-1] if axes else None

    def describe(self) -> str:
        """The parts between the angle brackets."""
        text = f"{self.dtype.name}{_list(self.shape)}, strides {_list(self.strides)}, align {self.alignment}"
        return text if self.stable else text + ", unstable"

    def __str__(self) -> str:
        return f"tensor<{self.describe()}>"


@dataclass(frozen=True)
class MutType:
    """A tensor cut into tiles.

    Each tile block owns the tile at its own index, and alone reads and writes it.

    Attributes:
        tensor: the tensor.
        tile: the extents of a tile.
        map: None for a partition with one tile for each block. In a mapped partition each block owns a stream of
            tiles: `map` has the tiles of a group along each axis; 0 where a block owns the whole axis.
        exact: whether the launch's grid has a block for each tile; else it may have fewer along each axis.
    """

    tensor: TensorType
    tile: tuple[int, ...]
    map: tuple[int, ...] | None = None
    exact: bool = True

    @property
    def dtype(self) -> DTypeLike:
        """The element type."""
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self.tensor.rank

    @property
    def tells_grid(self) -> bool:
        """Whether a launch's grid has as many blocks along each axis as there are tiles."""
        return self.map is None and self.exact

    @property
    def tile_type(self) -> TileType:
        """The type of the block's own tile."""
        return TileType(self.tensor.dtype, self.tile)

    def __str__(self) -> str:
        mapped = "" if self.map is None else f", map {_list(self.map)}"
        return f"mut<{self.tensor.describe()}, tile {_list(self.tile)}{mapped}{'' if self.exact else ', prefix'}>"


@dataclass(frozen=True)
class ResourceType:
    """The type of a resource: a buffer, a pipeline of barriers.

    Only the lowered IR of a backend has resources. A subclass is a frozen dataclass of printable attributes. It gives
    its `head`, by which it is printed and parsed.

    Attributes:
        head: the word before the angle brackets.
        by_head: the subclasses, by their heads.
    """

    head: ClassVar[str] = ""
    by_head: ClassVar[dict[str, type[ResourceType]]] = {}

    def __init_subclass__(cls, head: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.head = head
        ResourceType.by_head[head] = cls

    def __str__(self) -> str:
        parts = (f"{field.name} = {attribute_text(getattr(self, field.name))}" for field in fields(self))
        return f"{self.head}<{', '.join(parts)}>"


def attribute_text(value: Any) -> str:
    """A compile-time fact as `text.py` parses it.

    A number, a string, a dtype, or a list of these.
    """
    if isinstance(value, tuple | list):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return "[" + ", ".join(map(attribute_text, items)) + "]"
    if isinstance(value, DTypeMeta):
        return "!" + repr(value)
    plain: Any
    for plain in (int, float, str):
        if isinstance(value, plain) and not isinstance(value, bool):
            return plain.__repr__(value)  # a member of an enum of numbers is printed as its number
    return repr(value)


Type = TileType | TensorType | MutType | ResourceType
