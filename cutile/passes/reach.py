"""Bring tile indices far outside of a tensor to one just outside, in 32 bits.

    load_tile(%x, %i) {shape = 64} with %i : i64   ->   %2 = max(min(%i, 33538048), -1)
                                                        %3 = convert(%2) {dtype = i32}
                                                        load_tile(%x, %3) {shape = 64}

Targets find an element by `index * step` in 32 bits, threads as well as TMA units; so that must not wrap round to
an element. It cannot for an index that was checked (before this pass: `bounds.py` takes the checks that it proves), nor
for one whose range says so. Whatever the others may be is compared as wide as it is: all indices below 0 give the same
padding, and past the largest extent of a tensor there is nothing else.
"""

from __future__ import annotations

from cutile.analysis.affine import Affine, Facts
from cutile.analysis.preconditions import read_preconditions
from cutile.analysis.ranges import Range, Ranges
from cutile.dtypes import i32
from cutile.ir.builder import Builder
from cutile.ir.core import Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ops.arith import Max, Min
from cutile.ops.bound import CheckTile
from cutile.ops.cast import Convert
from cutile.ops.compare import Lt, Select
from cutile.ops.memory import MAX_EXTENT, LoadTile
from cutile.ops.view import LoadView, StoreView

_MAX_I32 = 2**31 - 1
_MAX_TILE = 2**19
"""Elements; more than the largest extent of a tile."""
Place = tuple[Value, int, int, Value]
"""What a check is about: the tensor, the axis, the step between tiles, the index."""


def reach(function: Function) -> Function:
    """A copy of `function` whose accesses take i32 indices that cannot wrap.

    No step from tile to tile makes them wrap.
    """
    accesses = [op for op in function.walk() if isinstance(op, LoadTile | LoadView | StoreView)]
    if not accesses:
        return function
    facts = Facts()
    read_preconditions(function, facts)
    ranges = Ranges(function, facts)
    near = _near(function, ranges, facts)
    above = {
        (id(op), at) for op in accesses for at, value in enumerate(op.index) if _not_below(ranges.of(value), value)
    }
    if all(value.tile.dtype is i32 and (id(op), at) in near for op in accesses for at, value in enumerate(op.index)):
        return function
    order = iter(accesses)

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if not isinstance(op, LoadTile | LoadView | StoreView):
            return KEEP
        before = id(next(order))
        steps = _steps(op)
        index = tuple(
            _narrow(rewriter.builder, value)
            if (before, at) in near
            else _inside(rewriter.builder, value, steps[at], (before, at) in above)
            if at < len(steps)
            else _narrow(rewriter.builder, _at_most(rewriter.builder, value))
            for at, value in enumerate(op.index)
        )
        if index != op.index:
            made = op.copy_with([*op.operands[: len(op.operands) - len(index)], *index], (), op.results)
            rewriter.builder.current.operations.append(made)
            return op.results
        return KEEP

    return rewrite(function, rule)


def _steps(op: LoadTile | LoadView | StoreView) -> tuple[int, ...]:
    return op.shape if isinstance(op, LoadTile) else op.steps


def _near(function: Function, ranges: Ranges, facts: Facts) -> set[tuple[int, int]]:
    """The indices, by access and position, whose products with the step fit 32 bits."""
    believed = function.facts.get("checks", "place") != "none"
    near: set[tuple[int, int]] = set()

    def visit(operations: list[Op], checked: frozenset[Place]) -> None:
        for op in operations:
            if isinstance(op, CheckTile) and believed:
                checked |= {(op.x, op.axis, op.step, op.index)}
            if isinstance(op, LoadTile | LoadView | StoreView):
                tile = op.value.tile.shape if isinstance(op, StoreView) else op.shape
                for axis, (step, extent) in enumerate(zip(_steps(op), tile, strict=True)):
                    known = ranges.of(op.index[axis])
                    past = ranges.tiles(op.x, axis, step)
                    if (op.x, axis, step, op.index[axis]) in checked or _fits(known, past, step, extent, facts):
                        near.add((id(op), axis))
                for at in range(len(tile), len(op.index)):
                    if op.index[at].tile.dtype is i32:
                        near.add((id(op), at))
            for block in op.regions:
                visit(block.operations, checked)

    visit(function.body.operations, frozenset())
    return near


def _fits(index: Range, past: Affine, step: int, extent: int, facts: Facts) -> bool:
    """Whether a range keeps the elements of a tile within 32 bits.

    By its numbers, or because it ends in the tensor.
    """
    low = index.low.low if index.low is not None else None
    if low is None or low * step < -_MAX_I32 or index.high is None:
        return False
    high = index.high.high
    return (high is not None and high * step + extent <= _MAX_I32) or facts.at_most(index.high, past)


def _not_below(index: Range, value: Value) -> bool:
    """Whether an index is 0 or above: what its range says, if it has not wrapped."""
    ends = index.low, index.high
    if ends[0] is None or ends[1] is None or ends[0].low is None or ends[1].high is None:
        return False
    return ends[0].low >= 0 and Affine(ends[1].high).fits(value.tile.dtype)


def _narrow(builder: Builder, value: Value) -> Value:
    return value if value.tile.dtype is i32 else builder.value(Convert(x=value, dtype=i32))


def _inside(builder: Builder, value: Value, step: int, above: bool) -> Value:
    """An index that is outside as one just outside.

    -1, or the first that begins past every tensor. `above`: it is known not to be below 0.
    """
    dtype = value.tile.dtype
    past = MAX_EXTENT // step + 1
    if past * step > _MAX_I32 - _MAX_TILE:  # where nothing past every tensor is held by 32 bits, -1 is outside, too
        inside = builder.value(Lt(x=value, y=builder.constant(past, dtype)))
        value = builder.value(Select(condition=inside, x=value, y=builder.constant(-1, dtype)))
    else:
        value = builder.value(Min(x=value, y=builder.constant(past, dtype)))
    if not above:
        value = builder.value(Max(x=value, y=builder.constant(-1, dtype)))
    return _narrow(builder, value)


def _at_most(builder: Builder, limit: Value) -> Value:
    """A limit in elements that 32 bits hold; no tensor goes further."""
    return builder.value(Min(x=limit, y=builder.constant(_MAX_I32, limit.tile.dtype)))
