"""Calls that convert between element types, and that pack elements to bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutile.conversion import ROUNDINGS
from cutile.dtypes import DTypeLike, f4e2m1fn, f4e2m1fnx2, i8, u8, u16, u32, u64
from cutile.frontend.expect import dtype_of, marker_of, shape_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import materialize
from cutile.frontend.registry import METHODS, operation
from cutile.frontend.values import describe
from cutile.ir.core import Value
from cutile.language import markers
from cutile.ops.arith import And, Mul, Shl, Shr
from cutile.ops.cast import Bitcast, Convert
from cutile.ops.create import Iota
from cutile.ops.reduce import ReduceSum
from cutile.ops.shape import Broadcast, Reshape

_WHOLE = ("int", "uint", "bool")
_UNSIGNED: dict[int, DTypeLike] = {8: u8, 16: u16, 32: u32, 64: u64}
_NEAREST, _TRUNCATE = markers.rounding.NEAREST_EVEN, markers.rounding.ZERO
_NIBBLE = 4
"""Bits of half a byte."""


def _is_float(dtype: DTypeLike) -> bool:
    return dtype.format is not None


def _is_whole(dtype: DTypeLike) -> bool:
    return dtype.kind in _WHOLE


DTypeTest = Callable[[DTypeLike], bool]
_KIND_WORDS: dict[DTypeTest, str] = {_is_float: "floats", _is_whole: "integers"}


def _of_kinds(
    frame: Frame, name: str, x: Any, dtype: Any, source: DTypeTest, target: DTypeTest
) -> tuple[Value, DTypeLike]:
    """The tile and the result's dtype, checked to be of the conversion's kinds."""
    tile, result = tile_of(frame, x, name), dtype_of(frame, dtype, name)
    if not source(tile.tile.dtype):
        frame.type_error(
            f"{name}: expected a tile of {_KIND_WORDS[source]}, got {tile.type}",
            remedy="ct.convert_tile takes every type.",
        )
    if not target(result) or result.is_bool:
        frame.type_error(
            f"{name}: expected a type of {_KIND_WORDS[target]}, got {result}",
            remedy="ct.convert_tile gives every type.",
        )
    return tile, result


def _rounded(frame: Frame, name: str, rounding: Any, default: markers.rounding) -> str | None:
    """The word of a rounding; None for the one that a conversion has by itself."""
    marker = marker_of(frame, rounding, markers.rounding, name)
    if marker.value not in ROUNDINGS:
        frame.type_error(
            f"{name}: conversions round exactly, not {marker.name}",
            remedy="Use NEAREST_EVEN, ZERO, POSITIVE_INF or NEGATIVE_INF.",
        )
    return None if marker is default else marker.value


def _converted(frame: Frame, tile: Value, dtype: DTypeLike, rounding: str | None = None) -> Value:
    if tile.tile.dtype is dtype:
        return tile
    return frame.emit(Convert(x=tile, dtype=dtype, rounding=rounding))


@operation
def convert_scalar(frame: Frame, x: Any, dtype: Any) -> Any:
    tile = tile_of(frame, x, "convert_scalar")
    if not tile.tile.is_scalar:
        frame.type_error(f"convert_scalar: expected a scalar, got {describe(tile)}", remedy="Use ct.convert_tile.")
    return _converted(frame, tile, dtype_of(frame, dtype, "convert_scalar"))


@operation
def ftof(frame: Frame, x: Any, dtype: Any, rounding: Any = _NEAREST) -> Any:
    tile, wanted = _of_kinds(frame, "ftof", x, dtype, _is_float, _is_float)
    return _converted(frame, tile, wanted, _rounded(frame, "ftof", rounding, _NEAREST))


@operation
def ftoi(frame: Frame, x: Any, dtype: Any, rounding: Any = _TRUNCATE) -> Any:
    tile, wanted = _of_kinds(frame, "ftoi", x, dtype, _is_float, _is_whole)
    return _converted(frame, tile, wanted, _rounded(frame, "ftoi", rounding, _TRUNCATE))


@operation
def itof(frame: Frame, x: Any, dtype: Any, rounding: Any = _NEAREST) -> Any:
    tile, wanted = _of_kinds(frame, "itof", x, dtype, _is_whole, _is_float)
    return _converted(frame, tile, wanted, _rounded(frame, "itof", rounding, _NEAREST))


@operation
def exti(frame: Frame, x: Any, dtype: Any) -> Any:
    tile, result = _of_kinds(frame, "exti", x, dtype, _is_whole, _is_whole)
    if not tile.tile.dtype.is_bool and result.bits <= tile.tile.dtype.bits:
        frame.type_error(
            f"exti: {result} is not wider than {tile.tile.dtype}", remedy="trunci narrows; bitcast keeps the width."
        )
    return _converted(frame, tile, result)


@operation
def trunci(frame: Frame, x: Any, dtype: Any, overflow: Any = markers.overflow.NONE) -> Any:
    marker_of(frame, overflow, markers.overflow, "trunci")  # a promise that holds changes nothing
    tile, result = _of_kinds(frame, "trunci", x, dtype, _is_whole, _is_whole)
    if result.bits >= tile.tile.dtype.bits:
        frame.type_error(
            f"trunci: {result} is not narrower than {tile.tile.dtype}", remedy="exti widens; bitcast keeps the width."
        )
    return _converted(frame, tile, result)


@operation
def bitcast(frame: Frame, x: Any, dtype: Any) -> Any:
    return _bitcast(frame, tile_of(frame, x, "bitcast"), dtype_of(frame, dtype, "bitcast"))


def _bitcast(frame: Frame, tile: Value, dtype: DTypeLike) -> Value:
    return tile if tile.tile.dtype is dtype else frame.emit(Bitcast(x=tile, dtype=dtype))


def _shifts(frame: Frame, dtype: DTypeLike, shape: tuple[int, ...], step: int) -> Value:
    """`0, step, 2 * step, ...` along the last axis."""
    row = (shape[-1],)
    counted = frame.emit(Iota(length=shape[-1], dtype=dtype))
    moved = frame.emit(Mul(x=counted, y=_numbers(frame, step, dtype, row)))
    return _repeat(frame, _reshaped(frame, moved, (1,) * (len(shape) - 1) + row), shape)


def _numbers(frame: Frame, value: int, dtype: DTypeLike, shape: tuple[int, ...]) -> Value:
    return materialize(frame, value, dtype, shape)


def _repeat(frame: Frame, x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.tile.shape == shape else frame.emit(Broadcast(x=x, shape=shape))


def _reshaped(frame: Frame, x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.tile.shape == shape else frame.emit(Reshape(x=x, shape=shape))


def _split(frame: Frame, x: Value, parts: int, bits: int) -> Value:
    """Unsigned integers in parts of `bits` bits, the lowest first.

    The result is of u8; its last axis is `parts` times as long.
    """
    *outer, last = x.tile.shape
    shape = (*outer, last, parts)
    word = x.tile.dtype
    wide = _repeat(frame, _reshaped(frame, x, (*outer, last, 1)), shape)
    moved = frame.emit(Shr(x=wide, y=_shifts(frame, word, shape, bits)))
    low = frame.emit(And(x=moved, y=_numbers(frame, (1 << bits) - 1, word, shape)))
    return _reshaped(frame, _converted(frame, low, u8), (*outer, last * parts))


def _joined(frame: Frame, x: Value, parts: int, bits: int, word: DTypeLike) -> Value:
    """Bytes put together to words, along the last axis, the lowest first.

    Each word consists of the low `bits` bits of `parts` bytes.
    """
    *outer, last = x.tile.shape
    shape = (*outer, last // parts, parts)
    carrier = u64 if word is u64 else u32  # the parts are shifted and added up in it
    wide = _converted(frame, _reshaped(frame, x, shape), carrier)
    scale = frame.emit(Mul(x=wide, y=_powers(frame, carrier, shape, bits)))
    total = frame.emit(ReduceSum(x=scale, axis=len(shape) - 1))  # a sum is an `or`: no two parts have a bit in common
    return _converted(frame, total, word)


def _powers(frame: Frame, dtype: DTypeLike, shape: tuple[int, ...], bits: int) -> Value:
    """`1, 2**bits, 2**(2 * bits), ...` along the last axis."""
    ones = _numbers(frame, 1, dtype, shape)
    return frame.emit(Shl(x=ones, y=_shifts(frame, dtype, shape, bits)))


@operation
def pack(frame: Frame, x: Any, dtype: Any = None) -> Any:
    tile = tile_of(frame, x, "pack")
    source = tile.tile.dtype
    four_bits = source is f4e2m1fn
    result = dtype_of(frame, dtype, "pack") if dtype is not None else f4e2m1fnx2 if four_bits else u8
    if source.is_bool or source is f4e2m1fnx2:
        remedy = "Convert it: ct.convert_tile(x, ct.u8)." if source.is_bool else "Pairs are bytes already."
        frame.type_error(f"pack: {source} has no bytes to take apart", remedy=remedy)
    if result not in ((u8, i8, f4e2m1fnx2) if four_bits else (u8, i8)):
        frame.type_error(
            f"pack: expected u8 or i8{' or f4e2m1fnx2' if four_bits else ''} for bytes, got {result}",
            remedy="Leave the dtype out: ct.pack(x).",
        )
    if four_bits:
        if not tile.tile.shape or tile.tile.shape[-1] % 2:
            frame.type_error(
                f"pack: two make a byte, so the last axis of {tile.tile.shape} has to be even",
                remedy="Reshape the tile so that it is.",
            )
        bytes_ = _joined(frame, _bitcast(frame, tile, u8), 2, _NIBBLE, u8)
        return _bitcast(frame, bytes_, result)
    _one_axis(frame, tile, "pack")
    words = _bitcast(frame, tile, _UNSIGNED[source.bits])
    bytes_ = words if source.bits == 8 else _split(frame, words, source.bits // 8, 8)
    return _bitcast(frame, bytes_, result)


@operation
def unpack(frame: Frame, x: Any, dtype: Any = None) -> Any:
    tile = tile_of(frame, x, "unpack")
    source = tile.tile.dtype
    four_bits = source is f4e2m1fnx2
    if dtype is None and not four_bits:
        frame.type_error("unpack: of bytes the dtype has to be said", remedy="Write ct.unpack(x, ct.f32), for example.")
    element = f4e2m1fn if dtype is None else dtype_of(frame, dtype, "unpack")
    if source not in (u8, i8, f4e2m1fnx2) or (four_bits and element is not f4e2m1fn):
        frame.type_error(
            f"unpack: expected bytes (u8, i8, or f4e2m1fnx2 for f4e2m1fn), got {tile.type}",
            remedy="ct.pack gives bytes; ct.bitcast keeps the width.",
        )
    if element.is_bool or element is f4e2m1fnx2:
        frame.type_error(f"unpack: bytes are not taken for {element}", remedy="Use ct.bitcast, or compare with 0.")
    if element is f4e2m1fn:
        if not tile.tile.shape:
            frame.type_error("unpack: a scalar has no axis that could become twice as long", remedy="Reshape it.")
        return _bitcast(frame, _split(frame, _bitcast(frame, tile, u8), 2, _NIBBLE), element)
    length = _one_axis(frame, tile, "unpack")
    size = element.bits // 8
    if length % size:
        frame.type_error(
            f"unpack: {length} bytes are no whole number of {element}, of {size} bytes each",
            remedy="Load a tile with a multiple of that.",
        )
    bytes_ = _bitcast(frame, tile, u8)
    words = bytes_ if size == 1 else _joined(frame, bytes_, size, 8, _UNSIGNED[element.bits])
    return _bitcast(frame, words, element)


def _one_axis(frame: Frame, tile: Value, what: str) -> int:
    if len(tile.tile.shape) != 1:
        frame.type_error(f"{what}: the tile must have one axis, got {tile.tile.shape}", remedy="Reshape it first.")
    return tile.tile.shape[0]


def _shaped(handler: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The method of a function; it also takes the shape of the result."""

    def method(frame: Frame, x: Any, shape: Any = None) -> Any:
        value = handler(frame, x)
        if shape is None:
            return value
        extents = shape_of(frame, shape, name)
        if int(np.prod(extents)) != value.tile.size:
            frame.type_error(
                f"{name}: {value.tile.size} elements do not fit the shape {extents}",
                remedy="Leave the shape out, or give one with as many elements.",
            )
        return _reshaped(frame, value, extents)

    return method


METHODS[Value, "pack"] = _shaped(pack, "pack")
METHODS[Value, "unpack"] = _shaped(unpack, "unpack")


@operation
def convert_tile(frame: Frame, x: Any, dtype: Any) -> Any:
    wanted = dtype_of(frame, dtype, "convert_tile")
    tile = tile_of(frame, x, "convert_tile")
    return tile if tile.tile.dtype is wanted else frame.emit(Convert(x=tile, dtype=wanted))


METHODS[Value, "astype"] = convert_tile
