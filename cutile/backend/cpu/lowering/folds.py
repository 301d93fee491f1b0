"""Reductions and scans by a function of scalars.

Plain loops over tiles in scratch memory.

for row:                              for row:
    m = identity                          m = identity
    for column:                           for column:
        m = body(m, x[row, column])           m = body(m, x[row, column])
    result[row] = m                           result[row, column] = m
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from cutile.backend.cpu.lowering.loop_nests import NAMES
from cutile.backend.cpu.lowering.lower import Lowering
from cutile.backend.cpu.lowering.scope import Loop, Scope
from cutile.backend.cpu.lowering.tile_expr import Index, Node, Number, Product, Scalar
from cutile.backend.cpu.stage import Write
from cutile.ir.core import Block, Value
from cutile.ops.reduce import Folding, Scan


def _body(scope: Scope, body: Block, arguments: Sequence[Value]) -> list[Value]:
    """The body's operations, written here."""
    copies = dict(zip(body.arguments, arguments, strict=True))
    for op in body.operations[:-1]:
        scope.builder.location = op.location or scope.builder.location
        copies[op.result] = scope.add(op.copy_with([copies[value] for value in op.operands], (), ()), op.result.name)
    return [copies[value] for value in body.terminator.operands]


def _in_memory(lowering: Lowering, node: Node) -> Node:
    """A node that can be read at any place, as often as one likes."""
    if isinstance(node, Product | Number | Scalar):
        return node
    return lowering.keep(node)


def lower_fold(lowering: Lowering, op: Folding) -> None:
    """A reduction or scan: what it reads is computed first, then come its loops."""
    scope = lowering.scope
    scope.builder.location = op.location
    sources = [_in_memory(lowering, lowering.node(value)) for value in op.tiles]
    lowering.flush()
    scope.masked = True
    scope.builder.location = op.location
    results = [Product(value.tile.dtype, lowering.extents(value), value.name or op.name) for value in op.results]
    is_scan = isinstance(op, Scan)
    for product in results:
        if is_scan or any(not extent.is_unit for extent in product.extents):
            product.buffer = lowering.allocate(product)
    extents = sources[0].extents
    rank = len(extents)
    names = NAMES.get(rank, ())
    index: list[Value | None] = [None] * rank
    with ExitStack() as loops:
        for axis, extent in enumerate(extents):
            if axis != op.axis and not extent.is_unit:
                name = names[axis] if axis < len(names) else f"axis_{axis}"
                index[axis] = loops.enter_context(scope.loop(extent.stop(scope), name)).index
        start = [scope.number(n, node.dtype) for n, node in zip(op.identities, sources, strict=True)]
        count = extents[op.axis].stop(scope)
        if extents[op.axis].is_unit:
            totals = _turn(scope, op, sources, index, start)
            _write(scope, results, _place(op, index), totals)
        else:
            with scope.loop(count, names[op.axis] if op.axis < len(names) else "place", start) as loop:
                totals = _step(scope, op, sources, index, loop, count)
                if is_scan:
                    _write(scope, results, tuple(index), totals)
                loop.yielded = tuple(totals)
            if not is_scan:
                index[op.axis] = None
                _write(scope, results, _place(op, index), loop.results)
    scope.forget()
    for value, product in zip(op.results, results, strict=True):
        lowering.nodes[value] = product if product.buffer is not None else Scalar(_scalar(product), product.extents)


def _scalar(product: Product) -> Value:
    assert product.local is not None
    return product.local


def _place(op: Folding, index: Sequence[Value | None]) -> Index:
    return tuple(index) if isinstance(op, Scan) else (*index[: op.axis], *index[op.axis + 1 :])


def _step(
    scope: Scope, op: Folding, sources: Sequence[Node], index: list[Value | None], loop: Loop, count: Value
) -> list[Value]:
    """One turn of the loop along the axis; from the end where the scan is reversed."""
    at = loop.index
    if isinstance(op, Scan) and op.reverse:
        at = scope.minus(scope.minus(count, scope.index(1)), at)
    index[op.axis] = at
    return _turn(scope, op, sources, index, loop.arguments)


def _turn(
    scope: Scope, op: Folding, sources: Sequence[Node], index: Sequence[Value | None], held: Sequence[Value]
) -> list[Value]:
    elements = [node.at(scope, tuple(index)) for node in sources]
    return _body(scope, op.body, [*held, *elements])


def _write(scope: Scope, results: Sequence[Product], where: Index, values: Sequence[Value]) -> None:
    for product, value in zip(results, values, strict=True):
        if product.buffer is None:
            product.local = value
        else:
            scope.builder.add(Write(product.buffer.memory, product.buffer.offset(scope, where), value))
