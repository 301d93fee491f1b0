"""Raw pointers: tiles of addresses, for kernels that say `@entry(unsafe=True)`.

Nothing checks that the memory behind a pointer is there, and nothing holds it or orders the launch behind its other
users: keep the tensor, and run both on one stream. Offsets count elements.

    @ct.entry(unsafe=True)
    def add(z: Ptr[f32], x: Ptr[f32], n: i32):
        lanes = ct.iota((128,)) + 128 * ct.get_tile_block_id()[0]
        value = x.offset(lanes).load(mask=lanes < n)
        z.offset(lanes).store(value + 1.0, mask=lanes < n)

    add(z.device_pointer(), x.device_pointer(), n).grid((ct.ceil_div(n, 128),))
"""

from __future__ import annotations

from typing import Any

from cutile.dtypes import DTypeLike
from cutile.language.annotations import Mut, Partition, Subscriptable, Tensor
from cutile.language.mark import operation
from cutile.language.markers import Latency, ordering, scope
from cutile.language.tokens import Token
from cutile.tile import Tile, outside_kernel


class Ptr(Subscriptable):
    """A pointer, or a tile of them: `p: Ptr[f32]` is a launch parameter, `p: Ptr` takes its dtype from the argument.

    The argument is what `tensor.device_pointer()` gives, or (where the dtype is declared) an address as an int.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def scale(p: ct.Ptr[ct.f32], a: ct.f32):
        ...     lanes = p.offset(ct.iota((4,)))
        ...     lanes.store(a * lanes.load())
        >>> x = ct.api.arange(4, ct.f32).sync()
        >>> _ = scale(x.device_pointer(), 3.0).grid((1,)).sync()
        >>> x.to_numpy().sync()
        array([0., 3., 6., 9.], dtype=float32)
    """

    @property
    def dtype(self) -> Any:
        """The element type of what is pointed to."""
        outside_kernel("Ptr.dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of a tile of pointers; `()` for one pointer."""
        outside_kernel("Ptr.shape")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        outside_kernel("Ptr.ndim")

    def offset(self, count: Tile | int) -> Ptr:
        """The pointers `count` elements further on; see `cutile.addptr`, `cutile.addptr_tile`."""
        outside_kernel("Ptr.offset")

    def offset_tile(self, counts: Tile) -> Ptr:
        """The pointers `counts` elements further on, lane by lane; see `cutile.addptr_tile`."""
        outside_kernel("Ptr.offset_tile")

    def broadcast(self, shape: tuple[int, ...]) -> Ptr:
        """One pointer, or axes of size 1, repeated to `shape`; see `cutile.broadcast_ptr`."""
        outside_kernel("Ptr.broadcast")

    def reshape(self, shape: tuple[int, ...]) -> Ptr:
        """The same pointers under another shape; see `cutile.reshape_ptr`."""
        outside_kernel("Ptr.reshape")

    def __add__(self, count: Tile | int) -> Ptr:
        """`offset(count)`."""
        outside_kernel("Ptr +")

    def __sub__(self, count: Tile | int) -> Ptr:
        """`offset(-count)`."""
        outside_kernel("Ptr -")

    def load(self, *, mask: Tile | None = None, pad: Tile | float | None = None) -> Tile:
        """The elements pointed to, in program order; `pad` (zero) where `mask` is false."""
        outside_kernel("Ptr.load")

    def store(self, value: Tile | float, *, mask: Tile | None = None) -> None:
        """Write the elements pointed to, in program order; nothing where `mask` is false."""
        outside_kernel("Ptr.store")


@operation
def pointer_to_tile(pointer: Ptr) -> Ptr:
    """A pointer as a tile of shape `()`: the same, since a scalar is such a tile here."""
    outside_kernel("pointer_to_tile")


@operation
def tile_to_pointer(pointers: Ptr) -> Ptr:
    """The pointer in a tile of shape `()`."""
    outside_kernel("tile_to_pointer")


@operation
def addptr(pointers: Ptr, count: Tile | int) -> Ptr:
    """Every pointer `count` elements further on; `count` is an integer scalar."""
    outside_kernel("addptr")


@operation
def addptr_tile(pointers: Ptr, counts: Tile) -> Ptr:
    """Pointers `counts` elements further on, lane by lane; the two broadcast."""
    outside_kernel("addptr_tile")


@operation
def broadcast_ptr(pointers: Ptr, shape: tuple[int, ...]) -> Ptr:
    """One pointer, or axes of size 1, repeated to `shape`."""
    outside_kernel("broadcast_ptr")


@operation
def reshape_ptr(pointers: Ptr, shape: tuple[int, ...]) -> Ptr:
    """The same pointers, in row-major order, under another shape."""
    outside_kernel("reshape_ptr")


@operation
def int_to_ptr(addresses: Tile | int, dtype: DTypeLike) -> Ptr:
    """Addresses in bytes (i64 or u64) as pointers to elements of `dtype`."""
    outside_kernel("int_to_ptr")


@operation
def ptr_to_int(pointers: Ptr) -> Tile:
    """The addresses in bytes, as a tile of i64."""
    outside_kernel("ptr_to_int")


@operation
def ptr_to_ptr(pointers: Ptr, dtype: DTypeLike) -> Ptr:
    """The same addresses as pointers to elements of another dtype."""
    outside_kernel("ptr_to_ptr")


@operation
def load_ptr_tko(
    pointers: Ptr,
    ordering: ordering = ordering.WEAK,
    scope: scope | None = None,
    mask: Tile | None = None,
    pad: Tile | float | None = None,
    token: Token | None = None,
    latency: Latency | None = None,
) -> tuple[Tile, Token]:
    """The elements pointed to, and a token.

    Args:
        pointers: any shape, which the result has.
        ordering: WEAK, RELAXED or ACQUIRE.
        scope: among whom a RELAXED or ACQUIRE load is ordered; the device by default.
        mask: bools; where it is false nothing is read.
        pad: what the result has there; zero by default.
        token: happen after the accesses that this stands for.
        latency: a hint.
    """
    outside_kernel("load_ptr_tko")


@operation
def store_ptr_tko(
    pointers: Ptr,
    value: Tile | float,
    ordering: ordering = ordering.WEAK,
    scope: scope | None = None,
    mask: Tile | None = None,
    token: Token | None = None,
    latency: Latency | None = None,
) -> Token:
    """Write the elements pointed to; a token. Where two lanes have one address, one of them wins.

    Args:
        pointers: any shape.
        value: of the pointers' dtype; broadcast to their shape.
        ordering: WEAK, RELAXED or RELEASE.
        scope: among whom a RELAXED or RELEASE store is ordered; the device by default.
        mask: bools; where it is false nothing is written.
        token: happen after the accesses that this stands for.
        latency: a hint.
    """
    outside_kernel("store_ptr_tko")


@operation
def gather(
    x: Tensor | Mut | Partition,
    index: Tile | int | tuple[Tile | int, ...],
    *,
    mask: Tile | None = None,
    padding_value: Tile | float = 0,
) -> Tile:
    """The elements of a tensor at any indices: lane by lane, in elements, counted from the tensor's start.

    Args:
        x: a tensor, a partition or a `Mut` (the whole of it, not this block's tile alone).
        index: one tile or scalar of integers per axis; they broadcast, and the result has their shape.
        mask: where it is false nothing is read.
        padding_value: what the result has there, and where an index is not in the tensor (negative ones count from
            nowhere: they are not in it).

    Example:
        >>> @ct.entry
        ... def flip(y: ct.Mut, x: ct.Tensor):
        ...     y.store(ct.gather(x, x.shape[0] - 1 - ct.iota(y.shape)))
        >>> x = ct.api.arange(4, ct.f32).sync()
        >>> out = flip(ct.api.zeros((4,)).partition((4,)), x).first().unpartition().sync()
        >>> out.to_numpy().sync()
        array([3., 2., 1., 0.], dtype=float32)
    """
    outside_kernel("gather")


@operation
def scatter(
    y: Mut, index: Tile | int | tuple[Tile | int, ...], value: Tile | float, *, mask: Tile | None = None
) -> None:
    """Write elements of a `Mut` at any indices, counted as in `gather`; what is not in the tensor is dropped.

    Where two lanes, or two tile blocks, write one element, one of them wins. The tile blocks of a kernel that scatters
    are started in linear order.

    Args:
        y: a `Mut`; the whole tensor can be reached, not this block's tile alone.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: where it is false nothing is written.
    """
    outside_kernel("scatter")


class GatherScatterView:
    """A tensor seen as tiles whose places along one axis are chosen one by one. Made by `make_gather_scatter_view`."""


@operation
def make_gather_scatter_view(x: Tensor, shape: tuple[int, ...], axis: int = 0) -> GatherScatterView:
    """A view of `x` in tiles of `shape`, whose places along `axis` are given by an index tile at each load.

    Example:
        >>> @ct.entry
        ... def rows(y: ct.Mut, x: ct.Tensor, order: ct.Tensor):
        ...     view = ct.make_gather_scatter_view(x, y.shape, axis=0)
        ...     chosen = ct.load_tile(order, (y.shape[0],), (0,))
        ...     tile, _ = ct.load_gather_scatter_view_tko(view, (chosen, 0))
        ...     y.store(tile)
        >>> x = ct.api.arange(6, ct.i32).reshape((3, 2)).sync()
        >>> import numpy as np
        >>> order = ct.api.from_numpy(np.array([2, 0], np.int32)).sync()
        >>> out = rows(ct.api.zeros((2, 2), ct.i32).partition((2, 2)), x, order).first().unpartition().sync()
        >>> out.to_numpy().sync().tolist()
        [[4, 5], [0, 1]]
    """
    outside_kernel("make_gather_scatter_view")


@operation
def load_gather_scatter_view_tko(
    view: GatherScatterView,
    index: tuple[Tile | int, ...],
    ordering: ordering = ordering.WEAK,
    scope: scope | None = None,
    token: Token | None = None,
    latency: Latency | None = None,
) -> tuple[Tile, Token]:
    """A tile of a gather view, and a token; zeros where an index is not in the tensor.

    Args:
        view: what `make_gather_scatter_view` made.
        index: along the view's axis a tile of i32, one element index for each place of the tile; along the others a
            tile index.
        ordering: WEAK: nothing writes the tensor meanwhile.
        scope, latency: hints.
        token: happen after the accesses that this stands for.
    """
    outside_kernel("load_gather_scatter_view_tko")
