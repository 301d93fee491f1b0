"""The layout of each tile, which a target carries out as it lowers a function.

Values that must agree register by register (operands and results of element-wise operations, carried values of a loop)
form one group. The first layout that a group gets stays. Layouts come in this order: of products' accumulators; of
products' operands, and of rows that are broadcast over accumulators; of coalesced loads; of tiles to which reductions,
broadcasts and reshapes carry these layouts; of accesses by address; of coalesced stores; of other tiles, such as
products of broadcasts that are then reduced. Where two groups meet in other ways, the target converts.
"""

from collections.abc import Callable, Iterator, Sequence

from cutile.analysis.affine import access_run
from cutile.backend.gpu.layout import Layout, axis_first, blocked, blocked_for_sums, cut, extended
from cutile.backend.gpu.reshaped_layout import reshaped
from cutile.ir import For, Function, If, Op, TensorType, TileType, Value, While
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import LoadPointer, StorePointer
from cutile.ops.reduce import Fold, Folding, Reduce, Scan
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Cat, Extract, Permute, Reshape
from cutile.ops.view import LoadView, StoreView

ACCESS_BYTES = 16
"""The widest access of one thread."""

# Operations that access memory by address.
ACCESSES = (LoadPointer, StorePointer, AtomicRmw, AtomicCas)
# Families of operations in which an element of the result depends only on the operands' elements at the same index.
ELEMENTWISE = ("arith", "rounding", "math", "compare", "cast")


def is_tile(value: Value) -> bool:
    """Whether a value needs a layout: a tile that is no scalar."""
    return isinstance(value.type, TileType) and not value.type.is_scalar


def carried_groups(op: Op) -> Iterator[tuple[Value, ...]]:
    """The groups of values that are one variable of control flow each.

    A group has the initial value, block arguments, yielded values and the result.
    """
    if isinstance(op, For):
        yields = op.body.terminator.operands
        yield from zip(op.carried, op.body.arguments[1:], yields, op.results, strict=True)
    elif isinstance(op, While):
        yields = op.body.terminator.operands
        yield from zip(op.carried, op.condition.arguments, op.body.arguments, yields, op.results, strict=True)
    elif isinstance(op, If):
        yield from zip(op.then.terminator.operands, op.orelse.terminator.operands, op.results, strict=True)


def vector_width(
    tensor: TensorType, shape: Sequence[int], steps: Sequence[int] | None = None
) -> tuple[int, int] | None:
    """Axis and elements of the widest access that a tensor's facts and a tile allow.

    None for accesses of single elements. A vector must begin at a multiple of its size in every tile. So its width
    divides the tile's extent, and also the step from tile to tile (`steps`) if that differs.
    """
    axis = tensor.unit_axis
    if axis is None:
        return None
    size = tensor.dtype.bits // 8
    width = min(ACCESS_BYTES, tensor.alignment) // size
    while width > 1 and (shape[axis] % width or (steps is not None and steps[axis] % width)):
        width //= 2
    return (axis, width) if width > 1 else None


MAX_MMA_WARPS = 8
"""Warps of a block with products, unless the user asks for more."""


def values_of(function: Function) -> Iterator[Value]:
    """Every value, once per definition."""
    yield from function.parameters
    for op in function.walk():
        yield from op.results
        for region in op.regions:
            yield from region.arguments


class _Groups:
    """Union-find over values."""

    def __init__(self) -> None:
        self._parent: dict[Value, Value] = {}

    def find(self, value: Value) -> Value:
        """The value that stands for the group."""
        while self._parent.get(value, value) is not value:
            value = self._parent[value]
        return value

    def join(self, values: Sequence[Value]) -> None:
        roots = [self.find(value) for value in values]
        for root in roots[1:]:
            if root is not roots[0]:
                self._parent[self.find(root)] = self.find(roots[0])


