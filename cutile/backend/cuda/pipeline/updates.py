"""Sums of whole tiles in memory.

What `ct.atomic_red_view_tko(part, tile, index, ct.atomic.ADDF)` is by elements.

    %place = add(broadcast(mul(%i, 64)), iota())     and the like for each axis
    %p = add(tensor_address(%y), 4 * (place * stride + ...))
    atomic_rmw(%p, %tile, place < extent & ...) {kind = 'addf'}     -->     cuda.add_tile(%y, %tile, %i, ...)

As elements they take an address of 64 bits and a test each, and tile blocks in linear order. A sum that nobody reads in
the kernel is the same in any order of tile blocks, but for its rounding, which atomic updates leave open anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cutile.backend.cuda.ops import AddTile
from cutile.dtypes import f32, i32
from cutile.ir.constant import Constant
from cutile.ir.core import Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ir.types import MutType
from cutile.ops.arith import Add, And, Mul
from cutile.ops.atomic import AtomicRmw
from cutile.ops.cast import Convert
from cutile.ops.compare import Ge, Lt
from cutile.ops.create import Iota
from cutile.ops.debug import Assert
from cutile.ops.memory import TensorDim
from cutile.ops.pointer import TensorAddress, TensorStride
from cutile.ops.shape import Broadcast, Reshape
from cutile.passes.cse import cse
from cutile.passes.dce import dce


def add_tiles(function: Function) -> Function:
    """A copy of `function` with updates of whole tiles as such.

    Itself where there is none.
    """
    updates = [op for op in function.walk() if isinstance(op, AtomicRmw)]
    if not updates or any(isinstance(op, Assert) for op in function.walk()):
        return function
    used = Counter(value for op in function.walk() for value in op.operands)
    unread = {op.x for op in function.walk() if isinstance(op, TensorAddress)}
    for op in function.walk():
        if not isinstance(op, TensorAddress | TensorDim | TensorStride):
            unread -= set(op.operands)
    sums = iter([not used[op.result] and _is_sum(op) for op in updates])
    parameters = {value.name for value in unread}
    definitions: dict[Value, Op] = {}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        definitions.update(dict.fromkeys(op.results, op))
        if not isinstance(op, AtomicRmw) or not next(sums):
            return KEEP
        update = _Match(definitions, rewriter).update(op)
        if update is None or update.x.name not in parameters:
            return KEEP
        rewriter.builder.add(update)
        return op.value  # in place of a result that nobody reads

    updated = dce(cse(rewrite(function, rule)))
    return updated if any(isinstance(op, AddTile) for op in updated.walk()) else function


def _is_sum(op: AtomicRmw) -> bool:
    return op.kind == "addf" and op.order == "relaxed" and op.scope != "system" and op.value.tile.dtype is f32


class _Match:
    """The tile that some pointers lead to."""

    def __init__(self, definitions: dict[Value, Op], rewriter: Rewriter) -> None:
        self._definitions = definitions
        self._builder = rewriter.builder

    def update(self, op: AtomicRmw) -> AddTile | None:
        """The update of a whole tile that this is; None where it is another one."""
        tensor, offset = self._base(op.pointers)
        if tensor is None or offset is None or not isinstance(tensor.type, MutType):
            return None
        shape, kind = op.value.tile.shape, tensor.type.tensor
        if len(shape) != kind.rank or kind.unit_axis != kind.rank - 1:
            return None
        places: dict[int, Value] = {}
        for term in self._terms(offset, Add):
            axis, place = self._term(term, tensor)
            if axis is None or axis in places:
                return None
            places[axis] = place
        if not all(self._is_bound(test, places, tensor) for test in self._terms(op.mask, And)):
            return None
        index = [self._index(places.get(axis), extent) for axis, extent in enumerate(shape)]
        starts = [test for test in index if test is not None]
        return AddTile(tensor, op.value, tuple(starts)) if len(starts) == len(shape) else None

    def _of(self, value: Value) -> Op | None:
        """What makes a value, or the one that it repeats."""
        op = self._definitions.get(value)
        while isinstance(op, Broadcast):
            op = self._definitions.get(op.x)
        return op

    def _base(self, pointers: Value) -> tuple[Value | None, Value | None]:
        """The tensor, and the offset in elements."""
        total = self._of(pointers)
        if not isinstance(total, Add):
            return None, None
        parts = [self._of(total.x), self._of(total.y)]
        base = next((part for part in parts if isinstance(part, TensorAddress)), None)
        moved = next((part for part in parts if isinstance(part, Convert)), None)
        size = self._of(moved.x) if moved is not None else None
        if base is None or not isinstance(size, Mul):
            return None, None
        element = base.x.tensor.dtype.bits // 8
        return base.x, size.x if self._constant(size.y) == element else None

    def _terms(self, value: Value, kind: type[Add | And]) -> Iterator[Value]:
        op = self._of(value)
        # Two terms that add up to a place along an axis are none of their own.
        if isinstance(op, kind) and not (isinstance(op, Add) and self._is_place(value)):
            yield from self._terms(op.x, kind)
            yield from self._terms(op.y, kind)
        else:
            yield value

    def _is_place(self, value: Value) -> bool:
        op = self._of(value)
        return isinstance(op, Add) and any(isinstance(self._of(term), Iota) for term in (op.x, op.y))

    def _term(self, value: Value, tensor: Value) -> tuple[int | None, Value]:
        """The axis that a term goes along, and where."""
        op = self._of(value)
        if not isinstance(op, Mul):
            return tensor.tensor.unit_axis, value
        stride = self._of(op.y)
        if isinstance(stride, TensorStride) and stride.x is tensor:
            return stride.axis, op.x
        stride_elements = self._constant(op.y)
        strides = tensor.tensor.strides
        once = stride_elements is not None and strides.count(stride_elements) == 1
        return strides.index(stride_elements) if once else None, op.x

    def _is_bound(self, value: Value, places: dict[int, Value], tensor: Value) -> bool:
        """Whether a test says that a place lies inside the tensor; `add_tile` tests that."""
        op = self._of(value)
        if isinstance(op, Constant):
            return bool(op.value)
        if not isinstance(op, Lt | Ge):
            return False
        if isinstance(op, Ge):
            return self._constant(op.y) == 0 and any(self._of(op.x) is self._of(place) for place in places.values())
        end = self._of(op.y)
        end = self._of(end.x) if isinstance(end, Convert) else end
        for axis, place in places.items():
            if self._of(op.x) is self._of(place):
                dynamic = isinstance(end, TensorDim) and end.x is tensor and end.axis == axis
                return dynamic or (isinstance(end, Constant) and end.value == tensor.tensor.shape[axis])
        return False

    def _index(self, place: Value | None, extent: int) -> Value | None:
        """The index of the tile along an axis.

        None where its elements do not lie side by side from there on.
        """
        if place is None:
            return self._builder.constant(0, i32) if extent == 1 else None
        op = self._of(place)
        op = self._of(op.x) if isinstance(op, Reshape) else op
        if isinstance(op, Iota):
            return self._builder.constant(0, i32) if op.length == extent else None
        if not isinstance(op, Add):
            return None
        first, second = self._of(op.x), self._of(op.y)
        start, lanes = (second, first) if isinstance(first, Iota) else (first, second)
        if not isinstance(lanes, Iota) or lanes.length != extent:
            return None
        if isinstance(start, Constant):
            return self._builder.constant(start.value // extent, i32) if start.value % extent == 0 else None
        if extent > 1:
            if not isinstance(start, Mul) or self._constant(start.y) != extent:
                return None
            start = self._of(start.x)
        return start.x if isinstance(start, Convert) and start.x.tile.dtype is i32 else None

    def _constant(self, value: Value) -> int | None:
        op = self._of(value)
        return op.value if isinstance(op, Constant) and isinstance(op.value, int) else None
