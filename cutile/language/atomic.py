"""Atomic updates of elements, of a partition's tile, and through raw pointers.

`atomic_add(y, index, value)` and its kin update elements of a tensor at any indices. These count from the tensor's
start, as in `gather`. A lane whose index is outside of the tensor updates nothing. All other lanes take effect, in any
order, even if several update the same element. The result has the elements before the update, and 0 where nothing was
updated.
"""

from __future__ import annotations

from typing import Any

from cutile.language.declare import alike, operation
from cutile.language.markers import atomic, ordering, scope
from cutile.language.pointer import Ptr
from cutile.language.token import Token
from cutile.tile import Tile

Index = Tile | int | tuple[Tile | int, ...]


@operation
def atomic_add(
    y: Any,
    index: Index,
    value: Tile | float,
    *,
    mask: Tile | None = None,
    ordering: ordering = ordering.RELAXED,
    scope: scope = scope.DEVICE,
) -> Tile:
    """Add `value` to elements of `y`, atomically.

    For integers of 32 or 64 bits, and floats. The last bits of sums of floats depend on the order of the updates.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def histogram(counts: ct.Mut, x: ct.Tensor):
        ...     ct.atomic_add(counts, ct.load_tile(x, (8,), (0,)), 1)
        >>> import numpy as np
        >>> x = ct.api.from_numpy(np.array([0, 1, 1, 3, 3, 3, 3, 9], np.int32)).sync()
        >>> out = histogram(ct.api.zeros((4,), ct.i32).partition((4,)), x).first().unpartition().sync()
        >>> out.to_numpy().sync().tolist()
        [1, 2, 0, 4]
    """
    ...


@operation
def atomic_sub(
    y: Any,
    index: Index,
    value: Tile | float,
    *,
    mask: Tile | None = None,
    ordering: ordering = ordering.RELAXED,
    scope: scope = scope.DEVICE,
) -> Tile:
    """Subtract `value` from elements of `y`, atomically; see `atomic_add`.

    For integers of 32 or 64 bits, and floats.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def sold(stock: ct.Mut, x: ct.Tensor):
        ...     ct.atomic_sub(stock, ct.load_tile(x, (4,), (0,)), 1)
        >>> import numpy as np
        >>> x = ct.api.from_numpy(np.array([0, 1, 1, 1], np.int32)).sync()
        >>> out = sold(ct.api.full(5, (2,), ct.i32).partition((2,)), x).first().unpartition().sync()
        >>> out.to_numpy().sync().tolist()
        [4, 2]
    """
    ...


@operation
def atomic_and(
    y: Any,
    index: Index,
    value: Tile | int,
    *,
    mask: Tile | None = None,
    ordering: ordering = ordering.RELAXED,
    scope: scope = scope.DEVICE,
) -> Tile:
    """`y &= value`, atomically; see `atomic_add`. For integers of 32 or 64 bits.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def all_blocks(flags: ct.Mut):
        ...     ct.atomic_and(flags, 0, ~(1 << ct.get_tile_block_id()[0]))
        >>> flags = ct.api.full(15, (3,), ct.i32)
        >>> all_blocks(flags.partition((1,))).first().unpartition().to_numpy().sync().tolist()
        [8, 15, 15]
    """
    ...


@alike(atomic_and)
def atomic_or() -> None:
    """`y |= value`, atomically; see `atomic_add`. For integers of 32 or 64 bits.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def all_blocks(flags: ct.Mut):
        ...     ct.atomic_or(flags, 0, 1 << ct.get_tile_block_id()[0])
        >>> flags = ct.api.full(8, (3,), ct.i32)
        >>> all_blocks(flags.partition((1,))).first().unpartition().to_numpy().sync().tolist()
        [15, 8, 8]
    """
    ...


@alike(atomic_and)
def atomic_xor() -> None:
    """`y ^= value`, atomically; see `atomic_add`. For integers of 32 or 64 bits.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def all_blocks(flags: ct.Mut):
        ...     ct.atomic_xor(flags, 0, 1 << ct.get_tile_block_id()[0])
        >>> flags = ct.api.full(1, (3,), ct.i32)
        >>> all_blocks(flags.partition((1,))).first().unpartition().to_numpy().sync().tolist()
        [6, 1, 1]
    """
    ...


