"""Roots, and the loop nests that they share.

A root is a store, a reduction, or a tile that is kept in scratch memory: it needs loops of its own, outermost first.
Neighbouring roots share a loop if it is equally long for both, and if one uses the other's elements at the same index
only:

    m = reduce_max(x, 1)                 for row:
    e = exp(x - m)                           for column: m = max(m, x)
    s = reduce_sum(e, 1)            ->       for column: e[column] = exp(x - m); s += e[column]
    y.store(e / s)                           for column: y = e[column] / s

A nest whose reads may leave their tensors is written twice: without checks for tile blocks that lie inside, with checks
for tile blocks at the edge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cutile.backend.cpu.lowering.scope import Loop, Scope
from cutile.backend.cpu.lowering.tile_expr import Buffer, Cast, Extent, Index, Loaded, Node, Product
from cutile.backend.cpu.stage import INDEX, CopyTransposed, Read, Step, Write
from cutile.dtypes import DTypeLike, f32
from cutile.errors import Location
from cutile.ir.core import Op, Value
from cutile.ops.arith import And, FloorDiv

# Reads that walk down a column of memory, in loops along rows of the result.
#
# Each read would fetch a cache line for one element, and the next row of the result would fetch the line again. Where
# rows of memory lie a power of two apart, all their lines compete for a few places in the cache, and each is evicted
# before the next row needs it. So such a nest runs in strips of a few rows. A strip's elements are first copied to
# scratch memory, and transposed in vector registers. Each line is then read once:
#
#     for row_block:
#         copy_transposed(strip, x, ...)        # strip[row, column] = x[column, row]
#         for row in the block:
#             for column: y[row, column] = f(strip[row, column])

ROWS = 16
"""Rows of a strip: 16 elements of 32 bits are a cache line, and a vector register of AVX-512."""
COLUMNS = 256
"""The most columns of a strip: each is a cache line that the copy reads."""


@dataclass(frozen=True)
class TransposedRead:
    """A tile whose elements lie side by side along the outer of two loops.

    Attributes:
        leaf: the tile.
        where: its index, in stand-ins of the root that reads it (`Root.variables`).
        column: the axis of the tile along which the inner loop runs.
    """

    leaf: Loaded
    where: Index
    column: int


def transposed_read(scope: Scope, leaf: Node, where: Index, row: Value, column: Value) -> TransposedRead | None:
    """The tile that loops over `row` and, inside, `column` read transposed, if any."""
    if not isinstance(leaf, Loaded) or where.count(row) != 1 or where.count(column) != 1:
        return None
    if scope.masked and not all(axis.covered for axis in leaf.axes):
        return None  # `CopyTransposed` checks no index
    along, across = (scope.known(leaf.axes[where.index(each)].stride) for each in (row, column))
    return TransposedRead(leaf, where, where.index(column)) if along == 1 != across else None


def blocks_of(scope: Scope, count: Value, size: int) -> Value:
    """How many blocks of `size` there are in `count`."""
    raised = scope.plus(count, scope.index(size - 1))
    number = scope.known(raised)
    return (
        scope.index(number // size)
        if number is not None
        else scope.shared(("//", raised, size), FloorDiv(raised, scope.index(size)))
    )


def fill_strip(
    scope: Scope, read: TransposedRead, strip: Value, at: Mapping[Value, Value], extents: Sequence[Value], step: int
) -> None:
    """Copy the elements that the loops over one strip read.

    Args:
        scope: where the copy goes.
        read: the tile that they read transposed.
        strip: scratch memory.
        at: for each stand-in, the first index of its loop in the strip.
        extents: the numbers of the strip's rows and columns.
        step: the elements between rows of the strip.
    """
    leaf = read.leaf
    first = leaf.offset(scope, tuple(None if i is None else at[i] for i in read.where))
    rows, columns = extents
    stride = leaf.axes[read.column].stride
    scope.builder.add(CopyTransposed(strip, leaf.tensor, first, stride, rows, columns, step=step))


NAMES = {1: ("element",), 2: ("row", "column"), 3: ("layer", "row", "column")}
"""The names of loop variables in generated code, by the number of axes; others are named by their axis."""


def accumulator(dtype: DTypeLike) -> DTypeLike:
    """The dtype that a reduction of `dtype` runs in."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def start_number(kind: str, dtype: DTypeLike) -> float:
    """The number that a reduction starts from.

    Extremes of floats that ignore NaN start from NaN, so that the extreme of nothing but NaN is NaN.
    """
    if kind in ("reduce_sum", "reduce_prod"):
        return int(kind == "reduce_prod") if not dtype.is_float else float(kind == "reduce_prod")
    if dtype.is_float:
        opposite = float("-inf") if kind.startswith("reduce_max") else float("inf")
        return opposite if kind.endswith("_or_nan") else float("nan")
    signed = dtype.is_signed
    top = 2 ** (dtype.bits - signed) - 1
    return top if kind == "reduce_min" else -top - 1 if signed else 0


