"""`Partition`: a tensor cut into tiles, of which each tile block writes one.

There are two forms. `tensor.partition(s)` stands in the tensor's place until `unpartition()`. `tensor.mut.partition(s)`
borrows the tensor for each launch. Both may be launched any number of times. Leases on the storage are checked when an
operation is built: no two operations in flight write the same memory. A `MappedLaunchPartition` shares its tiles among
a fixed number of tile blocks, for persistent kernels.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, SupportsIndex, cast

import numpy as np

from cuda_async import OwnershipError, Storage, Use
from cuda_async.core.lease import is_lent_elsewhere, refuse_conflicts
from cuda_async.site import Place, format_site, kept_by_notebook, site_of, user_site
from cutile import language
from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError, MissingGenericsError
from cutile.host.compat import OldPartitionMethods
from cutile.host.display import card, drawing
from cutile.host.shapes import ShapeLike, as_shape
from cutile.host.transfer import values_now
from cutile.host.views import collective_buffer
from cutile.launch.arguments import MAX_PARTITION_RANK
from cutile.launch.views import OpenTiledView, SharedView, TiledView, View, as_int, check_map, prefix_error, shown

if TYPE_CHECKING:
    from cuda_async.collective import Buffer
    from cutile.host.tensor import Tensor

__all__ = (
    "BorrowedPartition", "Holder", "MappedLaunchPartition", "MutBorrow", "Partition", "TileLike",
    "as_any_tile", "as_tile", "is_open", "is_padded",
)  # fmt: skip

TileLike = ShapeLike | str | Sequence[SupportsIndex | str]
"""The extents of a tile. A name stands for an extent that each launch's generics give."""

_MIN_WARNED = 1 << 20  # elements of a tile; smaller ones give no warning, whatever the tensor
_MAX_PADDING = 64  # elements of a tile for each one of the tensor; a larger tile is most likely a mistake


class Holder(Protocol):
    """An object in a tensor's place: an owned partition, or a group of shared handles."""

    def describe(self) -> str:
        """Its kind and where it was made, for errors."""
        ...

    def remedy(self) -> str:
        """How to get the tensor back, as a sentence."""
        ...

    def kept(self) -> str:
        """Where a notebook may keep it, as the end of a message."""
        ...

    def dissolve(self) -> None:
        """Cease to hold it. Raises OwnershipError where an operation in flight writes it."""
        ...


