"""Blocks and structured control flow, and sorts.

Tiles that loops and branches pass on are in scratch memory.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from cutile.backend.cpu.lowering.folds import lower_fold
from cutile.backend.cpu.lowering.loop_nests import NAMES, Root, Target
from cutile.backend.cpu.lowering.lower import Lowering
from cutile.backend.cpu.lowering.matmul import lower_mma, lower_product_loop
from cutile.backend.cpu.lowering.tile_expr import Extent, Node, Number, Product, Scalar
from cutile.backend.cpu.lowering.use_counts import Uses
from cutile.backend.cpu.stage import INDEX, Order, Read, TripCount, Write
from cutile.dtypes import i32, i64, u64
from cutile.errors import Location
from cutile.ir import Block, Constant, For, If, Op, Value, While
from cutile.ops.arith import Add, Mul
from cutile.ops.matmul import Mma
from cutile.ops.reduce import Folding
from cutile.ops.sort import Sort, TopK

# Sorts and `top_k`, row by row.
#
# The elements' places are sorted first; then the elements are read in that order.
#
# for row:
#     sort_places(x, row * step, 1, places, spare, count, descending)
#     for i (top_k: the first k):
#         values[row, i] = x[row, places[i]]
#         indices[row, i] = places[i]

MAX_INSERTED = 64
"""The largest `k` for which `top_k` keeps a sorted list of the `k` largest; for a larger one a sort is faster."""


def lower_sort(lowering: Lowering, op: Sort | TopK) -> None:
    """Sort rows in scratch memory."""
    scope = lowering.scope
    scope.builder.location = op.location
    node = lowering.node(op.x)
    x = Product(node.dtype, node.extents, f"{node.name}_rows" if node.name else "")
    x.buffer = lowering.allocate(x)
    lowering.keep(node, product=x)
    lowering.flush()  # the rows are sorted by position, so they are in memory before
    results = [Product(value.tile.dtype, lowering.extents(value), value.name or op.name) for value in op.results]
    for product in results:
        product.buffer = lowering.allocate(product)
    length = x.extents[op.axis]  # the sorted axis is whole, so its capacity is its extent
    scratch = [Product(i32, [Extent(length.capacity)], name) for name in ("places", "spare")]
    places, spare = (lowering.allocate(product).memory for product in scratch)
    scope.builder.location = op.location  # `flush` has set those of other operations
    count = op.k if isinstance(op, TopK) else length.capacity
    names = NAMES.get(len(x.extents), ())
    index: list[Value | None] = [None] * len(x.extents)
    with ExitStack() as loops:
        for axis, extent in enumerate(x.extents):
            if axis != op.axis and not extent.is_unit:
                name = names[axis] if axis < len(names) else f"axis_{axis}"
                index[axis] = loops.enter_context(scope.loop(extent.stop(scope), name)).index
        step = x.buffer.step(scope, op.axis)
        at = x.buffer.offset(scope, tuple(index))
        inserts = isinstance(op, TopK) and count <= MAX_INSERTED
        scope.builder.add(
            Order(
                x.buffer.memory, at, step, places, spare, length.stop(scope),
                descending=isinstance(op, TopK) or op.descending, k=count if inserts else 0,
            )
        )  # fmt: skip
        scope.forget()  # `Order` has written `places`
        with scope.loop(scope.index(count), "place") as loop:
            place = scope.add(Read(places, loop.index))
            element = scope.add(Read(x.buffer.memory, scope.plus(at, scope.times(scope.as_index(place), step))))
            index[op.axis] = loop.index if count > 1 else None
            for product, value in zip(results, (element, place), strict=True):
                assert product.buffer is not None
                scope.builder.add(Write(product.buffer.memory, product.buffer.offset(scope, tuple(index)), value))
    scope.forget()  # the results were written
    for value, product in zip(op.results, results, strict=True):
        lowering.nodes[value] = product


def lower_block(lowering: Lowering, block: Block, prepare: bool = True) -> None:
    """Lower the operations of a block; its terminator is left to the caller.

    With `prepare`, it is a kernel's outermost block: the ends of all loops are computed first, and pending loops are
    written last. Without it, the caller writes the pending loops, and then restores `lowering.uses`.
    """
    outer, lowering.uses = lowering.uses, Uses(block, lowering.aliases)
    if prepare:
        lowering.prepare()
    for op in block.operations:
        if op.terminates:
            break
        if op.regions:
            _compute_scalars(lowering, op)
        match op:
            case Mma():
                lower_mma(lowering, op)
            case Folding():
                lower_fold(lowering, op)
            case Sort() | TopK():
                lower_sort(lowering, op)
            case For():
                if not lower_product_loop(lowering, op):
                    _lower_for(lowering, op)
            case While():
                _lower_while(lowering, op)
            case If():
                _lower_if(lowering, op)
            case _:
                lowering.operation(op)
    if prepare:
        lowering.flush()
        lowering.uses = outer


def _compute_scalars(lowering: Lowering, op: Op) -> None:
    """Compute the scalars of this block that nested blocks need, ahead of them.

    If a nested block computed one, `lowering.nodes` would have a value that no other block can use. Constants are left:
    `concrete` writes them anew in each block.
    """
    seen: set[Value] = set()
    needed = [value for block in op.regions for each in block.walk() for value in each.operands]
    while needed:
        value = needed.pop()
        node = lowering.nodes.get(value)
        if node is None or value in seen:  # the nested block's own, or done
            continue
        seen.add(value)
        if not value.tile.is_scalar:  # pulled in the nested block, with the scalars that it is made of
            made_by = lowering.made_by.get(value)
            needed.extend(made_by.operands if made_by is not None else ())
        elif not isinstance(node, Number):
            lowering.concrete(value)


def _nested(lowering: Lowering, block: Block, finish: Callable[[Op], Sequence[Value]]) -> None:
    """Lower a nested block into the open scope; `finish` returns what it yields."""
    outer = lowering.uses
    lower_block(lowering, block, prepare=False)
    values = finish(block.terminator)
    lowering.flush()
    lowering.scope.builder.yield_(*values)
    lowering.uses = outer


def _product(value: Value, lowering: Lowering) -> Product:
    """Scratch memory for a value."""
    product = Product(value.tile.dtype, lowering.extents(value), value.name)
    product.buffer = lowering.allocate(product)
    return product


def _alias(product: Product) -> Product:
    """Another node with the same memory.

    The scope remembers elements by node. Once the memory is written, elements are read anew through the other node.
    """
    alias = Product(product.dtype, product.extents, product.name)
    alias.buffer = product.buffer
    return alias


def _move(lowering: Lowering, moves: Sequence[tuple[Node, Product]], op: Op | None) -> None:
    """Write nodes into memory that the nodes may read, as if all were read first.

    Moves with the same loops form a group, which is one root: at each index it reads all before it writes. A group that
    reads its own memory at other indices, or memory that an earlier group writes, goes through further memory.
    """
    real = [(node, product) for node, product in moves if not _shares_memory(node, product)]
    groups: list[list[tuple[Node, Product]]] = []
    for node, product in sorted(real, key=lambda move: -len(move[0].extents)):  # the most axes first
        for group in groups:
            mine, theirs = group[0][0].extents, node.extents
            if len(mine) == len(theirs) and all(a.same(b) for a, b in zip(mine, theirs, strict=True)):
                group.append((node, product))
                break
        else:
            groups.append([(node, product)])
    direct: list[list[tuple[Node, Product]]] = []
    delayed: list[tuple[Node, Product]] = []
    for at, group in enumerate(groups):
        written = [product for earlier in groups[:at] for _, product in earlier]
        if _clashes(group, written):
            for node, product in group:
                saved = Product(node.dtype, node.extents, node.name)
                saved.buffer = lowering.allocate(saved)
                delayed.append((saved, product))
                lowering.pending.append(Root(node.extents, [Target(node, product=saved)], location=_location_of(op)))
        else:
            direct.append(group)
    # The order: first the groups that clash go to further memory (above), then come the direct moves, then the copies
    # from that memory.
    for group in (*direct, *([move] for move in delayed)):
        targets = [Target(node, product=_alias(product)) for node, product in group]
        lowering.pending.append(Root(group[0][0].extents, targets, location=_location_of(op), key=op))


def _location_of(op: Op | None) -> Location | None:
    return op.location if op is not None else None


def _shares_memory(node: Node, product: Product) -> bool:
    return isinstance(node, Product) and node.buffer is not None and node.buffer is product.buffer


def _clashes(group: list[tuple[Node, Product]], written: list[Product]) -> bool:
    """Whether a group reads memory in `written`, or its own memory at other indices."""
    own = [product for _, product in group]
    for node, _ in group:
        root = Root(node.extents, [Target(node)])
        for leaf, where in root.reads():
            if any(_shares_memory(leaf, product) for product in written):
                return True
            if any(_shares_memory(leaf, product) for product in own) and where != tuple(root.variables):
                return True
    return False


class _Carried:
    """The values that a loop carries: tiles in memory, scalars as values."""

    def __init__(self, lowering: Lowering, op: For | While) -> None:
        self.lowering = lowering
        self.op = op
        self.tiles = [at for at, value in enumerate(op.carried) if not value.tile.is_scalar]
        self.scalars = [at for at, value in enumerate(op.carried) if value.tile.is_scalar]
        self.memory = {at: _product(op.results[at], lowering) for at in self.tiles}
        moves = [(lowering.node(op.carried[at]), self.memory[at]) for at in self.tiles]
        _move(lowering, moves, None)
        # Ahead of the flush: a scalar may be computed from memory that the moves write.
        self.initial = [lowering.concrete(op.carried[at]) for at in self.scalars]
        lowering.flush()

    def enter(self, arguments: Sequence[Value]) -> list[Value]:
        """Bind a nested block's arguments.

        Returns the block arguments that the lowered block needs.
        """
        values: list[Value] = []
        for at, argument in enumerate(arguments):
            if at in self.memory:
                self.lowering.nodes[argument] = _alias(self.memory[at])
            else:
                value = Value(argument.type, argument.name)
                self.lowering.nodes[argument] = Scalar(value)
                values.append(value)
        return values

    def leave(self, terminator: Op) -> list[Value]:
        """Write what a body yields into memory; returns the scalars."""
        values = terminator.operands
        # First: a scalar may be computed from memory that the moves write.
        scalars = [self.lowering.concrete(values[at]) for at in self.scalars]
        moves = [(self.lowering.node(values[at]), self.memory[at]) for at in self.tiles]
        _move(self.lowering, moves, terminator)
        return scalars

    def bind(self, results: Sequence[Value]) -> None:
        """Bind the operation's results after the loop."""
        for at, value in enumerate(self.op.results):
            if at in self.memory:
                self.lowering.nodes[value] = _alias(self.memory[at])
        for at, result in zip(self.scalars, results, strict=True):
            result.name = self.op.results[at].name
            self.lowering.nodes[self.op.results[at]] = Scalar(result)