@dataclass(eq=False)
class Target:
    """Where a root writes: a tile of a tensor, or scratch memory."""

    source: Node
    tile: Loaded | None = None
    product: Product | None = None

    def write(self, scope: Scope, index: Index, value: Value) -> None:
        """Store one element."""
        if self.tile is not None:
            scope.builder.add(Write(self.tile.tensor, self.tile.offset(scope, index), value))
        elif self.product is not None and self.product.buffer is not None:
            buffer = self.product.buffer
            scope.builder.add(Write(buffer.memory, buffer.offset(scope, index), value))


@dataclass(eq=False)
class Root:
    """One thing to compute.

    Attributes:
        loops: one extent per axis of the sources, in order; axes that are units get no loop.
        targets: the nodes to compute and where they go. At each index all are computed before one is written.
        kind: a reduction's name, if its accumulator is a register along `axis`, the last axis with a loop; else empty.
        axis: the axis that the targets lack, or -1.
        location: the user's expression.
        key: the operation that it computes, whose uses `Uses` has.
        users: the roots that use its products; None if they are not known to be the only users.
        variables: stand-ins for the indices of its loops, one per axis; None for an axis without a loop.
    """

    loops: tuple[Extent, ...]
    targets: list[Target]
    kind: str = ""
    axis: int = -1
    location: Location | None = None
    key: Op | None = None
    users: set[Root] | None = None
    variables: list[Value | None] = field(init=False)

    def __post_init__(self) -> None:
        # `reads` is asked before there are loops.
        self.variables = [None if extent.is_unit else Value(INDEX) for extent in self.loops]

    @property
    def order(self) -> list[int]:
        """The axes with loops, outermost first."""
        return [axis for axis, extent in enumerate(self.loops) if not extent.is_unit]

    @property
    def is_scalar(self) -> bool:
        """Whether its product is a scalar, outside of all loops."""
        return len(self.order) == (1 if self.kind else 0)

    def place(self, index: Sequence[Value | None]) -> Index:
        """The targets' index that belongs to an index of the sources."""
        return tuple(index) if self.axis < 0 else (*index[: self.axis], *index[self.axis + 1 :])

    def target_axis(self, axis: int) -> int:
        """The targets' axis for any axis of the sources but the dropped one."""
        return axis if self.axis < 0 or axis < self.axis else axis - 1

    def products(self) -> list[Product]:
        """The products that later roots may read."""
        return [target.product for target in self.targets if target.product is not None]

    def reads(self) -> list[tuple[Node, Index]]:
        """The leaves that the sources read, in terms of the stand-ins."""
        index = tuple(self.variables)
        return [leaf for target in self.targets for leaf in target.source.leaves(index)]


def _touches(scope: Scope, writer: Root, reader: Root, writer_axis: int, reader_axis: int) -> bool:
    """Whether `reader` reads an element that `writer` writes in another iteration.

    The iterations are those of the loop that they would share: along `writer_axis` of one, and `reader_axis` of the
    other.
    """
    for leaf, where in reader.reads():
        for target in writer.targets:
            if isinstance(leaf, Product):
                same = target.product is not None and (
                    leaf is target.product or (leaf.buffer is not None and target.product.buffer is leaf.buffer)
                )
            else:
                tile = target.tile
                same = isinstance(leaf, Loaded) and tile is not None and leaf.tensor is tile.tensor
                if isinstance(leaf, Loaded) and same and tile is not None and leaf.base is not tile.base:
                    return True  # another tile of a tensor that is written
                if isinstance(leaf, Loaded) and tile is not None and scope.may_overlap(leaf.tensor, tile.tensor):
                    return True
            if same and (
                writer_axis == writer.axis
                or where[writer.target_axis(writer_axis)] is not reader.variables[reader_axis]
            ):
                return True
    return False


