"""Accesses by address, prints, assertions, and views that cut tiles at any step.

An access by address runs at its place in the program, element by element, in loops of its own. Loads of memory that
nothing writes during a launch are the exception: their elements are pulled where they are used, as other tiles' are. A
print's values go to scratch memory, from which the process writes them as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cutile.backend.cpu.lowering.loop_nests import Root, Target
from cutile.backend.cpu.lowering.scope import Scope
from cutile.backend.cpu.lowering.tile_expr import Extent, Index, Loaded, Node, Product, TensorAxis
from cutile.backend.cpu.stage import FailUnless, Gather, Say
from cutile.dtypes import i64, u64
from cutile.ir import KEEP, Constant, Function, Op, Replacement, Rewriter, Value, rewrite
from cutile.ops.arith import Add, Mul
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.cast import Convert
from cutile.ops.compare import Ge, Select
from cutile.ops.debug import Assert, Print, reported
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress
from cutile.ops.shape import Broadcast, Reshape
from cutile.ops.view import LoadView, StoreView

if TYPE_CHECKING:
    from cutile.backend.cpu.lowering.lower import Lowering

Access = LoadPointer | StorePointer | AtomicRmw | AtomicCas


def gathers(function: Function) -> Function:
    """A copy of `function` in which loads by address from a known tensor are gathers.

        %1 = mul(%offset, 4)                        the bytes of an element
        %2 = add(address of %x, %1)            ->   %3 = cpu.gather(%x, %offset, %inside)
        %3 = load_pointer(%2, %inside, 0.0)

    Nothing writes the tensor. LLVM cannot tell whether a store writes to a computed address. It knows that nothing in
    the loop writes to an element of the tensor, so it can make vectors of the loop and load neighbours at once.
    """
    made_by: dict[Value, Op] = {}

    def constant(value: Value) -> float | None:
        """The number that all elements of a tile have, if it is known."""
        op = made_by.get(value)
        while isinstance(op, Broadcast | Reshape):
            op = made_by.get(op.x)
        return op.value if isinstance(op, Constant) else None

    def tensor(addresses: Value) -> Value | None:
        """The tensor whose address all elements of a tile are, if any."""
        op = made_by.get(addresses)
        while isinstance(op, Broadcast | Reshape):
            op = made_by.get(op.x)
        return op.x if isinstance(op, TensorAddress) else None

    def offset(distance: Value, nbytes: int) -> Value | None:
        """A distance in bytes as a number of elements of `nbytes`, if it is known as one."""
        op = made_by.get(distance)
        if not isinstance(op, Convert) or op.dtype is not u64:
            return None
        product = made_by.get(op.x)
        if nbytes == 1 and not isinstance(product, Mul):  # `fold` drops a factor of 1
            return op.x
        if isinstance(product, Mul) and constant(product.y) == nbytes:
            return product.x
        return None

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        made_by.update(dict.fromkeys(op.results, op))
        if not isinstance(op, LoadPointer) or not op.constant or op.order != "weak":
            return KEEP
        address, padding = made_by.get(op.pointers), constant(op.pad)
        if not isinstance(address, Add) or padding is None:
            return KEEP
        x = tensor(address.x)
        if x is None or x.tensor.dtype is not op.pad.tile.dtype or x.tensor.dtype.bits < 8:
            return KEEP
        at = offset(address.y, x.tensor.dtype.bits // 8)
        if at is None or at.tile.dtype is not i64:
            return KEEP
        return rewriter.builder.value(Gather(x=x, at=at, inside=op.mask, padding=padding))

    return rewrite(function, rule)


def is_access(op: Op) -> bool:
    """Whether an operation accesses memory by address, in program order."""
    if isinstance(op, LoadPointer):
        return not op.constant
    return isinstance(op, StorePointer | AtomicRmw | AtomicCas)


class Touch(Node):
    """An access by address; its element is the access of one lane."""

    def __init__(self, op: Op, operands: Sequence[Node], extents: Sequence[Extent]) -> None:
        super().__init__(operands[1].dtype, extents, op.results[0].name if op.results else "")
        self._op = op
        self._operands = tuple(operands)

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        return ((operand, index) for operand in self._operands)

    def compute(self, scope: Scope, index: Index) -> Value:
        operands = [operand.at(scope, index) for operand in self._operands]
        scope.builder.location = self._op.location or scope.builder.location
        access = scope.builder.add(self._op.copy_with(operands, (), ()))
        if not access.results:
            return operands[1]  # a store has no result, but a node needs a value; nothing reads this one
        access.result.name = self.name
        return access.result


def lower_access(lowering: Lowering, op: Access) -> None:
    """Lower an access in program order: after the pending loops, and at once."""
    lowering.flush()  # what is pending may read the memory that the access writes
    extents = lowering.extents(op.pointers)
    operands = op.lanes if isinstance(op, AtomicRmw) else op.operands
    touch = Touch(op, [lowering.node(value) for value in operands], extents)
    product = None
    if op.results:
        (result,) = op.results
        product = Product(result.tile.dtype, extents, result.name)
        lowering.nodes[result] = product
    root = Root(extents, [Target(touch, product=product)], location=op.location, key=op)
    lowering.pending.append(root)
    lowering.flush()


def lower_print(lowering: Lowering, op: Print) -> None:
    """Lower a print: its values go to scratch memory first."""
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
    """Lower an assertion: where it fails, the function notes the failure and returns."""
    condition = lowering.concrete(op.condition)
    names, kinds, values = reported(op, lowering.made_by)
    integers = [lowering.concrete(value) for value in values]
    lowering.flush()  # stores before the assertion are done even if it fails
    lowering.scope.builder.location = op.location
    x, y, z = lowering.block_index()
    numbers = tuple(map(lowering.scope.as_index, integers))
    lowering.scope.builder.add(
        FailUnless(condition, x, y, z, numbers, names=names, kinds=kinds, message=op.message, where=op.where)
    )


def _axes(lowering: Lowering, op: LoadView | StoreView) -> list[TensorAxis]:
    """The axes of a view's tile. An axis with a limit ends there."""
    scope, limits = lowering.scope, dict(zip(op.limited, op.limits, strict=True))
    axes: list[TensorAxis] = []
    for axis, (index, step) in enumerate(zip(op.starts, op.steps, strict=True)):
        plain = lowering.tile_axis(op.x, axis, (index, step))
        size = plain.size
        if axis in limits:
            limit = scope.as_index(lowering.concrete(limits[axis]))
            size = scope.smaller(size, limit, f"{op.x.name or 'view'}_end_{axis}")
        axes.append(TensorAxis(plain.start, size, plain.stride, False, plain.may_be_negative, whole=True))
    return axes


