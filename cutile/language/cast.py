"""Conversions between element types, as functions. What they mean stands at the operation `convert`.

`convert_tile` chooses by the two types; the others say which kinds of type they convert between, and refuse others.
"""

from __future__ import annotations

from typing import Any

from cutile.language.declare import operation
from cutile.language.markers import overflow as _overflow
from cutile.language.markers import rounding as _rounding
from cutile.tile import Tile, outside_kernel


@operation
def convert_scalar(x: Tile | float, dtype: Any) -> Tile:
    """A scalar as another dtype, by the rules of `convert_tile`.

    Example:
        >>> run(lambda x: x + ct.convert_scalar(ct.get_num_tile_blocks()[0], ct.f32), [1.5])
        [2.5]
    """
    outside_kernel("convert_scalar")


@operation
def ftof(x: Tile | float, dtype: Any, rounding: _rounding = _rounding.NEAREST_EVEN) -> Tile:
    """Floats as another type of float, also those that are only stored.

    Example:
        >>> run(lambda x: ct.ftof(ct.ftof(x, ct.f16), ct.f32), [0.1])
        [0.0999755859375]
    """
    outside_kernel("ftof")


@operation
def ftoi(x: Tile | float, dtype: Any, rounding: _rounding = _rounding.ZERO) -> Tile:
    """Floats as integers: rounded, saturated, and 0 for NaN.

    Example:
        >>> run(lambda x: ct.ftoi(x, ct.i8).astype(ct.f32), [-1.75, 1000.0, float("nan")])
        [-1.0, 127.0, 0.0]
    """
    outside_kernel("ftoi")


@operation
def itof(x: Tile | int, dtype: Any, rounding: _rounding = _rounding.NEAREST_EVEN) -> Tile:
    """Integers as floats, rounded once.

    Example:
        >>> run(lambda x: ct.itof(x, ct.f16).astype(ct.i32), [2048, 2049, 2051], dtype="i32")
        [2048, 2048, 2052]
    """
    outside_kernel("itof")


@operation
def exti(x: Tile | int, dtype: Any) -> Tile:
    """Integers as wider ones: the sign of signed ones is extended, zeros before unsigned ones and bools.

    Example:
        >>> run(lambda x, y: ((ct.exti(x, ct.i16) + ct.exti(y, ct.i16)) // 2).astype(ct.i8), [100], [50], dtype="i8")
        [75]
    """
    outside_kernel("exti")


@operation
def trunci(x: Tile | int, dtype: Any, overflow: _overflow = _overflow.NONE) -> Tile:
    """Integers as narrower ones: the low bits.

    Example:
        >>> run(lambda x: ct.trunci(x, ct.i8).astype(ct.i32), [5, 300, -129], dtype="i32")
        [5, 44, 127]
    """
    outside_kernel("trunci")


@operation
def bitcast(x: Tile | float, dtype: Any) -> Tile:
    """The same bits as another dtype of the same width."""
    outside_kernel("bitcast")


@operation
def pack(x: Tile, dtype: Any = None) -> Tile:
    """A tile of one axis as bytes, in the order of memory; floats of 4 bits of any shape two to a byte.

    Args:
        x: any type but bool and pairs, which are bytes already.
        dtype: `u8` (the default) or `i8`; `f4e2m1fnx2` (the default) for `f4e2m1fn`, whose last axis has to be even.
    """
    outside_kernel("pack")


@operation
def unpack(x: Tile, dtype: Any = None) -> Tile:
    """Bytes in one axis as elements of `dtype`, in the order of memory; pairs of floats of 4 bits taken apart.

    Args:
        x: a tile of `u8` or `i8`, or of `f4e2m1fnx2`, which has the default dtype `f4e2m1fn`.
        dtype: any type but bool.
    """
    outside_kernel("unpack")


@operation
def convert_tile(x: Tile | float, dtype: Any) -> Tile:
    """The elements as `dtype`: floats round to nearest even, floats to integers truncate and saturate.

    See the operation `convert` for every pair of types.
    """
    outside_kernel("convert_tile")


__all__ = (
    "bitcast",
    "convert_scalar",
    "convert_tile",
    "exti",
    "ftof",
    "ftoi",
    "itof",
    "pack",
    "trunci",
    "unpack",
)
