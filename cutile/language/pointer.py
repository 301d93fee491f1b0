"""Raw pointers: tiles of addresses, for kernels that say `@entry(unsafe=True)`.

Nothing checks an address, keeps its memory alive, or orders the launch after other users of that memory. So keep the
tensor, and run all its users on one stream. Offsets count elements.

    @ct.entry(unsafe=True)
    def add(z: Ptr[f32], x: Ptr[f32], n: i32):
        lanes = ct.iota((128,)) + 128 * ct.get_tile_block_id()[0]
        value = x.offset(lanes).load(mask=lanes < n)
        z.offset(lanes).store(value + 1.0, mask=lanes < n)

    add(z.device_pointer(), x.device_pointer(), n).grid((ct.ceil_div(n, 128),))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

from cutile.dtypes import DTypeLike
from cutile.language.declare import operation
from cutile.language.facts import Subscriptable
from cutile.language.markers import Latency, ordering, scope
from cutile.language.token import Token
from cutile.tile import Tile, outside_kernel


class Ptr(Subscriptable):
    """A pointer, or a tile of them.

    `p: Ptr[f32]` is a kernel parameter; `p: Ptr` takes its dtype from the argument.

    The argument is `tensor.device_pointer()`. Where the dtype is declared, it may also be an address, as an int.

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

    if TYPE_CHECKING:

        def __launch_argument__(self) -> SupportsIndex: ...

    @property
    def dtype(self) -> Any:
        """The type of the elements pointed to.

        Example:
            >>> run(lambda x: x + ct.constant(1, (2,), x_at.dtype), [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Ptr.dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of a tile of pointers; `()` for one pointer.

        Example:
            >>> run(lambda x: ct.broadcast(7.0, x_at.offset(ct.iota((2,))).shape), [1.0, 2.0])
            [7.0, 7.0]
        """
        outside_kernel("Ptr.shape")

    @property
    def ndim(self) -> int:
        """The number of axes.

        Example:
            >>> run(lambda x: x + x_at.ndim, [1.0, 2.0])
            [1.0, 2.0]
        """
        outside_kernel("Ptr.ndim")

    def offset(self, count: Tile | int) -> Ptr:
        """The pointers `count` elements further on.

        `count` is an integer scalar, or a tile of integers, one for each pointer. See `cutile.addptr` and
        `cutile.addptr_tile`.

        Example:
            >>> run(lambda x: x + x_at.offset(1).load(), [1.0, 5.0])
            [6.0, 10.0]
        """
        outside_kernel("Ptr.offset")

    def offset_tile(self, counts: Tile) -> Ptr:
        """The pointers `counts` elements further on, lane by lane.

        See `cutile.addptr_tile`.

        Example:
            >>> run(lambda x: x_at.offset_tile(1 - ct.iota((2,))).load(), [1.0, 5.0])
            [5.0, 1.0]
        """
        outside_kernel("Ptr.offset_tile")

    def broadcast(self, shape: tuple[int, ...]) -> Ptr:
        """One pointer, or axes of size 1, repeated to `shape`; see `cutile.broadcast_ptr`.

        Example:
            >>> run(lambda x: x_at.broadcast((2,)).load(), [7.0, 8.0])
            [7.0, 7.0]
        """
        outside_kernel("Ptr.broadcast")

    def reshape(self, shape: tuple[int, ...]) -> Ptr:
        """The same pointers under another shape; see `cutile.reshape_ptr`.

        Example:
            >>> run(lambda x: x_at.offset(ct.iota((2,))).reshape((2, 1)).load().reshape((2,)), [1.0, 2.0])
            [1.0, 2.0]
        """
        outside_kernel("Ptr.reshape")

    def __add__(self, count: Tile | int) -> Ptr:
        """`offset(count)`."""
        outside_kernel("Ptr +")

    def __sub__(self, count: Tile | int) -> Ptr:
        """`offset(-count)`."""
        outside_kernel("Ptr -")

    def load(self, *, mask: Tile | None = None, pad: Tile | float | None = None) -> Tile:
        """The elements pointed to, in program order; `pad` (zero) where `mask` is false.

        Example:
            >>> run(lambda x: x_at.offset(ct.iota((3,))).load(mask=x > 1.0, pad=-1.0), [1.0, 2.0, 3.0])
            [-1.0, 2.0, 3.0]
        """
        outside_kernel("Ptr.load")

    def store(self, value: Tile | float, *, mask: Tile | None = None) -> None:
        """Write the elements pointed to, in program order; nothing where `mask` is false.

        Example:
            >>> @ct.entry(unsafe=True)
            ... def number(p: ct.Ptr[ct.i32], n: ct.i32):
            ...     lanes = ct.iota((4,))
            ...     p.offset(lanes).store(lanes * lanes, mask=lanes < n)
            >>> x = ct.api.zeros((3,), ct.i32).sync()
            >>> _ = number(x.device_pointer(), 3).grid((1,)).sync()
            >>> x.to_numpy().sync().tolist()
            [0, 1, 4]
        """
        outside_kernel("Ptr.store")


