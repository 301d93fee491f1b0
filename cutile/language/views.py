"""Views: tensors at an address, partitions with explicit controls, windows that overlap; and what an author assumes.

Every assumption gives its argument back. It changes no result where it holds; where it does not, indices may be taken
for proved that are wrong (an access outside of a tensor is then padding, or dropped). The debug mode checks them.
"""

from __future__ import annotations

from typing import TypeVar

from cutile.dtypes import DTypeLike
from cutile.language.annotations import Mut, Tensor
from cutile.language.mark import operation
from cutile.language.markers import Latency, ordering, padding, scope, tma
from cutile.language.partitions import Partition, PartitionMut
from cutile.language.pointers import Ptr
from cutile.language.tokens import Token
from cutile.tile import Tile, outside_kernel

_Index = tuple[int, ...] | int
_T = TypeVar("_T", int, Tile, Ptr)


@operation
def get_index_space_shape(view: Partition | Mut) -> tuple[int, ...]:
    """How many tiles there are along each axis: `num_tiles` of all of them.

    Example:
        >>> run(lambda x: x + ct.get_index_space_shape(x_in.partition((2,)))[0], [1, 2, 3], dtype="i32")
        [3, 4, 5]
    """
    outside_kernel("get_index_space_shape")


@operation
def make_tensor_view(
    base: Ptr | int | Tile,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DTypeLike | None = None,
    token: Token | None = None,
    alignment: int | None = None,
) -> Tensor:
    """The tensor whose first element is at the address `base`, in kernels that say `@entry(unsafe=True)`.

    Args:
        base: a pointer to the first element, or its address as an i64 or u64 scalar.
        shape: extents; constants or i32 scalars.
        strides: in elements; a constant 1 says which axis is contiguous.
        dtype: of the elements, where the base is a plain address.
        token: what comes before.
        alignment: bytes that divide the address and all strides but 1, where that is more than an element: 16 allows
            the widest accesses. `ct.assume_div_by(base, 16)` says the same of the address.

    Example:
        >>> run(lambda x: x + ct.reduce_sum(ct.make_tensor_view(x_at, (2,), (2,)).load_tile((2,), (0,)), 0),
        ...     [1.0, 2.0, 3.0])                                   # every second element
        [5.0, 6.0, 7.0]
    """
    outside_kernel("make_tensor_view")


@operation
def load_tensor(
    pointers: Tensor,
    index: _Index,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DTypeLike,
    alignment: int | None = None,
) -> Tensor:
    """The tensor whose address is the element `index` of a tensor of addresses, in kernels that say
    `@entry(unsafe=True)`. The host makes such a tensor with `api.device_vec([a, b, c])`.

    The further arguments are those of `make_tensor_view`.
    """
    outside_kernel("load_tensor")


@operation
def make_partition_view(
    x: Tensor | Mut,
    tile: tuple[int, ...],
    padding: padding = padding.ZERO,
    dim_map: tuple[int, ...] | None = None,
    token: Token | None = None,
) -> Partition:
    """A tensor as a grid of tiles, with all that may be chosen: `x.partition`, `x.partition_permuted` in one.

    Example:
        >>> run(lambda x: x + ct.reduce_max(ct.make_partition_view(x_in, (2,), padding=ct.padding.NEG_INF).load(1), 0),
        ...     [1.0, 2.0, -3.0])
        [-2.0, -1.0, -6.0]
    """
    outside_kernel("make_partition_view")


@operation
def make_partition_view_mut(
    x: Tensor | Mut,
    tile: tuple[int, ...],
    padding: padding = padding.ZERO,
    dim_map: tuple[int, ...] | None = None,
    token: Token | None = None,
) -> PartitionMut:
    """`make_partition_view` to write, of a `Mut` or a view of an address, in kernels that say `@entry(unsafe=True)`.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def backwards(y: ct.Mut):
        ...     view = ct.make_partition_view_mut(y, y.shape)
        ...     i, last = ct.get_tile_block_id()[0], ct.num_tiles(view, 0) - 1
        ...     view.store(ct.broadcast(i, y.shape), last - i)
        >>> backwards(ct.api.zeros((4,), ct.i32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
        [1, 1, 0, 0]
    """
    outside_kernel("make_partition_view_mut")


@operation
def make_strided_view(
    x: Tensor | Mut,
    tile: tuple[int, ...],
    strides: tuple[int, ...],
    padding: padding = padding.ZERO,
    dim_map: tuple[int, ...] | None = None,
) -> Partition:
    """Windows of `tile`, one at each multiple of `strides` elements: they overlap where the strides are smaller."""
    outside_kernel("make_strided_view")