def load_view(lowering: Lowering, op: LoadView, extents: Sequence[Extent]) -> Loaded:
    """A tile whose elements are read where they are used."""
    axes = _axes(lowering, op)
    if op.is_plain:  # tiles lie side by side, so that neighbouring tile blocks may run as one
        axes = [lowering.tile_axis(op.x, *each) for each in enumerate(zip(op.starts, op.shape, strict=True))]
    return lowering.loaded(op.x, axes, extents, op.padding_value)


def store_view(lowering: Lowering, op: StoreView) -> None:
    """Lower a store to loops over the part of the tile that lies in the tensor."""
    axes = _axes(lowering, op)
    node = lowering.node(op.value)
    extents = [
        Extent(extent.capacity, _count(lowering, axis, extent)) for axis, extent in zip(axes, node.extents, strict=True)
    ]
    tile = lowering.loaded(op.x, axes, extents)
    lowering.pending.append(Root(tuple(extents), [Target(node, tile=tile)], location=op.location, key=op))


def _count(lowering: Lowering, axis: TensorAxis, extent: Extent) -> Value:
    """The number of elements to write along an axis.

    0 where the tile begins before the tensor.
    """
    scope = lowering.scope
    count = scope.smaller(extent.stop(scope), scope.minus(axis.size, axis.start), "count")
    if axis.may_be_negative:
        inside = scope.shared(("0<=", axis.start), Ge(axis.start, scope.index(0)))
        count = scope.shared(("or 0", inside, count), Select(inside, count, scope.index(0)))
    return count
