"""Views: tensors at an address, partitions with explicit controls, windows."""

from __future__ import annotations

from cutile.dtypes import DTypeLike
from cutile.language.annotations import Mut, Tensor
from cutile.language.declare import operation
from cutile.language.markers import Latency, ordering, padding, scope, tma
from cutile.language.partition import Partition, PartitionMut
from cutile.language.pointer import Ptr
from cutile.language.shared_mut import SharedMut
from cutile.language.token import Token
from cutile.tile import Tile

_Index = tuple[int, ...] | int


@operation
def get_index_space_shape(view: Partition | Mut) -> tuple[int, ...]:
    """How many tiles there are along each axis: `num_tiles` for every axis.

    Args:
        view: a partition, or a `Mut`.

    Returns:
        One number for each axis, an i32 scalar or, where the kernel is compiled for the extent, a constant.

    Raises:
        KernelTypeError: `view` is no partition.

    Example:
        >>> run(lambda x: x + ct.get_index_space_shape(x_in.partition((2,)))[0], [1, 2, 3], dtype="i32")
        [3, 4, 5]
    """
    ...


@operation
def make_tensor_view(
    base: Ptr | int | Tile,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DTypeLike | None = None,
    token: Token | None = None,
    alignment: int | None = None,
) -> Tensor:
    """The tensor whose first element is at the address `base`.

    For kernels that say `@entry(unsafe=True)`.

    Args:
        base: a pointer to the first element, or its address as an i64 or u64 scalar.
        shape: the extents; constants or i32 scalars.
        strides: one for each axis, in elements; a constant 1 says which axis is contiguous.
        dtype: the dtype of the elements, where `base` is a plain address.
        token: accesses of the view come after the accesses that the token stands for.
        alignment: bytes that divide the address and, in bytes, all strides but 1. It is a constant: 1, 2, 4, 8 or 16,
            at least the size of an element, which is the default. 16 allows the widest accesses.
            `ct.assume_div_by(base, 16)` says the same of the address.

    Returns:
        A tensor to read, and to make partitions of.

    Raises:
        KernelTypeError: `shape` and `strides` have different lengths, there is no such alignment, or the kernel is not
            `unsafe`.

    Example:
        >>> run(lambda x: x + ct.reduce_sum(ct.make_tensor_view(x_at, (2,), (2,)).load_tile((2,), (0,)), 0),
        ...     [1.0, 2.0, 3.0])                                   # every second element
        [5.0, 6.0, 7.0]
    """
    ...


@operation
def load_tensor(
    pointers: Tensor,
    index: _Index,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DTypeLike,
    alignment: int | None = None,
) -> Tensor:
    """The tensor whose address is element `index` of a tensor of addresses.

    For kernels that say `@entry(unsafe=True)`. The host makes such a tensor with `api.device_vec([a, b, c])`.

    Args:
        pointers: a tensor of addresses, u64 or i64.
        index: the index of the address in `pointers`: one integer per axis.
        shape, strides, dtype, alignment: as for `make_tensor_view`.

    Returns:
        A tensor to read.

    Raises:
        KernelTypeError: `pointers` are no addresses, or the kernel is not `unsafe`.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def sums(y: ct.Mut, rows: ct.Tensor, n: ct.i32):
        ...     row = ct.load_tensor(rows, ct.get_tile_block_id()[0], (n,), (1,), ct.f32)
        ...     y.store(ct.reduce_sum(row.load_tile((4,), (0,)), 0))
        >>> rows = ct.api.device_vec([ct.api.ones((3,)).sync(), ct.api.arange(3, ct.f32).sync()]).sync()
        >>> sums(ct.api.zeros((2,)).sync().partition((1,)), rows, 3).first().unpartition().to_numpy().sync()
        array([3., 3.], dtype=float32)
    """
    ...