@operation
def load_view_tko(
    view: Partition,
    index: _Index,
    ordering: ordering = ordering.WEAK,
    scope: scope = scope.DEVICE,
    latency: Latency | int | None = None,
    tma: tma = tma.ENABLED,
) -> Tile:
    """`view.load(index)`, with all that may be chosen.

    Args:
        view: a partition, also one to write.
        index: of the tile; checked.
        ordering: WEAK, RELAXED or ACQUIRE. But for WEAK, each element is read on its own, and other tile blocks may
            store to it meanwhile; the tile is no snapshot.
        scope: among whom a RELAXED or ACQUIRE load is ordered.
        latency, tma: hints, for a WEAK load of a product's operand; see `Latency`, `tma`.

    Example:
        >>> run(lambda x: ct.load_view_tko(x_in.partition((4,)), 0, latency=2), [1.0, 2.0, 3.0, 4.0])
        [1.0, 2.0, 3.0, 4.0]
    """
    outside_kernel("load_view_tko")


@operation
def load_strided_view_tko(
    view: Partition,
    index: _Index,
    ordering: ordering = ordering.WEAK,
    scope: scope = scope.DEVICE,
    latency: Latency | int | None = None,
    tma: tma = tma.ENABLED,
) -> Tile:
    """The window at an index of a strided view. The other arguments are those of `load_view_tko`.

    Example:
        >>> run(lambda x: ct.load_strided_view_tko(ct.make_strided_view(x_in, (4,), (1,)), 1), [1.0, 2.0, 3.0, 4.0])
        [2.0, 3.0, 4.0, 0.0]
    """
    outside_kernel("load_strided_view_tko")


@operation
def store_view_tko(
    view: PartitionMut,
    value: Tile,
    index: _Index,
    ordering: ordering = ordering.WEAK,
    scope: scope = scope.DEVICE,
    latency: Latency | int | None = None,
    tma: tma = tma.ENABLED,
) -> Token:
    """`view.store(value, index)`, with all that may be chosen.

    Args:
        view: a partition to write.
        value: a tile of its shape and dtype.
        index: of the tile; checked.
        ordering: WEAK, RELAXED or RELEASE. But for WEAK, each element is written on its own, and other tile blocks may
            load it meanwhile; what this tile block did before a RELEASE store is seen by who ACQUIREs it.
        scope: among whom a RELAXED or RELEASE store is ordered.
        latency, tma: accepted, and without effect: stores are not waited for, and these do not use the copy engine.

    Example:
        >>> @ct.entry
        ... def ramp(y: ct.Mut):
        ...     part = y.partition_mut((1,))
        ...     for i in range(ct.num_tiles(part, 0)):
        ...         ct.store_view_tko(part, ct.broadcast(i, (1,)), i)
        >>> ramp(ct.api.zeros((3,), ct.i32).partition((3,))).first().unpartition().to_numpy().sync().tolist()
        [0, 1, 2]
    """
    outside_kernel("store_view_tko")


@operation
def assume_bounds(x: _T, lower: int | None = None, upper: int | None = None) -> _T:
    """`x`, of which every element is said to lie between two constants, both included.

    Example:
        >>> @ct.entry(deny_in_kernel_checks=True)                      # compiles: the index is proved
        ... def pick(y: ct.Mut, x: ct.Tensor[ct.f32, 8], order: ct.Tensor):
        ...     i = ct.assume_bounds(order.load_tile((1,), (0,)).reshape(()), 0, 3)
        ...     y.store(x.partition((2,)).load(i))
        >>> x, order = ct.api.arange(8, ct.f32).sync(), ct.api.full(3, (1,), ct.i32).sync()
        >>> pick(ct.api.zeros((2,)).partition((2,)), x, order).first().unpartition().to_numpy().sync().tolist()
        [6.0, 7.0]
    """
    outside_kernel("assume_bounds")


@operation
def assume_bounds_lower(x: _T, lower: int) -> _T:
    """`x`, of which no element is said to be below a constant.

    Example:
        >>> run(lambda x: x + ct.assume_bounds_lower(ct.num_tiles(x_in.partition((1,)), 0), 1), [1, 2], dtype="i32")
        [3, 4]
    """
    outside_kernel("assume_bounds_lower")


@operation
def assume_bounds_upper(x: _T, upper: int) -> _T:
    """`x`, of which no element is said to be above a constant.

    Example:
        >>> run(lambda x: x + ct.assume_bounds_upper(ct.num_tiles(x_in.partition((1,)), 0), 64), [1, 2], dtype="i32")
        [3, 4]
    """
    outside_kernel("assume_bounds_upper")


@operation
def assume_div_by(x: _T, by: int) -> _T:
    """`x`, of which every element is said to be a multiple of a constant."""
    outside_kernel("assume_div_by")


@operation
def assume_div_by_every_along(x: Tile, by: int, every: int, along: int) -> Tile:
    """`x`, said to count up in groups of `every` neighbours along an axis, each from a multiple of `by`.

    Example:
        >>> run(lambda x: x + ct.assume_div_by_every_along(ct.iota((4,)), 2, 2, 0), [1, 1, 1, 1], dtype="i32")
        [1, 2, 3, 4]
    """
    outside_kernel("assume_div_by_every_along")


@operation
def assume_same_elements(x: Tile, groups: tuple[int, ...]) -> Tile:
    """`x`, whose elements are said to be equal within groups of `groups[k]` neighbours along axis `k`."""
    outside_kernel("assume_same_elements")
