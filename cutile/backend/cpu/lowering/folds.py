"""Reductions and scans by a function of scalars.

The function is associative, and need not be commutative: elements are grouped, and stay in order. Innermost loops have
independent steps where that is possible, so that LLVM makes vectors of them.

a chain: a scan of a row               a tree: a reduction of a row

for row:                               for row:
    m = identity                           for i in range(count // 2):
    for column:                                pairs[i] = body(x[row, 2 * i], x[row, 2 * i + 1])
        m = body(m, x[row, column])        pairs of pairs, and so on, down to one element
        result[row, column] = m            result[row] = body(identity, this element)

columns: along any axis but the last

for column: m[column] = identity
for row: for column: m[column] = body(m[column], x[row, column])
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cutile.backend.cpu.lowering.loop_nests import NAMES
from cutile.backend.cpu.lowering.lower import Lowering
from cutile.backend.cpu.lowering.scope import Loop, Scope
from cutile.backend.cpu.lowering.tile_expr import (
    Counting,
    Extent,
    Index,
    Loaded,
    Node,
    Number,
    Product,
    Remapped,
    Repeated,
    Scalar,
)
from cutile.backend.cpu.stage import Read, Write
from cutile.ir import Block, Value
from cutile.ops.arith import FloorDiv
from cutile.ops.reduce import Folding, Scan

CHAINS = 4
"""Rows whose scans run interleaved: each step of a scan waits for the one before, 3 or 4 cycles for a sum of floats."""

MIN_TREE = 16
"""Elements from which a row is reduced by a tree. Rows of 32 took 3.2 ms by trees, and 10.9 ms by chains (Zen 4)."""


def _body(scope: Scope, body: Block, arguments: Sequence[Value]) -> list[Value]:
    """Write the body's operations here; returns the values that it yields."""
    copies = dict(zip(body.arguments, arguments, strict=True))
    for op in body.operations[:-1]:
        scope.builder.location = op.location or scope.builder.location
        copies[op.result] = scope.add(op.copy_with([copies[value] for value in op.operands], (), ()), op.result.name)
    return [copies[value] for value in body.terminator.operands]


def _in_memory(lowering: Lowering, node: Node) -> Node:
    """A node whose elements a fold may read in its own loops, without computing them."""
    if isinstance(node, Product | Number | Scalar | Loaded) or _is_place(node):
        return node
    return lowering.keep(node)


def _is_place(node: Node) -> bool:
    """Whether the elements are their own indices along an axis, as `argmax` has them."""
    while isinstance(node, Remapped | Repeated):
        ((node, _),) = node.inputs((None,) * len(node.extents))
    return isinstance(node, Counting)


def lower_fold(lowering: Lowering, op: Folding) -> None:
    """Lower a reduction or scan: its operands are computed first, then come its loops."""
    scope = lowering.scope
    scope.builder.location = op.location
    sources = [_in_memory(lowering, lowering.node(value)) for value in op.tiles]
    lowering.flush()
    scope.masked = True
    scope.builder.location = op.location
    results = [Product(value.tile.dtype, lowering.extents(value), value.name or op.name) for value in op.results]
    is_scan = isinstance(op, Scan)
    stored = _stored_at_once(lowering, op)
    looped = [axis for axis, extent in enumerate(sources[0].extents) if not extent.is_unit]
    if looped and looped[-1] > op.axis and not sources[0].extents[op.axis].is_unit:
        _lower_columns(lowering, op, sources, results, stored)
        return
    if not is_scan and sources[0].extents[op.axis].capacity >= MIN_TREE:
        _lower_tree(lowering, op, sources, results)
        return
    for product in results if stored is None else ():
        if is_scan or any(not extent.is_unit for extent in product.extents):
            product.buffer = lowering.allocate(product)
    extents = sources[0].extents if stored is None else stored.extents
    chains = _Chains(scope, op, sources, results, stored, extents)
    if is_scan and not extents[op.axis].is_unit:
        chains.write_versions()
    else:  # fewer than `MIN_TREE` elements in a row: a single version, with checks
        chains.write(1)
    scope.forget()
    if stored is not None:
        return
    for value, product in zip(op.results, results, strict=True):
        lowering.nodes[value] = product if product.buffer is not None else Scalar(_scalar(product), product.extents)


