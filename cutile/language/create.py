"""New tiles: constants, and counted numbers."""

from __future__ import annotations

from cutile.dtypes import DTypeLike, i32
from cutile.language.declare import operation
from cutile.tile import Tile


@operation
def constant(value: float | bool, shape: tuple[int, ...], dtype: DTypeLike) -> Tile:
    """A tile whose elements are all a compile-time `value`.

    Example:
        >>> run(lambda x: x + ct.constant(3, (2,), ct.f32), [1.0, 2.0])
        [4.0, 5.0]
    """
    ...


@operation
def iota(shape: tuple[int] | int, dtype: DTypeLike = i32) -> Tile:
    """`0, 1, 2, ...` as a tile of rank 1."""
    ...


__all__ = (
    "constant",
    "iota",
)
