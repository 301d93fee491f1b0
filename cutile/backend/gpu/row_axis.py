"""The row of a kernel: an axis of its tiles that can be cut into slices.

    t = load_tile(x, i, 0) : f32<1x65536>           in slice c of 8:
    s = reduce_sum(t, axis=1) : f32<1>              t = load_tile(x, i, c) : f32<1x8192>
    store_mut(y, t * s)                             s = the sum of the slices' sums

Tiles of the row have it as one of their axes. A tile that was reduced along the row has no such axis: its elements are
the same in all slices. Slice c, of n elements, has the row's elements c * n to (c + 1) * n - 1. This analysis changes
nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cutile.backend.gpu.layout_assignment import ELEMENTWISE, is_tile
from cutile.dtypes import DTypeLike, f32
from cutile.ir import Builder, Constant, Effect, Function, Op, Value
from cutile.ops.arith import Add, Mul
from cutile.ops.cast import Convert
from cutile.ops.create import Iota
from cutile.ops.grid import TileBlockId
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.reduce import Reduce
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Permute, Reshape
from cutile.ops.view import LoadView, StoreView

Load = LoadTile | LoadMut | LoadView
Store = StoreMut | StoreView
TileAxis = tuple[Value, int]
"""A tile, and one of its axes."""


@dataclass(frozen=True)
class RowAxis:
    """The row of a kernel.

    Attributes:
        extent: number of elements of the row.
        axes: for each tile of the row, the axis that is the row.
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
        """Append the operation for slice number `part`, an i32, and return it.

        Args:
            op: an operation on tiles of the row.
            operands: of the new operation.
            parts: number of slices of the row.
            part: the slice's number.
            builder: appends to the new function.
        """
        if isinstance(op, Load | Store):
            return builder.add(self._access(op, operands, parts, part, builder))
        if isinstance(op, Iota):
            counter = Iota(length=op.length // parts, dtype=op.dtype)
            first = builder.value(Mul(x=part, y=builder.constant(counter.length)))
            if op.dtype is not first.tile.dtype:
                first = builder.value(Convert(x=first, dtype=op.dtype))
            shape = (counter.length,)
            return builder.add(Add(x=builder.value(counter), y=builder.value(Broadcast(x=first, shape=shape))))
        copy = op.copy_with(operands, (), ())
        if isinstance(op, Broadcast | Reshape | Constant):
            copy.attributes["shape"] = self.shape(op.result, parts)
        return builder.add(copy)

    def _access(self, op: Load | Store, operands: Sequence[Value], parts: int, part: Value, builder: Builder) -> Op:
        """The load or store of one slice."""
        tile = op.value if isinstance(op, Store) else op.result
        axis, shape = self.axes[tile], self.shape(tile, parts)
        x, *rest = operands
        value = [rest.pop(0)] if isinstance(op, Store) else []
        if isinstance(op, LoadMut | StoreMut):  # without an index, since its tile is the block's own; a slice needs one
            rest = [builder.value(TileBlockId(axis=grid_axis)) for grid_axis in range(len(shape))]
        # Slices lie side by side, so the row's tile `t` has the slices `t * parts` to `t * parts + parts - 1`. Nothing
        # overflows: `passes/bounds.py` clamps an index to the first tile past every tensor.
        rest[axis] = builder.value(Add(x=builder.value(Mul(x=rest[axis], y=builder.constant(parts))), y=part))
        if isinstance(op, LoadTile | LoadView):
            copy = op.copy_with([x, *rest], (), ())
            copy.attributes["shape"] = shape
        elif isinstance(op, LoadMut):
            copy = LoadTile(x=x, index=tuple(rest), shape=shape)
        elif isinstance(op, StoreView):
            copy = op.copy_with([x, *value, *rest], (), ())
        else:  # as tiles of a Mut, slices lie side by side (`steps`), and none ends early (`limited`)
            copy = StoreView(x=x, value=value[0], index=tuple(rest), steps=shape, limited=())
        if isinstance(op, LoadView | StoreView):
            copy.attributes["steps"] = shape
        return copy


def row_axis(function: Function) -> RowAxis | None:
    """The longest row of a kernel that can be cut into slices.

    The length of a slice is any divisor of the row's. None if the kernel has loops or branches, or uses a row in other
    operations than element-wise ones, changes of shape, reductions, loads and stores.
    """
    operations = function.body.operations
    # An unsafe kernel may write, through an address, memory that another slice loads again.
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


def updates_beside(function: Function, row: RowAxis) -> bool:
    """Whether a tensor is loaded and stored, and not only by slices of the row.

    If several thread blocks share the row, one may then store elements that another one has yet to load.
    """
    accesses = [op for op in function.body.operations if isinstance(op, Load | Store)]
    stored = {op.operands[0] for op in accesses if isinstance(op, Store)}
    loaded = {op.operands[0] for op in accesses if isinstance(op, Load)}
    return any(op.operands[0] in stored & loaded and not row.has(op) for op in accesses)


def _can_be_repeated(operations: Sequence[Op]) -> bool:
    """Whether each slice may do all loads, and one slice the stores beside the row.

    Slices run one after the other, or in several thread blocks at once. So a load behind a store, or a second store to
    a tensor, would see another slice's work. For this, each tensor must be stored to only once. A tensor that is stored
    to must be loaded only through its `Mut`, ahead of the first store.
    """
    if any(op.effect > Effect.READ and not isinstance(op, Store) for op in operations):
        return False
    stores = [op.x for op in operations if isinstance(op, Store)]
    stored = set(stores)
    if len(stored) < len(stores):
        return False
    has_stored = False
    for op in operations:
        has_stored |= isinstance(op, Store)
        # A `TensorDim` reads an extent, and no element.
        loaded = not isinstance(op, Store | TensorDim) and stored.intersection(op.operands)
        if loaded and (has_stored or not isinstance(op, LoadMut)):
            return False
    return True


class _Rows:
    """Sets of the axes of a kernel's tiles (union-find).

    Either all axes of a set are cut, or none: operations join them.
    """

    def __init__(self, operations: Sequence[Op]) -> None:
        self._parent: dict[TileAxis, TileAxis] = {}
        self._blocked: list[TileAxis] = []
        self._tile_axes: list[TileAxis] = []
        for op in operations:
            values = [value for value in (*op.results, *op.operands) if is_tile(value)]
            self._tile_axes += [(value, axis) for value in values for axis in range(len(value.tile.shape))]
            for first, second in self._joined(op, values):
                self._parent[self._find(second)] = self._find(first)

    def of(self, value: Value, axis: int) -> RowAxis | None:
        """The row that is this axis of a tile, with all its tiles.

        None if it cannot be cut.
        """
        root = self._find((value, axis))
        members = list(dict.fromkeys(member for member in self._tile_axes if self._find(member) == root))
        extent = value.tile.shape[axis]
        axes = dict(members)
        # A tile that has the row along two axes, such as an outer product of it, has fewer entries in `axes`.
        if len(axes) < len(members) or any(self._find(member) == root for member in self._blocked):
            return None
        return RowAxis(extent, axes)

    def _find(self, member: TileAxis) -> TileAxis:
        """The representative of a set."""
        while (parent := self._parent.get(member, member)) != member:
            member = parent
        return member

    def _joined(self, op: Op, values: Sequence[Value]) -> Iterator[tuple[TileAxis, TileAxis]]:
        """Axes that are cut together, or not at all."""
        elementwise = family(type(op)) in ELEMENTWISE or getattr(op, "elementwise", False)
        # Element-wise operations on tiles of several shapes reach the last branch, which blocks their axes.
        if elementwise and len({value.tile.shape for value in values}) <= 1:
            for value in values[1:]:
                yield from (((values[0], axis), (value, axis)) for axis in range(len(value.tile.shape)))
        elif isinstance(op, Broadcast):
            # Without the axes that the broadcast makes longer: they have the same elements in all slices.
            pairs = zip(op.x.tile.shape, op.shape, strict=False)  # a scalar has no axes
            yield from (((op.x, axis), (op.result, axis)) for axis, (x, y) in enumerate(pairs) if x == y)
        elif isinstance(op, Permute):
            yield from (((op.x, axis), (op.result, new)) for new, axis in enumerate(op.axes))
        elif isinstance(op, Reduce):
            rest = [axis for axis in range(len(op.x.tile.shape)) if axis != op.axis]
            yield from (((op.x, axis), (op.result, new)) for new, axis in enumerate(rest))
        elif isinstance(op, Reshape):
            # Axes of extent 1 come and go. None of them is a row: a row has more elements than a thread block holds.
            wide = [[axis for axis, extent in enumerate(each.tile.shape) if extent != 1] for each in (op.x, op.result)]
            if [op.x.tile.shape[axis] for axis in wide[0]] == [op.shape[axis] for axis in wide[1]]:
                yield from (((op.x, x), (op.result, y)) for x, y in zip(*wide, strict=True))
            else:
                self._block(values)
        elif isinstance(op, Load | Store):  # they have one tile, whose axes may be cut where tiles lie side by side
            if isinstance(op, LoadView | StoreView):
                self._block_view(op)
        elif not isinstance(op, Constant | Iota):  # `sliced` cuts these two, which join no axes
            self._block(values)

    def _block(self, values: Sequence[Value]) -> None:
        """Block all axes of these tiles: none may be cut."""
        self._blocked += [(value, axis) for value in values for axis in range(len(value.tile.shape))]

    def _block_view(self, op: LoadView | StoreView) -> None:
        """Block the axes along which tiles overlap, lie apart, or end early."""
        tile = op.result if isinstance(op, LoadView) else op.value
        for axis, extent in enumerate(tile.tile.shape):
            if op.steps[axis] != extent or axis in op.limited:
                self._blocked.append((tile, axis))


def reduced_in(dtype: DTypeLike) -> DTypeLike:
    """The dtype of a reduction: f32 for halves, whose sums would lose small terms."""
    return f32 if dtype.is_half else dtype
