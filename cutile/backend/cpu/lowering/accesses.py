"""Accesses by address: each runs at its place in the program, element by element, in loops of its own.

Loads of what nothing writes during a launch are the exception: they are pulled like any other element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cutile.backend.cpu.lowering.nests import Root, Target
from cutile.backend.cpu.lowering.nodes import Extent, Index, Node, Product
from cutile.backend.cpu.lowering.scope import Scope
from cutile.ir.core import Op, Value
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.pointer import LoadPointer, StorePointer

if TYPE_CHECKING:
    from cutile.backend.cpu.lowering.lower import Lowering

Access = LoadPointer | StorePointer | AtomicRmw | AtomicCas


def is_access(op: Op) -> bool:
    """Whether an operation accesses memory by address in its turn."""
    if isinstance(op, LoadPointer):
        return not op.constant
    return isinstance(op, StorePointer | AtomicRmw | AtomicCas)


class Touch(Node):
    """One lane of an access."""

    def __init__(self, op: Op, operands: Sequence[Node], extents: Sequence[Extent]) -> None:
        super().__init__(operands[1].dtype, extents, op.results[0].name if op.results else "")
        self._op = op
        self._operands = tuple(operands)

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        return ((operand, index) for operand in self._operands)

    def compute(self, scope: Scope, index: Index) -> Value:
        operands = [operand.at(scope, index) for operand in self._operands]
        scope.builder.location = self._op.location or scope.builder.location
        made = scope.builder.add(self._op.copy_with(operands, (), ()))
        if not made.results:
            return operands[1]  # what was stored; nobody asks
        made.result.name = self.name
        return made.result


def lower_access(lowering: Lowering, op: Access) -> None:
    """An access, between all that comes before it and all that comes after."""
    lowering.flush()
    extents = lowering.extents(op.pointers)
    touch = Touch(op, [lowering.node(value) for value in op.operands], extents)
    product = None
    if op.results:
        (result,) = op.results
        product = Product(result.tile.dtype, extents, result.name)
        lowering.nodes[result] = product
    root = Root(extents, [Target(touch, product=product)], location=op.location, key=op)
    lowering.pending.append(root)
    lowering.flush()
