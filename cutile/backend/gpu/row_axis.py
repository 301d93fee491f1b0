"""Which axis of a kernel's tiles is a row that can be cut into slices.

    t = load_tile(x, i, 0) : f32<1x65536>           in slice c of 8:
    s = reduce_sum(t, axis=1) : f32<1>              t = load_tile(x, i, c) : f32<1x8192>
    store_mut(y, t * s)                             s = the sum of the slices' sums

Tiles of the row have it as one of their axes. What was reduced along it has it no more, and is the same for all slices.
The slices follow each other in the row, so an element keeps its place. Pure; changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cutile.backend.gpu.layout_assignment import ELEMENTWISE, is_tile
from cutile.dtypes import DTypeLike, f32
from cutile.ir import Builder, Constant, Effect, Function, Op, Value
from cutile.ops.arith import Add, Mul
from cutile.ops.create import Iota
from cutile.ops.grid import TileBlockId
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.reduce import Reduce
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Permute, Reshape
from cutile.ops.view import LoadView, StoreView

Load = LoadTile | LoadMut | LoadView
Store = StoreMut | StoreView
Place = tuple[Value, int]
"""A tile, and one of its axes."""


@dataclass(frozen=True)
class RowAxis:
    """The row of a kernel.

    Attributes:
        extent: elements of the row.
        axes: of each tile that has the row, along which axis.
    """

    extent: int
    axes: Mapping[Value, int]

    def has(self, op: Op) -> bool:
        """Whether an operation works on tiles of the row."""
        return any(value in self.axes for value in (*op.results, *op.operands))

    def reduces(self, op: Op) -> bool:
        """Whether an operation reduces the row."""
        return isinstance(op, Reduce) and self.axes.get(op.x) == op.axis

    def shape(self, value: Value, parts: int) -> tuple[int, ...]:
        """The shape of one of `parts` slices of a tile."""
        axis, shape = self.axes[value], value.tile.shape
        return (*shape[:axis], shape[axis] // parts, *shape[axis + 1 :])

    def sliced(self, op: Op, operands: Sequence[Value], parts: int, part: Value, builder: Builder) -> Op:
        """Append what an operation is for slice number `part`, an i32, and return it.

        Args:
            op: an operation on tiles of the row.
            operands: those of the slice.
            parts: the slices of the row.
            part: which of them.
            builder: appends to the new function.
        """
        if isinstance(op, Load | Store):
            return builder.add(self._access(op, operands, parts, part, builder))
        if isinstance(op, Iota):
            short = Iota(length=op.length // parts, dtype=op.dtype)
            first = builder.value(Mul(x=part, y=builder.constant(short.length)))
            shape = (short.length,)
            return builder.add(Add(x=builder.value(short), y=builder.value(Broadcast(x=first, shape=shape))))
        copy = op.copy_with(operands, (), ())
        if isinstance(op, Broadcast | Reshape | Constant):
            copy.attributes["shape"] = self.shape(op.result, parts)
        return builder.add(copy)

    def _access(self, op: Load | Store, operands: Sequence[Value], parts: int, part: Value, builder: Builder) -> Op:
        tile = op.value if isinstance(op, Store) else op.result
        axis, shape = self.axes[tile], self.shape(tile, parts)
        x, *rest = operands
        value = [rest.pop(0)] if isinstance(op, Store) else []
        if isinstance(op, LoadMut | StoreMut):
            rest = [builder.value(TileBlockId(axis=each)) for each in range(len(shape))]
        rest[axis] = builder.value(Add(x=builder.value(Mul(x=rest[axis], y=builder.constant(parts))), y=part))
        if isinstance(op, LoadTile | LoadView):
            copy = op.copy_with([x, *rest], (), ())
            copy.attributes["shape"] = shape
        elif isinstance(op, LoadMut):
            copy = LoadTile(x=x, index=tuple(rest), shape=shape)
        elif isinstance(op, StoreView):
            copy = op.copy_with([x, *value, *rest], (), ())
        else:
            copy = StoreView(x=x, value=value[0], index=tuple(rest), steps=shape, limited=())
        if isinstance(op, LoadView | StoreView):
            copy.attributes["steps"] = shape
        return copy


def row_axis(function: Function) -> RowAxis | None:
    """The longest row of a kernel that can be cut into slices.

    A slice has any length that divides the row's. The answer is None where the kernel does anything else with a row
    than work on its elements, reductions, loads and stores, or where it has loops or branches.
    """
    operations = function.body.operations
    if function.facts.get("unsafe") or any(op.regions for op in operations) or not _can_be_repeated(operations):
        return None
    rows = _Rows(operations)
    longest: RowAxis | None = None
    for op in operations:
        if isinstance(op, Reduce):
            row = rows.of(op.x, op.axis)
            if row is not None and (longest is None or row.extent > longest.extent):
                longest = row
    return longest


def _can_be_repeated(operations: Sequence[Op]) -> bool:
    """Whether several may do each load, and one of them each store.

    They may if what is stored is stored once, and loaded by nobody but this tile block, ahead of the first store.
    """
    if any(op.effect > Effect.READ and not isinstance(op, Store) for op in operations):
        return False
    stores = [op.x for op in operations if isinstance(op, Store)]
    stored = set(stores)
    if len(stored) < len(stores):
        return False
    begun = False
    for op in operations:
        begun |= isinstance(op, Store)
        loaded = not isinstance(op, Store | TensorDim) and stored.intersection(op.operands)
        if loaded and (begun or not isinstance(op, LoadMut)):
            return False
    return True


class _Rows:
    """The axes of a kernel's tiles, those joined that an operation takes together."""

    def __init__(self, operations: Sequence[Op]) -> None:
        self._parent: dict[Place, Place] = {}
        self._blocked: list[Place] = []
        self._places: list[Place] = []
        for op in operations:
            values = [value for value in (*op.results, *op.operands) if is_tile(value)]
            self._places += [(value, axis) for value in values for axis in range(len(value.tile.shape))]
            for first, second in self._joined(op, values):
                self._parent[self._find(second)] = self._find(first)

    def of(self, value: Value, axis: int) -> RowAxis | None:
        """The row that is this axis of a tile, with all its tiles.

        None where it cannot be cut.
        """
        root = self._find((value, axis))
        places = list(dict.fromkeys(place for place in self._places if self._find(place) == root))
        extent = value.tile.shape[axis]
        axes = dict(places)
        if len(axes) < len(places) or any(self._find(place) == root for place in self._blocked):
            return None
        return RowAxis(extent, axes)

    def _find(self, place: Place) -> Place:
        while (parent := self._parent.get(place, place)) != place:
            place = parent
        return place

    def _joined(self, op: Op, values: Sequence[Value]) -> Iterator[tuple[Place, Place]]:
        """Axes that are cut together, or not at all."""
        elementwise = family(type(op)) in ELEMENTWISE or getattr(op, "elementwise", False)
        if elementwise and len({value.tile.shape for value in values}) <= 1:
            for value in values[1:]:
                yield from (((values[0], axis), (value, axis)) for axis in range(len(value.tile.shape)))
        elif isinstance(op, Broadcast):
            pairs = zip(op.x.tile.shape, op.shape, strict=False)
            yield from (((op.x, axis), (op.result, axis)) for axis, (x, y) in enumerate(pairs) if x == y)
        elif isinstance(op, Permute):
            yield from (((op.x, axis), (op.result, place)) for place, axis in enumerate(op.axes))
        elif isinstance(op, Reduce):
            rest = [axis for axis in range(len(op.x.tile.shape)) if axis != op.axis]
            yield from (((op.x, axis), (op.result, place)) for place, axis in enumerate(rest))
        elif isinstance(op, Reshape):
            long = [[axis for axis, extent in enumerate(each.tile.shape) if extent != 1] for each in (op.x, op.result)]
            if [op.x.tile.shape[axis] for axis in long[0]] == [op.shape[axis] for axis in long[1]]:
                yield from (((op.x, x), (op.result, y)) for x, y in zip(*long, strict=True))
            else:
                self._block(values)
        elif isinstance(op, Load | Store):
            if isinstance(op, LoadView | StoreView):
                self._block_view(op)
        elif not isinstance(op, Constant | Iota):
            self._block(values)

    def _block(self, values: Sequence[Value]) -> None:
        self._blocked += [(value, axis) for value in values for axis in range(len(value.tile.shape))]

    def _block_view(self, op: LoadView | StoreView) -> None:
        """Axes along which tiles overlap, lie apart, or end early."""
        tile = op.result if isinstance(op, LoadView) else op.value
        for axis, extent in enumerate(tile.tile.shape):
            if op.steps[axis] != extent or axis in op.limited:
                self._blocked.append((tile, axis))


def reduced_in(dtype: DTypeLike) -> DTypeLike:
    """In what elements of a dtype are reduced."""
    return f32 if dtype.is_half else dtype
