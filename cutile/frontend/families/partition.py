"""Calls on partitions: tensors, and a block's own tile, seen as grids of tiles."""

from __future__ import annotations

import ast
import math
from typing import Any

from cutile.dtypes import i32, i64
from cutile.frontend.expect import (
    axis_of,
    index_between,
    index_scalar,
    indices,
    latency_of,
    marker_of,
    shape_of,
    tile_of,
)
from cutile.frontend.families.elementwise import ceil_div, min_tile
from cutile.frontend.families.grid import GRID_AXES, block_index, own_index
from cutile.frontend.families.memory import extent, tiles_along
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary, broadcast_to, comparison, is_number, materialize
from cutile.frontend.plain_numbers import adapted, bounded
from cutile.frontend.registry import method, operation
from cutile.frontend.values import (
    TOKEN,
    MappedRef,
    MutRef,
    PartitionIndex,
    PartitionRef,
    TensorRef,
    WindowRef,
    describe,
    items_of,
)
from cutile.ir import MutType, Value
from cutile.language.markers import padding
from cutile.ops.bound import CheckIndex, CheckTile
from cutile.ops.create import Iota
from cutile.ops.memory import LoadTile, store_remedy
from cutile.ops.shape import Permute, Reshape
from cutile.ops.view import LoadView, StoreView


def partition_of(
    frame: Frame, value: Value, shape: Any, what: str, *, fill: str = "zero", order: Any = None, writes: str = ""
) -> PartitionRef:
    """A partition, its shape and order of axes checked against the tensor."""
    extents = shape_of(frame, shape, what)
    rank = value.tensor.rank
    if len(extents) != rank:
        frame.type_error(
            f"{what}: {value.name!r} has {rank} axes, the tile shape {extents} has {len(extents)}",
            remedy="Give the tile one extent per axis of the tensor.",
        )
    axes = None
    if order is not None:
        if not isinstance(order, tuple):
            frame.type_error(
                f"{what}: dim_map must be a tuple of constants, got {describe(order)}",
                remedy="Axis k of a tile is axis dim_map[k] of the tensor: (1, 0) exchanges two axes.",
            )
        axes = tuple(axis_of(frame, each, rank, what) for each in items_of(order))
        if sorted(axes) != list(range(rank)):
            frame.type_error(
                f"{what}: dim_map {axes} is no order of the {rank} axes of {value.name!r}",
                remedy="Axis k of a tile is axis dim_map[k] of the tensor: each axis stands in it once.",
            )
        axes = None if axes == tuple(range(rank)) else axes
    return PartitionRef(value, extents, fill, axes, writes=writes)


@method(TensorRef, "partition")
def _partition(frame: Frame, self: TensorRef, shape: Any, padding: Any = padding.ZERO) -> Any:
    if isinstance(shape, int) and isinstance(padding, int):
        frame.type_error(
            f"partition: the shape is one argument, got {shape} and {padding}",
            remedy=f"Write it as a tuple: x.partition(({shape}, {padding})).",
        )
    fill = padding_of(frame, padding, "partition")
    return partition_of(frame, self.value, shape, "partition", fill=fill)


@method(TensorRef, "partition_permuted")
def _partition_permuted(frame: Frame, self: TensorRef, shape: Any, dim_map: Any) -> Any:
    return partition_of(frame, self.value, shape, "partition_permuted", order=dim_map)


@method(MutRef, "partition_mut")
def _partition_mut(frame: Frame, self: MutRef, shape: Any) -> Any:
    return partition_of(frame, self.value, shape, "partition_mut", writes="own")


@method(MutRef, "partition_full_mut")
def _partition_full_mut(frame: Frame, self: MutRef, shape: Any) -> Any:
    frame.require_unsafe("partition_full_mut")
    return partition_of(frame, self.value, shape, "partition_full_mut", writes="full")


def padding_of(frame: Frame, value: Any, what: str) -> str:
    """The word of a padding."""
    return marker_of(frame, value, padding, what).value


@operation
def num_tiles(frame: Frame, view: Any, axis: Any) -> Any:
    if isinstance(view, MutRef | MappedRef):
        view = PartitionRef(view.value, view.value.mut.tile)
    if not isinstance(view, PartitionRef):
        frame.type_error(
            f"num_tiles: expected a partition, got {describe(view)}",
            remedy="Partition the tensor first: x.partition((64, 64)).",
        )
    along = axis_of(frame, axis, len(view.shape), "num_tiles")
    return _begun_tiles(frame, view, along) if view.writes == "own" else count_of(frame, view, along)


