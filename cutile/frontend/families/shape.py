"""Calls about shapes: extents, reshapes, new axes, joined tiles, parts of tiles."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeGuard

from cutile.dtypes import i32, u64
from cutile.frontend.derived import Language, Term, composed, value_of
from cutile.frontend.expect import axes_of, axis_of, constant_int, index_between, index_scalar, shape_of, tile_of
from cutile.frontend.families.memory import extent
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape, broadcast_to, is_number, materialize
from cutile.frontend.plain_numbers import Interval, of_weak, weak
from cutile.frontend.registry import METHODS, operation
from cutile.frontend.values import MutRef, TensorRef, describe, is_tile, items_of, plain
from cutile.ir.core import Value
from cutile.ir.types import TileType
from cutile.ops.shape import Cat, Extract, Permute, Reshape

_WHOLE = slice(None)


def with_new_axes(frame: Frame, tile: Value, items: Sequence[Any], node: ast.AST | None = None) -> Value:
    """The tile indexed with whole slices, `None`s and at most one `...`.

    Raises:
        KernelTypeError: there is anything else between the brackets.
    """
    shape = tile.tile.shape
    only_axes = all(item is None or item is ... or (isinstance(item, slice) and item == _WHOLE) for item in items)
    slices = sum(isinstance(item, slice) for item in items)
    dots = sum(item is ... for item in items)
    if not only_axes or dots > 1 or slices > len(shape):
        frame.type_error(
            f"{describe(tile)} cannot be indexed with [] but to add axes, as in tile[:, None]",
            node,
            "ct.extract(tile, index, shape) cuts pieces out of it, ct.take_along_axis(tile, places, axis) takes "
            "elements by their places, ct.reduce_sum(tile, axis) and its kin reduce, and ct.gather(x, index) chooses "
            "elements in memory.",
        )
    remaining = iter(shape)
    extents: list[int] = []
    for item in items:
        if item is ...:
            extents += [next(remaining) for _ in range(len(shape) - slices)]
        else:
            extents.append(1 if item is None else next(remaining))
    extents += remaining  # as if `...` stood at the end
    if tuple(extents) == shape:
        return tile
    return of_weak(frame, frame.emit(Reshape(x=tile, shape=tuple(extents))), tile)


@operation
def broadcast(frame: Frame, x: Any, shape: Any) -> Any:
    extents = shape_of(frame, shape, "broadcast")
    if is_number(x):  # as weak as a number that is known only when the kernel runs
        tile = of_weak(frame, materialize(frame, x, None, extents), x)
        return weak(frame, tile, Interval(x, x)) if tile.tile.dtype.is_integer else tile
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
def cat(frame: Frame, x: Any, y: Any = None, axis: Any = None) -> Any:
    if isinstance(x, tuple):
        if (y is None) == (axis is None):
            frame.type_error("cat: a tuple of tiles is followed by the axis", remedy="Write ct.cat((x, y, z), axis).")
        items, axis = items_of(x), axis if y is None else y
    elif y is None or axis is None:
        frame.type_error(
            f"cat: expected two tiles and an axis, got {describe(x)}",
            remedy="Write ct.cat(x, y, axis), or ct.cat((x, y, z), axis) for any number of tiles.",
        )
    else:
        items = (x, y)
    if not items:
        frame.type_error("cat of no tiles", remedy="Give it a tuple of at least one tile.")
    tiles: list[Value] = [tile_of(frame, item, "cat") for item in items]
    where = axis_of(frame, axis, len(tiles[0].tile.shape), "cat")
    while len(tiles) > 1:  # by pairs, so that an element is moved once for each doubling of the tile
        pairs = [tiles[at : at + 2] for at in range(0, len(tiles), 2)]
        tiles = [frame.emit(Cat(x=pair[0], y=pair[1], axis=where)) if pair[1:] else pair[0] for pair in pairs]
    return tiles[0]


def _cyclic(ct: Language, x: Term, axis: int, start: int, step: int) -> Term:
    """The elements along an axis in cyclic order, from `start` on.

    `step` is 1, or -1 for the reverse order, which begins at the last element.
    """
    length = x.shape[axis]
    places = ct.iota((length,), i32, start, step)
    if start and step == 1:
        places = ct.select(places < length, places, places - length)
    shape = tuple(length if i == axis else 1 for i in range(len(x.shape)))
    return ct.take_along_axis(x, ct.broadcast(ct.reshape(places, shape), x.shape), axis)


@composed
def flip(ct: Language, x: Any, axis: Any = None) -> Any:
    tile = Term(ct.frame, tile_of(ct.frame, value_of(x), "flip"))
    for along in axes_of(ct.frame, value_of(axis), len(tile.shape), "flip"):
        length = tile.shape[along]
        tile = _cyclic(ct, tile, along, length - 1, -1) if length > 1 else tile
    return tile


@composed
def roll(ct: Language, x: Any, shift: Any, axis: Any) -> Any:
    tile = Term(ct.frame, tile_of(ct.frame, value_of(x), "roll"))
    along = axis_of(ct.frame, value_of(axis), len(tile.shape), "roll")
    start = -constant_int(ct.frame, value_of(shift), "roll: the shift") % tile.shape[along]
    return _cyclic(ct, tile, along, start, 1) if start else tile


@composed
def repeat(ct: Language, x: Any, count: Any, axis: Any) -> Any:
    tile = tile_of(ct.frame, value_of(x), "repeat").tile
    along = axis_of(ct.frame, value_of(axis), len(tile.shape), "repeat")
    times = constant_int(ct.frame, value_of(count), "repeat: the count")
    if times < 1:
        ct.frame.type_error(f"repeat: the count is {times}", remedy="It is at least 1: every extent of a tile is.")
    before, length, behind = tile.shape[:along], tile.shape[along], tile.shape[along + 1 :]
    columns = ct.reshape(x, (*before, length, 1, *behind))
    repeated = ct.broadcast(columns, (*before, length, times, *behind))
    return ct.reshape(repeated, (*before, length * times, *behind))


@composed
def insert(ct: Language, x: Any, part: Any, index: Any) -> Any:
    tile, piece = (tile_of(ct.frame, value_of(each), "insert").tile for each in (x, part))
    if piece.dtype is not tile.dtype:
        ct.frame.type_error(
            f"insert: the part must be of {tile.dtype}, got {piece.dtype}", remedy="Convert it: part.astype(x.dtype)."
        )
    replaced = extract_op(ct.frame, value_of(x), value_of(index), piece.shape, "insert")
    replaced.infer()  # checks the shapes
    # An element is replaced if the number of its part is the index, along each axis that has several parts.
    within: Any = None
    for axis, (number, length, size) in enumerate(zip(replaced.index, tile.shape, piece.shape, strict=True)):
        if length > size:
            shape = tuple(length if i == axis else 1 for i in range(len(tile.shape)))
            last = length // size - 1
            here = ct.reshape(ct.iota((length,)) // size, shape) == ct.clamp(Term(ct.frame, number), 0, last)
            within = here if within is None else within & here
    if within is None:
        return part
    # The new part is repeated at the place of every part, and selected at one of them.
    pairs = tuple(zip(tile.shape, piece.shape, strict=True))
    split = ct.reshape(part, tuple(extent for _, size in pairs for extent in (1, size)))
    repeated = ct.broadcast(split, tuple(extent for length, size in pairs for extent in (length // size, size)))
    return ct.select(within, ct.reshape(repeated, tile.shape), x)


@operation
def extract(frame: Frame, x: Any, index: Any, shape: Any) -> Any:
    return frame.emit(extract_op(frame, x, index, shape, "extract"))


def _is_u64(index: Any) -> TypeGuard[Value]:
    return is_tile(index) and index.tile == TileType(u64)


def extract_op(frame: Frame, x: Any, index: Any, shape: Any, what: str) -> Extract:
    """The part of a tile at an index; `what` is the name of the call, for errors."""
    tile = tile_of(frame, x, what)
    part = shape_of(frame, shape, what)
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if not len(tile.tile.shape) == len(part) == len(items):
        frame.type_error(
            f"{what}: {tile.type} takes a shape and an index of {len(tile.tile.shape)} entries, "
            f"got the shape {part} and {len(items)} indices",
            remedy="Reshape the part if you need fewer axes.",
        )
    for axis, (length, size, number) in enumerate(zip(tile.tile.shape, part, items, strict=True)):
        if isinstance(number, int) and not 0 <= number < max(length // size, 1):
            frame.type_error(
                f"{what}: index {number} along axis {axis}; there are {length // size} parts of {size}",
                remedy="The index counts in parts, from 0.",
            )
    # A u64 is not converted here. From 2**63 on its i64 would be negative, and clamped to the first part, not the last.
    scalars = [item if _is_u64(item) else index_scalar(frame, item, what) for item in map(plain, items)]
    for axis, (length, size) in enumerate(zip(tile.tile.shape, part, strict=True)):
        if scalars[axis].tile.dtype is not i32:
            scalars[axis] = index_between(frame, scalars[axis], 0, max(length // size, 1) - 1)
    return Extract(x=tile, index=tuple(scalars), shape=part)


METHODS[Value, "reshape"] = reshape
METHODS[Value, "broadcast"] = broadcast
METHODS[Value, "transpose"] = transpose