def _lower_tree(lowering: Lowering, op: Folding, sources: Sequence[Node], results: Sequence[Product]) -> None:
    """Lower a reduction along the last axis."""
    scope = lowering.scope
    for product in results:
        product.buffer = lowering.allocate(product)
    # A level reads one memory and writes the other: LLVM knows of two memories that they do not overlap.
    first = -(-sources[0].extents[op.axis].capacity // 2)
    sizes = [first + 1, -(-first // 2) + 1]
    levels = [[lowering.allocate(Product(x.dtype, [Extent(size)], "pairs")).memory for x in sources] for size in sizes]
    _Tree(scope, op, sources, results, None, sources[0].extents, levels).write()
    scope.forget()
    for value, product in zip(op.results, results, strict=True):
        lowering.nodes[value] = product
        if all(extent.is_unit for extent in product.extents):
            lowering.nodes[value] = Scalar(product.at(scope, (None,) * len(product.extents)), product.extents)


@dataclass
class _Loops:
    """The loops of a reduction or scan.

    Attributes:
        scope: where the loops go.
        op: the reduction or scan.
        sources: its operands.
        results: its results.
        stored: the tile that a scan's result goes to directly, without memory of its own; else None.
        extents: how far the loops go.
    """

    scope: Scope
    op: Folding
    sources: Sequence[Node]
    results: Sequence[Product]
    stored: Loaded | None
    extents: Sequence[Extent]

    def _identities(self) -> list[Value]:
        return [self.scope.number(number, x.dtype) for number, x in zip(self.op.identities, self.sources, strict=True)]

    def _elements(self, index: Sequence[Value | None]) -> list[Value]:
        return [node.at(self.scope, tuple(index)) for node in self.sources]

    def _step(self, totals: Sequence[Value], index: Sequence[Value | None]) -> list[Value]:
        """Combine totals with the elements at an index."""
        return _body(self.scope, self.op.body, [*totals, *self._elements(index)])

    @contextmanager
    def _along(self, carried: Sequence[Value] = ()) -> Generator[tuple[Loop, Value]]:
        """Open the loop along the axis; yields it, and the index of its element.

        A reverse scan begins at the last element.
        """
        scope, axis = self.scope, self.op.axis
        count, names = self.extents[axis].stop(scope), NAMES.get(len(self.extents), ())
        with scope.loop(count, names[axis] if axis < len(names) else "place", carried) as loop:
            place = loop.index
            if isinstance(self.op, Scan) and self.op.reverse:
                place = scope.minus(scope.minus(count, scope.index(1)), place)
            yield loop, place

    def _write_results(self, where: Index, values: Sequence[Value]) -> None:
        """Write results."""
        if self.stored is not None:
            self.scope.builder.add(Write(self.stored.tensor, self.stored.offset(self.scope, where), values[0]))
        else:
            _write(self.scope, self.results, where, values)

    def _inside(self) -> Value | None:
        """Whether all loops stay in the tensors that they read; None if they certainly do."""
        stops = [None if extent.is_unit else extent.stop(self.scope) for extent in self.extents]
        return _inside(self.scope, self.sources, stops)


@dataclass
class _Tree(_Loops):
    """The loops of a reduction along the last axis: levels that combine neighbours.

    Attributes:
        levels: two sets of scratch memories, each with one memory for each source.
    """

    levels: Sequence[Sequence[Value]]

    def write(self) -> None:
        """Write the loops over rows, and the tree of each."""
        index: list[Value | None] = [None] * len(self.extents)
        with _loops(self.scope, self.extents, index, [axis for axis in range(len(index)) if axis != self.op.axis]):
            self._row(index, self.extents[self.op.axis].capacity)

    def _row(self, index: list[Value | None], count: int) -> None:
        """Write the tree of a row of `count` elements; `index` has the open loops."""
        scope, op = self.scope, self.op
        self._first_level(index, count)
        count, further = count - count // 2, 0  # `further`: the levels above the first one
        elements = scope.index(count)
        while count > 1:
            count, further = count - count // 2, further + 1
        if further > 1:
            # Two levels in an iteration: after them, the elements are in the same memory again.
            with scope.loop(scope.index(further // 2), "level", [elements]) as loop:
                half = self._level(loop.arguments[0], *self.levels)
                loop.yielded = (self._level(half, *reversed(self.levels)),)
            (elements,) = loop.results
        if further % 2:
            self._level(elements, *self.levels)
        memory = self.levels[further % 2]
        total = _body(scope, op.body, [*self._identities(), *self._read(memory, scope.index(0))])
        index[op.axis] = None
        self._write_results(_result_index(op, index), total)

    def _first_level(self, index: list[Value | None], count: int) -> None:
        """Write the level that combines the elements of a row."""
        scope, (memory, _) = self.scope, self.levels

        def write() -> None:
            with scope.loop(scope.index(count // 2), "pair") as loop:
                place = scope.times(loop.index, scope.index(2))
                first = self._elements(_put(index, self.op.axis, place))
                step = self._step(first, _put(index, self.op.axis, scope.plus(place, scope.index(1))))
                self._write(memory, loop.index, step)
            if count % 2:
                last = _put(index, self.op.axis, scope.index(count - 1))
                self._write(memory, scope.index(count // 2), self._elements(last))

        # The loops over rows are open: along their axes, this row alone has to lie inside.
        stops = [None if at is None else scope.plus(at, scope.index(1)) for at in index]
        stops[self.op.axis] = scope.index(count)
        _in_versions(scope, _inside(scope, self.sources, stops), write)

    def _level(self, count: Value, source: Sequence[Value], target: Sequence[Value]) -> Value:
        """Write a level of `count` elements; returns the number of its results."""
        scope = self.scope
        half = scope.add(FloorDiv(count, scope.index(2)))
        with scope.loop(half, "pair") as loop:
            place = scope.times(loop.index, scope.index(2))
            pair = [*self._read(source, place), *self._read(source, scope.plus(place, scope.index(1)))]
            self._write(target, loop.index, _body(scope, self.op.body, pair))
        # The last of an odd number of elements goes on as it is. If the number is even, nothing reads the copy.
        self._write(target, half, self._read(source, scope.minus(count, scope.index(1))))
        return scope.minus(count, half)

    def _read(self, memory: Sequence[Value], place: Value) -> list[Value]:
        return [self.scope.add(Read(part, place)) for part in memory]

    def _write(self, memory: Sequence[Value], place: Value, values: Sequence[Value]) -> None:
        for part, value in zip(memory, values, strict=True):
            self.scope.builder.add(Write(part, place, value))


def _lower_columns(
    lowering: Lowering, op: Folding, sources: Sequence[Node], results: Sequence[Product], stored: Loaded | None
) -> None:
    """Lower a reduction or scan along any axis but the last."""
    scope = lowering.scope
    extents = sources[0].extents if stored is None else stored.extents
    for product in results if stored is None else ():
        product.buffer = lowering.allocate(product)
    sums = results
    if isinstance(op, Scan):
        inner = [Extent(1)] * (op.axis + 1) + list(extents[op.axis + 1 :])
        inner = [extent for axis, extent in enumerate(inner) if axis != op.axis]
        sums = [Product(product.dtype, inner, f"{product.name}_so_far") for product in results]
        for product in sums:
            product.buffer = lowering.allocate(product)
    _Columns(scope, op, sources, results, stored, extents, sums).write_versions()
    scope.forget()
    for value, product in zip(op.results, results, strict=True):
        if stored is None:
            lowering.nodes[value] = product


@dataclass
class _Columns(_Loops):
    """The loops of a reduction or scan along any axis but the last.

    Attributes:
        sums: the columns' totals so far; the results, if it is a reduction.
    """

    sums: Sequence[Product]

    def write_versions(self) -> None:
        """Write all loops, without and with checks."""
        _in_versions(self.scope, self._inside(), self._write)

    def _write(self) -> None:
        """Write the loops: identities to all totals, then a step of every row."""
        scope, axis, rank = self.scope, self.op.axis, len(self.extents)
        index: list[Value | None] = [None] * rank
        with _loops(scope, self.extents, index, range(axis)):
            with _loops(scope, self.extents, index, range(axis + 1, rank)):
                self._write_totals(index, self._identities())
            with self._along() as (_, place):
                index[axis] = place
                with _loops(scope, self.extents, index, range(axis + 1, rank)):
                    totals = [scope.add(Read(memory, at)) for memory, at in self._where(index)]
                    step = self._step(totals, index)
                    self._write_totals(index, step)
                    if isinstance(self.op, Scan):
                        self._write_results(tuple(index), step)

    def _where(self, index: Sequence[Value | None]) -> list[tuple[Value, Value]]:
        """The memory of each total so far, and the offset in it."""
        axis = self.op.axis
        outer = (None,) * axis if isinstance(self.op, Scan) else tuple(index[:axis])
        places = (*outer, *index[axis + 1 :])
        buffers = [product.buffer for product in self.sums]
        return [(buffer.memory, buffer.offset(self.scope, places)) for buffer in buffers if buffer is not None]

    def _write_totals(self, index: Sequence[Value | None], values: Sequence[Value]) -> None:
        for (memory, at), value in zip(self._where(index), values, strict=True):
            self.scope.builder.add(Write(memory, at, value))


@contextmanager
def _loops(scope: Scope, extents: Sequence[Extent], index: list[Value | None], axes: Iterable[int]) -> Generator[None]:
    """Open loops along axes; `index` has their indices until the loops are closed."""
    names = NAMES.get(len(extents), ())
    outer = list(index)
    with ExitStack() as loops:
        for axis in axes:
            if not extents[axis].is_unit:
                name = names[axis] if axis < len(names) else f"axis_{axis}"
                index[axis] = loops.enter_context(scope.loop(extents[axis].stop(scope), name)).index
        yield
    index[:] = outer


def _inside(scope: Scope, sources: Sequence[Node], stops: Sequence[Value | None]) -> Value | None:
    """Whether loops up to `stops` stay in the tensors; None if they certainly do."""
    loaded = [node for node in sources if isinstance(node, Loaded)]
    return scope.all_of(list(dict.fromkeys(bit for node in loaded for bit in node.covers(scope, stops))))


def _in_versions(scope: Scope, inside: Value | None, write: Callable[[], None]) -> None:
    """Write loops twice: without checks for tiles inside the tensors, else with them.

    Once and without checks if `inside` is None.
    """
    outer, scope.masked = scope.masked, False
    if inside is None:
        write()
    else:
        with scope.block() as then:
            write()
            scope.builder.yield_()
        with scope.block() as orelse:
            scope.masked = True
            write()
            scope.builder.yield_()
        scope.branch(inside, then, orelse)
    scope.masked = outer


class _Chains(_Loops):
    """The loops of a reduction or scan: a chain of steps for each row."""

    def write_versions(self) -> None:
        """Write interleaved chains without checks, and one at a time with checks."""
        _in_versions(self.scope, self._inside(), lambda: self.write(1 if self.scope.masked else CHAINS))

    def write(self, together: int) -> None:
        """Write the loops, the innermost with `together` interleaved chains."""
        scope, op, extents = self.scope, self.op, self.extents
        names = NAMES.get(len(extents), ())
        index: list[Value | None] = [None] * len(extents)
        outer = [axis for axis, extent in enumerate(extents) if axis != op.axis and not extent.is_unit]
        rows = outer.pop() if outer and together > 1 and extents[outer[-1]].capacity >= together else None
        with _loops(scope, extents, index, outer):
            if rows is None:
                self._chains([index])
                return
            count = extents[rows].stop(scope)
            name = names[rows] if rows < len(names) else f"axis_{rows}"
            size = scope.index(together)
            whole = scope.shared(("//", count, size), FloorDiv(count, size))
            with scope.loop(whole, f"{name}_block") as block:
                first = scope.times(block.index, size)
                self._chains([_put(index, rows, scope.plus(first, scope.index(k))) for k in range(together)])
            done = scope.times(whole, size)
            with scope.loop(scope.minus(count, done), name) as rest:
                self._chains([_put(index, rows, scope.plus(done, rest.index))])

    def _chains(self, indices: Sequence[list[Value | None]]) -> None:
        """Write the loop along the axis, for the rows at these indices at once."""
        op, axis, start = self.op, self.op.axis, self._identities()
        if self.extents[axis].is_unit:
            for index in indices:
                self._write_results(_result_index(op, index), self._step(start, index))
            return
        with self._along(start * len(indices)) as (loop, place):
            totals: list[Value] = []
            for row, index in enumerate(indices):
                index[axis] = place
                step = self._step(loop.arguments[row * len(start) : (row + 1) * len(start)], index)
                if isinstance(op, Scan):
                    self._write_results(tuple(index), step)
                totals += step
            loop.yielded = tuple(totals)
        if not isinstance(op, Scan):
            (index,) = indices
            index[axis] = None
            self._write_results(_result_index(op, index), loop.results)


def _put(index: Sequence[Value | None], axis: int, value: Value) -> list[Value | None]:
    """An index with this value on an axis."""
    return [value if at == axis else old for at, old in enumerate(index)]


def _stored_at_once(lowering: Lowering, op: Folding) -> Loaded | None:
    """The block's own tile, if a scan's result is stored to it and not used elsewhere.

    The scan then writes each element of the tile as it comes to it, up to the tensor's edge. None if the kernel also
    accesses the tensor elsewhere.
    """
    # A reverse scan begins at the tile's end, which may lie behind the tensor's edge.
    if not isinstance(op, Scan) or op.reverse or len(op.results) != 1 or op.tiles[0].tile.shape[op.axis] == 1:
        return None
    store = lowering.uses.only_store_of(op.result)
    if store is None or store.x in lowering.aliases.exposed or lowering.accesses[store.x] > 1:
        return None
    lowering.stored.add(store)
    return lowering.target_of(store, op.result)


def _scalar(product: Product) -> Value:
    assert product.local is not None
    return product.local


def _result_index(op: Folding, index: Sequence[Value | None]) -> Index:
    return tuple(index) if isinstance(op, Scan) else (*index[: op.axis], *index[op.axis + 1 :])


def _write(scope: Scope, results: Sequence[Product], where: Index, values: Sequence[Value]) -> None:
    for product, value in zip(results, values, strict=True):
        if product.buffer is None:
            product.local = value
        else:
            scope.builder.add(Write(product.buffer.memory, product.buffer.offset(scope, where), value))
