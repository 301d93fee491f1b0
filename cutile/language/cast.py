"""Conversions between element types, as functions.

The class `Convert` in `cutile/ops/cast.py` has the rule for each pair of types.

`convert_tile` and `convert_scalar` convert between any two types. `ftof`, `ftoi`, `itof`, `exti` and `trunci` do the
same between floats (`f`) and integers (`i`) alone: a tile of another kind is an error. `bitcast`, `pack` and `unpack`
keep the bits, not the numbers.
"""

from __future__ import annotations

from typing import Any

from cutile.language.declare import operation

# With an underscore: parameters below have the markers' own names, and would hide them.
from cutile.language.markers import overflow as _overflow
from cutile.language.markers import rounding as _rounding
from cutile.tile import Tile


@operation
def convert_scalar(x: Tile | float, dtype: Any) -> Tile:
    """A scalar as another dtype, by the rules of `convert_tile`.

    Args:
        x: a scalar of any type; a tile or a number.
        dtype: any type.

    Returns:
        A scalar of `dtype`.

    Raises:
        KernelTypeError: `x` is no scalar.

    Example:
        >>> run(lambda x: x + ct.convert_scalar(ct.get_num_tile_blocks()[0], ct.f32), [1.5])
        [2.5]
    """
    ...


@operation
def ftof(x: Tile | float, dtype: Any, rounding: _rounding = _rounding.NEAREST_EVEN) -> Tile:
    """Floats as another float dtype, storage dtypes included.

    Args:
        x: floats, storage dtypes included; a tile or a number.
        dtype: a type of floats.
        rounding: NEAREST_EVEN, ZERO, POSITIVE_INF or NEGATIVE_INF.

    Returns:
        A tile of `dtype`, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is not of floats, or `dtype` is not a type of floats.

    Example:
        >>> run(lambda x: ct.ftof(ct.ftof(x, ct.f16), ct.f32), [0.1])
        [0.0999755859375]
    """
    ...


@operation
def ftoi(x: Tile | float, dtype: Any, rounding: _rounding = _rounding.ZERO) -> Tile:
    """Floats as integers: rounded, saturated, and 0 for NaN.

    Args:
        x: floats, storage dtypes included; a tile or a number.
        dtype: a type of integers.
        rounding: NEAREST_EVEN, ZERO, POSITIVE_INF or NEGATIVE_INF.

    Returns:
        A tile of `dtype`, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is not of floats, or `dtype` is not a type of integers.

    Example:
        >>> run(lambda x: ct.ftoi(x, ct.i8).astype(ct.f32), [-1.75, 1000.0, float("nan")])
        [-1.0, 127.0, 0.0]
    """
    ...


@operation
def itof(x: Tile | int, dtype: Any, rounding: _rounding = _rounding.NEAREST_EVEN) -> Tile:
    """Integers as floats, rounded once.

    Args:
        x: integers or bools; a tile or a number.
        dtype: a type of floats.
        rounding: NEAREST_EVEN, ZERO, POSITIVE_INF or NEGATIVE_INF.

    Returns:
        A tile of `dtype`, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is not of integers or bools, or `dtype` is not a type of floats.

    Example:
        >>> run(lambda x: ct.itof(x, ct.f16).astype(ct.i32), [2048, 2049, 2051], dtype="i32")
        [2048, 2048, 2052]
    """
    ...


@operation
def exti(x: Tile | int, dtype: Any) -> Tile:
    """Integers as wider ones.

    Signed integers are extended by their sign, unsigned ones and bools by zeros.

    Args:
        x: integers or bools; a tile or a number.
        dtype: a wider type of integers.

    Returns:
        A tile of `dtype`, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is not of integers or bools, or `dtype` is not a wider type of integers.

    Example:
        >>> run(lambda x, y: ((ct.exti(x, ct.i16) + ct.exti(y, ct.i16)) // 2).astype(ct.i8), [100], [50], dtype="i8")
        [75]
    """
    ...


