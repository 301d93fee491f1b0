"""Elements of tensors at any indices.

Gather and scatter; and views whose places along one axis come from an index tile.
"""

from __future__ import annotations

from cutile.language.annotations import Mut, Tensor
from cutile.language.declare import operation
from cutile.language.markers import Latency, ordering, scope
from cutile.language.partition import Partition
from cutile.language.shared_mut import SharedMut
from cutile.language.token import Token
from cutile.tile import Tile


@operation
def gather(
    x: Tensor | Mut | SharedMut | Partition,
    index: Tile | int | tuple[Tile | int, ...],
    *,
    mask: Tile | None = None,
    padding_value: Tile | float = 0,
    ordering: ordering = ordering.WEAK,
    scope: scope | None = None,
) -> Tile:
    """The elements of a tensor at any indices, lane by lane.

    Indices count elements from the tensor's start, also for a partition or a `Mut`.

    Args:
        x: a tensor, a partition, a `SharedMut` or a `Mut`. Any element of the whole tensor can be read.
        index: one tile or scalar of integers per axis; they broadcast, and the result has their shape.
        mask: bools; where it is false, nothing is read.
        padding_value: the result where `mask` is false or an index is outside of the tensor. Every negative index is
            outside.
        ordering: WEAK, RELAXED or ACQUIRE.
        scope: the blocks, and devices, that a RELAXED or ACQUIRE load is ordered with; DEVICE by default.

    Returns:
        A tile of the indices' shape, of the tensor's dtype.

    Raises:
        KernelTypeError: there is not one index for each axis of the tensor, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def flip(y: ct.Mut, x: ct.Tensor):
        ...     y.store(ct.gather(x, x.shape[0] - 1 - ct.iota(y.shape)))
        >>> x = ct.api.arange(4, ct.f32).sync()
        >>> out = flip(ct.api.zeros((4,)).partition((4,)), x).first().unpartition().sync()
        >>> out.to_numpy().sync()
        array([3., 2., 1., 0.], dtype=float32)
    """
    ...


@operation
def scatter(
    y: Mut | SharedMut,
    index: Tile | int | tuple[Tile | int, ...],
    value: Tile | float,
    *,
    mask: Tile | None = None,
    ordering: ordering = ordering.WEAK,
    scope: scope | None = None,
) -> None:
    """Write elements of a tensor at any indices, counted as in `gather`.

    A value whose index is outside of the tensor is dropped.

    Where two lanes, or two tile blocks, write the same element, one of the values stays. The tile blocks of a kernel
    that scatters are started in linear order, one thread block each: a scatter reaches beyond the block's own tile, so
    no target may regroup the blocks.

    Args:
        y: a `SharedMut` or a `Mut`. Any element of the whole tensor can be written.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is written.
        ordering: WEAK, RELAXED or RELEASE.
        scope: the blocks, and devices, that a RELAXED or RELEASE store is ordered with; DEVICE by default.

    Raises:
        KernelTypeError: `y` is no `Mut` and no `SharedMut`, there is not one index for each axis, or shapes do not
            broadcast.

    Example:
        >>> @ct.entry
        ... def flip(y: ct.Mut, x: ct.Tensor):
        ...     ct.scatter(y, 1 - ct.iota((2,)), ct.load_tile_like(x, y))
        >>> x = ct.api.arange(2, ct.f32).sync()
        >>> flip(ct.api.zeros((2,)).partition((2,)), x).first().unpartition().to_numpy().sync().tolist()
        [1.0, 0.0]
    """
    ...


class GatherScatterView:
    """A tensor seen as tiles whose places along one axis are chosen one by one.

    `make_gather_scatter_view` makes it.
    """


@operation
def make_gather_scatter_view(x: Tensor | Mut | SharedMut, shape: tuple[int, ...], axis: int = 0) -> GatherScatterView:
    """A view of `x` in tiles of `shape`, gathered along `axis`.

    Each load and store has an index tile, which gives the element index along `axis` of each place of the tile.

    Args:
        x: a tensor, a `Mut` or a `SharedMut`.
        shape: constant extents, each at least 1. One for each axis of `x`.
        axis: a constant: the axis of the index tile. Negative ones count from the end.

    Returns:
        The view.

    Raises:
        KernelTypeError: the shape has another number of axes than `x`, or an extent below 1; or `x` has no such axis.

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
    ...


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
        view: a view by `make_gather_scatter_view`.
        index: one entry for each axis. Along the view's axis it is a tile of integers, one element index for each place
            of the tile; along any other axis it is a tile index.
        ordering: WEAK, RELAXED or ACQUIRE.
        scope: the blocks, and devices, that a RELAXED or ACQUIRE load is ordered with; DEVICE by default.
        token: the load comes after the accesses that the token stands for.
        latency: a hint without effect, as `explain` says: loads by address are not begun ahead.

    Returns:
        A tile of the view's shape, of the tensor's dtype; and a token.

    Raises:
        KernelTypeError: there is not one index for each axis of the view.

    Example:
        >>> run(lambda x: ct.load_gather_scatter_view_tko(
        ...     ct.make_gather_scatter_view(x_in, (3,)), (2 - ct.iota((3,)),))[0], [1.0, 2.0, 3.0])
        [3.0, 2.0, 1.0]
    """
    ...


@operation
def store_gather_scatter_view_tko(
    view: GatherScatterView,
    value: Tile | float,
    index: tuple[Tile | int, ...],
    ordering: ordering = ordering.WEAK,
    scope: scope | None = None,
    token: Token | None = None,
    latency: Latency | None = None,
) -> Token:
    """Write a tile of a gather view: each place along its axis at its own index.

    Places with an index outside of the tensor are dropped. Where two places have the same index, each element keeps one
    of the two values.

    Args:
        view: a view of a `Mut` or a `SharedMut` by `make_gather_scatter_view`.
        value: a tile of the view's shape and of the tensor's dtype, or a number.
        index: as for `load_gather_scatter_view_tko`.
        ordering: WEAK, RELAXED or RELEASE.
        scope: the blocks, and devices, that a RELAXED or RELEASE store is ordered with; DEVICE by default.
        token: the store comes after the accesses that the token stands for.
        latency: a hint without effect, as `explain` says: stores are not begun ahead.

    Returns:
        A token that stands for the store.

    Raises:
        KernelTypeError: the view is of a tensor that is only read, or there is not one index for each axis of the view.

    Example:
        >>> @ct.entry
        ... def put(y: ct.Mut, x: ct.Tensor):
        ...     view = ct.make_gather_scatter_view(y, (2, 2), axis=0)
        ...     ct.store_gather_scatter_view_tko(view, x.load_tile((2, 2), (0, 0)), (2 - 2 * ct.iota((2,)), 0))
        >>> x = ct.api.arange(4, ct.i32).reshape((2, 2)).sync()
        >>> put(ct.api.zeros((3, 2), ct.i32).partition((3, 2)), x).first().unpartition().to_numpy().sync().tolist()
        [[2, 3], [0, 0], [0, 1]]
    """
    ...


__all__ = (
    "GatherScatterView",
    "gather",
    "load_gather_scatter_view_tko",
    "make_gather_scatter_view",
    "store_gather_scatter_view_tko",
    "scatter",
)
