"""What a launch needs to know of a tensor, and how an object says that it is one.

An object that may be passed to a `Tensor` parameter has `__kernel_input__`, one for a `Mut` parameter
`__kernel_output__`. The op gives back the same object. One that stands in for another may have `__kernel_give_back__`,
which is called when an op that was given it will not run. Views are made once and kept by their owners, so that a
launch computes nothing about a tensor that was not computed before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from cuda_async import Storage
from cutile.compile.facts import LayoutClass, TensorFacts, layout_class
from cutile.dtypes import DTypeLike

if TYPE_CHECKING:
    from cutile.launch.open_tiles import OpenTiledView

Grid = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class View:
    """Elements in memory. Not to be changed once made.

    Attributes:
        storage: the memory, which orders its users.
        offset: bytes from its start to the first element.
        dtype: the element type.
        shape: extents, each at least 1.
        strides: in elements, one per axis; 0 repeats (read-only views), negative runs backwards.
        layout: what specialization may know of it.
        address: the address of the first element (the one at index 0 of every axis).
        start, stop: the first byte, and the one after the last, that any element occupies, from the storage's start.
    """

    writes: ClassVar[bool] = False

    storage: Storage
    offset: int
    dtype: DTypeLike
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    layout: LayoutClass = field(init=False, repr=False)
    address: int = field(init=False, repr=False)
    start: int = field(init=False, repr=False)
    stop: int = field(init=False, repr=False)
    facts: TensorFacts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.address = self.storage.address + self.offset
        self.layout = layout_class(self.dtype, self.shape, self.strides, self.address)
        self.facts = TensorFacts(self.layout, self.shape)
        size = self.dtype.bits // 8
        reach = [(extent - 1) * stride * size for extent, stride in zip(self.shape, self.strides, strict=True)]
        low = sum(each for each in reach if each < 0)
        high = sum(each for each in reach if each > 0)
        self.start, self.stop = self.offset + low, self.offset + high + size

    @property
    def byte_range(self) -> tuple[int, int]:
        """`start` and `stop`."""
        return self.start, self.stop


@dataclass(slots=True, eq=False)
class PointingView(View):
    """Addresses of other elements, which a launch uses as well.

    Attributes:
        others: what the addresses lead to.
        others_written: whether the launch may write there.
    """

    others: tuple[View, ...] = ()
    others_written: bool = False


@dataclass(slots=True, eq=False)
class TiledView:
    """A view cut into tiles of `tile`: what a `Mut` parameter takes.

    Attributes:
        view: the elements.
        tile: the shape of one tile.
        map: of a mapped partition, the groups of its schedule.
        blocks: of a mapped partition, how many tile blocks share its tiles.
        exact: whether a launch's grid is `grid`; else it may be any prefix of it.
        grid: how many tiles there are along each axis, 1 for missing axes; of a mapped partition, its blocks.
        layout, facts: what specialization may know of it.
        storage, address, shape, strides, start, stop: the view's.
    """

    writes: ClassVar[bool] = True

    view: View
    tile: tuple[int, ...]
    map: tuple[int, ...] | None = None
    blocks: int = 0
    exact: bool = True
    grid: Grid = field(init=False, repr=False)
    layout: LayoutClass = field(init=False, repr=False)
    facts: TensorFacts = field(init=False, repr=False)
    storage: Storage = field(init=False, repr=False)
    address: int = field(init=False, repr=False)
    shape: tuple[int, ...] = field(init=False, repr=False)
    strides: tuple[int, ...] = field(init=False, repr=False)
    start: int = field(init=False, repr=False)
    stop: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tiles = [-(-extent // tile) for extent, tile in zip(self.view.shape, self.tile, strict=False)]
        x, y, z = *(*tiles, 1, 1)[:2], math.prod(tiles[2:])
        self.grid = (x, y, z) if self.map is None else (self.blocks, 1, 1)
        self.layout = self.view.layout.tiled(self.view.shape, self.tile, self.map, self.exact)
        self.facts = TensorFacts(self.layout, self.view.shape)
        self.storage, self.address = self.view.storage, self.view.address
        self.shape, self.strides = self.view.shape, self.view.strides
        self.start, self.stop = self.view.start, self.view.stop

    @property
    def byte_range(self) -> tuple[int, int]:
        """`start` and `stop`."""
        return self.start, self.stop


@runtime_checkable
class KernelInput(Protocol):
    """What a `Tensor` parameter takes."""

    def __kernel_input__(self) -> View:
        """The elements to be read.

        Raises OwnershipError where the object no longer holds them.
        """
        ...


@runtime_checkable
class KernelOutput(Protocol):
    """What a `Mut` parameter takes."""

    def __kernel_output__(self) -> TiledView | OpenTiledView:
        """The elements to be read and written.

        Raises OwnershipError where the object no longer holds them.
        """
        ...