@operation
def make_partition_view(
    x: Tensor | Mut | SharedMut,
    tile: tuple[int, ...],
    padding: padding = padding.ZERO,
    dim_map: tuple[int, ...] | None = None,
    token: Token | None = None,
) -> Partition:
    """A tensor as a grid of tiles: `x.partition` and `x.partition_permuted` in one.

    Args:
        x: a tensor, or the whole tensor of a `Mut`.
        tile: constant extents, one for each axis.
        padding: the elements that loads give past the edges.
        dim_map: axis `k` of a tile is axis `dim_map[k]` of the tensor; None for the same order.
        token: accesses of the partition come after the accesses that the token stands for.

    Returns:
        The partition.

    Raises:
        KernelTypeError: `tile` has another number of axes than `x`, or `dim_map` does not name each axis once.

    Example:
        >>> run(lambda x: x + ct.reduce_max(ct.make_partition_view(x_in, (2,), padding=ct.padding.NEG_INF).load(1), 0),
        ...     [1.0, 2.0, -3.0])
        [-2.0, -1.0, -6.0]
    """
    ...


@operation
def make_partition_view_mut(
    x: Tensor | Mut | SharedMut,
    tile: tuple[int, ...],
    padding: padding = padding.ZERO,
    dim_map: tuple[int, ...] | None = None,
    token: Token | None = None,
) -> PartitionMut:
    """`make_partition_view` to read and write, of a `Mut` or a view of an address.

    For kernels that say `@entry(unsafe=True)`.

    Args:
        x: a `Mut`, a `SharedMut`, or a view of an address.
        tile, padding, dim_map, token: as for `make_partition_view`.

    Returns:
        The partition, to read and write.

    Raises:
        KernelTypeError: `x` is read only, `tile` does not fit, or the kernel is not `unsafe`.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def backwards(y: ct.Mut):
        ...     view = ct.make_partition_view_mut(y, y.shape)
        ...     i, last = ct.get_tile_block_id()[0], ct.num_tiles(view, 0) - 1
        ...     view.store(ct.broadcast(i, y.shape), last - i)
        >>> backwards(ct.api.zeros((4,), ct.i32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
        [1, 1, 0, 0]
    """
    ...


@operation
def make_strided_view(
    x: Tensor | Mut | SharedMut,
    tile: tuple[int, ...],
    strides: tuple[int, ...],
    padding: padding = padding.ZERO,
    dim_map: tuple[int, ...] | None = None,
    starts: tuple[int, ...] | None = None,
) -> Partition:
    """Windows of `tile`, one at each multiple of `strides` elements.

    They overlap where a stride is smaller than the tile's extent. Windows of a `Mut` can be written in kernels that say
    `@entry(unsafe=True)`.

    Args:
        x: a tensor, or the whole tensor of a `Mut`.
        tile: constant extents, one for each axis.
        strides: constant steps in elements, one for each axis.
        padding: the elements that loads give outside of the tensor.
        dim_map: as for `make_partition_view`.
        starts: constants: the element at which the first window begins, along each axis of the tile. `(-1, -1)` pads an
            image by one. Such windows can only be read, and are read element by element. There are at least as many as
            without `starts`; a window that begins past the tensor's end is all padding.

    Returns:
        A partition to read; of a `Mut`, in an unsafe kernel and without `starts`, also to write.

    Raises:
        KernelTypeError: `tile`, `strides` or `starts` has another number of axes than `x`.

    Example:
        >>> @ct.entry
        ... def largest(y: ct.Mut, x: ct.Tensor):
        ...     windows = ct.make_strided_view(x, (4,), (2,), padding=ct.padding.NEG_INF, starts=(-1,))
        ...     y.store(ct.reduce_max(windows.load(ct.get_tile_block_id()[0]), 0))
        >>> y, x = ct.api.zeros((3,)).sync(), ct.api.arange(6, ct.f32).sync()
        >>> largest(y.partition((1,)), x).first().unpartition().to_numpy().sync()
        array([2., 4., 5.], dtype=float32)
    """
    ...


