"""Views: tensors at an address, partitions with explicit controls, windows that overlap; and what an author assumes.

Every assumption gives its argument back. It changes no result where it holds; where it does not, indices may be taken
for proved that are wrong (an access outside of a tensor is then padding, or dropped). The debug mode checks them.
"""

from __future__ import annotations

from typing import TypeVar

from cutile.dtypes import DTypeLike
from cutile.language.annotations import Mut, Partition, PartitionMut, Tensor
from cutile.language.mark import operation
from cutile.language.markers import Latency, ordering, padding, scope, tma
from cutile.language.pointers import Ptr
from cutile.language.tokens import Token
from cutile.tile import Tile, outside_kernel

_Index = tuple[int, ...] | int
_T = TypeVar("_T", int, Tile, Ptr)


@operation
def get_index_space_shape(view: Partition | Mut) -> tuple[int, ...]:
    """How many tiles there are along each axis: `num_tiles` of all of them."""
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
    """A tensor as a grid of tiles, with all that may be chosen: `x.partition`, `x.partition_permuted` in one."""
    outside_kernel("make_partition_view")


@operation
def make_partition_view_mut(
    x: Tensor | Mut,
    tile: tuple[int, ...],
    padding: padding = padding.ZERO,
    dim_map: tuple[int, ...] | None = None,
    token: Token | None = None,
) -> PartitionMut:
    """`make_partition_view` to write, of a `Mut` or a view of an address, in kernels that say `@entry(unsafe=True)`."""
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
    """`view.load(index)`, with its hints by name."""
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
    """The window at an index of a strided view."""
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
    """`view.store(value, index)`, with its hints by name."""
    outside_kernel("store_view_tko")


@operation
def assume_bounds(x: _T, lower: int | None = None, upper: int | None = None) -> _T:
    """`x`, of which every element is said to lie between two constants, both included."""
    outside_kernel("assume_bounds")


@operation
def assume_bounds_lower(x: _T, lower: int) -> _T:
    """`x`, of which no element is said to be below a constant."""
    outside_kernel("assume_bounds_lower")


@operation
def assume_bounds_upper(x: _T, upper: int) -> _T:
    """`x`, of which no element is said to be above a constant."""
    outside_kernel("assume_bounds_upper")


@operation
def assume_div_by(x: _T, by: int) -> _T:
    """`x`, of which every element is said to be a multiple of a constant."""
    outside_kernel("assume_div_by")


@operation
def assume_div_by_every_along(x: Tile, by: int, every: int, along: int) -> Tile:
    """`x`, said to count up in groups of `every` neighbours along an axis, each from a multiple of `by`."""
    outside_kernel("assume_div_by_every_along")


@operation
def assume_same_elements(x: Tile, groups: tuple[int, ...]) -> Tile:
    """`x`, whose elements are said to be equal within groups of `groups[k]` neighbours along axis `k`."""
    outside_kernel("assume_same_elements")
