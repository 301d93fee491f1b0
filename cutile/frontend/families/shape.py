"""Calls about shapes.

Queries, scalars as tiles, tiles side by side, parts of tiles, and axes of extent 1 that brackets add."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from cutile.dtypes import i32
from cutile.frontend.expect import axis_of, constant_int, index_between, index_scalar, shape_of, tile_of
from cutile.frontend.families.memory import extent
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape, broadcast_to, is_number, materialize
from cutile.frontend.registry import METHODS, operation
from cutile.frontend.values import MutRef, TensorRef, describe, is_tile, items_of
from cutile.frontend.weak import of_weak
from cutile.ir.core import Value
from cutile.ops.shape import Cat, Extract, Permute, Reshape

_WHOLE = slice(None)


def with_new_axes(frame: Frame, tile: Value, items: Sequence[Any], node: ast.AST | None = None) -> Value:
    """The tile indexed with whole slices, `None`s and at most one `...`.

    Raises:
        KernelTypeError: there is anything else between the brackets.
    """
    shape = tile.tile.shape
    plain = all(each is None or each is ... or (isinstance(each, slice) and each == _WHOLE) for each in items)
    slices = sum(isinstance(each, slice) for each in items)
    dots = sum(each is ... for each in items)
    if not plain or dots > 1 or slices > len(shape):
        frame.type_error(
            f"{describe(tile)} cannot be indexed with [] but to add axes, as in tile[:, None]",
            node,
            "ct.extract(tile, index, shape) cuts pieces out of it, ct.reduce_sum(tile, axis) and its kin reduce, and "
            "ct.gather(x, index) chooses elements in memory.",
        )
    left = iter(shape)
    extents: list[int] = []
    for item in items:
        if item is ...:
            extents += [next(left) for _ in range(len(shape) - slices)]
        else:
            extents.append(1 if item is None else next(left))
    extents += left  # as if `...` stood at the end
    if tuple(extents) == shape:
        return tile
    return of_weak(frame, frame.emit(Reshape(x=tile, shape=tuple(extents))), tile)


@operation
def broadcast(frame: Frame, x: Any, shape: Any) -> Any:
    extents = shape_of(frame, shape, "broadcast")
    if is_number(x):
        return materialize(frame, x, None, extents)
    tile = tile_of(frame, x, "broadcast")
    broadcast_shape(frame, [tile.tile.shape, extents], "broadcast")
    return of_weak(frame, broadcast_to(frame, tile, extents), x)


@operation
def reshape(frame: Frame, x: Any, shape: Any) -> Any:
    tile = tile_of(frame, x, "reshape")
    items = list(items_of(shape)) if isinstance(shape, tuple) else [shape]
    if items.count(-1) == 1:
        product = 1
        for item in items:
            product *= 1 if item == -1 else constant_int(frame, item, "reshape: an extent")
        if product < 1 or tile.tile.size % product:
            frame.type_error(
                f"reshape: {tile.tile.size} elements do not fit the shape {shape}",
                remedy="The other extents must divide the number of elements.",
            )
        items[items.index(-1)] = tile.tile.size // product
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
def broadcast_scalar(frame: Frame, x: Any, shape: Any) -> Any:
    if is_tile(x) and not x.tile.is_scalar:
        frame.type_error(
            f"broadcast_scalar: expected a scalar, got {x.type}", remedy="Use ct.broadcast(x, shape) for a tile."
        )
    return broadcast(frame, x, shape)


@operation
def scalar_to_tile(frame: Frame, x: Any) -> Any:
    tile = tile_of(frame, x, "scalar_to_tile")
    if not tile.tile.is_scalar:
        frame.type_error(f"scalar_to_tile: expected a scalar, got {tile.type}", remedy="It is a tile already.")
    return tile


@operation
def tile_to_scalar(frame: Frame, x: Any) -> Any:
    tile = tile_of(frame, x, "tile_to_scalar")
    if not tile.tile.is_scalar:
        frame.type_error(
            f"tile_to_scalar: expected a tile of shape (), got {tile.type}",
            remedy="Reshape a tile of one element to (): x.reshape(()).",
        )
    return tile


@operation
def permute_array(frame: Frame, values: Any, axes: Any) -> Any:
    if not isinstance(values, tuple) or not isinstance(axes, tuple):
        frame.type_error(
            f"permute_array: expected two tuples, got {describe(values)} and {describe(axes)}",
            remedy="Write ct.permute_array((i, j), (1, 0)).",
        )
    items = items_of(values)
    order = [constant_int(frame, axis, "permute_array: an axis") for axis in items_of(axes)]
    if sorted(order) != list(range(len(items))):
        frame.type_error(
            f"permute_array: {tuple(order)} is no order of {len(items)} entries",
            remedy="Name each position once, from 0.",
        )
    return tuple(items[axis] for axis in order)


@operation
def get_tensor_shape(frame: Frame, x: Any) -> Any:
    if not isinstance(x, TensorRef | MutRef):
        frame.type_error(
            f"get_tensor_shape: expected a tensor, got {describe(x)}", remedy="A tile has its shape in x.shape."
        )
    return tuple(extent(frame, x.value, axis) for axis in range(x.value.tensor.rank))


@operation
def get_shape_dim(frame: Frame, shape: Any, axis: Any) -> Any:
    if not isinstance(shape, tuple):
        frame.type_error(
            f"get_shape_dim: expected a shape, got {describe(shape)}", remedy="Pass x.shape, which is a tuple."
        )
    items = items_of(shape)
    return items[axis_of(frame, axis, len(items), "get_shape_dim")]


@operation
def cat(frame: Frame, x: Any, y: Any, axis: Any) -> Any:
    first, second = tile_of(frame, x, "cat"), tile_of(frame, y, "cat")
    where = axis_of(frame, axis, len(first.tile.shape), "cat")
    return frame.emit(Cat(x=first, y=second, axis=where))


@operation
def extract(frame: Frame, x: Any, index: Any, shape: Any) -> Any:
    tile = tile_of(frame, x, "extract")
    part = shape_of(frame, shape, "extract")
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if not len(tile.tile.shape) == len(part) == len(items):
        frame.type_error(
            f"extract: {tile.type} takes a shape and an index of {len(tile.tile.shape)} entries, "
            f"got the shape {part} and {len(items)} indices",
            remedy="Reshape the part if you need fewer axes.",
        )
    for axis, (have, take, at) in enumerate(zip(tile.tile.shape, part, items, strict=True)):
        if isinstance(at, int) and not 0 <= at < max(have // take, 1):
            frame.type_error(
                f"extract: index {at} along axis {axis}; there are {have // take} parts of {take}",
                remedy="The index counts in parts, from 0.",
            )
    scalars = [index_scalar(frame, each, "extract") for each in items]
    for axis, (have, take) in enumerate(zip(tile.tile.shape, part, strict=True)):
        if scalars[axis].tile.dtype is not i32:
            scalars[axis] = index_between(frame, scalars[axis], 0, max(have // take, 1) - 1)
    return frame.emit(Extract(x=tile, index=tuple(scalars), shape=part))


METHODS[Value, "reshape"] = reshape
METHODS[Value, "broadcast"] = broadcast
METHODS[Value, "transpose"] = transpose
