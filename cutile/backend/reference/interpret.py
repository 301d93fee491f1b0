"""Runs one tile block by a walk over its IR, with each operation's NumPy meaning.

The classes in `cutile/ops/` compute; memory, the grid and control flow are here. Tensors in memory are NumPy arrays.
Loads of tiles are padded past the edges, stores are clipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, cast

import numpy as np

from cutile.backend.interface import Argument, Grid, Parameter
from cutile.conversion import element
from cutile.dtypes import DTypeLike, from_numpy
from cutile.errors import KernelAssertionError, OutOfBoundsError
from cutile.ir import Block, For, Function, If, Op, TileType, Value, While, Yield
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.bound import CheckIndex, CheckTile
from cutile.ops.debug import Assert, Print, failure_text, reported
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress, TensorStride
from cutile.ops.reduce import Folding, Scan
from cutile.ops.view import LoadView, StoreView, TensorView

Array = np.ndarray[Any, Any]
_CARRIERS = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}
"""Type strings of unsigned integers, by bytes. NumPy's array interface has none for bf16 and its kin: memory is seen as
integers first, and these are then viewed as the dtype."""


class _Memory:
    """Memory that NumPy does not own, for it to see by its array interface."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def array_at(address: int, dtype: DTypeLike, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The elements at `address`, as an array that shares the memory.

    `strides` are in elements.
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

    Tensors share their memory; scalars have the shape ().
    """
    facts: dict[tuple[int, str, int], Any] = {}  # by the kernel parameter's position, the kind of fact, and the axis
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
    """The overlap of the array and the tile at `index`: slices of both."""
    of_array: list[slice] = []
    of_tile: list[slice] = []
    for extent, tile, position in zip(array.shape, shape, index, strict=True):
        start = int(position) * tile
        low, high = min(max(start, 0), extent), min(max(start + tile, 0), extent)
        of_array.append(slice(low, high))
        of_tile.append(slice(low - start, high - start) if high > low else slice(0, 0))
    return tuple(of_array), tuple(of_tile)


def load(array: Array, shape: tuple[int, ...], index: Sequence[int]) -> Array:
    """The tile at a tile index; zeros past the edges."""
    tile = np.zeros(shape, array.dtype)
    of_array, of_tile = _overlap(array, shape, index)
    tile[of_tile] = array[of_array]
    return tile


def store(array: Array, tile: Array, index: Sequence[int]) -> None:
    """Write the tile at a tile index; elements past the edges are dropped."""
    of_array, of_tile = _overlap(array, tile.shape, index)
    array[of_array] = tile[of_tile]


def _overlap_from(
    array: Array, shape: Sequence[int], starts: Sequence[int], limits: Mapping[int, int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The overlap of the array and the tile that begins at `starts`.

    Args:
        array: the array.
        shape: the tile's shape.
        starts: the tile's first element along each axis.
        limits: by axis, the number of elements, for axes whose elements end before the array does.

    Returns:
        Slices of the array, and of the tile. They are empty for a tile that begins before the array.
    """
    of_array: list[slice] = []
    for axis, (extent, tile, start) in enumerate(zip(array.shape, shape, starts, strict=True)):
        stop = min(start + tile, extent, limits.get(axis, extent))
        of_array.append(slice(start, stop) if 0 <= start < stop else slice(0, 0))
    return tuple(of_array), tuple(slice(0, each.stop - each.start) for each in of_array)


def load_view(
    array: Array, shape: tuple[int, ...], starts: Sequence[int], limits: Mapping[int, int], fill: float
) -> Array:
    """The tile that begins at an element.

    `fill` past the edges, and everywhere if it begins before the array.
    """
    tile = np.full(shape, fill, array.dtype)
    of_array, of_tile = _overlap_from(array, shape, starts, limits)
    tile[of_tile] = array[of_array]
    return tile


def store_view(array: Array, tile: Array, starts: Sequence[int], limits: Mapping[int, int]) -> None:
    """Write the tile that begins at an element; elements past the edges are dropped."""
    of_array, of_tile = _overlap_from(array, tile.shape, starts, limits)
    array[of_array] = tile[of_tile]


def _lanes(pointers: Array, mask: Array) -> Iterator[tuple[tuple[int, ...], int]]:
    """The index and the address of every lane whose mask is true."""
    for index in np.ndindex(pointers.shape):
        if mask[index]:
            yield index, int(pointers[index])


def _element(address: int, dtype: DTypeLike) -> Array:
    return array_at(address, dtype, (), ())