@alike(atomic_and)
def atomic_max() -> None:
    """`y = max(y, value)`, atomically, signed or unsigned as the dtype is.

    See `atomic_add`. For integers of 32 or 64 bits.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def all_blocks(flags: ct.Mut):
        ...     ct.atomic_max(flags, 0, 10 * ct.get_tile_block_id()[0])
        >>> flags = ct.api.full(1, (3,), ct.i32)
        >>> all_blocks(flags.partition((1,))).first().unpartition().to_numpy().sync().tolist()
        [20, 1, 1]
    """
    ...


@alike(atomic_and)
def atomic_min() -> None:
    """`y = min(y, value)`, atomically, signed or unsigned as the dtype is.

    See `atomic_add`. For integers of 32 or 64 bits.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def all_blocks(flags: ct.Mut):
        ...     ct.atomic_min(flags, 0, -10 * ct.get_tile_block_id()[0])
        >>> flags = ct.api.full(1, (3,), ct.i32)
        >>> all_blocks(flags.partition((1,))).first().unpartition().to_numpy().sync().tolist()
        [-20, 1, 1]
    """
    ...


@alike(atomic_add)
def atomic_xchg() -> None:
    """`y = value`, atomically; see `atomic_add`. For any dtype of 32 or 64 bits.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def replace(y: ct.Mut):
        ...     before = ct.atomic_xchg(y, 1, 7.0)
        ...     y.store(ct.broadcast(before, y.shape) + y.load())
        >>> replace(ct.api.ones((2,)).partition((2,))).first().unpartition().to_numpy().sync().tolist()
        [2.0, 8.0]
    """
    ...


@operation
def atomic_cas(
    y: Any,
    index: Index,
    expected: Tile | float,
    value: Tile | float,
    *,
    mask: Tile | None = None,
    ordering: ordering = ordering.RELAXED,
    scope: scope = scope.DEVICE,
) -> Tile:
    """Write `value`, atomically, to elements that have the bits of `expected`.

    See `atomic_add`. For any dtype of 32 or 64 bits.

    Args:
        y: a `Mut` or a `SharedMut`. The indices may name any element of the whole tensor.
        index: one tile or scalar of integers per axis; they broadcast.
        expected: of the tensor's dtype; compared bit by bit.
        value: of the tensor's dtype; broadcast to the shape of the indices.
        mask: bools; where it is false, nothing is updated.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.

    Returns:
        A tile of the indices' shape and the tensor's dtype, with the elements before the update; 0 where nothing was
            updated.

    Raises:
        KernelTypeError: the dtype has no such update, `y` is no `Mut` and no `SharedMut`, or shapes do not broadcast.

    Example:
        >>> @ct.entry
        ... def claim(owner: ct.Mut):
        ...     before = ct.atomic_cas(owner, 0, -1, ct.get_tile_block_id()[0])
        ...     print("before:", before)
        >>> owner = ct.api.full(-1, (1,), ct.i32).sync()
        >>> _ = claim(owner.partition((1,))).sync()
        before: -1
    """
    ...


@operation
def atomic_rmw_tko(
    pointers: Ptr,
    value: Tile | float,
    mode: atomic,
    ordering: ordering = ordering.RELAXED,
    scope: scope = scope.DEVICE,
    mask: Tile | None = None,
    token: Token | None = None,
) -> tuple[Tile, Token]:
    """Update the elements pointed to, atomically; give the old ones, and a token.

    Args:
        pointers: a tile of pointers of any shape.
        value: of the pointers' dtype; broadcast to their shape.
        mode: ADD, AND, OR, XOR, MAX, MIN, UMAX or UMIN for integers of 32 or 64 bits, ADDF for floats, XCHG for any
            dtype of 32 or 64 bits. MAX and MIN read the bits as signed, UMAX and UMIN as unsigned.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.
        mask: bools; where it is false, nothing is updated.
        token: the update comes after the accesses that the token stands for.

    Returns:
        A tile of the pointers' shape and dtype, with the elements before the update (0 where `mask` is false); and a
            token.

    Raises:
        KernelTypeError: the dtype has no such update, `ordering` is WEAK, or shapes do not broadcast.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def histogram(counts: ct.Ptr[ct.i32], x: ct.Tensor):
        ...     ct.atomic_rmw_tko(counts.offset(x.load_tile((4,), (0,))), 1, ct.atomic.ADD)
        >>> counts, x = ct.api.zeros((3,), ct.i32).sync(), ct.api.full(2, (4,), ct.i32).sync()
        >>> _ = histogram(counts.device_pointer(), x).grid((1,)).sync()
        >>> counts.to_numpy().sync().tolist()
        [0, 0, 4]
    """
    ...


