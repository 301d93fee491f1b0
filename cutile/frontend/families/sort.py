"""Calls that sort a tile, or find the places of its extremes."""

from __future__ import annotations

from typing import Any

from cutile.dtypes import i32, u8
from cutile.frontend.expect import axis_of, constant_int, flag_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.registry import operation
from cutile.frontend.values import describe
from cutile.ir import Block, Builder, TileType, Value, remedy
from cutile.ops.arith import And, Or
from cutile.ops.cast import Convert
from cutile.ops.compare import Compare, Eq, Gt, Lt, Ne, Select
from cutile.ops.create import Iota
from cutile.ops.reduce import Fold
from cutile.ops.shape import Broadcast, Reshape
from cutile.ops.sort import Sort, TakeAlongAxis, TopK


@operation
def sort(frame: Frame, x: Any, axis: Any = -1, descending: Any = False) -> Any:
    return _sorted(frame, "sort", x, axis, descending)[0]


@operation
def argsort(frame: Frame, x: Any, axis: Any = -1, descending: Any = False) -> Any:
    return _sorted(frame, "argsort", x, axis, descending)[1]


def _sorted(frame: Frame, name: str, x: Any, axis: Any, descending: Any) -> tuple[Value, ...]:
    if isinstance(x, tuple):
        by_first = "ct.take_along_axis(other, ct.argsort(tile, axis), axis)"
        frame.type_error(f"{name}: expected a tile, got {describe(x)}", remedy=f"Order others by one: {by_first}.")
    tile = tile_of(frame, x, name)
    where = axis_of(frame, axis, len(tile.tile.shape), name)
    order = flag_of(frame, descending, f"{name}: descending")
    return frame.builder.add(Sort(x=tile, axis=where, descending=order)).results


@operation
def top_k(frame: Frame, x: Any, k: Any, axis: Any = -1) -> Any:
    tile = tile_of(frame, x, "top_k")
    where = axis_of(frame, axis, len(tile.tile.shape), "top_k")
    count = constant_int(frame, k, "top_k: k")
    return tuple(frame.builder.add(TopK(x=tile, axis=where, k=count)).results)


@operation
def take_along_axis(frame: Frame, x: Any, places: Any, axis: Any) -> Any:
    tile, indices = (tile_of(frame, each, "take_along_axis") for each in (x, places))
    where = axis_of(frame, axis, len(tile.tile.shape), "take_along_axis")
    return frame.emit(TakeAlongAxis(x=tile, places=indices, axis=where))


@operation
def argmax(frame: Frame, x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    return _place(frame, "argmax", x, axis, keepdims)


@operation
def argmin(frame: Frame, x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    return _place(frame, "argmin", x, axis, keepdims)


def _place(frame: Frame, name: str, x: Any, axis: Any, keepdims: Any) -> Value:
    """The place of an extreme, by a fold of pairs that keeps the better one.

    A pair is an element and its place.
    """
    tile = tile_of(frame, x, name)
    rank, keeps = len(tile.tile.shape), flag_of(frame, keepdims, f"{name}: keepdims")
    if axis is None:  # the place among all elements, row by row
        where, result_shape = 0, (1,) * rank
        tile = frame.emit(Reshape(x=tile, shape=(tile.tile.size,)))
    else:
        if isinstance(axis, tuple):
            flat = "Reshape, so that they are one: the place is then one among all of them, row by row."
            frame.type_error(f"{name} goes along one axis, got {describe(axis)}", remedy=flat)
        where = axis_of(frame, axis, rank, name)
        result_shape = tuple(1 if at == where else extent for at, extent in enumerate(tile.tile.shape))
    if tile.tile.dtype.is_bool:
        tile = frame.emit(Convert(x=tile, dtype=u8))
    shape, dtype = tile.tile.shape, tile.tile.dtype
    if not dtype.computes:
        frame.type_error(f"{name}: expected a tile of numbers, got {tile.type}", remedy=remedy(tile.type))
    numbers = frame.emit(Iota(length=shape[where], dtype=i32))
    along = tuple(extent if at == where else 1 for at, extent in enumerate(shape))
    places = frame.emit(Broadcast(x=frame.emit(Reshape(x=numbers, shape=along)), shape=shape))
    if dtype.is_float:
        worst: int | float = float("-inf" if name == "argmax" else "inf")
    else:
        worst = dtype.min if name == "argmax" else dtype.max
    fold = Fold(
        tiles=(tile, places),
        axis=where,
        identities=(worst, shape[where]),  # a place after all others, so that it loses ties
        body=_better(tile.tile.with_shape(()), Gt if name == "argmax" else Lt),
    )
    place = frame.builder.add(fold).results[1]
    return frame.emit(Reshape(x=place, shape=result_shape)) if keeps and result_shape else place


def _better(scalar: TileType, order: type[Compare]) -> Block:
    """The body of a fold, of `(a, i), (b, j)`, that yields the pair to keep.

    That is the first NaN, else the first of the most extreme elements.
    """
    a, i, b, j = (Value(kind, stem) for stem, kind in zip("aibj", (scalar, TileType(i32)) * 2, strict=True))
    builder = Builder(Block([a, i, b, j]))
    value = builder.value
    first = value(And(x=value(Eq(x=a, y=b)), y=value(Lt(x=i, y=j))))
    stays = value(Or(x=value(order(x=a, y=b)), y=first))
    if scalar.dtype.is_float:
        stays = value(Or(x=stays, y=value(Ne(x=a, y=a))))
    builder.yield_(value(Select(condition=stays, x=a, y=b)), value(Select(condition=stays, x=i, y=j)))
    return builder.current
