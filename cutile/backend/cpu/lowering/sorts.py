"""Sorts and the largest elements, row by row.

The places come first, then the elements by their places.

for row:
    sort_places(x, row * step, 1, places, spare, count, descending)
    for i:
        values[row, i] = x[row, places[i]]
        result[row, i] = places[i]
"""

from contextlib import ExitStack

from cutile.backend.cpu.lowering.loop_nests import NAMES
from cutile.backend.cpu.lowering.lower import Lowering
from cutile.backend.cpu.lowering.tile_expr import Extent, Product
from cutile.backend.cpu.stage import Order, Read, Write
from cutile.dtypes import i32
from cutile.ir.core import Value
from cutile.ops.sort import Sort, TopK

MAX_INSERTED = 64
"""Elements up to which insertion finds the largest; a sort finds more of them sooner."""


def lower_sort(lowering: Lowering, op: Sort | TopK) -> None:
    """Sort rows in scratch memory."""
    scope = lowering.scope
    scope.builder.location = op.location
    node = lowering.node(op.x)
    x = Product(node.dtype, node.extents, f"{node.name}_rows" if node.name else "")
    x.buffer = lowering.allocate(x)
    lowering.keep(node, product=x)
    lowering.flush()
    results = [Product(value.tile.dtype, lowering.extents(value), value.name or op.name) for value in op.results]
    for product in results:
        product.buffer = lowering.allocate(product)
    length = x.extents[op.axis]
    scratch = [Product(i32, [Extent(length.capacity)], name) for name in ("places", "spare")]
    places, spare = (lowering.allocate(product).memory for product in scratch)
    scope.builder.location = op.location
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
        few = isinstance(op, TopK) and count <= MAX_INSERTED
        scope.builder.add(
            Order(
                x.buffer.memory, at, step, places, spare, length.stop(scope),
                descending=isinstance(op, TopK) or op.descending, k=count if few else 0,
            )
        )  # fmt: skip
        scope.forget()
        with scope.loop(scope.index(count), "place") as loop:
            place = scope.add(Read(places, loop.index))
            element = scope.add(Read(x.buffer.memory, scope.plus(at, scope.times(scope.as_index(place), step))))
            index[op.axis] = loop.index if count > 1 else None
            for product, value in zip(results, (element, place), strict=True):
                assert product.buffer is not None
                scope.builder.add(Write(product.buffer.memory, product.buffer.offset(scope, tuple(index)), value))
    scope.forget()
    for value, product in zip(op.results, results, strict=True):
        lowering.nodes[value] = product
