"""Views of tensors and partitions, and the protocols that give them to launches.

An argument of a `Tensor` parameter has the method `__kernel_input__`, of a `Mut` parameter `__kernel_output__`, of a
`SharedMut` parameter `__kernel_shared__`. The op yields the same object, or its attribute `__kernel_yields__`. An
object that stands for a tensor until the launch may have `__kernel_give_back__`, which is called if the op will not
run. Owners make a view once and keep it, so that a launch computes nothing again.

An `OpenTiledView` is a partition whose tile has names, `z.partition(("BM", "BN"))`: a launch's generics tell the
extents.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from cuda_async import Storage
from cutile.compile.facts import LayoutClass, TensorFacts, layout_class
from cutile.dtypes import DTypeLike, i32
from cutile.errors import ArgumentError, GenericsError, LaunchError, MissingGenericsError
from cutile.language import OWNED

Grid = tuple[int, int, int]

_new = object.__new__


def byte_span(first: int, dtype: DTypeLike, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The first byte of any element, and the first byte after all elements.

    Args:
        first: the byte at which the element with index 0 of every axis begins.
        dtype, shape: the elements; with an extent of 0 there are no bytes, and both results are `first`.
        strides: in elements, one per axis; a negative one leads to bytes before `first`.
    """
    low = high = 0  # elements from the first one to those with the lowest and the highest address
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 0:
            return first, first
        reach = (extent - 1) * stride
        if reach > 0:
            high += reach
        else:
            low += reach
    size = dtype.bits // 8
    return first + low * size, first + (high + 1) * size


@dataclass(slots=True, eq=False)
class View:
    """Elements in memory. Not to be changed once made.

    Attributes:
        storage: the memory, which orders its users.
        offset: bytes from its start to the first element.
        dtype: the element type.
        shape: extents; a view with one of 0 has no elements.
        strides: in elements, one per axis; 0 repeats (read-only views), negative runs backwards.
        layout: the facts that a kernel may be compiled for, such as unit strides and alignment.
        address: the address of the first element (the one at index 0 of every axis).
        start, stop: first byte of any element, and first byte after all elements; from the storage's start.
        facts: the layout and the extents.
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
        self.start, self.stop = byte_span(self.offset, self.dtype, self.shape, self.strides)

    @property
    def byte_range(self) -> tuple[int, int]:
        """`start` and `stop`."""
        return self.start, self.stop

    def at(self, storage: Storage) -> View:
        """As many elements at the same offset of other memory.

        The layout stays the same: a storage begins at a multiple of 16 bytes, the largest alignment of a layout.
        """
        view = _new(View)
        view.storage, view.offset, view.dtype = storage, self.offset, self.dtype
        view.shape, view.strides, view.layout, view.facts = self.shape, self.strides, self.layout, self.facts
        view.address = storage.address + self.offset
        view.start, view.stop = self.start, self.stop
        return view


@dataclass(slots=True, eq=False)
class SharedView(View):
    """Elements that any tile block may write: the view of a `SharedMut` argument."""

    writes: ClassVar[bool] = True


@dataclass(slots=True, eq=False)
class PointingView(View):
    """Addresses of other elements, which a launch uses as well.

    Attributes:
        others: the elements at the addresses.
        others_written: whether the launch may write there.
    """

    others: tuple[View, ...] = ()
    others_written: bool = False


@dataclass(slots=True, eq=False)
class TiledView:
    """A view cut into tiles of `tile`: the view of a `Mut` argument.

    Attributes:
        view: the elements.
        tile: the shape of one tile.
        map: of a mapped partition, the groups of its schedule.
        blocks: of a mapped partition, how many tile blocks share its tiles.
        exact: whether a launch's grid is `grid`; else it may be any prefix of it.
        grid: how many tiles there are along each axis, 1 for missing axes; of a mapped partition, its blocks.
        layout, facts: the view's, with the tile.
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
        self.grid = (x, y, z) if self.map is None else (self.blocks if x * y * z else 0, 1, 1)
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
    """An argument of a `Tensor` parameter."""

    def __kernel_input__(self) -> View:
        """The elements to be read.

        Raises OwnershipError where the object no longer holds them.
        """
        ...


@runtime_checkable
class KernelOutput(Protocol):
    """An argument of a `Mut` parameter."""

    def __kernel_output__(self) -> TiledView | OpenTiledView:
        """The elements to be read and written.

        Raises OwnershipError where the object no longer holds them.
        """
        ...