@operation
def atomic_cas_tko(
    pointers: Ptr,
    expected: Tile | float,
    value: Tile | float,
    ordering: ordering = ordering.RELAXED,
    scope: scope = scope.DEVICE,
    mask: Tile | None = None,
    token: Token | None = None,
) -> tuple[Tile, Token]:
    """Write `value`, atomically, where an element pointed to has `expected`'s bits.

    Give the old elements, and a token. Elements have 32 or 64 bits.

    Args:
        pointers: a tile of pointers of any shape.
        expected: of the pointers' dtype; compared bit by bit.
        value: of the pointers' dtype; broadcast to their shape.
        ordering: RELAXED, ACQUIRE, RELEASE or ACQ_REL.
        scope: the blocks, and devices, that the update is ordered with.
        mask: bools; where it is false, nothing is updated.
        token: the update comes after the accesses that the token stands for.

    Returns:
        A tile of the pointers' shape and dtype, with the elements before the update (0 where `mask` is false); and a
            token.

    Raises:
        KernelTypeError: the elements have neither 32 nor 64 bits, `ordering` is WEAK, or shapes do not broadcast.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def claim(y: ct.Mut, owner: ct.Ptr[ct.i32]):
        ...     before, _ = ct.atomic_cas_tko(owner, -1, ct.get_tile_block_id()[0])
        ...     y.store(ct.broadcast((before == -1).astype(ct.i32), y.shape))      # 1 for the block that came first
        >>> owner = ct.api.full(-1, (1,), ct.i32).sync()
        >>> out = claim(ct.api.zeros((3,), ct.i32).partition((1,)), owner.device_pointer()).first().unpartition().sync()
        >>> int(out.to_numpy().sync().sum())
        1
    """
    ...


@operation
def atomic_red_view_tko(
    part: Any,
    value: Tile | float,
    index: tuple[Tile | int, ...] | int,
    mode: atomic,
    ordering: ordering = ordering.RELAXED,
    scope: scope = scope.DEVICE,
) -> Token:
    """Update a whole tile of a partitioned tensor, atomically, at any tile index.

    Nothing past the edges of the tensor is updated.

    Args:
        part: a `Mut`, or `y.partition_full_mut(shape)`.
        value: a tile of the shape of `part`'s tiles, of the tensor's dtype; or a number.
        index: the tile's index, one integer per axis. It counts tiles from the tensor's start, not from this block's
            own tile.
        mode: as for `atomic_rmw_tko`.
        ordering: RELAXED.
        scope: TILE_BLOCK or DEVICE.

    Returns:
        A token that stands for the update.

    Raises:
        KernelTypeError: `part` is neither of these, `ordering` or `scope` is none of these, or the index has another
            number of axes than the tensor.

    Example:
        >>> @ct.entry
        ... def total(y: ct.Mut):
        ...     ct.atomic_red_view_tko(y, ct.constant(1.0, y.shape, ct.f32), (0,), ct.atomic.ADDF)
        >>> out = total(ct.api.zeros((6,)).partition((2,))).first().unpartition().sync()
        >>> out.to_numpy().sync().tolist()
        [3.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    """
    ...


__all__ = (
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_cas_tko",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_red_view_tko",
    "atomic_rmw_tko",
    "atomic_sub",
    "atomic_xchg",
    "atomic_xor",
)
