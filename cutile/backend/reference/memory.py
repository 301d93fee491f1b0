"""Tensors in memory as NumPy arrays, and tiles of them.

Padded past the edges, stores clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cutile.backend.interface import Argument, Parameter
from cutile.conversion import element
from cutile.dtypes import DTypeLike, from_numpy
from cutile.ir.core import Function, Value
from cutile.ir.types import TileType

Array = np.ndarray[Any, Any]
_CARRIERS = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class _Memory:
    """Foreign memory, offered to NumPy by its array interface."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def array_at(address: int, dtype: DTypeLike, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The elements at `address`, as an array that shares the memory.

    `strides` count elements.
    """
    size = dtype.bits // 8
    interface = {
        "version": 3,
        "data": (address, False),
        "shape": shape,
        "strides": tuple(stride * size for stride in strides),
        "typestr": _CARRIERS[size],
    }
    return np.asarray(_Memory(interface)).view(dtype.numpy)


def bind_parameters(
    function: Function, parameters: Sequence[Parameter], arguments: Sequence[Argument]
) -> dict[Value, Array]:
    """Each kernel parameter as an array.

    Tensors as they lie in memory, scalars of shape ().
    """
    facts: dict[tuple[int, str, int], Any] = {}
    for parameter, argument in zip(parameters, arguments, strict=True):
        facts[parameter.argument, parameter.kind, parameter.axis] = argument
    bound: dict[Value, Array] = {}
    for position, value in enumerate(function.parameters):
        if isinstance(value.type, TileType):
            bound[value] = element(facts[position, "scalar", 0], value.type.dtype)
            continue
        tensor = value.tensor
        shape = tuple(
            facts[position, "extent", axis] if extent is None else extent for axis, extent in enumerate(tensor.shape)
        )
        strides = tuple(
            facts[position, "stride", axis] if stride is None else stride for axis, stride in enumerate(tensor.strides)
        )
        bound[value] = array_at(facts[position, "pointer", 0], tensor.dtype, shape, strides)
    return bound


def _overlap(array: Array, shape: Sequence[int], index: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where the tile at `index` meets the array: slices of the array, and of the tile."""
    inside: list[slice] = []
    within: list[slice] = []
    for extent, tile, position in zip(array.shape, shape, index, strict=True):
        start = int(position) * tile
        low, high = min(max(start, 0), extent), min(max(start + tile, 0), extent)
        inside.append(slice(low, high))
        within.append(slice(low - start, high - start) if high > low else slice(0, 0))
    return tuple(inside), tuple(within)


def load(array: Array, shape: tuple[int, ...], index: Sequence[int]) -> Array:
    """The tile at a tile index; zeros past the edges."""
    tile = np.zeros(shape, array.dtype)
    inside, within = _overlap(array, shape, index)
    tile[within] = array[inside]
    return tile


def store(array: Array, tile: Array, index: Sequence[int]) -> None:
    """Write the tile at a tile index; what lies past the edges is dropped."""
    inside, within = _overlap(array, tile.shape, index)
    array[inside] = tile[within]


def _overlap_from(
    array: Array, shape: Sequence[int], starts: Sequence[int], limits: Mapping[int, int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where the tile that begins at `starts` meets the array.

    Slices of the array, and of the tile.
    """
    inside: list[slice] = []
    for axis, (extent, tile, start) in enumerate(zip(array.shape, shape, starts, strict=True)):
        stop = min(start + tile, extent, limits.get(axis, extent))
        inside.append(slice(start, stop) if 0 <= start < stop else slice(0, 0))
    return tuple(inside), tuple(slice(0, each.stop - each.start) for each in inside)


def load_view(
    array: Array, shape: tuple[int, ...], starts: Sequence[int], limits: Mapping[int, int], fill: float
) -> Array:
    """The tile that begins at an element.

    `fill` past the edges, and everywhere if it begins before the array.
    """
    tile = np.full(shape, fill).astype(array.dtype)
    inside, within = _overlap_from(array, shape, starts, limits)
    tile[within] = array[inside]
    return tile


def store_view(array: Array, tile: Array, starts: Sequence[int], limits: Mapping[int, int]) -> None:
    """Write the tile that begins at an element; what lies past the edges is dropped."""
    inside, within = _overlap_from(array, tile.shape, starts, limits)
    array[inside] = tile[within]


def _lanes(pointers: Array, mask: Array) -> Iterator[tuple[tuple[int, ...], int]]:
    """The index and the address of every lane whose bit is set."""
    for index in np.ndindex(pointers.shape):
        if mask[index]:
            yield index, int(pointers[index])


def _element(address: int, dtype: DTypeLike) -> Array:
    return array_at(address, dtype, (), ())


def load_lanes(pointers: Array, mask: Array, pad: Array) -> Array:
    """The elements at the pointers; `pad` where the mask is not set."""
    lanes = np.array(pad)
    for index, address in _lanes(pointers, mask):
        lanes[index] = _element(address, from_numpy(lanes.dtype))
    return lanes


def store_lanes(pointers: Array, value: Array, mask: Array) -> None:
    """Write the elements at the pointers."""
    for index, address in _lanes(pointers, mask):
        _element(address, from_numpy(value.dtype))[...] = value[index]


def update_lanes(change: Callable[..., Any], pointers: Array, mask: Array, *operands: Array) -> Array:
    """Change the elements at the pointers to `change(old, *operands)`.

    The old ones, 0 where the mask is not set.
    """
    before = np.zeros(pointers.shape, operands[0].dtype)
    dtype = from_numpy(before.dtype)
    for index, address in _lanes(pointers, mask):
        place = _element(address, dtype)
        before[index] = place
        place[...] = change(np.array(place), *(each[index] for each in operands))
    return before