def _can_share(scope: Scope, first: Root, second: Root, depth: int) -> bool:
    """Whether the loops at `depth` of two roots in order can be one."""
    a, b = first.order, second.order
    if len(a) <= depth or len(b) <= depth or not first.loops[a[depth]].same(second.loops[b[depth]]):
        return False
    x, y = a[depth], b[depth]
    return not _touches(scope, first, second, x, y) and not _touches(scope, second, first, y, x)


class Nests:
    """Writes roots as loops.

    Args:
        scope: where the loops go.
        allocate: gives a product scratch memory.
        strip: `strip(dtype, size, name)` gives scratch memory for elements as they are in tensors.
        rare: whether the loops seldom run: they are then written once, with checks.
    """

    def __init__(
        self,
        scope: Scope,
        allocate: Callable[[Product], Buffer],
        strip: Callable[[DTypeLike, int, str], Value],
        rare: bool = False,
    ) -> None:
        self._scope = scope
        self._allocate = allocate
        self._strip = strip
        self._rare = rare

    def write(self, roots: Sequence[Root]) -> None:
        """Append the loops for `roots`, in order."""
        rest = list(roots)
        while rest:
            run = self._run(rest, 0)
            rest = rest[len(run) :]
            self._split(run)
        self._scope.forget()

    def _run(self, roots: Sequence[Root], depth: int) -> list[Root]:
        """The first roots that share their loop at `depth`; one if it has no loop there."""
        run = [roots[0]]
        for candidate in roots[1:]:
            if len(run[0].order) <= depth or not all(
                _can_share(self._scope, member, candidate, depth) for member in run
            ):
                break
            run.append(candidate)
        return run

    def _split(self, run: list[Root]) -> None:
        """Write one outermost nest, in two versions if reads may leave their tensors.

        The version without checks runs where every read is inside its tensor.
        """
        self._set_keep_from(run, 0)
        scope = self._scope
        scope.builder.location = run[0].location
        scope.masked = True
        bits = [] if self._rare else list(dict.fromkeys(bit for root in run for bit in self._conditions(root)))
        if not bits:
            self._nest(run, 0, {})
            return
        inside = bits[0]
        for bit in bits[1:]:
            inside = scope.shared(("&", inside, bit), And(inside, bit))
        inside.name = inside.name or "inside"
        scalars = (product for root in run if root.is_scalar for product in root.products())
        local_products = [product for product in scalars if product.buffer is None]
        with scope.block() as then:
            scope.masked = False
            self._nest(run, 0, {})
            scope.builder.yield_(*[self._local(product) for product in local_products])
        with scope.block() as orelse:
            scope.masked = True
            self._nest(run, 0, {})
            scope.builder.yield_(*[self._local(product) for product in local_products])
        results = scope.branch(inside, then, orelse)
        for product, value in zip(local_products, results, strict=True):
            value.name = product.name
            product.local = value

    def _local(self, product: Product) -> Value:
        assert product.local is not None
        return product.local

    def _conditions(self, root: Root) -> list[Value]:
        """Bits under which no read of a root leaves its tensor."""
        stop_of = {
            variable: extent.stop(self._scope)
            for variable, extent in zip(root.variables, root.loops, strict=True)
            if variable is not None
        }
        bits: list[Value] = []
        for leaf, where in root.reads():
            if isinstance(leaf, Loaded):
                stops = [
                    None if i is None else stop_of.get(i, extent.stop(self._scope))
                    for i, extent in zip(where, leaf.extents, strict=True)
                ]
                bits += leaf.covers(self._scope, stops)
        return bits

    def _set_keep_from(self, run: list[Root], depth: int) -> None:
        """Set `keep_from` of products that are used only in the loop at `depth`.

        They need no memory along the loop's axis.
        """
        if len(run[0].order) <= depth:
            return
        for root in run:
            if root.users is not None and root.users <= set(run) and root.order[depth] != root.axis:
                for product in root.products():
                    product.keep_from = root.target_axis(root.order[depth]) + 1
        rest = run
        while rest:
            inner = self._run(rest, depth + 1)
            rest = rest[len(inner) :]
            if len(inner[0].order) > depth + 1:
                self._set_keep_from(inner, depth + 1)

    def _nest(self, run: list[Root], depth: int, indices: dict[Root, list[Value | None]]) -> None:
        """Write the loop at `depth` that the roots of `run` share, with its body.

        `indices` has each root's indices in the loops that are open.
        """
        if len(run[0].order) <= depth:
            self._compute(run[0], indices.get(run[0], [None] * len(run[0].loops)))
            return
        if reads := self._transposed(run, depth):
            self._in_strips(run, depth, indices, reads)
            return
        scope = self._scope
        first = run[0]
        axis = first.order[depth]
        reduced = [root for root in run if root.kind and root.order[depth] == root.axis]
        starts = [self._start(root) for root in reduced]
        names = NAMES.get(len(first.loops), ())
        name = names[axis] if axis < len(names) else f"axis_{axis}"
        scope.builder.location = first.location
        stop = first.loops[axis].stop(scope)
        if len(reduced) == len(run) and scope.masked:
            stop = self._up_to_padding(reduced, stop)
        with scope.loop(stop, name, starts) as loop:
            accumulators = dict(zip(reduced, loop.arguments, strict=True))
            inner = {root: list(indices.get(root, [None] * len(root.loops))) for root in run}
            for root in run:
                inner[root][root.order[depth]] = loop.index
            self._body(run, depth, inner, accumulators)
            loop.yielded = tuple(accumulators[root] for root in reduced)
        self._finish(reduced, loop, indices)

    def _transposed(self, run: list[Root], depth: int) -> list[tuple[Root, TransposedRead]]:
        """The tiles that the last two loops of a run read transposed.

        The list is empty if the roots have further loops, or do not share these two.
        """
        if any(len(root.order) != depth + 2 or root.axis >= 0 for root in run) or self._run(run, depth + 1) != run:
            return []
        written = {target.tile.tensor for root in run for target in root.targets if target.tile is not None}
        reads: list[tuple[Root, TransposedRead]] = []
        for root in run:
            row, column = (root.variables[axis] for axis in root.order[depth:])
            assert row is not None
            assert column is not None
            for leaf, where in root.reads():
                read = transposed_read(self._scope, leaf, where, row, column)
                # A reshape computes its indices: they are no variables of loops.
                by_loops = all(i is None or i in root.variables for i in where)
                if read is None or not by_loops or read.leaf.tensor in written:
                    continue
                if not any(self._scope.may_overlap(read.leaf.tensor, tensor) for tensor in written):
                    reads.append((root, read))
        return reads

    def _in_strips(
        self,
        run: list[Root],
        depth: int,
        indices: dict[Root, list[Value | None]],
        reads: list[tuple[Root, TransposedRead]],
    ) -> None:
        """Write the last two loops, a strip at a time."""
        scope, first = self._scope, run[0]
        scope.builder.location = first.location
        rows, columns = (first.loops[axis] for axis in first.order[depth:])
        step = min(COLUMNS, -(-columns.capacity // ROWS) * ROWS)
        strips = [self._strip(read.leaf.tensor.tensor.dtype, ROWS * step, read.leaf.name) for _, read in reads]

        def at(root: Root, row: Value, column: Value) -> dict[Value, Value]:
            """The indices of a root's loops, by the stand-ins for them."""
            outer = indices.get(root, [None] * len(root.loops))
            values: list[Value | None] = list(outer)
            values[root.order[depth]], values[root.order[depth + 1]] = row, column
            pairs = zip(root.variables, values, strict=True)
            return {variable: value for variable, value in pairs if variable is not None and value is not None}

        column_end, row_end = columns.stop(scope), rows.stop(scope)

        def along_rows(first_column: Value, width: Value) -> None:
            """Write the strips of `width` columns from `first_column` on, for all rows."""
            with scope.loop(blocks_of(scope, row_end, ROWS), "row_block") as down:
                first_row = scope.times(down.index, scope.index(ROWS))
                height = scope.smaller(scope.index(ROWS), scope.minus(row_end, first_row))
                for (root, read), strip in zip(reads, strips, strict=True):
                    fill_strip(scope, read, strip, at(root, first_row, first_column), (height, width), step)
                with scope.loop(height, "row") as row, scope.loop(width, "column") as column:
                    place = scope.plus(scope.times(row.index, scope.index(step)), column.index)
                    index = (scope.plus(first_row, row.index), scope.plus(first_column, column.index))
                    for (root, read), strip in zip(reads, strips, strict=True):
                        indices_of = at(root, *index)
                        where = tuple(None if i is None else indices_of[i] for i in read.where)
                        value = scope.add(Read(strip, place), read.leaf.name)
                        # `_compute` takes the value from here, and does not read the tile itself.
                        scope.remember((read.leaf, where, scope.masked), value)
                    for root in run:
                        indices_of = at(root, *index)
                        self._compute(root, [None if i is None else indices_of[i] for i in root.variables])

        if columns.capacity <= step:
            along_rows(scope.index(0), column_end)
            return
        with scope.loop(blocks_of(scope, column_end, step), "column_block") as across:
            first_column = scope.times(across.index, scope.index(step))
            along_rows(first_column, scope.smaller(scope.index(step), scope.minus(column_end, first_column)))

    def _up_to_padding(self, reduced: list[Root], stop: Value) -> Value:
        """The end of a loop of reductions: `stop`, or an earlier one.

        All iterations behind it would read padding, which changes none of the reductions.
        """
        scope = self._scope
        ends: list[Value] = []
        for root in reduced:
            source = root.targets[0].source
            while isinstance(source, Cast):
                source = source.x
            extreme = root.kind.startswith(("reduce_max", "reduce_min"))
            if not isinstance(source, Loaded) or not (extreme or (root.kind == "reduce_sum" and not source.padding)):
                return stop
            axis = source.axes[root.axis]
            if axis.may_be_negative:  # then padding comes first
                return stop
            end = scope.larger(scope.minus(axis.size, axis.start), scope.index(0))
            # Zeros add nothing to a sum. An extreme needs one element of padding, since all of them are equal.
            ends.append(scope.plus(end, scope.index(1)) if extreme else end)
        end = ends[0]
        for each in ends[1:]:
            end = scope.larger(end, each)
        return scope.smaller(stop, end)

    def _body(
        self, run: list[Root], depth: int, indices: dict[Root, list[Value | None]], accumulators: dict[Root, Value]
    ) -> None:
        """Write one iteration: steps of reductions, elements, and deeper loops."""
        rest = run
        while rest:
            root = rest[0]
            if root in accumulators:
                source = root.targets[0].source
                value = self._scope.cast(source.at(self._scope, tuple(indices[root])), accumulator(source.dtype))
                self._scope.builder.location = root.location
                accumulators[root] = self._scope.add(Step(accumulators[root], value, kind=root.kind))
                rest = rest[1:]
            else:
                inner = self._run(rest, depth + 1)
                rest = rest[len(inner) :]
                self._nest(inner, depth + 1, indices)

    def _start(self, root: Root) -> Value:
        source = root.targets[0].source
        return self._scope.number(start_number(root.kind, source.dtype), accumulator(source.dtype))

    def _finish(self, reduced: list[Root], loop: Loop, indices: dict[Root, list[Value | None]]) -> None:
        """Round the results of a loop of reductions, and keep them for their users."""
        for root, total in zip(reduced, loop.results, strict=True):
            (product,) = root.products()
            value = self._scope.cast(total, product.dtype)
            value.name = value.name or product.name
            where = root.place(indices.get(root, [None] * len(root.loops)))
            self._keep_value(root.targets[0], product, where, value)

    def _keep_value(self, target: Target, product: Product, where: Index, value: Value) -> None:
        """Keep a value in a register if that is enough, else in memory."""
        if product.buffer is None:
            if all(extent.is_unit for extent in product.extents[product.keep_from :]):
                product.local = value
                return
            product.buffer = self._allocate(product)
        target.write(self._scope, where, value)
        self._scope.remember((product, where, self._scope.masked), value)  # no need to read it back here

    def _compute(self, root: Root, index: list[Value | None]) -> None:
        """Write the body of a root's innermost loop: all values, then all writes."""
        where = tuple(index)
        values = [target.source.at(self._scope, where) for target in root.targets]
        self._scope.builder.location = root.location
        place = root.place(index)
        for target, value in zip(root.targets, values, strict=True):
            if target.product is None:
                target.write(self._scope, place, value)
            else:
                self._keep_value(target, target.product, place, value)