@dataclass(slots=True, eq=False)
class OpenTiledView:
    """A view that a launch will cut into tiles, once the extents of a tile are known.

    Attributes:
        view: the elements.
        tile: the extents of a tile; a name stands for an extent that is not known yet.
        exact: whether a launch's grid will be the partition's own.
        map, layout, facts, grid: None; the fast path finds no plan for them, and takes the general way.
        storage, shape, start, stop: the view's.
    """

    writes: ClassVar[bool] = True
    map: ClassVar[None] = None
    layout: ClassVar[None] = None
    facts: ClassVar[None] = None
    grid: ClassVar[None] = None

    view: View
    tile: tuple[int | str, ...]
    exact: bool = True
    storage: Storage = field(init=False, repr=False)
    shape: tuple[int, ...] = field(init=False, repr=False)
    start: int = field(init=False, repr=False)
    stop: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.storage, self.shape = self.view.storage, self.view.shape
        self.start, self.stop = self.view.start, self.view.stop

    @property
    def byte_range(self) -> tuple[int, int]:
        """`start` and `stop`."""
        return self.start, self.stop

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the tile."""
        return tuple(each for each in self.tile if isinstance(each, str))

    def tiled(self, extents: Mapping[str, Any], what: str) -> TiledView:
        """The view cut into tiles.

        Args:
            extents: the extents by name.
            what: the kernel and its argument, for errors.

        Raises:
            MissingGenericsError: a name has no value.
            GenericsError: the value of a name is no positive int of 32 bits.
        """
        missing = [name for name in self.names if name not in extents]
        if missing:
            generics = ", ".join(f"{name}=..." for name in self.names)
            raise MissingGenericsError(
                f"{what} is cut into tiles of {shown(self.tile)}, and nothing says what {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'}; give it with .generics({generics}), or a list of "
                "configurations to be searched: .generics([{...}, {...}])"
            )
        tile = tuple(as_int(extents[each]) if isinstance(each, str) else each for each in self.tile)
        for name, extent in zip(self.tile, tile, strict=True):
            if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
                raise GenericsError(f"{what}: {name!r} is an extent of its tiles, a positive int; got {extent!r}")
            if extent > i32.max:
                raise GenericsError(f"{what}: {name!r} is an extent of its tiles, at most {i32.max}; got {extent!r}")
        return TiledView(self.view, tile, exact=self.exact)


def as_int(number: Any) -> Any:
    """An integer, such as one of NumPy, as a Python int.

    Anything else stays as it is, bools too.
    """
    try:
        return number if isinstance(number, bool) else operator.index(number)
    except TypeError:
        return number


def shown(tile: Iterable[int | str]) -> str:
    """A tile as words: `BM x 64`."""
    return " x ".join(map(str, tile))


def open_names(checked: Iterable[Any]) -> tuple[str, ...]:
    """The names in the tiles of a launch's arguments, each once."""
    return tuple(dict.fromkeys(name for each in checked if isinstance(each, OpenTiledView) for name in each.names))


def tiled(kernel: str, names: Sequence[str], checked: list[Any], extents: Mapping[str, Any]) -> list[Any]:
    """A launch's checked arguments with every partition cut.

    Raises as `OpenTiledView.tiled`.

    Args:
        kernel: its name.
        names: the parameters' names.
        checked: the arguments; returned as they are where nothing is open.
        extents: the extents that names in tiles stand for.
    """
    if not any(isinstance(argument, OpenTiledView) for argument in checked):
        return checked
    return [
        argument.tiled(extents, f"{kernel}: argument {name!r}") if isinstance(argument, OpenTiledView) else argument
        for name, argument in zip(names, checked, strict=True)
    ]


MAX_TILES = 2**31 - 1
"""Tiles that a mapped partition shares among blocks. Kernels count them in 32 bits."""


def prefix_error() -> LaunchError:
    """The error for a prefix whose tiles are shared among blocks."""
    return LaunchError(
        "map: expected a whole partition, got a prefix; the blocks of a mapped partition go through all tiles. Leave "
        ".prefix() out; to write the first rows alone, cut a part of the tensor: tensor[:n].mut.partition(...).map(...)"
    )


def check_map(
    extents: tuple[int, ...], tile: tuple[int, ...], shape: tuple[Any, ...], blocks: Any, is_prefix: bool
) -> None:
    """Check how the tiles of a partition are shared among blocks.

    Args:
        extents: the tensor's.
        tile: the shape of one tile.
        shape: the extents of the map.
        blocks: how many blocks share the tiles.
        is_prefix: whether the partition is a prefix.

    Raises:
        ArgumentError, LaunchError: as `cutile.host.partition.MappedLaunchPartition`.
    """
    if is_prefix:
        raise prefix_error()
    if len(shape) != len(tile) or len(extents) != len(tile):
        raise LaunchError(
            f"map: the map {shape} has {len(shape)} axes, the partition {tile} of a tensor of shape "
            f"{extents} has {len(tile)}; give one extent for each axis"
        )
    if any(isinstance(extent, bool) or not isinstance(extent, int) or extent < 0 for extent in shape):
        raise ArgumentError(f"map: the extents of a map are integers, at least 1, or OWNED (0); got {shape}")
    if all(extent == OWNED for extent in shape):
        raise LaunchError(f"map: the map {shape} streams no axis: at least one must not be OWNED")
    if any(extent not in (OWNED, 1) for extent in shape[:-2]):
        raise LaunchError(
            f"map: of the map {shape} only the last two axes can be grouped; the others must be 1 or OWNED"
        )
    counts = [-(-extent // size) for extent, size in zip(extents, tile, strict=True)]
    num_tiles = math.prod(count for count, group in zip(counts, shape, strict=True) if group != OWNED)
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise LaunchError(f"map: the number of tile blocks must be at least 1, got {blocks!r}")
    if num_tiles > MAX_TILES:
        raise LaunchError(
            f"map: {num_tiles} streamed tiles are more than the {MAX_TILES} that a kernel counts; take larger tiles, "
            "or leave an axis out of the stream with OWNED"
        )
    if blocks > num_tiles:
        raise LaunchError(f"map: {blocks} tile blocks for {num_tiles} streamed tiles; give at most as many as tiles")
