"""Sums of rows that loops carry: lanes add up their partial sums after the loop.

Several lanes share a row of a tile. `reduce_sum` adds up the elements in each lane, and then the lanes' partial sums by
shuffles. A sum that a loop only adds to and scales needs no shuffles in the loop, as in FlashAttention:

    for ...:                                        for ...:
        total = total * fade + reduce_sum(w)   -->      total = total * fade + sums in each lane(w)
    y = x / total                                   y = x / sum_lanes(total)

Each shuffle waits for the one before it, and the operations that read the sum wait for the last. Attention of width
128 runs 1.05 times as fast without them (H200, docs/benchmarks/loops/attention.md). The order of a sum's additions is
free (`ops/reduce.py`). A factor may be applied to each partial sum, since all lanes of a row hold the same factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import SumLanes
from cutile.backend.cuda.smem_sizes import lane_mask, warp_mask
from cutile.backend.gpu.layout_assignment import carried_groups
from cutile.backend.gpu.op_facts import DefUse
from cutile.dtypes import f32
from cutile.ir import Constant, For, Function, If, Op, Value, While
from cutile.ops.arith import Add, Mul
from cutile.ops.reduce import ReduceSum
from cutile.ops.shape import Reshape

__all__ = ("defer_lane_sums",)

MIN_ELEMENTS = 32
"""Elements of a row that a lane must hold. The pass brings attention of width 256, whose lanes hold 16 of 64 keys, to
0.95 of its speed. Widths 64 and 128, whose lanes hold 32 of 128 keys, come to 0.99 to 1.05 (H200)."""


def defer_lane_sums(function: Function) -> Function:
    """Move the shuffles of carried sums behind their loops.

    A sum stays as it is if its loop uses it otherwise, if it starts from anything but zero, if several warps share a
    row, or if a lane holds few elements of a row.

    Args:
        function: a lowered function; it is changed in place.

    Returns:
        The same function.
    """
    kernel, layouts = _Kernel(function.body), layouts_of(function)
    values: set[Value] = set()  # the sums that were looked at

    def lanes_of(op: ReduceSum) -> int:
        """The bits of a lane's number in which the lanes of a row differ.

        0 if this reduction must not stop at the partial sums.
        """
        layout = layouts[op.attributes["source"]]
        elements = layout.registers // layout.collapse(op.axis).registers
        may_stop = op.x.tile.dtype is f32 and elements >= MIN_ELEMENTS and not warp_mask(layout, op.axis)
        return lane_mask(layout, op.axis) if may_stop else 0

    for op in [*function.walk()]:
        if not isinstance(op, ReduceSum) or op.result in values:
            continue
        sums = kernel.sums_with(op)
        values |= sums.values
        lanes = {lanes_of(reduction) for reduction in sums.reductions}
        if sums.may_wait and len(lanes) == 1 and lanes != {0}:
            kernel.defer(sums, lanes.pop())
    return function


@dataclass
class _Sums:
    """Sums that are one carried variable, or are computed from each other.

    Attributes:
        values: the sums.
        reductions: the reductions from which they are computed.
        readers: the sums that any other operation reads, each with these operations.
        layouts: the name of the layout of each sum in `readers`; None for a scalar.
        may_wait: whether the lanes may be added up after the loops.
    """

    values: set[Value] = field(default_factory=set[Value])
    reductions: list[ReduceSum] = field(default_factory=list[ReduceSum])
    readers: dict[Value, list[Op]] = field(default_factory=dict[Value, list[Op]])
    layouts: dict[Value, Any] = field(default_factory=dict[Value, Any])
    may_wait: bool = False


class _Kernel(DefUse):
    """A lowered function, and the values that its loops and branches carry."""

    @cached_property
    def _carried(self) -> dict[Value, list[tuple[Value, ...]]]:
        """The groups of `carried_groups` that a value is in."""
        carried: dict[Value, list[tuple[Value, ...]]] = {}
        for group in (group for op in self.order for group in carried_groups(op)):
            for value in group:
                carried.setdefault(value, []).append(group)
        return carried

    def _depth(self, op: Op) -> int:
        """The number of loops around an operation."""
        return sum(isinstance(around, For | While) for around in self.parents[op])

    def sums_with(self, reduction: ReduceSum) -> _Sums:
        """The result of a reduction, and the sums that are partial if it is.

        They are the sums from which it is computed, and those computed from it that a loop or branch carries.
        """
        sums, pending = _Sums(), [reduction.result]
        while pending:
            value = pending.pop()
            if value in sums.values:
                continue
            sums.values.add(value)
            pending += [other for group in self._carried.get(value, ()) for other in group]
            pending += self._sources(value, sums)
            for op in self.users[value]:
                if self._is_carried(op):
                    pending.append(op.results[0])
                elif not isinstance(op, For | While | If) and not op.terminates:  # which carry it
                    sums.readers.setdefault(value, []).append(op)
        operations = {self.definitions[value] for value in sums.values if value in self.definitions}
        layouts = {op.results[0].type: op.attributes["layout"] for op in operations if "layout" in op.attributes}
        sums.layouts = {value: layouts.get(value.type) for value in sums.readers}
        # Operations that read the sums must run less often than those that add to them: a read costs the shuffles.
        depth = max(map(self._depth, sums.reductions))
        sums.may_wait = (
            all(self._is_sum(op, sums.values) for op in operations)
            and all(self._depth(op) < depth for ops in sums.readers.values() for op in ops)
            and all(sums.layouts.values())
            and sums.readers.keys() <= self.definitions.keys()
        )
        return sums

    def _sources(self, value: Value, sums: _Sums) -> Iterator[Value]:
        """The sums from which a value is computed."""
        op = self.definitions.get(value)
        if isinstance(op, ReduceSum):
            sums.reductions.append(op)
        elif isinstance(op, Add):
            yield from op.operands
        elif op is not None and _only_renames(op):
            yield op.operands[0]

    def _is_carried(self, op: Op) -> bool:
        """Whether a loop or branch carries the result of an addition or factor.

        Further additions and factors may come between.
        """
        pending, seen = [op], {op}  # each operation once: an operation may read a value twice, as `x + x`
        while pending:
            op = pending.pop()
            if not (isinstance(op, Add | Mul) or _only_renames(op)):
                continue
            if op.results[0] in self._carried:
                return True
            readers = set(self.users[op.results[0]]) - seen
            seen |= readers
            pending += readers
        return False

    def _is_sum(self, op: Op, values: set[Value]) -> bool:
        """Whether an operation has partial sums as its result if it reads such."""
        if isinstance(op, Mul):  # of a sum and a factor: a product of two sums is no sum of products
            return (op.x in values) != (op.y in values)
        if isinstance(op, Constant):
            return op.value == 0
        return isinstance(op, Add | ReduceSum | For | While | If) or _only_renames(op)

    def defer(self, sums: _Sums, lanes: int) -> None:
        """Leave sums partial, and add up the lanes before other operations read them.

        Args:
            sums: sums that may wait.
            lanes: the bits of a lane's number in which the lanes of a row differ.
        """
        for op in sums.reductions:
            op.attributes["in_lanes"] = True
        for value, readers in sums.readers.items():  # behind the definition, so that all readers share the shuffles
            op = self.definitions[value]
            operations = self.home[op].operations
            total = SumLanes(x=value, lanes=lanes)
            total.attributes["layout"] = sums.layouts[value]
            total.location, total.results = op.location, (Value(value.type, value.name),)
            operations.insert(operations.index(op) + 1, total)
            for reader in readers:
                reader.operands = tuple(total.result if other is value else other for other in reader.operands)


def _only_renames(op: Op) -> bool:
    """Whether an operation leaves the elements of its operand in their registers."""
    return isinstance(op, Reshape) and op.attributes.get("how") == "keep"