def as_tile(shape: ShapeLike, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Check a tile of a tensor with these extents; warn if it is far larger.

    Raises:
        ArgumentError: it has more than 8 axes, or not as many as the tensor, or an extent is not positive.
    """
    tile = as_shape(shape, "partition shape", least=1)
    if len(tile) > MAX_PARTITION_RANK:
        raise ArgumentError(
            f"partition shape: {tile} has {len(tile)} axes; a partition has at most {MAX_PARTITION_RANK}, one for each "
            "axis of the tensor. Reshape the tensor first."
        )
    if len(tile) != len(extents):
        raise ArgumentError(
            f"partition shape: it must have {len(extents)} extent{'s' * (len(extents) != 1)}, one for each axis of the "
            f"tensor of shape {extents}, got {tile}. Give as many, or reshape the tensor first."
        )
    if is_padded(tile, extents):
        warnings.warn_explicit(
            f"partition shape: a tile of {tile} has {math.prod(tile)} elements, of which the tensor of shape {extents} "
            "has few; kernels compute with all of them, which takes long. Take a smaller tile.",
            RuntimeWarning,
            *user_site(),
        )
    return tile


def is_padded(tile: Iterable[Any], extents: tuple[int, ...]) -> bool:
    """Whether a tile is much larger than its tensor, most likely by mistake."""
    elements = math.prod(tile)
    return elements >= _MIN_WARNED and elements > _MAX_PADDING * math.prod(extents)


def is_open(shape: object) -> bool:
    """Whether a tile has names for extents, as `("BM", 64)`."""
    items: Sequence[Any] = (shape,) if isinstance(shape, str) else cast("Sequence[Any]", shape)
    return isinstance(items, tuple | list) and any(isinstance(each, str) for each in items)


def as_any_tile(shape: TileLike, extents: tuple[int, ...]) -> tuple[int | str, ...]:
    """Check a tile, which may have names for extents.

    Raises:
        ArgumentTypeError: a name is no identifier.
        ArgumentError: as `as_tile`.
    """
    if not is_open(shape):
        return as_tile(cast("ShapeLike", shape), extents)
    items = cast("Sequence[SupportsIndex | str]", (shape,) if isinstance(shape, str) else shape)
    for name in items:
        if isinstance(name, str) and not name.isidentifier():
            raise ArgumentTypeError(
                f"partition shape: {name!r} is no name; an extent is an int, or a name that .generics(...) gives a "
                'value, such as "BM"'
            )
    tile = as_tile(tuple(1 if isinstance(each, str) else each for each in items), extents)
    return tuple(name if isinstance(name, str) else extent for name, extent in zip(items, tile, strict=True))


class _TiledTensor(language.Partition):
    """The part that `Partition` and `BorrowedPartition` share."""

    __slots__ = ("_site", "_tensor", "_tiled")

    def __init__(self, tensor: Tensor, tiled: TiledView | OpenTiledView) -> None:
        self._tensor = tensor
        self._tiled = tiled
        # The frames: this one, the method that makes a partition, the user's.
        self._site: Place = site_of(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of one tile: the shape of a kernel's `Mut` parameter.

        Raises:
            MissingGenericsError: some are names, whose values only a launch knows.
        """
        tiled = self._tiled
        if isinstance(tiled, OpenTiledView):
            raise MissingGenericsError(
                f"the tiles of this partition are {shown(tiled.tile)}: each launch's .generics(...) says what that is"
            )
        return tiled.tile

    @property
    def partition_shape(self) -> tuple[int, ...]:
        """`shape`."""
        return self.shape

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The extents of the whole tensor."""
        return self._tiled.view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The tensor's strides, in elements."""
        return self._tiled.view.strides

    @property
    def dtype(self) -> DTypeLike:
        """The element type."""
        return self._tiled.view.dtype

    @property
    def num_bytes(self) -> int:
        """The size of the tensor's elements in bytes."""
        return self._tensor.num_bytes

    @property
    def storage(self) -> Storage:
        """The memory that it is in."""
        return self._tiled.view.storage

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The values of the whole tensor as a NumPy array, now: waits for them.

        Raises:
            OwnershipError: an operation that has not finished writes the tensor.
            NotReadyError: called inside a function given to then(), map() or inspect().

        Example:
            >>> import cutile as ct
            >>> @ct.entry
            ... def double(y: ct.Mut):
            ...     y.store(2 * y.load())
            >>> out = double(ct.api.ones((4,)).partition((2,))).sync()
            >>> out.y.numpy()
            array([2., 2., 2., 2.], dtype=float32)
        """
        return values_now(self._tiled.view)

    def grid(self) -> tuple[int, int, int]:
        """The number of tiles along each axis; 1 for axes that the tensor lacks.

        With more than three axes, the third number counts the tiles along all axes but the first two.

        Example:
            >>> from cutile import api, f32
            >>> api.zeros((1000, 777), f32).partition((128, 256)).sync().grid()
            (8, 4, 1)
        """
        extents, tile = self._tiled.view.shape, self.shape
        counts = [-(-extent // size) for extent, size in zip(extents, tile, strict=True)]
        x, y, z = *(*counts, 1, 1)[:2], math.prod(counts[2:])
        return x, y, z

    @property
    def is_prefix(self) -> bool:
        """Whether a launch may cover a part of it."""
        return not self._tiled.exact

    def prefix(self) -> Self:
        """Let a launch cover only the first tiles along each axis.

        The launch's grid must be given, and is at most `grid()`. Otherwise a launch covers all tiles, since a smaller
        grid is usually a mistake. Returns this very partition.

        Example:
            >>> import cutile as ct
            >>> @ct.entry
            ... def seven(y: ct.Mut):
            ...     y.store(7.0)
            >>> y = ct.api.zeros((6,)).sync()
            >>> seven(y.mut.partition((2,)).prefix()).grid((2,)).sync().y.tensor.to_numpy().sync()
            array([7., 7., 7., 7., 0., 0.], dtype=float32)
        """
        tiled = self._tiled
        if isinstance(tiled, OpenTiledView):
            self._tiled = OpenTiledView(tiled.view, tiled.tile, exact=False)
        else:
            self._tiled = TiledView(tiled.view, tiled.tile, exact=False)
        return self

    def map(self, map_shape: ShapeLike, num_tile_blocks: SupportsIndex) -> MappedLaunchPartition:
        """Share the tiles among `num_tile_blocks` tile blocks.

        The result is for a `MappedPartitionMut` parameter.

        Args:
            map_shape: how many tiles a group has along each axis, which decides the order: `(1, 1)` is row by row,
                `(4, 1)` goes down 4 rows of tiles before it goes on to the next column. `OWNED` (0) leaves an axis out.
            num_tile_blocks: the launch's grid is `(num_tile_blocks, 1, 1)`.

        Raises:
            ArgumentError: the extents of the map are no integers of at least 0.
            LaunchError: the map does not fit the partition, there are more blocks than tiles, or it is a prefix.

        Example:
            >>> from cutile import api, f32
            >>> api.zeros((8, 8), f32).sync().partition((2, 2)).map((2, 1), 3)
            Partition(f32, tensor_shape=(8, 8), partition_shape=(2, 2), device=cpu).map((2, 1), 3)
        """
        return MappedLaunchPartition(self, map_shape, num_tile_blocks)  # type: ignore[arg-type]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            remedy = ""
            if not name.startswith("__"):  # no remedy for protocols: Python may look them up at exit, when imports fail
                from cutile.host.tensor import Tensor

                remedy = f", but its tensor has: partition.unpartition().{name}" if hasattr(Tensor, name) else ""
            words = f"{type(self).__name__!r} object has no attribute {name!r}{remedy}"
            raise AttributeError(words, name=name, obj=self)

    def __kernel_output__(self) -> TiledView | OpenTiledView:
        """The elements, to be read and written by a kernel."""
        return self._tiled

    def __repr__(self) -> str:
        view = self._tiled.view
        return (
            f"{type(self).__name__}({view.dtype.name}, tensor_shape={view.shape}, partition_shape={self._tiled.tile}, "
            f"device={view.storage.device})"
        )

    def _repr_html_(self) -> str:
        view, tile = self._tiled.view, self._tiled.tile
        facts = [("dtype", view.dtype.name), ("tensor", f"{view.shape}"), ("tile", f"{tile}")]
        if isinstance(self._tiled, OpenTiledView):
            return card(type(self).__name__, [*facts, ("device", f"{view.storage.device}")], "")
        facts += [("grid", f"{self.grid()}"), ("device", f"{view.storage.device}")]
        return card(type(self).__name__, facts, drawing(view.shape, self.shape))


class Partition(OldPartitionMethods, _TiledTensor):
    """A tensor cut into tiles, standing in the tensor's place.

    Made by `tensor.partition(shape)`.

    A launch yields it unchanged. `unpartition()` gives the tensor back, and so does dropping the partition. If an
    operation with it cannot be built or is discarded, the tensor is usable again at once. The partition stays usable,
    and stands in the tensor's place again from its next launch on.

    Example:
        >>> from cutile import api, f32
        >>> y = api.zeros((4, 8), f32).sync()
        >>> part = y.partition((2, 2))
        >>> part
        Partition(f32, tensor_shape=(4, 8), partition_shape=(2, 2), device=cpu)
        >>> part.unpartition() is y
        True
    """

    __slots__ = ("_ended",)

    def __init__(self, tensor: Tensor, tiled: TiledView | OpenTiledView) -> None:
        self._tensor = tensor  # as the base class, whose call each `tensor.partition(...)` would pay for
        self._tiled = tiled
        self._site = site_of(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]
        self._ended: Place | None = None

    def unpartition(self) -> Tensor:
        """Give the tensor back: the very object that was partitioned.

        The partition cannot be used any more.

        Raises:
            OwnershipError: this was called before, or an operation that has not finished writes the tensor.

        Example:
            >>> from cutile import api
            >>> y = api.zeros((8,)).sync()
            >>> y.partition((4,)).unpartition() is y
            True
        """
        self._check()
        _refuse_in_flight(self._tiled.view, self._site)
        self._ended = site_of(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        self.__kernel_give_back__()
        return self._tensor

    def describe(self) -> str:
        """What it is, for errors."""
        return f"the partition made at {format_site(self._site)}"

    def remedy(self) -> str:
        """How to get the tensor back."""
        return "Call unpartition() on it first; made by tensor.mut.partition(...) it would only borrow."

    def kept(self) -> str:
        """Where a notebook may keep it, or the operation that has it."""
        return kept_by_notebook(self._site)

    def dissolve(self) -> None:
        """Cease to hold the tensor, for `tensor.reclaim()`."""
        self.unpartition()

    def __kernel_output__(self) -> TiledView | OpenTiledView:
        """The elements, to be read and written by a kernel.

        Raises OwnershipError after `unpartition()`.
        """
        self._check()
        tensor = self._tensor
        if tensor.holder() is not self:  # an operation that did not run gave the tensor back
            tensor._usable("launch with a partition")  # pyright: ignore[reportPrivateUsage]
            tensor._give(self)  # pyright: ignore[reportPrivateUsage]
        return self._tiled

    def __kernel_give_back__(self) -> None:
        """An operation that got this did not run: the tensor is usable again."""
        if self._tensor.holder() is self:
            self._tensor._give(None)  # pyright: ignore[reportPrivateUsage]

    def _check(self) -> None:
        if self._ended is not None:
            raise OwnershipError(
                f"the partition made at {format_site(self._site)} was given up by unpartition() at "
                f"{format_site(self._ended)}; partition the tensor again"
            )


class BorrowedPartition(_TiledTensor):
    """A tensor cut into tiles that stays usable between launches.

    Made by `tensor.mut.partition(shape)`.

    Attributes:
        tensor: the tensor, which stays usable.

    Example:
        >>> from cutile import api
        >>> y = api.zeros((8, 8)).sync()
        >>> y.mut.partition((4, 2)).shape
        (4, 2)
    """

    __slots__ = ()

    @property
    def tensor(self) -> Tensor:
        """The tensor that is borrowed."""
        return self._tensor

    def unpartition(self) -> Tensor:
        """Refused: there is nothing to give back.

        Raises:
            OwnershipError: always; the tensor is usable as it is.
        """
        raise OwnershipError(
            f"unpartition: the partition made at {format_site(self._site)} only borrows its tensor (mut.partition); "
            "use the tensor itself, which is usable as soon as the operation is done"
        )


class MutBorrow:
    """A tensor or a view, to be written.

    Made by `tensor.mut`, for `.partition(shape)`, `api.memcpy`, `api.fill`, collectives and `SharedMut` parameters.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def partition(self, shape: TileLike) -> BorrowedPartition:
        """Cut the tensor into tiles of `shape`, to be written by a kernel.

        The tensor stays usable.

        Args:
            shape: extents of a tile, or names for some: see `Tensor.partition`.

        Raises:
            ArgumentError: `shape` is no shape of at most 8 axes.
            OwnershipError: the tensor is held, or cannot be written (see `Tensor.partition`).

        Example:
            >>> from cutile import api, f32
            >>> y = api.zeros((4, 8), f32).sync()
            >>> y.mut.partition((2, 2))
            BorrowedPartition(f32, tensor_shape=(4, 8), partition_shape=(2, 2), device=cpu)
        """
        self.__kernel_destination__()
        return BorrowedPartition(self._tensor, self._tensor._cut(shape))  # pyright: ignore[reportPrivateUsage]

    def partition_prefix(self, shape: TileLike) -> BorrowedPartition:
        """`partition(shape).prefix()`: a launch may cover the first tiles of each axis."""
        return self.partition(shape).prefix()

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule that may be written: `torch.from_dlpack(tensor.mut)`.

        While it lives, any other use of the elements is refused. See `Tensor.__dlpack__`.
        """
        from cutile.host.exchange import export

        return export(self.__kernel_destination__(), stream, max_version, dl_device, copy, write=True)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind and number of the device, as DLPack has them."""
        return self._tensor.__dlpack_device__()

    def __kernel_shared__(self) -> SharedView:
        """The elements, to be read and written by any tile block of a kernel.

        Raises OwnershipError where the tensor is held or read-only.
        """
        view = self.__kernel_destination__()
        return SharedView(view.storage, view.offset, view.dtype, view.shape, view.strides)

    def __collective__(self, write: bool) -> Buffer:
        """The elements for a collective. Raises ArgumentError if not contiguous."""
        return collective_buffer(self.__kernel_destination__())

    def __kernel_destination__(self) -> View:
        """The elements, to be written by `memcpy`, `fill` or a collective.

        Raises OwnershipError where the tensor is held or read-only.
        """
        return self._tensor._writable("write")  # pyright: ignore[reportPrivateUsage]

    def __getitem__(self, key: object) -> NoReturn:
        """Refused: the elements are chosen first.

        Raises:
            ArgumentTypeError: always.
        """
        raise ArgumentTypeError(f"{self!r} has no items; choose the elements first, then borrow: tensor[...].mut")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            is_tensors = not name.startswith("_") and hasattr(self._tensor, name)
            remedy = f", but its tensor has: tensor.{name}" if is_tensors else ""
            raise AttributeError(f"'MutBorrow' object has no attribute {name!r}{remedy}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"{self._tensor!r}.mut"


def _refuse_in_flight(view: View, site: Place) -> None:
    """Raise `OwnershipError` if an unfinished operation elsewhere writes the view."""
    if is_lent_elsewhere(view.storage.leases):
        refuse_conflicts((Use("tensor", view.storage, False, *view.byte_range),), object(), site)


class MappedLaunchPartition:
    """A partition whose tiles a fixed number of tile blocks share, in a given order.

    Made by `partition.map(map_shape, num_tile_blocks)`; a launch yields the partition.

    Args:
        partition: the partition whose tiles are shared.
        map_shape: how many tiles a group has along each axis: leading axes 1, the trailing two any; `OWNED` (0) leaves
            an axis out of the stream of tiles.
        num_tile_blocks: the launch's grid is `(num_tile_blocks, 1, 1)`.

    Raises:
        ArgumentError: the extents of the map are no integers of at least 0.
        LaunchError: the partition is a prefix; the map has another number of axes than it, streams none, or groups a
            leading axis; or there are no blocks, more than streamed tiles, or more streamed tiles than 32 bits count.
    """

    __slots__ = ("_partition", "blocks", "map_shape")

    def __init__(
        self, partition: Partition | BorrowedPartition, map_shape: ShapeLike, num_tile_blocks: SupportsIndex
    ) -> None:
        is_shape = isinstance(map_shape, Sequence) and not isinstance(map_shape, str)
        if not is_shape and not isinstance(map_shape, SupportsIndex):
            raise ArgumentTypeError(
                f"map: expected an extent or a sequence of extents such as (4, 1), got {map_shape!r}"
            )
        items = tuple(map_shape) if isinstance(map_shape, Sequence) else (map_shape,)
        self._partition = partition
        self.map_shape = tuple(as_int(each) for each in items)
        self.blocks = as_int(num_tile_blocks)
        check_map(partition.tensor_shape, partition.shape, self.map_shape, self.blocks, partition.is_prefix)

    @property
    def partition(self) -> Partition | BorrowedPartition:
        """The plain partition."""
        return self._partition

    @property
    def __kernel_yields__(self) -> Partition | BorrowedPartition:
        """The partition, which a launch yields in place of this."""
        return self._partition

    def __kernel_output__(self) -> TiledView:
        """The elements, to be read and written by a kernel."""
        tiled = self._partition.__kernel_output__()
        if not tiled.exact:
            raise prefix_error()
        return TiledView(tiled.view, self._partition.shape, self.map_shape, self.blocks)

    def __kernel_give_back__(self) -> None:
        """An operation that got this did not run."""
        release: Any = getattr(self._partition, "__kernel_give_back__", None)
        if release is not None:
            release()

    def __repr__(self) -> str:
        return f"{self._partition!r}.map({self.map_shape}, {self.blocks})"
