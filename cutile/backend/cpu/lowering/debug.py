"""Prints and assertions: a print's values go to scratch memory, whence the process reads and writes them as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cpu.lowering.nests import Root, Target
from cutile.backend.cpu.lowering.nodes import Product
from cutile.backend.cpu.stage import FailUnless, Say
from cutile.ir.core import Value
from cutile.ops.debug import Assert, Print

if TYPE_CHECKING:
    from cutile.backend.cpu.lowering.lower import Lowering


def lower_print(lowering: Lowering, op: Print) -> None:
    """A print, once its values are in memory."""
    lowering.flush()
    memories: list[Value] = []
    for value in op.values:
        node = lowering.node(value)
        product = Product(node.dtype, lowering.extents(value), value.name)
        product.buffer = lowering.allocate(product)
        memories.append(product.buffer.memory)
        root = Root(product.extents, [Target(node, product=product)], location=op.location)
        lowering.pending.append(root)
        lowering.flush()
    lowering.scope.builder.location = op.location
    shapes = tuple((value.tile.dtype.name, value.tile.shape) for value in op.values)
    lowering.scope.builder.add(Say(memories=tuple(memories), pieces=op.pieces, specs=op.specs, shapes=shapes))
    lowering.scope.forget()


def lower_assert(lowering: Lowering, op: Assert) -> None:
    """An assertion: where it does not hold, the function says so and returns."""
    condition = lowering.concrete(op.condition)
    lowering.flush()
    lowering.scope.builder.location = op.location
    x, y, z = lowering.block_index()
    lowering.scope.builder.add(FailUnless(condition, x, y, z, message=op.message, where=op.where))