def _is_counted_by_range(lowering: Lowering, op: For) -> bool:
    """Whether a `range` of i64 can count the loop; else `TripCount` does.

    It can if stop - start fits an i64.
    """
    start, step = (lowering.made_by.get(value) for value in (op.start, op.step))
    from_zero = isinstance(start, Constant) and start.value == 0 and isinstance(step, Constant) and step.value > 0
    dtype = op.induction.tile.dtype
    return dtype.bits < 64 or (from_zero and dtype.is_signed)


def _lower_for(lowering: Lowering, op: For) -> None:
    """Lower a loop; one whose bounds `range` cannot take counts its iterations."""
    bounds = [lowering.concrete(value) for value in (op.start, op.stop, op.step)]
    by_range = _is_counted_by_range(lowering, op)
    start, step = (lowering.made_by.get(value) for value in (op.start, op.step))
    upward = isinstance(start, Constant) and isinstance(step, Constant) and start.value >= 0 and step.value > 0
    # A loop from 0 or more upwards: its variable stays below `stop`, so it is never negative and never wraps. As an
    # index a u64 is negative from 2**63 on.
    if upward and op.induction.tile.dtype is not u64:
        lowering.counters.add(op.induction)
    carried = _Carried(lowering, op)
    scope = lowering.scope
    counted = bounds
    induction = Value(op.induction.type, op.induction.name)
    if not by_range:
        wide = u64 if op.induction.tile.dtype is u64 else i64
        trips = scope.add(TripCount(*(scope.cast(value, wide) for value in bounds)), "iterations")
        counted = [scope.index(0), trips, scope.index(1)]
        induction = Value(INDEX, "iteration")
    arguments = carried.enter(op.body.arguments[1:])
    with scope.block(induction, *arguments) as body:
        value = induction
        if not by_range:  # start + iteration * step: a product that wraps still gives the right sum
            trip = scope.cast(induction, op.induction.tile.dtype)
            value = scope.add(Add(bounds[0], scope.add(Mul(trip, bounds[2]))), op.induction.name)
        lowering.nodes[op.induction] = Scalar(value)
        _nested(lowering, op.body, carried.leave)
    scope.builder.location = op.location
    loop = scope.builder.add(For(*counted, carried=tuple(carried.initial), body=body))
    scope.forget()
    carried.bind(loop.results)


