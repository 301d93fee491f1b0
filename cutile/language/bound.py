"""Assumptions of a kernel's author about indices, extents and elements.

Each assumption returns its argument, and changes no result if it holds. If it does not hold, results are undefined.
Checks of indices are left out: a load outside of a tensor gives padding, and a store there is dropped. Plain numbers
may wrap around, since they are computed in as many bits as their assumed bounds need. An access by a pointer with
another alignment may end the kernel. The debug mode, `@entry(check_accesses=True)`, checks assumptions while the kernel
runs.
"""

from __future__ import annotations

from typing import TypeVar

from cutile.language.declare import operation
from cutile.language.pointer import Ptr
from cutile.tile import Tile

_N = TypeVar("_N", int, Tile)
_T = TypeVar("_T", int, Tile, Ptr)


@operation
def assume_bounds(x: _N, lower: int | None = None, upper: int | None = None) -> _N:
    """`x`, with elements that are assumed to lie between two constants, both included.

    Args:
        x: integers: a tile, a scalar or a number.
        lower, upper: constants, also beyond the range of the dtype of `x`; None for no bound.

    Returns:
        `x`.

    Raises:
        KernelTypeError: a bound is not constant, `lower` is above `upper`, or `x` is no integer, or a constant that is
            not within the bounds.

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
def assume_bounds_lower(x: _N, lower: int) -> _N:
    """`x`, with elements that are assumed to be at least a constant.

    Args:
        x: integers: a tile, a scalar or a number.
        lower: a constant.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the bound is not constant, or `x` is no integer, or a constant beyond the bound.

    Example:
        >>> run(lambda x: x + ct.assume_bounds_lower(ct.num_tiles(x_in.partition((1,)), 0), 1), [1, 2], dtype="i32")
        [3, 4]
    """
    ...


@operation
def assume_bounds_upper(x: _N, upper: int) -> _N:
    """`x`, with elements that are assumed to be at most a constant.

    Args:
        x: integers: a tile, a scalar or a number.
        upper: a constant.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the bound is not constant, or `x` is no integer, or a constant beyond the bound.

    Example:
        >>> run(lambda x: x + ct.assume_bounds_upper(ct.num_tiles(x_in.partition((1,)), 0), 64), [1, 2], dtype="i32")
        [3, 4]
    """
    ...


@operation
def assume_div_by(x: _T, by: int) -> _T:
    """`x`, with elements that are assumed to be multiples of a constant.

    Args:
        x: integers (a tile, a scalar or a number), or a pointer, whose address is then a multiple of `by` bytes.
        by: a constant, at least 1.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the divisor is not constant, or below 1; or `x` is neither an integer nor a pointer, or is a
            constant that is no multiple.

    Example:
        >>> run(lambda x: x + ct.convert_tile(ct.assume_div_by(8 * ct.get_tile_block_id()[0], 8), x.dtype), [1.0, 2.0])
        [1.0, 2.0]
    """
    ...


@operation
def assume_div_by_every_along(x: Tile, by: int, every: int, along: int) -> Tile:
    """`x`, assumed to count up by 1 within groups of neighbours along an axis.

    The first element of each group is assumed to be a multiple of `by`.

    Args:
        x: a tile of integers.
        by: a constant, at least 1.
        every: a constant: the size of a group. It divides the extent of the axis.
        along: a constant: the axis.

    Returns:
        `x`.

    Raises:
        KernelTypeError: `by`, `every` or `along` is not constant, there is no such axis, the size of a group does
            not divide the extent of the axis, or `x` is no integer.

    Example:
        >>> run(lambda x: x + ct.assume_div_by_every_along(ct.iota((4,)), 2, 2, 0), [1, 1, 1, 1], dtype="i32")
        [1, 2, 3, 4]
    """
    ...


@operation
def assume_same_elements(x: Tile, groups: tuple[int, ...]) -> Tile:
    """`x`, with elements that are assumed to be equal within groups of neighbours.

    A group has `groups[k]` neighbours along axis `k`. For the check in debug mode NaN equals NaN, and -0.0 equals 0.0.
    No backend uses the assumption yet.

    Args:
        x: a tile.
        groups: for each axis, a constant that divides its extent; 1 assumes nothing.

    Returns:
        `x`.

    Raises:
        KernelTypeError: the groups are not constant, do not divide the extents, or there is not one for each axis.

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
