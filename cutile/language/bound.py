"""What an author assumes of indices, extents and elements.

Every assumption gives its argument back. It changes no result where it holds; where it does not, indices may be taken
for proved that are wrong (an access outside of a tensor is then padding, or dropped). The debug mode checks them.
"""

from __future__ import annotations

from typing import TypeVar

from cutile.language.declare import operation
from cutile.language.pointer import Ptr
from cutile.tile import Tile

_T = TypeVar("_T", int, Tile, Ptr)


@operation
def assume_bounds(x: _T, lower: int | None = None, upper: int | None = None) -> _T:
    """`x`, of which every element is said to lie between two constants, both included.

    Args:
        x: a tile, a scalar or a number of integers.
        lower, upper: constants; None says nothing.

    Returns:
        `x`.

    Raises:
        KernelTypeError: a bound is not constant.

    Example:
        >>> @ct.entry(deny_in_kernel_checks=True)                      # compiles: the index is proved
        ... def pick(y: ct.Mut, x: ct.Tensor[ct.f32, 8], order: ct.Tensor):
        ...     i = ct.assume_bounds(order.load_tile((1,), (0,)).reshape(()), 0, 3)
        ...     y.store(x.partition((2,)).load(i))
        >>> x, order = ct.api.arange(8, ct.f32).sync(), ct.api.full(3, (1,), ct.i32).sync()
        >>> pick(ct.api.zeros((2,)).partition((2,)), x, order).first().unpartition().to_numpy().sync().tolist()
        [6.0, 7.0]
    """
    ...


@operation
def assume_bounds_lower(x: _T, lower: int) -> _T:
    """`x`, of which no element is said to be below a constant.

    Args:
        x: a tile, a scalar or a number of integers.
        lower: a constant.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the bound is not constant.

    Example:
        >>> run(lambda x: x + ct.assume_bounds_lower(ct.num_tiles(x_in.partition((1,)), 0), 1), [1, 2], dtype="i32")
        [3, 4]
    """
    ...


@operation
def assume_bounds_upper(x: _T, upper: int) -> _T:
    """`x`, of which no element is said to be above a constant.

    Args:
        x: a tile, a scalar or a number of integers.
        upper: a constant.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the bound is not constant.

    Example:
        >>> run(lambda x: x + ct.assume_bounds_upper(ct.num_tiles(x_in.partition((1,)), 0), 64), [1, 2], dtype="i32")
        [3, 4]
    """
    ...


@operation
def assume_div_by(x: _T, by: int) -> _T:
    """`x`, of which every element is said to be a multiple of a constant.

    Args:
        x: a tile, a scalar or a number of integers; or pointers, of which it is the address in bytes.
        by: a constant.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the divisor is not constant.

    Example:
        >>> run(lambda x: x + ct.convert_tile(ct.assume_div_by(8 * ct.get_tile_block_id()[0], 8), x.dtype), [1.0, 2.0])
        [1.0, 2.0]
    """
    ...


@operation
def assume_div_by_every_along(x: Tile, by: int, every: int, along: int) -> Tile:
    """`x`, said to count up in groups of `every` neighbours along an axis.

    Each group counts from a multiple of `by`.

    Args:
        x: a tile of integers.
        by: a constant.
        every: a constant: how many neighbours make a group.
        along: a constant axis.

    Returns:
        `x`.

    Raises:
        KernelTypeError: one is not constant.

    Example:
        >>> run(lambda x: x + ct.assume_div_by_every_along(ct.iota((4,)), 2, 2, 0), [1, 1, 1, 1], dtype="i32")
        [1, 2, 3, 4]
    """
    ...


@operation
def assume_same_elements(x: Tile, groups: tuple[int, ...]) -> Tile:
    """`x`, with elements said to be equal in groups of neighbours.

    `groups[k]` neighbours along axis `k`.

    Args:
        x: a tile.
        groups: one constant for each axis.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the groups are not constant, or of another number of axes.

    Example:
        >>> run(lambda x: ct.assume_same_elements(x, (2,)), [1.0, 1.0])
        [1.0, 1.0]
    """
    ...


__all__ = (
    "assume_bounds",
    "assume_bounds_lower",
    "assume_bounds_upper",
    "assume_div_by",
    "assume_div_by_every_along",
    "assume_same_elements",
)
