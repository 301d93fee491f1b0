"""New tiles: constants, and counted numbers."""

from __future__ import annotations

from cutile.dtypes import DTypeLike, i32
from cutile.language.declare import operation
from cutile.tile import Tile


@operation
def constant(value: float | bool, shape: tuple[int, ...], dtype: DTypeLike) -> Tile:
    """A tile whose elements are all a compile-time `value`.

    Args:
        value: a number or a bool, known when the kernel is compiled.
        shape: constant extents, each at least 1. `()` makes a scalar.
        dtype: any element type.

    Returns:
        A tile of `shape` and `dtype`.

    Raises:
        KernelTypeError: the value or the shape is not constant.

    Example:
        >>> run(lambda x: x + ct.constant(3, (2,), ct.f32), [1.0, 2.0])
        [4.0, 5.0]
    """
    ...


@operation
def iota(shape: tuple[int] | int, dtype: DTypeLike = i32, start: Tile | int = 0, step: Tile | int = 1) -> Tile:
    """`start, start + step, start + 2 * step, ...` as a tile of rank 1.

    Args:
        shape: one constant extent, at least 1.
        dtype: integers.
        start, step: numbers, or scalars of `dtype`.

    Returns:
        A tile of one axis, of `dtype`.

    Raises:
        KernelTypeError: the shape has another number of axes, or `dtype` is no integer.

    Example:
        >>> run(lambda x: x + ct.convert_tile(ct.iota((4,)), x.dtype), [10.0, 10.0, 10.0, 10.0])
        [10.0, 11.0, 12.0, 13.0]
        >>> run(lambda x: x + ct.iota((4,), ct.i32, 10, -2), [0, 0, 0, 0], dtype="i32")
        [10, 8, 6, 4]
    """
    ...


__all__ = (
    "constant",
    "iota",
)