def _lower_while(lowering: Lowering, op: While) -> None:
    carried = _Carried(lowering, op)
    scope = lowering.scope
    with scope.block(*carried.enter(op.condition.arguments)) as condition:
        _nested(lowering, op.condition, lambda end: [lowering.concrete(end.operands[0])])
    with scope.block(*carried.enter(op.body.arguments)) as body:
        _nested(lowering, op.body, carried.leave)
    scope.builder.location = op.location
    loop = scope.builder.add(While(carried=tuple(carried.initial), condition=condition, body=body))
    scope.forget()
    carried.bind(loop.results)


def _pass_memory(lowering: Lowering, side: Block, memory: dict[int, Product]) -> None:
    """Let an `If` at the end of a side write to the memory of the outer results.

    The side is one of an outer `If`. The inner one has to be the last operation: others behind it might read what that
    memory has before. A value that is yielded twice needs two memories.

    Args:
        lowering: the lowering.
        side: the side.
        memory: the memory of the outer results, by their positions.
    """
    yielded = side.terminator.operands
    last = side.operations[-2] if len(side.operations) > 1 else None
    for at, product in memory.items():
        value = yielded[at]
        if isinstance(last, If) and value in last.results and yielded.count(value) == 1:
            lowering.passed[value] = _alias(product)