@operation
def trunci(x: Tile | int, dtype: Any, overflow: _overflow = _overflow.NONE) -> Tile:
    """Integers as narrower ones: the low bits.

    Args:
        x: integers; a tile or a number.
        dtype: a narrower type of integers.
        overflow: a promise that the exact result fits. It is neither checked nor used.

    Returns:
        A tile of `dtype`, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is not of integers, or `dtype` is not a narrower type of integers.

    Example:
        >>> run(lambda x: ct.trunci(x, ct.i8).astype(ct.i32), [5, 300, -129], dtype="i32")
        [5, 44, 127]
    """
    ...


@operation
def bitcast(x: Tile | float, dtype: Any) -> Tile:
    """The same bits as another dtype of the same width.

    Args:
        x: any type but bool; a tile or a number.
        dtype: a type of the same width.

    Returns:
        A tile of `dtype`, of the shape of `x`.

    Raises:
        KernelTypeError: the widths differ, or one of the types is bool.

    Example:
        >>> run(lambda x: ct.bitcast(ct.bitcast(x, ct.i32) & 0x7FFFFFFF, ct.f32), [-1.5, 2.0])
        [1.5, 2.0]
    """
    ...


@operation
def pack(x: Tile, dtype: Any = None) -> Tile:
    """A tile of one axis as bytes, in the order of memory.

    Two floats of 4 bits, neighbours along the last axis, make one byte; their tile may have more axes.

    Args:
        x: a tile of one axis, of any dtype but bool and `f4e2m1fnx2`, whose pairs are bytes already. For `f4e2m1fn`, a
            tile of one axis or more, whose last extent is even.
        dtype: the dtype of the bytes: `u8` (the default) or `i8`. For `f4e2m1fn` also `f4e2m1fnx2`, which is the
            default there.

    Returns:
        A tile of `dtype` with the same bytes. Its last axis has one element for each byte.

    Raises:
        KernelTypeError: `x` is of bools or of pairs, `x` does not have one axis, the last extent of `f4e2m1fn` is odd,
            or `dtype` is no dtype of bytes.

    Example:
        >>> run(lambda x: ct.unpack(ct.pack(x), ct.f32), [1.5, -2.0])
        [1.5, -2.0]
    """
    ...


@operation
def unpack(x: Tile, dtype: Any = None) -> Tile:
    """Bytes in one axis as elements of `dtype`, in the order of memory.

    One byte makes two floats of 4 bits, neighbours along the last axis; such a tile may have more axes.

    Args:
        x: bytes: a tile of `u8` or `i8` with one axis. For `f4e2m1fn` also a tile of `f4e2m1fnx2`, and more axes.
        dtype: the dtype of the elements: any but bool and `f4e2m1fnx2`. It may be left out for an `x` of `f4e2m1fnx2`,
            which becomes `f4e2m1fn`.

    Returns:
        A tile of `dtype` with the same bytes, whose last axis has as many elements as the bytes hold.

    Raises:
        KernelTypeError: `x` is not of bytes, `x` does not have one axis, its bytes are no whole number of elements, or
            `dtype` is left out for plain bytes or is not allowed.

    Example:
        >>> run(lambda x: ct.unpack(ct.pack(x), ct.i32).astype(ct.f32), [1.0, 2.0])
        [1065353216.0, 1073741824.0]
    """
    ...


@operation
def convert_tile(x: Tile | float, dtype: Any) -> Tile:
    """The elements as `dtype`.

    A float becomes a narrower float by rounding to nearest even, and an integer by truncation and saturation.
    docs/element_types.md has the rule for every pair of types.

    Args:
        x: any type; a tile or a number.
        dtype: any type.

    Returns:
        A tile of `dtype`, of the shape of `x`.

    Raises:
        KernelTypeError: `x` is no tile or number; or one dtype is `f4e2m1fnx2`, whose pairs `unpack` takes apart.

    Example:
        >>> run(lambda x: ct.convert_tile(ct.convert_tile(x, ct.i32), x.dtype), [1.75, -1.75])
        [1.0, -1.0]
    """
    ...


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