@operation
def pointer_to_tile(pointer: Ptr) -> Ptr:
    """A pointer as a tile of shape `()`: the pointer itself.

    Args:
        pointer: one pointer.

    Returns:
        `pointer`.

    Raises:
        KernelTypeError: the argument has axes.

    Example:
        >>> run(lambda x: ct.pointer_to_tile(x_at).reshape((1,)).load(), [3.0])
        [3.0]
    """
    ...


@operation
def tile_to_pointer(pointers: Ptr) -> Ptr:
    """The pointer in a tile of shape `()`.

    Args:
        pointers: a tile of shape `()`.

    Returns:
        The pointer.

    Raises:
        KernelTypeError: the argument has axes.

    Example:
        >>> run(lambda x: x + ct.tile_to_pointer(x_at.reshape((1,)).reshape(())).load(), [3.0])
        [6.0]
    """
    ...


@operation
def addptr(pointers: Ptr, count: Tile | int) -> Ptr:
    """Every pointer `count` elements further on; `count` is an integer scalar.

    Args:
        pointers: pointers of any shape.
        count: an integer scalar or number; negative ones go back.

    Returns:
        Pointers of the same shape and dtype.

    Raises:
        KernelTypeError: `count` has axes, or is no integer.

    Example:
        >>> run(lambda x: x + ct.addptr(x_at, 1).load(), [1.0, 5.0])
        [6.0, 10.0]
    """
    ...


@operation
def addptr_tile(pointers: Ptr, counts: Tile) -> Ptr:
    """Pointers `counts` elements further on, lane by lane; the two broadcast.

    Args:
        pointers: pointers of any shape.
        counts: integers; negative ones go back.

    Returns:
        Pointers of the broadcast shape, of the same dtype.

    Raises:
        KernelTypeError: `counts` are no integers, or the shapes do not broadcast.

    Example:
        >>> run(lambda x: ct.addptr_tile(x_at, 1 - ct.iota((2,))).load(), [1.0, 5.0])
        [5.0, 1.0]
    """
    ...


@operation
def broadcast_ptr(pointers: Ptr, shape: tuple[int, ...]) -> Ptr:
    """One pointer, or axes of size 1, repeated to `shape`.

    Args:
        pointers: pointers of any shape.
        shape: constant extents. Each equals the extent of the pointers, unless that is 1.

    Returns:
        Pointers of `shape`, of the same dtype.

    Raises:
        KernelTypeError: the shapes do not broadcast.

    Example:
        >>> run(lambda x: ct.broadcast_ptr(x_at, (2,)).load(), [7.0, 8.0])
        [7.0, 7.0]
    """
    ...


@operation
def reshape_ptr(pointers: Ptr, shape: tuple[int, ...]) -> Ptr:
    """The same pointers, in row-major order, under another shape.

    Args:
        pointers: pointers of any shape.
        shape: constants whose product is the number of pointers.

    Returns:
        Pointers of `shape`, of the same dtype.

    Raises:
        KernelTypeError: the pointers do not fit the shape.

    Example:
        >>> run(lambda x: x * ct.reduce_sum(ct.reshape_ptr(x_at.offset(ct.iota((2,))), (2, 1)).load(), 0), [1.0, 2.0])
        [3.0, 6.0]
    """
    ...