@operation
def load_view_tko(
    view: Partition,
    index: _Index,
    ordering: ordering = ordering.WEAK,
    scope: scope = scope.DEVICE,
    latency: Latency | int | None = None,
    tma: tma = tma.ENABLED,
) -> Tile:
    """`view.load(index)`, with an ordering and hints.

    Args:
        view: a partition, also one to write.
        index: the tile's index, which is checked.
        ordering: WEAK, RELAXED or ACQUIRE. With RELAXED and ACQUIRE each element is read on its own. Other tile blocks
            may store to the tile meanwhile, so it is no snapshot.
        scope: the blocks, and devices, that a RELAXED or ACQUIRE load is ordered with.
        latency, tma: hints, for a WEAK load of a product's operand; see `Latency` and `tma`.

    Returns:
        A tile of the view's shape and dtype.

    Raises:
        KernelTypeError: `view` is no partition, or the index has another number of axes.

    Example:
        >>> run(lambda x: ct.load_view_tko(x_in.partition((4,)), 0, latency=2), [1.0, 2.0, 3.0, 4.0])
        [1.0, 2.0, 3.0, 4.0]
    """
    ...


@operation
def load_strided_view_tko(
    view: Partition,
    index: _Index,
    ordering: ordering = ordering.WEAK,
    scope: scope = scope.DEVICE,
    latency: Latency | int | None = None,
    tma: tma = tma.ENABLED,
) -> Tile:
    """The window at an index of a strided view: another name of `load_view_tko`.

    Both functions load tiles and windows alike, since each view knows its own strides. cuTile Rust has two operations,
    one for each kind of view; their names are kept here.

    Args:
        view: a view by `make_strided_view`.
        index: the window's index, which is checked.
        ordering, scope, latency, tma: as for `load_view_tko`.

    Returns:
        A tile of the view's shape and dtype.

    Raises:
        KernelTypeError: `view` is no partition, or the index has another number of axes.

    Example:
        >>> run(lambda x: ct.load_strided_view_tko(ct.make_strided_view(x_in, (4,), (1,)), 1), [1.0, 2.0, 3.0, 4.0])
        [2.0, 3.0, 4.0, 0.0]
    """
    ...


@operation
def store_view_tko(
    view: PartitionMut,
    value: Tile | float,
    index: _Index,
    ordering: ordering = ordering.WEAK,
    scope: scope = scope.DEVICE,
    latency: Latency | int | None = None,
    tma: tma = tma.ENABLED,
) -> Token:
    """`view.store(value, index)`, with an ordering.

    Args:
        view: a partition to write.
        value: a tile of the shape of the view's tiles, of the tensor's dtype; or a number.
        index: the tile's index, which is checked.
        ordering: WEAK, RELAXED or RELEASE. With RELAXED and RELEASE each element is written on its own, and other tile
            blocks may load it meanwhile. An ACQUIRE load of an element that a RELEASE store wrote also sees all that
            this block wrote before that store.
        scope: the blocks, and devices, that a RELAXED or RELEASE store is ordered with.
        latency: a hint without effect, as `explain` says: stores are not begun ahead.
        tma: whether TMA may store this tile, a hint; see `tma`.

    Returns:
        A token.

    Raises:
        KernelTypeError: `view` is no partition, or the index has another number of axes.

    Example:
        >>> @ct.entry
        ... def ramp(y: ct.Mut):
        ...     part = y.partition_mut((1,))
        ...     for i in range(ct.num_tiles(part, 0)):
        ...         ct.store_view_tko(part, ct.broadcast(i, (1,)), i)
        >>> ramp(ct.api.zeros((3,), ct.i32).partition((3,))).first().unpartition().to_numpy().sync().tolist()
        [0, 1, 2]
    """
    ...


__all__ = (
    "get_index_space_shape",
    "load_strided_view_tko",
    "load_tensor",
    "load_view_tko",
    "make_partition_view",
    "make_partition_view_mut",
    "make_strided_view",
    "make_tensor_view",
    "store_view_tko",
)
