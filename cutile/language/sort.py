"""Tiles in order along one axis: sorts, and the places of extremes.

A place is the index of an element along the axis, as i32.
"""

from __future__ import annotations

from typing import Any

from cutile.language.declare import operation
from cutile.tile import Tile


@operation
def argmax(x: Tile, axis: int | None = None, keepdims: bool = False) -> Tile:
    """The place of the largest element along a constant `axis`.

    The result lacks the axis.

    Args:
        x: a tile of numbers or bools.
        axis: a constant; negative ones count from the end. None: the place among all elements, in row-major order.
        keepdims: a constant: whether the result keeps the axis, with an extent of 1.

    Returns:
        A tile of i32 without the axis. As in NumPy it is the place of the first of equal elements, and of the first NaN
            if there is one.

    Raises:
        KernelTypeError: there is no such axis.

    Example:
        >>> run(lambda x: x + ct.argmax(x, 0), [1, 5, 5], dtype="i32")
        [2, 6, 6]
    """
    ...


@operation
def argmin(x: Tile, axis: int | None = None, keepdims: bool = False) -> Tile:
    """The place of the least element along a constant `axis`.

    The result lacks the axis.

    Args:
        x: a tile of numbers or bools.
        axis: a constant; negative ones count from the end. None: the place among all elements, in row-major order.
        keepdims: a constant: whether the result keeps the axis, with an extent of 1.

    Returns:
        A tile of i32 without the axis. As in NumPy it is the place of the first of equal elements, and of the first NaN
            if there is one.

    Raises:
        KernelTypeError: there is no such axis.

    Example:
        >>> run(lambda x: x + ct.argmin(x, 0), [3, 1, 1], dtype="i32")
        [4, 2, 2]
    """
    ...


@operation
def sort(x: Tile, axis: int = -1, descending: bool = False) -> Tile:
    """The elements in order along a constant `axis`.

    `argsort` of the same tile gives their places. A kernel that calls both sorts the tile once.

    Args:
        x: a tile of numbers or bools.
        axis: a constant; negative ones count from the end.
        descending: a constant: whether the largest comes first.

    Returns:
        A tile of the shape and dtype of `x`. The sort is stable, -0.0 equals 0.0, and NaN counts as larger than every
            number: it is last, as NumPy has it, or first with `descending`.

    Raises:
        KernelTypeError: there is no such axis, or the tile is too large: a GPU sorts in registers, which hold at most
            16384 elements of 32 bits.

    Example:
        >>> run(lambda x: ct.sort(x), [3.0, float("nan"), 1.0, 2.0])
        [1.0, 2.0, 3.0, nan]
        >>> run(lambda x: ct.sort(x, descending=True), [3.0, 1.0, 2.0])
        [3.0, 2.0, 1.0]
    """
    ...


@operation
def argsort(x: Tile, axis: int = -1, descending: bool = False) -> Tile:
    """The places of the elements along a constant `axis`, in sorted order.

    Args:
        x: a tile of numbers or bools.
        axis: a constant; negative ones count from the end.
        descending: a constant: whether the largest comes first.

    Returns:
        A tile of i32 of the shape of `x`, in the order of `sort`.

    Raises:
        KernelTypeError: there is no such axis, or the tile is too large, as for `sort`.

    Example:
        >>> run(lambda x: ct.argsort(x), [30, 10, 20], dtype="i32")
        [1, 2, 0]
    """
    ...


@operation
def top_k(x: Tile, k: int, axis: int = -1) -> tuple[Any, ...]:
    """The `k` largest elements along a constant `axis`, and their places.

    The largest comes first.

    Args:
        x: a tile of numbers or bools.
        k: a constant, from 1 to the extent of the axis.
        axis: a constant; negative ones count from the end.

    Returns:
        A tile of the dtype of `x` and one of i32, both with `k` elements along the axis. They are the first `k` of
            `sort(x, axis, descending=True)` and their places: equal elements keep their order, and NaN comes first.

    Raises:
        KernelTypeError: there is no such axis, `k` is no such constant, or the tile is too large, as for `sort`.

    Example:
        >>> run(lambda x: ct.cat(*ct.top_k(x, 2), 0), [30, 10, 70, 50], dtype="i32")
        [70, 50, 2, 3]
    """
    ...


@operation
def take_along_axis(x: Tile, places: Tile, axis: int) -> Tile:
    """The elements of `x` at the given places along a constant `axis`.

    Args:
        x: a tile of numbers or bools.
        places: a tile of i32 with the extents of `x` along every other axis.
        axis: a constant; negative ones count from the end.

    Returns:
        A tile of the dtype of `x` and the shape of `places`. A place outside of `x` is clamped to the nearest inside.

    Raises:
        KernelTypeError: there is no such axis, or the shapes do not agree.

    Example:
        >>> run(lambda x: ct.take_along_axis(x, ct.argsort(x, 0), 0), [3.0, 1.0, 2.0])
        [1.0, 2.0, 3.0]
    """
    ...


__all__ = (
    "argmax",
    "argmin",
    "argsort",
    "sort",
    "take_along_axis",
    "top_k",
)
