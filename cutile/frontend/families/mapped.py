"""Mapped partitions: a stream of tiles for each tile block, and its indices.

Block `b` of `n` takes the positions `b, b + n, b + 2 * n, ...` of an order of all tiles. Leading axes are in row-major
order; the trailing two, of `nM x nN` tiles, are in the order of groups. With a map of `(GM, GN)` and the position `t`:

    band = GM * nN     a band of GM rows of tiles; the last may have fewer
    g, r = t // band, t % band
    first = g * GM;  size = min(nM - first, GM)     the band's first row, and its number of rows
    gn = r // (size * GN), q = r % (size * GN)      a column group: GN columns of the band's rows
    m = first + q % size;  n = gn * GN + q // size  within it, down the rows first

A map of 1 along both is row-major order. An axis whose map is 0 is OWNED: the stream leaves it out, and each of its
items owns all tiles along it. No two blocks mint the same index, so that no two write one tile.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from cutile.dtypes import i32
from cutile.frontend.expect import index_between, index_scalar
from cutile.frontend.families.elementwise import min_tile
from cutile.frontend.families.grid import get_num_tile_blocks, get_tile_block_id
from cutile.frontend.families.partition import load, num_tiles, store, stored_tile
from cutile.frontend.frame import Frame
from cutile.frontend.operators import TILE_BINARY, binary
from cutile.frontend.plain_numbers import BINARY, I32, Interval, bounded, computed, interval_of, weak
from cutile.frontend.registry import method
from cutile.frontend.values import (
    TOKEN,
    IndexComponent,
    MappedRef,
    PartitionIndex,
    PartitionRef,
    Range,
    describe,
    is_tile,
    items_of,
)
from cutile.ir.core import Value
from cutile.language.mapped import OWNED
from cutile.ops.bound import AssumeWithin, CheckIndex
from cutile.ops.memory import MAX_EXTENT, LoadTile
from cutile.ops.view import StoreView


@dataclass(frozen=True)
class MintedRange(Range):
    """The positions of a stream; in a loop over it, the loop variable is an index."""

    stream: _Stream

    def mint(self, frame: Frame, position: Value) -> PartitionIndex:
        """The index at a position."""
        return self.stream.mint(frame, position)


@dataclass(frozen=True)
class OwnedRange(Range):
    """The tiles along an axis that the stream leaves out."""

    owners: tuple[Value, ...]
    axis: int

    def mint(self, frame: Frame, position: Value) -> IndexComponent:
        """The component at a position."""
        index = AssumeWithin(x=position, low=_scalar(frame, self.start), high=_scalar(frame, self.stop), reached=True)
        return IndexComponent(frame.emit(index), self.axis, self.owners, None)


TILES = Interval(0, I32.high)
"""Interval of the number of tiles in a stream."""


def _scalar(frame: Frame, value: Any) -> Value:
    return index_scalar(frame, value, "iter_indices")


@dataclass(frozen=True, eq=False)
class _Stream:
    """The tiles that a loop goes over.

    Along axis `k` these are the `counts[k]` tiles from `starts[k]` on.

    Attributes:
        owners: the mapped partitions that share the stream.
        map: their common map.
        whole: whether the stream has all tiles of the partitions.
    """

    owners: tuple[Value, ...]
    map: tuple[int, ...]
    starts: tuple[Any, ...]
    counts: tuple[Any, ...]
    whole: bool

    def positions(self, frame: Frame) -> MintedRange:
        """The positions that this block takes, as a range for its loop."""
        total: Any = 1
        for axis, count in enumerate(self.counts):
            total = total if self.map[axis] == OWNED else _product(frame, total, count)
        block, blocks = get_tile_block_id(frame)[0], get_num_tile_blocks(frame)[0]
        return MintedRange(block, total, blocks, self)

    def mint(self, frame: Frame, position: Value) -> PartitionIndex:
        """The index at a position."""
        rank = len(self.map)
        streamed = [1 if self.map[axis] == OWNED else self.counts[axis] for axis in range(rank)]
        rest: Any = position
        components: list[Any] = []
        for axis in range(rank - 2):
            inner: Any = 1
            for count in streamed[axis + 1 :]:
                inner = _product(frame, inner, count)
            components.append(binary(frame, ast.FloorDiv, rest, inner))
            rest = binary(frame, ast.Mod, rest, inner)
        if rank == 1:
            components.append(rest)
        else:
            components += self._pair(frame, rest, streamed[-2], streamed[-1])
        coords: list[Value | None] = []
        for axis, each in enumerate(components):
            coords.append(None if self.map[axis] == OWNED else self._placed(frame, axis, each))
        return PartitionIndex(self, self.owners, tuple(coords))

    def _pair(self, frame: Frame, t: Any, rows: Any, columns: Any) -> list[Any]:
        """The two trailing coordinates of the position `t` in `rows` x `columns` tiles.

        The names are those of the module's docstring.
        """

        def of(kind: type[ast.AST], x: Any, y: Any) -> Any:
            return _within_stream(frame, kind, x, y)

        group, group_columns = max(self.map[-2], 1), max(self.map[-1], 1)  # OWNED is 0: its axis has one tile here
        if group == group_columns == 1:
            return [of(ast.FloorDiv, t, columns), of(ast.Mod, t, columns)]
        # Not `of`: a band of more rows than the partition has may have more tiles than fit 32 bits.
        band = binary(frame, ast.Mult, columns, group)
        g = of(ast.FloorDiv, t, band)
        r = of(ast.Mod, t, band)
        first = of(ast.Mult, g, group)
        size = bounded(frame, _smaller(frame, of(ast.Sub, rows, first), group), 1, group)
        if group_columns == 1:
            return [of(ast.Add, first, of(ast.Mod, r, size)), of(ast.FloorDiv, r, size)]
        capacity = of(ast.Mult, size, group_columns)
        gn = of(ast.FloorDiv, r, capacity)
        q = of(ast.Mod, r, capacity)
        m = of(ast.Add, first, of(ast.Mod, q, size))
        return [m, of(ast.Add, of(ast.Mult, gn, group_columns), of(ast.FloorDiv, q, size))]

    def _placed(self, frame: Frame, axis: int, value: Any) -> Value:
        """A coordinate in the stream as one in the partition, assumed to lie within."""
        start, count = self.starts[axis], self.counts[axis]
        placed = _scalar(frame, _within_stream(frame, ast.Add, value, start))
        low, high = _scalar(frame, start), _scalar(frame, _within_stream(frame, ast.Add, start, count))
        index = frame.emit(AssumeWithin(x=placed, low=low, high=high, reached=self.whole))
        most = MAX_EXTENT // self.owners[0].mut.tile[axis]
        return weak(frame, index, Interval(0, most))


def _within_stream(frame: Frame, kind: type[ast.AST], x: Any, y: Any) -> Any:
    """The result of an operator on numbers of tiles, as a number of tiles again.

    It is at least 0 and fits 32 bits, because a map takes no more tiles.
    """
    if not is_tile(x) and not is_tile(y):
        return binary(frame, kind, x, y)
    known = BINARY[kind](interval_of(frame, x), interval_of(frame, y)).meet(TILES)
    return computed(frame, TILE_BINARY[kind], known, x, y)


def _product(frame: Frame, x: Any, y: Any) -> Any:
    return _within_stream(frame, ast.Mult, x, y)


def _smaller(frame: Frame, x: Any, y: Any) -> Any:
    return min_tile(frame, x, y) if is_tile(x) or is_tile(y) else min(x, y)


def _counts(frame: Frame, z: MappedRef) -> tuple[Any, ...]:
    return tuple(num_tiles(frame, z, axis) for axis in range(len(z.value.mut.tile)))


def _map(z: MappedRef) -> tuple[int, ...]:
    mapped = z.value.mut.map
    assert mapped is not None
    return mapped


def _shared(frame: Frame, z: MappedRef, other: Any, what: str) -> tuple[Value, ...]:
    """The owners of a stream that two outputs share."""
    if not isinstance(other, MappedRef):
        frame.type_error(
            f"{what}: expected a mapped partition, got {describe(other)}",
            remedy="Annotate both outputs with MappedPartitionMut, and map both on the host.",
        )
    if _map(z) != _map(other):
        frame.type_error(
            f"{what}: {z.value.name!r} has the map {_map(z)}, {other.value.name!r} the map {_map(other)}",
            remedy="Both outputs of a shared stream must be mapped alike: .map(the same, the same number of blocks).",
        )
    for axis, (mine, theirs) in enumerate(zip(_counts(frame, z), _counts(frame, other), strict=True)):
        text = f"{what}: along axis {axis} the number of tiles of {z.value.name!r} less that of {other.value.name!r}"
        difference = binary(frame, ast.Sub, mine, theirs)
        if difference != 0:  # a scalar; or a constant, which the check refuses
            check = CheckIndex(index=_scalar(frame, difference), count=_scalar(frame, 1), what=text)
            frame.builder.add(check)
    return (z.value, other.value)


def _whole(frame: Frame, z: MappedRef, owners: tuple[Value, ...]) -> MintedRange:
    counts = _counts(frame, z)
    return _Stream(owners, _map(z), (0,) * len(counts), counts, True).positions(frame)


@method(MappedRef, "iter_indices")
def _iter_indices(frame: Frame, self: MappedRef) -> Any:
    return _whole(frame, self, (self.value,))


@method(MappedRef, "iter_indices_with")
def _iter_indices_with(frame: Frame, self: MappedRef, other: Any) -> Any:
    return _whole(frame, self, _shared(frame, self, other, "iter_indices_with"))


def _within(frame: Frame, z: MappedRef, ranges: Any, owners: tuple[Value, ...], what: str) -> MintedRange:
    """The positions of a part of the tiles: (start, length) in tiles for each axis."""
    rank = len(_map(z))
    items = items_of(ranges) if isinstance(ranges, tuple) else ()
    if len(items) != rank or any(not isinstance(each, tuple) or len(items_of(each)) != 2 for each in items):
        frame.type_error(
            f"{what}: expected one (start, length) for each of the {rank} axes, got {describe(ranges)}",
            remedy="Write z.iter_indices_within([(first, count), (0, -1)]); a literal -1 is the rest of the axis.",
        )
    starts: list[Any] = []
    counts: list[Any] = []
    for axis, each in enumerate(items):
        start, length = items_of(each)
        have = num_tiles(frame, z, axis)
        name = f"{what}: along axis {axis} of {z.value.name!r}, the"
        if isinstance(start, int) and start < 0:
            frame.type_error(f"{name} first tile is {start}, below 0", remedy="Tiles count from 0.")
        if isinstance(length, int) and length < -1:
            frame.type_error(f"{name} number of tiles is {length}", remedy="A literal -1 is the rest of the axis.")
        if length == -1 and isinstance(length, int):
            length = binary(frame, ast.Sub, have, start)
        _check_within(frame, start, binary(frame, ast.Add, have, 1), f"{name} first tile")
        left = binary(frame, ast.Sub, binary(frame, ast.Add, have, 1), start)
        _check_within(frame, length, left, f"{name} number of tiles")
        starts.append(_plain(frame, start))
        counts.append(_plain(frame, length))
    return _Stream(owners, _map(z), tuple(starts), tuple(counts), False).positions(frame)


def _plain(frame: Frame, value: Any) -> Any:
    """A number of tiles, once it was checked, as a plain number of 32 bits."""
    if not is_tile(value):
        return value
    scalar = _scalar(frame, value)
    narrow = scalar if scalar.tile.dtype is i32 else index_between(frame, scalar, 0, TILES.high)
    return weak(frame, narrow, TILES)


def _check_within(frame: Frame, value: Any, count: Any, what: str) -> None:
    if isinstance(value, int) and isinstance(count, int):
        if not 0 <= value < count:
            frame.type_error(
                f"{what} is {value}, and must be at least 0 and below {count}",
                remedy="A part lies within the tiles of the partition; see ct.num_tiles.",
            )
        return
    frame.builder.add(CheckIndex(index=_scalar(frame, value), count=_scalar(frame, count), what=what))


@method(MappedRef, "iter_indices_within")
def _iter_indices_within(frame: Frame, self: MappedRef, ranges: Any) -> Any:
    return _within(frame, self, ranges, (self.value,), "iter_indices_within")


@method(MappedRef, "iter_indices_within_with")
def _iter_indices_within_with(frame: Frame, self: MappedRef, ranges: Any, other: Any) -> Any:
    owners = _shared(frame, self, other, "iter_indices_within_with")
    return _within(frame, self, ranges, owners, "iter_indices_within_with")


# Uses of minted indices


@method(PartitionIndex, "coords")
def _coords(frame: Frame, self: PartitionIndex) -> Any:
    if None in self.coordinates:
        axis = self.coordinates.index(None)
        frame.type_error(
            f"coords: axis {axis} is OWNED, so the index has no coordinate there",
            remedy="Take it apart with index.components(), and loop over the component of the owned axis.",
        )
    return self.coordinates


@method(PartitionIndex, "components")
def _components(frame: Frame, self: PartitionIndex) -> Any:
    components: list[Any] = []
    for axis, value in enumerate(self.coordinates):
        if value is None:
            start, count = self.stream.starts[axis], self.stream.counts[axis]
            components.append(OwnedRange(start, binary(frame, ast.Add, start, count), 1, self.owners, axis))
        else:
            components.append(IndexComponent(value, axis, self.owners, self))
    return tuple(components)


def _index(frame: Frame, z: MappedRef, index: Any, what: str) -> tuple[Value, ...]:
    """The coordinates of a tile that this block owns.

    Raises:
        KernelTypeError: the index was not minted by this partition's own stream.
    """
    name = z.value.name
    if isinstance(index, PartitionIndex):
        _coords(frame, index)  # refuses one with owned axes
        index = _minted(index)
    rank = len(_map(z))
    if not isinstance(index, tuple) or len(items_of(index)) != rank:
        raise _foreign(frame, z, index, what)
    values: list[Value] = []
    parent: PartitionIndex | None = None
    for axis, item in enumerate(items_of(index)):
        if isinstance(item, IndexComponent):
            if z.value not in item.owners:
                raise _foreign(frame, z, item, what)
            if item.axis != axis:
                frame.type_error(
                    f"{what}: the component along axis {item.axis} stands in the place of axis {axis}",
                    remedy="Give the components in the order of the axes.",
                )
            if item.parent is not None and parent is not None and item.parent is not parent:
                frame.type_error(
                    f"{what}: the components come from two indices", remedy="Take all of them from one index."
                )
            parent = item.parent or parent
            values.append(item.value)
        elif _map(z)[axis] == OWNED and item is not None:
            scalar = index_scalar(frame, item, what)
            text = f"{what}: the tile index along the owned axis {axis} of {name!r}"
            frame.builder.add(CheckIndex(index=scalar, count=_scalar(frame, num_tiles(frame, z, axis)), what=text))
            values.append(scalar)
        else:
            raise _foreign(frame, z, item, what)
    return tuple(values)


def _minted(index: PartitionIndex) -> tuple[IndexComponent, ...]:
    return tuple(
        IndexComponent(value, axis, index.owners, index)
        for axis, value in enumerate(index.coordinates)
        if value is not None
    )


def _foreign(frame: Frame, z: MappedRef, index: Any, what: str) -> Any:
    name = z.value.name
    frame.type_error(
        f"{what}: {name!r} takes the indices that its own stream mints, got {describe(index)}",
        remedy=f"Loop over them: for index in {name}.iter_indices(): {name}.store(tile, index). Other blocks own the "
        "other tiles.",
    )


@method(MappedRef, "store")
def _store(frame: Frame, self: MappedRef, value: Any, index: Any) -> Any:
    scalars = _index(frame, self, index, "store")
    part = PartitionRef(self.value, self.value.mut.tile, writes="full")
    tile = stored_tile(frame, part, value, "store")
    frame.builder.add(StoreView(x=self.value, value=tile, index=scalars, steps=part.shape, limited=()))
    return TOKEN


@method(MappedRef, "load")
def _load(frame: Frame, self: MappedRef, index: Any) -> Any:
    scalars = _index(frame, self, index, "load")
    return frame.emit(LoadTile(x=self.value, index=scalars, shape=self.value.mut.tile))


@method(PartitionRef, "load_index")
def _load_index(frame: Frame, self: PartitionRef, index: Any) -> Any:
    if not isinstance(index, PartitionIndex):
        frame.type_error(
            f"load_index: expected a minted index, got {describe(index)}", remedy="Write part.load(index)."
        )
    return load(frame, self, _coords(frame, index), "load_index")


@method(PartitionRef, "store_index")
def _store_index(frame: Frame, self: PartitionRef, value: Any, index: Any) -> Any:
    if not isinstance(index, PartitionIndex):
        frame.type_error(
            f"store_index: expected a minted index, got {describe(index)}", remedy="Write part.store(tile, index)."
        )
    store(frame, self, value, _coords(frame, index), "store_index")
    return TOKEN