@operation
def int_to_ptr(addresses: Tile | int, dtype: DTypeLike) -> Ptr:
    """Addresses in bytes (i64 or u64) as pointers to elements of `dtype`.

    Args:
        addresses: i64 or u64, in bytes.
        dtype: any element type.

    Returns:
        Pointers of the addresses' shape.

    Raises:
        KernelTypeError: the addresses are of another dtype.

    Example:
        >>> run(lambda x: x + ct.int_to_ptr(ct.ptr_to_int(x_at) + 4, ct.f32).load(), [1.0, 5.0])
        [6.0, 10.0]
    """
    ...


@operation
def ptr_to_int(pointers: Ptr) -> Tile:
    """The addresses in bytes, as a tile of i64.

    Args:
        pointers: pointers of any shape.

    Returns:
        A tile of i64, of the pointers' shape.

    Raises:
        KernelTypeError: `pointers` are no pointers.

    Example:
        >>> run(lambda x: x + (ct.ptr_to_int(x_at.offset(3)) - ct.ptr_to_int(x_at)), [0], dtype="i64")
        [24]
    """
    ...


@operation
def ptr_to_ptr(pointers: Ptr, dtype: DTypeLike) -> Ptr:
    """The same addresses as pointers to elements of another dtype.

    Args:
        pointers: pointers of any shape.
        dtype: any element type.

    Returns:
        Pointers of the same shape.

    Raises:
        KernelTypeError: `pointers` are no pointers.

    Example:
        >>> run(lambda x: x + (ct.ptr_to_ptr(x_at, ct.u32).load() >> 23).astype(ct.f32), [1.0])  # the exponent's bits
        [128.0]
    """
    ...


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
        pointers: a tile of pointers of any shape.
        ordering: WEAK, RELAXED or ACQUIRE.
        scope: the blocks, and devices, that a RELAXED or ACQUIRE load is ordered with; DEVICE by default.
        mask: bools; where it is false, nothing is read.
        pad: the result where `mask` is false; zero by default.
        token: the load comes after the accesses that the token stands for.
        latency: a hint without effect, as `explain` says: loads by address are not begun ahead.

    Returns:
        A tile of the pointers' shape and dtype; and a token.

    Raises:
        KernelTypeError: shapes do not broadcast, the dtypes differ, or the kernel is not `unsafe`.

    Example:
        >>> run(lambda x: ct.load_ptr_tko(x_at.offset(ct.iota((3,))), mask=x > 1.0, pad=-1.0)[0], [1.0, 2.0, 3.0])
        [-1.0, 2.0, 3.0]
    """
    ...


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
    """Write the elements pointed to; give a token.

    Where two lanes have the same address, one of the two values stays.

    Args:
        pointers: a tile of pointers of any shape.
        value: of the pointers' dtype; broadcast to their shape.
        ordering: WEAK, RELAXED or RELEASE.
        scope: the blocks, and devices, that a RELAXED or RELEASE store is ordered with; DEVICE by default.
        mask: bools; where it is false, nothing is written.
        token: the store comes after the accesses that the token stands for.
        latency: a hint without effect, as `explain` says: stores are not begun ahead.

    Returns:
        A token.

    Raises:
        KernelTypeError: shapes do not broadcast, the dtypes differ, or the kernel is not `unsafe`.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def number(p: ct.Ptr[ct.i32], n: ct.i32):
        ...     lanes = ct.iota((4,)) + 4 * ct.get_tile_block_id()[0]
        ...     ct.store_ptr_tko(p.offset(lanes), lanes, mask=lanes < n)
        >>> x = ct.api.zeros((6,), ct.i32).sync()
        >>> _ = number(x.device_pointer(), 6).grid((2,)).sync()
        >>> x.to_numpy().sync().tolist()
        [0, 1, 2, 3, 4, 5]
    """
    ...


__all__ = (
    "Ptr",
    "addptr",
    "addptr_tile",
    "broadcast_ptr",
    "int_to_ptr",
    "load_ptr_tko",
    "pointer_to_tile",
    "ptr_to_int",
    "ptr_to_ptr",
    "reshape_ptr",
    "store_ptr_tko",
    "tile_to_pointer",
)
