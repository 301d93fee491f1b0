"""Atomic sums that a thread block keeps in shared memory (*privatised*).

Examples are a histogram, counts, or a scatter-add into few elements. If a loop only adds to a tensor, each thread block
adds in shared memory, and adds its sums to the tensor at its end. Sums of integers are the same in any order.

    for ...: atomic_rmw(%p, %one, %mask) {kind = 'add'}
-->
    cuda.private_start(%n)
    for ...: cuda.private_update(%index, %one, %base, %n, ...)
    cuda.private_end(%base, %n)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.backend.cuda.compaction import Compactions, conjuncts
from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.op_lowering import lower_operation
from cutile.backend.cuda.ops.private import PrivateEnd, PrivateStart, PrivateUpdate
from cutile.backend.gpu.layout_assignment import LayoutAssignment
from cutile.backend.gpu.op_facts import DefUse
from cutile.dtypes import i32, u32
from cutile.ir import Block, Constant, For, Function, Op, Value, While
from cutile.ops.arith import Add, Mul
from cutile.ops.atomic import AtomicRmw
from cutile.ops.cast import Convert
from cutile.ops.compare import Ge, Lt
from cutile.ops.create import Iota
from cutile.ops.memory import TensorDim
from cutile.ops.pointer import TensorAddress, TensorStride
from cutile.ops.shape import Broadcast

CELLS = 8192
"""Words of a thread block for its sums, several for each where there is room (`intrinsics/private.py`): 32 KiB, so that
a multiprocessor holds several blocks."""
WORD = 4
"""Bytes of a sum."""
PRIVATE_BYTES = (CELLS + 32) * WORD
"""Bytes of shared memory: the sums, and one cell for each lane, to which the lane adds where its mask is false."""


@dataclass(frozen=True)
class Terms:
    """The index and the mask of an update.

    The mask lacks the test whether elements are in the tensor: the lowered update makes it.

    Attributes:
        index: the index of each element, integers of at most 32 bits.
        limit: the number of the tile's first lanes that update, if there is such a condition.
        masks: the other conditions.
    """

    index: Value
    limit: tuple[Value, ...]
    masks: tuple[Value, ...]


class UnreadUpdates:
    """Lowers the operations of one kernel, among them updates that nobody reads.

    It is a context around the lowering of the kernel's body. If a tensor fits (`private_tensor`), its sums in shared
    memory are set to 0 ahead of the body, and added to the tensor after it.

    Args:
        context: the lowering of the kernel.
    """

    def __init__(self, context: LoweringContext) -> None:
        self._context = context
        self._compactions = Compactions(context)
        self._tensors = unread_updates(context.function)
        self._terms: dict[AtomicRmw, Terms] = {}
        self._place = 0

    def __enter__(self) -> None:
        context = self._context
        choice = private_tensor(context.function, self._tensors, context.layouts)
        if choice is None:
            return
        tensor, self._terms = choice
        x, extent, builder = context.lowered[tensor], tensor.tensor.shape[0], context.builder
        self._extent = builder.value(TensorDim(x=x, axis=0)) if extent is None else builder.constant(extent)
        self._base = builder.value(TensorAddress(x=x))
        self._place = context.smem.reserve(PRIVATE_BYTES)
        self._add(PrivateStart(extent=self._extent))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._terms and kind is None:
            self._add(PrivateEnd(base=self._base, extent=self._extent))

    def lower(self, op: Op) -> None:
        """Lower any operation of the kernel."""
        context = self._context
        if not isinstance(op, AtomicRmw) or op not in self._tensors:
            if not self._compactions.lower(op):
                lower_operation(context, op)
                self._compactions.lowered(op)
            return
        if op not in self._terms:  # an update of global memory, before which the block's threads need not meet
            update = op.copy_with(op.operands, (), op.results)
            update.attributes["ordered"] = False
            update.location = op.location
            lower_operation(context, update)
            return
        terms = self._terms[op]
        context.builder.location = op.location
        update = PrivateUpdate(
            index=context.lowered[terms.index],
            value=context.lowered[op.value],
            base=self._base,
            extent=self._extent,
            conditions=tuple(context.lowered[each] for each in (*terms.limit, *terms.masks)),
            limited=bool(terms.limit),
        )
        self._add(update, lanes=context.name_of(op.pointers))

    def _add(self, op: Op, **attributes: Any) -> None:
        self._context.add(op, threads=self._context.warps * 32, **attributes)
        self._context.smem.share(op, self._place)


def unread_updates(function: Function) -> dict[AtomicRmw, Value]:
    """Updates with unused results, of tensors that are accessed in no other way.

    They may be made in any order, and the threads of a block need not wait for one another.

    Returns:
        The tensor of each update.
    """
    if function.facts.get("unsafe"):
        return {}  # a raw pointer may lead to the same elements
    chains = DefUse(function.body)
    definitions, users = chains.definitions, chains.users
    unread: dict[AtomicRmw, Value] = {}
    for tensor in function.parameters:
        updates = _updates_of(tensor, users, definitions)
        if updates and all(op.kind == updates[0].kind and not users.get(op.result) for op in updates):
            unread.update(dict.fromkeys(updates, tensor))
    return unread


def _updates_of(tensor: Value, users: Mapping[Value, Sequence[Op]], definitions: Mapping[Value, Op]) -> list[AtomicRmw]:
    """The relaxed updates of a tensor; none if it is accessed in any other way."""
    updates: list[AtomicRmw] = []
    for op in users.get(tensor, []):
        if isinstance(op, TensorDim | TensorStride):
            continue
        if not isinstance(op, TensorAddress):
            return []
        pending = [op.result]
        while pending:
            address = pending.pop()
            for user in users.get(address, []):
                if isinstance(user, AtomicRmw) and user.pointers is address and user.order == "relaxed":
                    updates.append(user)
                elif isinstance(user, Broadcast | Add):
                    pending.append(user.result)
                else:
                    return []
    return updates


def private_tensor(
    function: Function, updates: Mapping[AtomicRmw, Value], layouts: LayoutAssignment
) -> tuple[Value, dict[AtomicRmw, Terms]] | None:
    """The tensor whose sums are kept in shared memory, with its updates' terms.

    It is the first that fits: each tensor would take the same shared memory. None where no tensor fits.
    """
    looped = set(_looped(function.body, False))
    match = _Match(DefUse(function.body).definitions)
    for tensor in dict.fromkeys(updates.values()):
        kind = tensor.tensor
        simple = kind.rank == 1 and kind.strides == (1,) and kind.dtype in (i32, u32)
        if not simple or (kind.shape[0] or 0) > CELLS:
            continue
        terms: dict[AtomicRmw, Terms | None] = {}
        for op, of in updates.items():
            if of is tensor:
                fits = op.kind == "add" and op.scope != "system" and op in looped and op.pointers.tile.shape
                terms[op] = match.terms(op, tensor, layouts) if fits else None
        known = {op: each for op, each in terms.items() if each is not None}
        if len(known) == len(terms):
            return tensor, known
    return None


class _Match:
    """Takes apart the operations that the front end writes for an update of elements."""

    def __init__(self, definitions: Mapping[Value, Op]) -> None:
        self._definitions = definitions

    def terms(self, op: AtomicRmw, tensor: Value, layouts: LayoutAssignment) -> Terms | None:
        """The terms of an update.

        None where it has another form, or its parts have several layouts.
        """
        place = self._place(op.pointers, tensor)
        if place is None:
            return None
        wide = self._of(place)
        if not isinstance(wide, Convert) or wide.x.tile.dtype.bits > 32 or not wide.x.tile.dtype.is_integer:
            return None
        index = wide.x
        conditions = [
            each
            for each in conjuncts(op.mask, self._definitions)
            if self._constant(each) is not True and not self._is_bound(each, place, tensor)
        ]
        limits = [limit for each in conditions if (limit := self._limit(each)) is not None]
        masks = tuple(each for each in conditions if self._limit(each) is None)
        tiles = [index, op.value, *masks]
        if len(limits) > 1 or any(each.tile.shape != op.pointers.tile.shape for each in tiles):
            return None
        if any(layouts[each] != layouts[op.pointers] for each in tiles):
            return None
        return Terms(index, tuple(limits), masks)

    def _of(self, value: Value) -> Op | None:
        """The operation that makes a value, or the value that it repeats."""
        op = self._definitions.get(value)
        while isinstance(op, Broadcast):
            op = self._definitions.get(op.x)
        return op

    def _constant(self, value: Value) -> Any:
        op = self._of(value)
        return op.value if isinstance(op, Constant) else None

    def _place(self, pointers: Value, tensor: Value) -> Value | None:
        """The index of the elements, in 64 bits.

        None unless the addresses are the tensor's address and `WORD` times the index, with nothing else added.
        """
        total = self._of(pointers)
        for start, distance in ((total.x, total.y), (total.y, total.x)) if isinstance(total, Add) else ():
            address, moved = self._of(start), self._of(distance)
            size = self._of(moved.x) if isinstance(moved, Convert) else None
            starts = isinstance(address, TensorAddress) and address.x is tensor
            if starts and isinstance(size, Mul) and self._constant(size.y) == WORD:
                return size.x
        return None

    def _is_bound(self, mask: Value, place: Value, tensor: Value) -> bool:
        """Whether a condition says that an element is in the tensor."""
        op = self._definitions.get(mask)
        if isinstance(op, Ge):
            return op.x is place and self._constant(op.y) == 0
        if not isinstance(op, Lt) or op.x is not place:
            return False
        end = self._of(op.y)
        end = self._of(end.x) if isinstance(end, Convert) else end
        if isinstance(end, TensorDim):
            return end.x is tensor
        return isinstance(end, Constant) and end.value == tensor.tensor.shape[0]

    def _limit(self, mask: Value) -> Value | None:
        """The number `n` of a condition that holds for the first `n` elements, or None."""
        op = self._definitions.get(mask)
        if not isinstance(op, Lt) or not isinstance(self._definitions.get(op.x), Iota):
            return None
        end = self._definitions.get(op.y)
        if isinstance(end, Broadcast) and end.x.tile.is_scalar and end.x.tile.dtype is i32:
            return end.x
        return None


def _looped(block: Block, inside: bool) -> Iterator[Op]:
    """The operations inside of loops."""
    for op in block.operations:
        if inside:
            yield op
        for region in op.regions:
            yield from _looped(region, inside or isinstance(op, For | While))
