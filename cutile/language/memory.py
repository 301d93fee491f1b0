"""Loads and stores of whole tiles of a tensor."""

from __future__ import annotations

from cutile.language.annotations import Mut, Tensor
from cutile.language.declare import operation
from cutile.language.markers import padding
from cutile.tile import Tile


@operation
def load_tile(
    x: Tensor, shape: tuple[int, ...], index: tuple[int | Tile, ...], padding: padding = padding.ZERO
) -> Tile:
    """The tile of `shape` at a tile index of `x`; `padding` past the edges.

    Args:
        x: a tensor.
        shape: constant extents, each at least 1. One for each axis of `x`.
        index: one integer scalar for each axis, counted in tiles. It is not checked: elements outside of the tensor are
            padding. `op.interpret()` reports a tile that lies wholly outside.
        padding: the elements past the edges.

    Returns:
        A tile of `shape`, of the dtype of `x`.

    Raises:
        KernelTypeError: the shape or the index has another number of axes than `x`.

    Example:
        >>> run(lambda x: ct.load_tile(x_in, (2,), (0,)), [1.0, 2.0])
        [1.0, 2.0]
    """
    ...


@operation
def load_tile_like(x: Tensor, y: Mut, padding: padding = padding.ZERO) -> Tile:
    """The tile of `x` at the tile index of this block's own tile of `y`.

    It has the shape of that tile, and the dtype of `x`.

    Args:
        x: a tensor.
        y: a `Mut` with as many axes as `x`.
        padding: the elements past the edges of `x`.

    Returns:
        A tile of the shape of `y`'s tile, of the dtype of `x`.

    Raises:
        KernelTypeError: the numbers of axes differ.

    Example:
        >>> run(lambda x: x + ct.load_tile_like(x_in, result), [1.0, 2.0])
        [2.0, 4.0]
    """
    ...


@operation
def load_tile_mut(y: Mut) -> Tile:
    """`y.load()`: this block's tile; zeros past the edges of the tensor.

    Args:
        y: a `Mut`.

    Returns:
        A tile of `y`'s tile shape and dtype.

    Raises:
        KernelTypeError: `y` is no `Mut`.

    Example:
        >>> @ct.entry
        ... def increment(y: ct.Mut):
        ...     ct.store_tile(y, ct.load_tile_mut(y) + 1.0)
        >>> increment(ct.api.arange(3, ct.f32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
        [1.0, 2.0, 3.0]
    """
    ...


@operation
def store_tile(y: Mut, value: Tile | float) -> None:
    """`y.store(value)`: write this block's tile.

    Elements past the edges of the tensor are dropped.

    Args:
        y: a `Mut`.
        value: a tile of `y`'s tile shape and dtype, or a scalar or a number for all elements.

    Raises:
        KernelTypeError: the value has another shape or dtype.

    Example:
        >>> @ct.entry
        ... def number(y: ct.Mut):
        ...     ct.store_tile(y, ct.broadcast(ct.get_tile_block_id()[0], y.shape))
        >>> number(ct.api.zeros((5,), ct.i32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
        [0, 0, 1, 1, 2]
    """
    ...


__all__ = (
    "load_tile",
    "load_tile_like",
    "load_tile_mut",
    "store_tile",
)
