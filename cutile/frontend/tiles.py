"""Calls that make tiles of tiles: creation, shape, products."""

from __future__ import annotations

from typing import Any

from cutile.dtypes import f4e2m1fnx2, i32
from cutile.frontend.expect import axis_of, constant_int, dtype_of, shape_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import (
    broadcast_shape,
    broadcast_to,
    default_dtype,
    is_number,
    materialize,
)
from cutile.frontend.registry import METHODS, operation
from cutile.frontend.values import describe, items_of
from cutile.frontend.weak import of_weak
from cutile.ir.constant import Constant
from cutile.ir.core import Value
from cutile.ops.cast import Convert
from cutile.ops.create import Iota
from cutile.ops.shape import Permute, Reshape


@operation
def constant(frame: Frame, value: Any, shape: Any, dtype: Any) -> Any:
    if not is_number(value):
        frame.type_error(
            f"constant: the value must be known when the kernel is compiled, got {describe(value)}",
            remedy="The value comes first: ct.constant(value, shape, dtype)."
            if isinstance(value, tuple)
            else "Use ct.broadcast(value, shape) for a value known when the kernel runs.",
        )
    wanted = dtype_of(frame, dtype, "constant")
    extents = () if shape == () else shape_of(frame, shape, "constant")
    if wanted is f4e2m1fnx2 and value != 0:
        frame.type_error(
            "constant: f4e2m1fnx2 holds pairs, and one number is none, but for 0",
            remedy="Pack a constant of ct.f4e2m1fn: ct.constant(value, shape, ct.f4e2m1fn).pack().",
        )
    if wanted.kind == "bool":
        return frame.emit(Constant(value=bool(value), dtype=wanted, shape=extents))
    return materialize(frame, value, wanted, extents)


@operation
def iota(frame: Frame, shape: Any, dtype: Any = i32) -> Any:
    extents = shape_of(frame, shape, "iota")
    if len(extents) != 1:
        frame.type_error(f"iota: the shape must have one axis, got {extents}", remedy="Reshape the result.")
    return frame.emit(Iota(length=extents[0], dtype=dtype_of(frame, dtype, "iota")))


@operation
def broadcast(frame: Frame, x: Any, shape: Any) -> Any:
    extents = shape_of(frame, shape, "broadcast")
    if is_number(x):
        return materialize(frame, x, default_dtype(x), extents)
    tile = tile_of(frame, x, "broadcast")
    broadcast_shape(frame, [tile.tile.shape, extents], "broadcast")
    return of_weak(frame, broadcast_to(frame, tile, extents), x)


@operation
def reshape(frame: Frame, x: Any, shape: Any) -> Any:
    tile = tile_of(frame, x, "reshape")
    items = list(items_of(shape)) if isinstance(shape, tuple) else [shape]
    if items.count(-1) == 1:
        known = 1
        for item in items:
            known *= 1 if item == -1 else constant_int(frame, item, "reshape: an extent")
        if known < 1 or tile.tile.size % known:
            frame.type_error(
                f"reshape: {tile.tile.size} elements do not fit the shape {shape}",
                remedy="The other extents must divide the number of elements.",
            )
        items[items.index(-1)] = tile.tile.size // known
    extents = () if not items else shape_of(frame, tuple(items), "reshape")
    return tile if extents == tile.tile.shape else of_weak(frame, frame.emit(Reshape(x=tile, shape=extents)), x)


@operation
def permute(frame: Frame, x: Any, axes: Any) -> Any:
    tile = tile_of(frame, x, "permute")
    if not isinstance(axes, tuple):
        frame.type_error(
            f"permute: the axes must be a tuple of constants, got {describe(axes)}", remedy="Such as (1, 0)."
        )
    order = tuple(axis_of(frame, axis, len(tile.tile.shape), "permute") for axis in items_of(axes))
    return frame.emit(Permute(x=tile, axes=order))


@operation
def transpose(frame: Frame, x: Any) -> Any:
    tile = tile_of(frame, x, "transpose")
    if len(tile.tile.shape) != 2:
        frame.type_error(
            f"transpose: the tile must have two axes, got {tile.tile.shape}", remedy="Use ct.permute(x, axes)."
        )
    return frame.emit(Permute(x=tile, axes=(1, 0)))


@operation
def convert_tile(frame: Frame, x: Any, dtype: Any) -> Any:
    wanted = dtype_of(frame, dtype, "convert_tile")
    tile = tile_of(frame, x, "convert_tile")
    return tile if tile.tile.dtype is wanted else frame.emit(Convert(x=tile, dtype=wanted))


for _name, _handler in {
    "reshape": reshape,
    "broadcast": broadcast,
    "transpose": transpose,
    "astype": convert_tile,
}.items():
    METHODS[Value, _name] = _handler