def load_lanes(pointers: Array, mask: Array, pad: Array) -> Array:
    """The elements at the pointers; `pad` where the mask is false."""
    lanes = np.array(pad)
    for index, address in _lanes(pointers, mask):
        lanes[index] = _element(address, from_numpy(lanes.dtype))
    return lanes


def store_lanes(pointers: Array, value: Array, mask: Array) -> None:
    """Write the elements at the pointers where the mask is true."""
    for index, address in _lanes(pointers, mask):
        _element(address, from_numpy(value.dtype))[...] = value[index]


def update_lanes(change: Callable[..., Any], pointers: Array, mask: Array, *operands: Array) -> Array:
    """Change the elements at the pointers to `change(old, *operands)`.

    Returns:
        The old elements; 0 where the mask is false.
    """
    before = np.zeros(pointers.shape, operands[0].dtype)
    dtype = from_numpy(before.dtype)
    for index, address in _lanes(pointers, mask):
        place = _element(address, dtype)
        before[index] = place
        # A copy: `place` shares the memory that is written.
        place[...] = change(np.array(place), *(each[index] for each in operands))
    return before


class Walker:
    """One tile block: its index in the grid, and the values computed so far."""

    def __init__(self, values: MutableMapping[Value, Array], index: Grid, grid: Grid) -> None:
        self._values = values
        self._index = index
        self._grid = grid
        self._definitions: dict[Value, Op] = {}  # of the values of this block

    @property
    def values(self) -> MutableMapping[Value, Array]:
        """The array of each value that has been computed."""
        return self._values

    def with_values(self, values: MutableMapping[Value, Array]) -> Walker:
        """The same tile block with other values."""
        return Walker(values, self._index, self._grid)

    def block(self, block: Block, arguments: Sequence[Array] = ()) -> list[Array]:
        """Run a block; return the arrays that its terminator yields."""
        # Not strict: a kernel's own block runs without arguments, since its parameters are already bound.
        self._values.update(zip(block.arguments, arguments, strict=False))
        for op in block.operations:
            if isinstance(op, Yield):
                return self._of(op.operands)
            results = self.operation(op)
            self._values.update(zip(op.results, results, strict=True))
            self._definitions.update((result, op) for result in op.results)
        return []

    def _of(self, values: Sequence[Value]) -> list[Array]:
        return [self._values[value] for value in values]

    def operation(self, op: Op) -> Sequence[Array]:
        """Run one operation; return its results."""
        match op:
            case For():
                return self._for(op)
            case While():
                return self._while(op)
            case If():
                return self.block(op.then if self._values[op.condition] else op.orelse)
            case Folding():
                return fold(op, self._of(op.operands))
            case TileBlockId() | NumTileBlocks() | TensorDim() | TensorAddress() | TensorStride():
                return [self._launch_fact(op)]
            case TensorView():
                shape, steps = (tuple(map(self._number, each)) for each in (op.extents, op.steps))
                return [array_at(self._number(op.address), op.dtype, shape, steps)]
            case LoadTile() | LoadMut() | LoadView() | LoadPointer():
                return [self._load(op)]
            case StoreMut() | StoreView() | StorePointer():
                self._store(op)
                return []
            case AtomicRmw() | AtomicCas():
                pointers, *operands, mask = self._of(op.lanes if isinstance(op, AtomicRmw) else op.operands)
                with np.errstate(all="ignore"):
                    return [update_lanes(op.reference, pointers, mask, *operands)]
            case CheckTile() | CheckIndex() | Print() | Assert():
                self._report(op)
                return []
            case _:
                with np.errstate(all="ignore"):
                    result: Any = op.reference(*self._of(op.operands))
                results = cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result,)
                return [np.asarray(each) for each in results]

    def _launch_fact(self, op: TileBlockId | NumTileBlocks | TensorDim | TensorAddress | TensorStride) -> Array:
        """A number of the grid or of a tensor: index, extent, stride or address."""
        match op:
            case TileBlockId():
                return np.asarray(self._index[op.axis], np.int32)
            case NumTileBlocks():
                return np.asarray(self._grid[op.axis], np.int32)
            case TensorDim():
                return np.asarray(self._values[op.x].shape[op.axis], np.int32)
            case TensorAddress():
                return np.asarray(self._values[op.x].__array_interface__["data"][0], np.uint64)
            case TensorStride():
                array = self._values[op.x]
                return np.asarray(array.strides[op.axis] // array.itemsize, np.int64)

    def _load(self, op: LoadTile | LoadMut | LoadView | LoadPointer) -> Array:
        match op:
            case LoadTile():
                return load(self._values[op.x], op.shape, [int(each) for each in self._of(op.index)])
            case LoadMut():
                return load(self._values[op.x], op.x.mut.tile, self._index[: op.x.mut.rank])
            case LoadView():
                return load_view(self._values[op.x], op.shape, self._starts(op), self._limits(op), op.padding_value)
            case LoadPointer():
                return load_lanes(*self._of(op.operands))

    def _store(self, op: StoreMut | StoreView | StorePointer) -> None:
        match op:
            case StoreMut():
                store(self._values[op.x], self._values[op.value], self._index[: op.x.mut.rank])
            case StoreView():
                store_view(self._values[op.x], self._values[op.value], self._starts(op), self._limits(op))
            case StorePointer():
                store_lanes(*self._of(op.operands))

    def _report(self, op: CheckTile | CheckIndex | Print | Assert) -> None:
        """Print, or raise where a check or an assertion fails."""
        match op:
            case Print():
                sys.stdout.write(op.reference(*self._of(op.operands)))
            case Assert():
                if not self._values[op.condition]:
                    names, dtypes, values = reported(op, self._definitions)
                    words = [int(np.asarray(number).astype(np.int64)) for number in self._of(values)]
                    raise KernelAssertionError(failure_text(op.message, op.where, self._index, names, dtypes, words))
            case CheckTile() | CheckIndex():
                self._check(op)

    def _check(self, op: CheckTile | CheckIndex) -> None:
        if isinstance(op, CheckTile):
            extent = self._values[op.x].shape[op.axis]
            count, what = -(-extent // op.step), f"the tile index along axis {op.axis} of {op.x.name!r}"
            tiles = f"tiles of {op.step} (extent {extent})"
        else:
            count, what, tiles = int(self._values[op.count]), op.what, "tiles"
        index = int(self._values[op.index])
        if not 0 <= index < count:
            raise OutOfBoundsError(f"{what} is {index}; there are {count} {tiles}", op.location)

    def _number(self, value: Value | int) -> int:
        return int(self._values[value]) if isinstance(value, Value) else value

    def _starts(self, op: LoadView | StoreView) -> list[int]:
        return [int(each) * step for each, step in zip(self._of(op.starts), op.steps, strict=True)]

    def _limits(self, op: LoadView | StoreView) -> dict[int, int]:
        return {axis: int(each) for axis, each in zip(op.limited, self._of(op.limits), strict=True)}

    def _for(self, op: For) -> Sequence[Array]:
        start, stop, step = (int(self._values[each]) for each in (op.start, op.stop, op.step))
        carried = self._of(op.carried)
        dtype = op.induction.tile.dtype.numpy
        for position in range(start, stop, step):
            carried = self.block(op.body, [np.asarray(position, dtype), *carried])
        return carried

    def _while(self, op: While) -> Sequence[Array]:
        carried = self._of(op.carried)
        while self.block(op.condition, carried)[0]:
            carried = self.block(op.body, carried)
        return carried


def run_block(function: Function, values: dict[Value, Array], index: Grid, grid: Grid) -> None:
    """Run the tile block at `index` of `grid`, with parameters bound to arrays."""
    Walker(dict(values), index, grid).block(function.body)


def apply(body: Block, arguments: Sequence[Array]) -> list[Array]:
    """The body's results, for every element of arguments of one shape."""
    values: dict[Value, Array] = dict(zip(body.arguments, arguments, strict=True))
    shape = arguments[0].shape
    for op in body.operations:
        operands = [np.broadcast_to(values[each], shape) for each in op.operands]
        if isinstance(op, Yield):
            return operands
        with np.errstate(all="ignore"):
            result: Any = op.reference(*operands)
        values[op.result] = np.asarray(result)
    raise AssertionError("a body ends with a yield")


def fold(op: Folding, tiles: Sequence[Array]) -> list[Array]:
    """The results of a reduction or scan."""
    columns = [np.moveaxis(tile, op.axis, 0) for tile in tiles]
    totals = [
        np.full(column.shape[1:], element(identity, tile.tile.dtype), column.dtype)
        for column, tile, identity in zip(columns, op.tiles, op.identities, strict=True)
    ]
    places = range(len(columns[0]))
    if not isinstance(op, Scan):
        for place in places:
            totals = apply(op.body, [*totals, *(column[place] for column in columns)])
        return totals
    results = [np.empty_like(column) for column in columns]
    for place in reversed(places) if op.reverse else places:
        totals = apply(op.body, [*totals, *(column[place] for column in columns)])
        for result, total in zip(results, totals, strict=True):
            result[place] = total
    return [np.moveaxis(result, 0, op.axis) for result in results]