def _lower_if(lowering: Lowering, op: If) -> None:
    """Lower a branch: both sides write tiles to the same memory, and yield scalars."""
    condition = lowering.concrete(op.condition)
    lowering.flush()  # else pending loops would be written inside a side
    scope = lowering.scope
    memory = {
        at: lowering.passed[value] if value in lowering.passed else _product(value, lowering)
        for at, value in enumerate(op.results)
        if not value.tile.is_scalar
    }
    for side in (op.then, op.orelse):
        _pass_memory(lowering, side, memory)

    def leave(terminator: Op) -> list[Value]:
        scalars = [lowering.concrete(value) for at, value in enumerate(terminator.operands) if at not in memory]
        _move(lowering, [(lowering.node(terminator.operands[at]), memory[at]) for at in memory], terminator)
        return scalars

    with scope.block() as then:
        _nested(lowering, op.then, leave)
    with scope.block() as orelse:
        _nested(lowering, op.orelse, leave)
    scope.builder.location = op.location
    results = scope.branch(condition, then, orelse)
    scope.forget()
    for at, product in memory.items():
        lowering.nodes[op.results[at]] = product
    scalars = [value for at, value in enumerate(op.results) if at not in memory]
    for value, result in zip(scalars, results, strict=True):
        result.name = value.name
        lowering.nodes[value] = Scalar(result)