def _begun_tiles(frame: Frame, part: PartitionRef, axis: int) -> Any:
    """The number of tiles of a nested partition that begin within the tensor.

    The last block's own tile may reach past the tensor's edge.
    """
    most = count_of(frame, part, axis)
    if most == 1:  # a block's own tile begins within the tensor, and its first nested tile with it
        return 1
    tile = part.value.mut.tile[axis]
    begin = binary(frame, ast.Mult, own_index(frame, part.value)[axis], tile)
    left = binary(frame, ast.Sub, extent(frame, part.value, axis), begin)
    count = min_tile(frame, ceil_div(frame, left, (part.steps or part.shape)[axis]), most)
    return bounded(frame, count, 1, most)


@operation
def get_index_space_shape(frame: Frame, view: Any) -> Any:
    if isinstance(view, MutRef | MappedRef):
        view = PartitionRef(view.value, view.value.mut.tile)
    if not isinstance(view, PartitionRef):
        frame.type_error(
            f"get_index_space_shape: expected a partition, got {describe(view)}",
            remedy="Partition the tensor first: x.partition((64, 64)).",
        )
    return tuple(num_tiles(frame, view, axis) for axis in range(len(view.shape)))


def count_of(frame: Frame, part: PartitionRef, axis: int) -> Any:
    """How many tiles a partition has along an axis of its tiles."""
    step = (part.steps or part.shape)[axis]
    if isinstance(part, WindowRef):
        return window_count(frame, part, axis)
    if part.writes == "own":
        return -(-part.value.mut.tile[axis] // step)
    return tiles_along(frame, extent(frame, part.value, part.order[axis] if part.order else axis), step)


def window_count(frame: Frame, part: WindowRef, axis: int) -> Any:
    """How many windows begin before the end of the tensor along an axis of a tile."""
    return _windows_from(frame, part, axis, part.starts[axis])


def loadable_windows(frame: Frame, part: WindowRef, axis: int) -> Any:
    """How many windows may be loaded along an axis of a tile.

    They are no fewer than without `starts`, so that each tile of a tensor has its window. If the last tile has one
    element and windows start at 1, the last window is all padding.
    """
    return _windows_from(frame, part, axis, min(part.starts[axis], 0))


def _windows_from(frame: Frame, part: WindowRef, axis: int, start: int) -> Any:
    length = extent(frame, part.value, part.order[axis] if part.order else axis)
    return ceil_div(frame, binary(frame, ast.Sub, length, start), (part.steps or part.shape)[axis])


# One access


def indices_of(frame: Frame, part: PartitionRef, index: Any, what: str) -> tuple[Value, ...]:
    """One scalar of i32 or i64 for each axis of a tile."""
    if isinstance(index, PartitionIndex) and None not in index.coordinates:
        index = index.coordinates
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if len(items) != len(part.shape):
        frame.type_error(
            f"{what}: {part.value.name!r} has {len(part.shape)} axes, got {indices(items)}",
            remedy="Give one index for each axis of the partition.",
        )
    return tuple(index_scalar(frame, item, what) for item in items)


def check(frame: Frame, part: PartitionRef, index: tuple[Value, ...], what: str) -> None:
    """Add checks that the indices name a tile of the partition."""
    name = part.value.name or "the view"
    if part.writes == "own":
        for axis, item in enumerate(index):
            count = materialize(frame, count_of(frame, part, axis))
            text = f"{what}: the index along axis {axis} into the nested partition of {name!r}"
            frame.builder.add(CheckIndex(index=item, count=count, what=text))
        return
    order = part.order or tuple(range(len(index)))
    for axis, item, step in zip(order, index, part.steps or part.shape, strict=True):
        frame.builder.add(CheckTile(x=part.value, index=item, axis=axis, step=step))


class Place:
    """The position of a tile, in the order of the tensor's axes.

    Along axis `k`, the tile begins at the element `index[k] * steps[k]`, and ends at `limits[k]` where that is given.
    """

    def __init__(self, frame: Frame, part: PartitionRef, index: tuple[Value, ...]) -> None:
        order = part.order or tuple(range(len(index)))
        where = [order.index(axis) for axis in range(len(order))]  # the tile's axis, for each axis of the tensor
        self.shape = tuple(part.shape[axis] for axis in where)
        steps = part.steps or part.shape
        self.steps = tuple(steps[axis] for axis in where)
        self.index = [index[axis] for axis in where]
        self.limits: dict[int, Value] = {}
        if part.writes == "own":
            folded = part.value.mut.rank > GRID_AXES
            self._enter_own_tile(frame, part.value.mut.tile, own_index(frame, part.value) if folded else None)

    def _enter_own_tile(self, frame: Frame, tile: tuple[int, ...], own: tuple[Any, ...] | None) -> None:
        """Count indices from the beginning of this block's own tile.

        The step is a common divisor, so that own tiles and nested tiles all begin at multiples of it.

        Args:
            tile: the shape of the block's own tile.
            own: the index of the block's own tile; None if that is the block's index along each axis.
        """
        for axis, (outer, nested) in enumerate(zip(tile, self.steps, strict=True)):
            block = block_index(frame, axis) if own is None else own[axis]
            step = math.gcd(outer, nested)
            before = binary(frame, ast.Mult, block, outer // step)
            index = self.index[axis]
            if index.tile.dtype is i64:  # clamped to just outside on either side, so that the product cannot wrap
                index = index_between(frame, index, -1, -(-outer // nested))
            within = binary(frame, ast.Mult, index, nested // step)
            self.index[axis] = binary(frame, ast.Add, before, within)
            self.steps = (*self.steps[:axis], step, *self.steps[axis + 1 :])
            if outer % nested:  # the last nested tile reaches into the next block's tile
                after = binary(frame, ast.Add, block, 1)
                self.limits[axis] = binary(frame, ast.Mult, after, outer)

    @property
    def operands(self) -> tuple[Value, ...]:
        """The index and the limits, as operands of an access."""
        return (*self.index, *self.limits.values())


def place_of(frame: Frame, part: PartitionRef, index: Any, what: str, *, checked: bool = True) -> Place:
    """Where the tile at an index lies."""
    if isinstance(part, WindowRef):
        frame.type_error(
            f"{what}: windows with starts are loaded by .load(index) alone",
            remedy="Write .load(index), or leave starts= out.",
        )
    scalars = indices_of(frame, part, index, what)
    if checked:
        check(frame, part, scalars, what)
    return Place(frame, part, scalars)


def load(
    frame: Frame,
    part: PartitionRef,
    index: Any,
    what: str,
    *,
    checked: bool = True,
    latency: int = 0,
    bulk: bool = True,
) -> Value:
    """The tile at an index.

    `latency` (iterations that it may begin ahead) and `bulk` (whether TMA may do it) are hints to the backends.
    """
    place = place_of(frame, part, index, what, checked=checked)
    plain = place.steps == place.shape and not place.limits and part.padding in ("zero", "none")
    if plain:
        op = LoadTile(x=part.value, index=place.operands, shape=place.shape, latency=latency, bulk=bulk)
        tile = frame.emit(op)
    else:
        op = LoadView(
            x=part.value,
            index=place.operands,
            shape=place.shape,
            steps=place.steps,
            limited=tuple(place.limits),
            padding=part.padding,
            latency=latency,
            bulk=bulk,
        )
        tile = frame.emit(op)
    return frame.emit(Permute(x=tile, axes=part.order)) if part.order else tile


def store(
    frame: Frame, part: PartitionRef, value: Any, index: Any, what: str, *, checked: bool = True, bulk: bool = True
) -> None:
    """Write the tile at an index; `bulk` is a hint: whether TMA may do it."""
    require_written(frame, part, what)
    place = place_of(frame, part, index, what, checked=checked)
    tile = as_it_lies(frame, part, stored_tile(frame, part, value, what))
    limited = tuple(place.limits)
    op = StoreView(x=part.value, value=tile, index=place.operands, steps=place.steps, limited=limited, bulk=bulk)
    frame.builder.add(op)


def require_written(frame: Frame, part: PartitionRef, what: str) -> None:
    """Refuse a partition that is read only."""
    if not part.writes:
        frame.type_error(
            f"{what}: {part.value.name!r} is read only",
            remedy="Windows of a Mut are written in kernels that say @ct.entry(unsafe=True), since they may overlap."
            if part.steps is not None and isinstance(part.value.type, MutType)
            else "Write to a Mut parameter: y.partition_mut(shape).store(tile, index).",
        )


def as_it_lies(frame: Frame, part: PartitionRef, tile: Value) -> Value:
    """A tile of a partition, its axes in the order of the tensor's."""
    if not part.order:
        return tile
    return frame.emit(Permute(x=tile, axes=tuple(part.order.index(axis) for axis in range(len(part.order)))))


def stored_tile(frame: Frame, part: PartitionRef, value: Any, what: str) -> Value:
    """The stored value as a tile of the partition's shape and dtype."""
    dtype = part.value.tensor.dtype
    if is_number(value):
        return materialize(frame, value, dtype, part.shape)
    tile = tile_of(frame, adapted(frame, value, dtype), what)
    if tile.tile.is_scalar and tile.tile.dtype is dtype:
        tile = broadcast_to(frame, tile, part.shape)
    if tile.tile.dtype is not dtype or tile.tile.shape != part.shape:
        frame.type_error(
            f"{what}: the tile must be of {dtype} and of shape {part.shape}, got {tile.type}",
            remedy=store_remedy(tile.tile.shape, part.shape, f"ct.{dtype.__name__}"),
        )
    return tile


@method(PartitionRef, "load")
def _load(frame: Frame, self: PartitionRef, index: Any) -> Any:
    return load(frame, self, index, "load")


@method(PartitionRef, "inside")
def _inside(frame: Frame, self: PartitionRef, index: Any) -> Any:
    place = place_of(frame, self, index, "inside")
    tile = inside(frame, self.value, place)
    return frame.emit(Permute(x=tile, axes=self.order)) if self.order else tile


@method(MutRef, "inside")
def _own_inside(frame: Frame, self: MutRef) -> Any:
    tile = self.value.mut.tile
    own = tuple(materialize(frame, each) for each in own_index(frame, self.value))
    return inside(frame, self.value, Place(frame, PartitionRef(self.value, tile), own))


def inside(frame: Frame, value: Value, place: Place) -> Value:
    """A tile of bool: whether each element of a tile lies within the tensor.

    An element past the tile's limits does not.
    """
    shape = place.shape
    result: Any = None
    for axis, size in enumerate(shape):
        begin = binary(frame, ast.Mult, place.index[axis], place.steps[axis])
        ends = [extent(frame, value, axis)]
        if axis in place.limits:
            ends.append(place.limits[axis])
        column = (1,) * axis + (size,) + (1,) * (len(shape) - axis - 1)
        for end in ends:
            # Elements from the tile's first one to the end. They are compared with positions in the tile, which are
            # smaller numbers than positions in the tensor.
            left = binary(frame, ast.Sub, end, begin)
            number = frame.emit(Iota(length=size, dtype=i32))
            within = comparison(frame, ast.Lt, frame.emit(Reshape(x=number, shape=column)), left)
            result = within if result is None else binary(frame, ast.BitAnd, result, within)
    if result is None:
        return materialize(frame, True)
    return broadcast_to(frame, result, shape)


@method(PartitionRef, "load_pipelined")
def _load_pipelined(frame: Frame, self: PartitionRef, index: Any, latency: Any = None) -> Any:
    iterations = latency_of(frame, latency, "load_pipelined")
    return load(frame, self, index, "load_pipelined", latency=iterations)


@method(PartitionRef, "load_unchecked")
def _load_unchecked(frame: Frame, self: PartitionRef, index: Any) -> Any:
    frame.require_unsafe("load_unchecked")
    return load(frame, self, index, "load_unchecked", checked=False)


@method(PartitionRef, "store")
def _store(frame: Frame, self: PartitionRef, value: Any, index: Any) -> Any:
    store(frame, self, value, index, "store")
    return TOKEN


@method(PartitionRef, "store_unchecked")
def _store_unchecked(frame: Frame, self: PartitionRef, value: Any, index: Any) -> Any:
    frame.require_unsafe("store_unchecked")
    store(frame, self, value, index, "store_unchecked", checked=False)
    return TOKEN