class LayoutAssignment:
    """The layout of every tile of a function.

    Args:
        function: the function.
        warps: number of warps of a thread block.
        of_product: gives the layout of a product's accumulator for a number of warps, by the target's instructions.
        accumulators: operations whose results have a given layout: products, and others.

    Attributes:
        warps: number of warps of a thread block.
    """

    def __init__(
        self,
        function: Function,
        warps: int,
        of_product: Callable[[Mma, int], Layout],
        accumulators: Sequence[tuple[Op, Layout]] = (),
    ) -> None:
        self.warps = warps
        self._of_product = of_product
        self._accumulators = dict(accumulators)
        self._groups = _Groups()
        self._layouts: dict[Value, Layout] = {}
        self._operations = list(function.walk())
        self._definitions = {value: op for op in self._operations for value in op.results}
        # Whether a reshape that cuts an axis, or joins axes, may keep its elements in their registers (`reshaped`). In
        # kernels with products it may not: a result changes its layout at the reshape, and is stored in wide accesses.
        self._cuts = not any(isinstance(op, Mma) for op in self._operations)
        for op in self._operations:
            self._join(op)
        folds = [op for op in self._operations if isinstance(op, Reduce | Fold)]
        # Groups that are reduced, each with the axis.
        self._reduced = {(self._groups.find(op.operands[0]), op.axis) for op in folds}
        self._anchor_products()
        self._anchor_operands()
        self._anchor_rows()
        self._anchor_memory(loads=True)
        self._propagate()
        self._anchor_accesses()
        self._propagate()
        self._anchor_memory(loads=False)
        self._propagate()
        for value in values_of(function):  # the rest: tiles that no product, load, store or access reaches
            if is_tile(value) and self.find(value) is None:
                axes = [axis for root, axis in self._reduced if root is self._groups.find(value)]
                width = ACCESS_BYTES // max(4, value.tile.dtype.bits // 8)
                self._set(value, blocked_for_sums(value.tile.shape, warps, width, axes))
                self._propagate()

    def __getitem__(self, value: Value) -> Layout:
        return self._layouts[self._groups.find(value)]

    def find(self, value: Value) -> Layout | None:
        """The layout of a value; None if it is not decided yet."""
        return self._layouts.get(self._groups.find(value))

    def agree(self, value: Value, other: Value) -> bool:
        """Whether two values must have one layout."""
        return self._groups.find(value) is self._groups.find(other)

    def _set(self, value: Value, layout: Layout | None) -> bool:
        """Give a value's group its layout unless it has one; return whether it did so."""
        if layout is None or not is_tile(value) or self.find(value) is not None:
            return False
        self._layouts[self._groups.find(value)] = layout
        return True

    def _join(self, op: Op) -> None:
        """Join the groups of the values that an operation needs in one layout."""
        if family(type(op)) in ELEMENTWISE or isinstance(op, ACCESSES) or getattr(op, "elementwise", False):
            self._groups.join([value for value in (*op.results, *op.operands) if is_tile(value)])
        elif isinstance(op, Mma):
            self._groups.join([op.acc, op.result])
        elif isinstance(op, Folding):
            tiles = [*op.tiles, *(op.results if isinstance(op, Scan) else ())]
            self._groups.join(tiles)
            self._groups.join(op.results)
        for group in carried_groups(op):
            self._groups.join(group)

    def accumulator(self, op: Mma) -> Layout:
        """The layout of a product's accumulator."""
        return self._accumulators.get(op) or self._of_product(op, self.warps)

    def _anchor_products(self) -> None:
        """Set the layouts of accumulators, and of other operations with a given layout."""
        for op in self._operations:
            layout = self.accumulator(op) if isinstance(op, Mma) else self._accumulators.get(op)
            if layout is not None:
                self._set(op.results[0], layout)

    def _anchor_operands(self) -> None:
        """Set the layouts of tiles from which operands are made, so that no element moves.

        They are the sources of transposed or reshaped operands, tiles of which operands are parts, and joined tiles.
        """
        # From operations with a given layout back to tiles that they only transpose, reshape or join.
        views = [op for op in self._operations if op in self._accumulators and not isinstance(op, Mma)]
        for view in views:
            if isinstance(view, Permute | Reshape | Cat):
                self._apply(view, cuts=True)
                views += [op for x in view.operands if (op := self._definitions.get(x)) and op not in views]
        for op in self._operations:
            if isinstance(op, Extract | Cat):
                whole, part = (op.x, op.result) if isinstance(op, Extract) else (op.result, op.x)
                if target := self.find(part):
                    self._set(whole, extended(target, whole.tile.shape))
                self._apply(op, cuts=True)

    def _anchor_rows(self) -> None:
        """Set the layout of loads that are broadcast over a product's accumulator.

        It is the accumulator's: each thread loads the elements that it needs. Several threads load the same elements,
        and none waits for another.
        """
        loaded = {self._groups.find(op.result) for op in self._operations if isinstance(op, LoadTile | LoadMut)}
        reshapes = [op for op in self._operations if isinstance(op, Reshape)]

        def anchor(value: Value, layout: Layout) -> None:
            """Set the layout of a load, or of the load of which a value is a reshape."""
            root = self._groups.find(value)
            if root in loaded:
                self._set(value, layout)
                return
            for op in reshapes:  # one group may have several reshapes: a constant joins the groups that it is added to
                if self._groups.find(op.result) is root and (natural := reshaped(layout, op.x.tile.shape, cuts=False)):
                    anchor(op.x, natural)

        for op in self._operations:
            if isinstance(op, Broadcast) and (target := self.find(op.result)):
                anchor(op.x, broadcast_source(op, target))

    def _anchor_memory(self, loads: bool) -> None:
        """Set coalesced layouts for the groups whose members are loaded, or stored.

        Their vectors are as wide as the widest access of a member.
        """
        accesses: dict[Value, tuple[int, int | None, Value]] = {}  # by group: width, axis and tile of the widest access
        whole_rows = self._loads_rows_once()
        for op in self._operations:
            if loads and (isinstance(op, LoadTile | LoadMut | LoadView) or getattr(op, "loads", False)):
                tensor, value = op.operands[0].tensor, op.result
            elif not loads and isinstance(op, StoreMut | StoreView):
                tensor, value = op.x.tensor, op.value
            else:
                continue
            if not is_tile(value) or self.find(value) is not None:
                continue
            axis, width = vector_width(tensor, value.tile.shape, getattr(op, "steps", None)) or (tensor.unit_axis, 1)
            root = self._groups.find(value)
            if root not in accesses or width > accesses[root][0]:
                accesses[root] = (width, axis, value)
        for width, axis, value in accesses.values():
            order = axis_first(len(value.tile.shape), -1 if axis is None else axis)
            rows = whole_rows and (self._groups.find(value), order[0]) in self._reduced
            self._set(value, blocked(value.tile.shape, self.warps, width, order, rows=rows))

    def _loads_rows_once(self) -> bool:
        """Whether each warp may load rows of its own for a reduction of them.

        It may not if tiles of several shapes are loaded, or if there are loops. Each warp would then load again the
        elements that all rows share.
        """
        loaded = {op.result.tile.shape for op in self._operations if isinstance(op, LoadTile | LoadMut | LoadView)}
        return len(loaded) <= 1 and not any(isinstance(op, For | While) for op in self._operations)

    def _anchor_accesses(self) -> None:
        """Set coalesced layouts for accesses by address.

        Neighbouring lanes hold neighbouring elements, or neighbouring runs if one access serves a run.
        """
        for op in self._operations:
            if isinstance(op, ACCESSES):
                value = op.operands[0]
                if is_tile(value) and self.find(value) is None:
                    axis, width = access_run(op, self._definitions) or (-1, 1)
                    order = axis_first(len(value.tile.shape), axis)
                    self._set(value, blocked(value.tile.shape, self.warps, width, order))
                    self._propagate()

    def _propagate(self) -> None:
        """Apply the layouts that operations imply for one another, to a fixed point."""
        while sum(self._apply(op) for op in self._operations):
            pass

    def _apply(self, op: Op, cuts: bool = False) -> int:
        """Give tiles the layouts that an operation implies; return their number.

        `cuts`: as of `_implied`.
        """
        return sum(self._set(value, layout) for value, layout in self._implied(op, cuts))

    def _implied(self, op: Op, cuts: bool = False) -> Iterator[tuple[Value, Layout | None]]:
        """The layouts that an operation's decided layouts imply for its other tiles.

        `cuts`: the operation makes an operand of a product: then axes may be cut, and parts be joined.
        """
        if cuts and isinstance(op, Cat) and (whole := self.find(op.result)):
            yield from ((value, cut(whole, value.tile.shape)) for value in op.operands)
        if isinstance(op, Reduce | Fold):
            source = self.find(op.operands[0])
            if source is not None and source.rank > 1:
                yield op.results[0], source.collapse(op.axis).drop(op.axis)
            return
        if not isinstance(op, Broadcast | Reshape | Permute) or not is_tile(op.x):
            return
        source, target = self.find(op.x), self.find(op.result) if is_tile(op.result) else None
        if isinstance(op, Broadcast):
            if target is not None:
                yield op.x, broadcast_source(op, target)
        elif isinstance(op, Permute):
            if source is not None:
                yield op.result, source.permute(op.axes)
            elif target is not None:
                yield op.x, target.permute([op.axes.index(axis) for axis in range(len(op.axes))])
        elif is_tile(op.result):
            if source is not None and (natural := reshaped(source, op.result.tile.shape, cuts or self._cuts)):
                yield op.result, natural
            elif target is not None and (natural := reshaped(target, op.x.tile.shape, cuts or self._cuts)):
                yield op.x, natural


def broadcast_source(op: Broadcast, target: Layout) -> Layout:
    """The layout of `op.x` from which a broadcast moves no element.

    It is the target's, collapsed along the repeated axes.
    """
    for axis, extent in enumerate(op.x.tile.shape):
        if extent == 1 < target.shape[axis]:
            target = target.collapse(axis)
    return target
