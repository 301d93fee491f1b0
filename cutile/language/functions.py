"""The operations of the kernel language, as functions: signatures and documentation for readers and type checkers.

The front end recognises them by `__cutile__`, the name of their handler: `tensors.py`, `tiles.py` and `builtins.py` in
`cutile/frontend/` have those.
"""

from __future__ import annotations

from typing import Any

from cutile.dtypes import DTypeLike, i32
from cutile.language.annotations import Mut, Tensor
from cutile.language.mark import operation
from cutile.language.markers import padding
from cutile.language.partitions import Partition
from cutile.tile import Tile, outside_kernel


@operation
def get_tile_block_id() -> tuple[int, int, int]:
    """This tile block's index in the grid, as three i32 scalars. Axis 0 of the grid is axis 0 of the partition."""
    outside_kernel("get_tile_block_id")


@operation
def get_num_tile_blocks() -> tuple[int, int, int]:
    """The extents of the grid, as three i32 scalars."""
    outside_kernel("get_num_tile_blocks")


@operation
def num_tiles(view: Partition | Mut, axis: int) -> int:
    """How many tiles cover the tensor along a constant `axis`: the extent over the tile's, rounded up.

    Example:
        >>> run(lambda x: x + ct.num_tiles(x_in.partition((2,)), 0).astype(ct.f32), [1.0, 2.0, 3.0])
        [3.0, 4.0, 5.0]
    """
    outside_kernel("num_tiles")


@operation
def ceil_div(a: int | Tile, b: int | Tile) -> int:
    """`a / b` rounded up, for integers.

    Example:
        >>> run(lambda x: x + ct.ceil_div(7, 2), [1.0])
        [5.0]
    """
    outside_kernel("ceil_div")


@operation
def load_tile(x: Tensor, shape: tuple[int, ...], index: tuple[int, ...], padding: padding = padding.ZERO) -> Tile:
    """The tile of `shape` at a tile index of `x`; `padding` past the edges.

    Example:
        >>> run(lambda x: ct.load_tile(x_in, (2,), (0,)), [1.0, 2.0])
        [1.0, 2.0]
    """
    outside_kernel("load_tile")


@operation
def load_tile_like(x: Tensor, y: Mut, padding: padding = padding.ZERO) -> Tile:
    """The tile of `x` where this block's tile of `y` is: `y`'s tile shape at this block's index.

    `x` keeps its dtype and must have `y`'s rank. Past its edges lies `padding`.

    Example:
        >>> run(lambda x: x + ct.load_tile_like(x_in, result), [1.0, 2.0])
        [2.0, 4.0]
    """
    outside_kernel("load_tile_like")


@operation
def load_tile_mut(y: Mut) -> Tile:
    """`y.load()`: this block's tile; zeros past the edges of the tensor.

    Example:
        >>> @ct.entry
        ... def increment(y: ct.Mut):
        ...     ct.store_tile(y, ct.load_tile_mut(y) + 1.0)
        >>> increment(ct.api.arange(3, ct.f32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
        [1.0, 2.0, 3.0]
    """
    outside_kernel("load_tile_mut")


@operation
def store_tile(y: Mut, value: Tile | float) -> None:
    """`y.store(value)`: write this block's tile; what lies past the edges of the tensor is dropped.

    Example:
        >>> @ct.entry
        ... def number(y: ct.Mut):
        ...     ct.store_tile(y, ct.broadcast(ct.get_tile_block_id()[0], y.shape))
        >>> number(ct.api.zeros((5,), ct.i32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
        [0, 0, 1, 1, 2]
    """
    outside_kernel("store_tile")


@operation
def constant(value: float | bool, shape: tuple[int, ...], dtype: DTypeLike) -> Tile:
    """A tile whose elements are all a compile-time `value`.

    Example:
        >>> run(lambda x: x + ct.constant(3, (2,), ct.f32), [1.0, 2.0])
        [4.0, 5.0]
    """
    outside_kernel("constant")


@operation
def iota(shape: tuple[int] | int, dtype: DTypeLike = i32) -> Tile:
    """`0, 1, 2, ...` as a tile of rank 1."""
    outside_kernel("iota")


@operation
def broadcast(x: Tile | float, shape: tuple[int, ...]) -> Tile:
    """A scalar, or axes of size 1, repeated to `shape`."""
    outside_kernel("broadcast")


@operation
def reshape(x: Tile, shape: tuple[int, ...]) -> Tile:
    """The same elements in row-major order under another shape; one extent may be -1."""
    outside_kernel("reshape")


@operation
def permute(x: Tile, axes: tuple[int, ...]) -> Tile:
    """The axes in another order: axis `k` of the result is axis `axes[k]` of `x`."""
    outside_kernel("permute")


@operation
def transpose(x: Tile) -> Tile:
    """The transpose of a tile of rank 2.

    Example:
        >>> run(lambda x: ct.transpose(x.reshape((2, 2))).reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [1.0, 3.0, 2.0, 4.0]
    """
    outside_kernel("transpose")


@operation
def convert_tile(x: Tile | float, dtype: Any) -> Tile:
    """The elements as `dtype`: floats round to nearest even, floats to integers truncate and saturate.

    See the operation `convert` for every pair of types.
    """
    outside_kernel("convert_tile")


@operation
def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """`range` over constants whose loop is unrolled: the loop variable is a constant in each copy of the body.

    Example:
        >>> @ct.entry
        ... def fill(y: ct.Mut):
        ...     part = y.partition_mut((1,))
        ...     for i in ct.static_range(3):                  # i is a constant here
        ...         part.store(ct.constant(i * i, (1,), y.dtype), i)
        >>> fill(ct.api.zeros((3,)).partition((3,))).first().unpartition().to_numpy().sync().tolist()
        [0.0, 1.0, 4.0]
    """
    outside_kernel("static_range")


@operation
def static_assert(condition: Any, message: str | None = None) -> None:
    """Refuse to compile the kernel unless `condition`, which must be known then, is true.

    A false one raises KernelTypeError with the message, at the line.

    Example:
        >>> @ct.entry
        ... def halves(y: ct.Mut, *, BM: ct.Const = 64):
        ...     ct.static_assert(BM % 2 == 0, "BM must be even")
        ...     y.store(0.5 * y.load())
    """
    outside_kernel("static_assert")
