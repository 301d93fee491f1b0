"""Turn the index checks that no proof removed into assertions, and assumptions into their operands.

    check_tile(%x, %k) {axis = 1, step = 64}   ->   assert(0 <= %k and %k < ceil_div(dim(%x, 1), 64))

A check whose operands do not change in the loop around it moves to before the loop, under the condition that the loop
has a turn at all. In the debug mode (`checks` is "keep") assumptions are asserted before they go.
"""

from __future__ import annotations

from typing import Literal

from cutile.dtypes import bool_, i32
from cutile.ir.builder import Builder
from cutile.ir.constant import Constant
from cutile.ir.control import For, If
from cutile.ir.core import Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ops.arith import Add, And, FloorDiv, Mod, Sub
from cutile.ops.bound import (
    AssumeBounds,
    AssumeDivisible,
    AssumeSame,
    AssumeWithin,
    Assumption,
    CheckIndex,
    CheckTile,
)
from cutile.ops.cast import Convert
from cutile.ops.compare import Eq, Ge, Gt, Le, Lt, Ne
from cutile.ops.create import Iota
from cutile.ops.debug import Assert
from cutile.ops.memory import TensorDim
from cutile.ops.reduce import ReduceMax, ReduceMin
from cutile.ops.shape import Broadcast, Reshape


def checks(function: Function) -> Function:
    """A copy of `function` without checks and assumptions, with assertions where they are needed."""
    return rewrite(rewrite(function, _leave_loops), _Asserting(function).rule)


# Out of loops


def _leave_loops(op: Op, rewriter: Rewriter) -> Replacement:
    """Move what does not change in a loop to before it."""
    if not isinstance(op, For):
        return KEEP
    inside = {*op.body.arguments, *(value for each in op.body.operations for value in each.results)}
    leaving = [
        each
        for each in op.body.operations
        if isinstance(each, CheckTile | CheckIndex) and not inside & set(each.operands)
    ]
    guard = _has_turns(op, rewriter.builder) if leaving else None
    if guard is None:
        return KEEP
    op.body.operations[:] = [each for each in op.body.operations if each not in leaving]
    if isinstance(guard, bool):
        rewriter.builder.current.operations.extend(leaving)
        return KEEP
    with rewriter.builder.block() as then:
        then.operations.extend(leaving)
        rewriter.builder.yield_()
    with rewriter.builder.block() as orelse:
        rewriter.builder.yield_()
    rewriter.builder.add(If(condition=guard, then=then, orelse=orelse))
    return KEEP


def _has_turns(loop: For, builder: Builder) -> Value | Literal[True] | None:
    """Whether a loop has a turn: certainly, or a condition; None where the sign of its step is not known."""
    made = (each for block in builder.open_blocks for each in block.operations)
    constants = {each.result: each.value for each in made if isinstance(each, Constant)}
    step = constants.get(loop.step)
    if step is None:
        return None
    start, stop = constants.get(loop.start), constants.get(loop.stop)
    if start is not None and stop is not None and bool(range(int(start), int(stop), int(step))):
        return True
    return builder.value((Lt if step > 0 else Gt)(x=loop.start, y=loop.stop))


# Assertions


class _Asserting:
    def __init__(self, function: Function) -> None:
        self._name = function.name
        self._debug = function.facts.get("checks") == "keep"

    def rule(self, op: Op, rewriter: Rewriter) -> Replacement:
        """What becomes of an operation."""
        if isinstance(op, Assumption):
            if self._debug:
                self._assume(op, rewriter.builder)
            return op.x
        if isinstance(op, CheckTile):
            extent = rewriter.builder.value(TensorDim(x=op.x, axis=op.axis))
            raised = rewriter.builder.value(Add(x=extent, y=rewriter.builder.constant(op.step - 1)))
            count = rewriter.builder.value(FloorDiv(x=raised, y=rewriter.builder.constant(op.step)))
            name = repr(op.x.name) if op.x.name else "a view"
            what = f"the tile index along axis {op.axis} of {name}, in tiles of {op.step},"
            self._within(op, op.index, rewriter.builder.constant(0), count, what, rewriter.builder)
            return []
        if isinstance(op, CheckIndex):
            self._within(op, op.index, rewriter.builder.constant(0), op.count, op.what, rewriter.builder)
            return []
        return KEEP

    def _within(self, op: Op, index: Value, low: Value, count: Value, what: str, builder: Builder) -> None:
        not_before = builder.value(Ge(x=index, y=low))
        before_end = builder.value(Lt(x=index, y=count))
        both = builder.value(And(x=not_before, y=before_end))
        self._require(op, both, f"{what} is out of range", builder)

    def _require(self, op: Op, condition: Value, message: str, builder: Builder) -> None:
        if not condition.tile.is_scalar:
            flat = builder.value(Convert(x=condition, dtype=i32))
            flat = builder.value(Reshape(x=flat, shape=(flat.tile.size,)))
            least = builder.value(ReduceMin(x=flat, axis=0))
            condition = builder.value(Ne(x=least, y=builder.constant(0)))
        place = op.location
        where = (self._name, "", 0, "") if place is None else (self._name, place.file, place.line, place.text.strip())
        builder.add(Assert(condition=condition, message=message, where=where))

    def _assume(self, op: Assumption, builder: Builder) -> None:
        """Assert what is assumed."""
        dtype, shape = op.x.tile.dtype, op.x.tile.shape

        def splat(number: int) -> Value:
            return builder.constant(number, dtype, shape)

        match op:
            case AssumeWithin():
                self._within(op, op.x, op.low, op.high, "a minted index", builder)
            case AssumeBounds():
                if op.lower is not None:
                    holds = builder.value(Ge(x=op.x, y=splat(op.lower)))
                    self._require(op, holds, f"assume_bounds: an element is below {op.lower}", builder)
                if op.upper is not None:
                    holds = builder.value(Le(x=op.x, y=splat(op.upper)))
                    self._require(op, holds, f"assume_bounds: an element is above {op.upper}", builder)
            case AssumeDivisible():
                self._divisible(op, builder)
            case AssumeSame():
                self._same(op, builder)
            case _:
                raise AssertionError(op.name)

    def _divisible(self, op: AssumeDivisible, builder: Builder) -> None:
        dtype, shape = op.x.tile.dtype, op.x.tile.shape
        value = op.x
        if op.every is not None and op.along is not None:
            row = builder.value(Iota(length=shape[op.along], dtype=dtype))
            place = builder.value(Mod(x=row, y=builder.constant(op.every, dtype, (shape[op.along],))))
            ones = tuple(extent if axis == op.along else 1 for axis, extent in enumerate(shape))
            place = builder.value(Broadcast(x=builder.value(Reshape(x=place, shape=ones)), shape=shape))
            value = builder.value(Sub(x=value, y=place))
            groups = tuple(op.every if axis == op.along else 1 for axis in range(len(shape)))
            holds = self._groups_agree(value, groups, builder)
            self._require(op, holds, f"{op.name}: a group does not count up", builder)
        rest = builder.value(Mod(x=value, y=builder.constant(op.by, dtype, shape)))
        holds = builder.value(Eq(x=rest, y=builder.constant(0, dtype, shape)))
        self._require(op, holds, f"{op.name}: an element is no multiple of {op.by}", builder)

    def _same(self, op: AssumeSame, builder: Builder) -> None:
        value = op.x
        if op.x.tile.dtype is bool_:
            value = builder.value(Convert(x=value, dtype=i32))
        holds = self._groups_agree(value, op.groups, builder)
        self._require(op, holds, "assume_same_elements: the elements of a group differ", builder)

    def _groups_agree(self, value: Value, groups: tuple[int, ...], builder: Builder) -> Value:
        """Whether elements are equal within groups: the smallest of each is its largest."""
        pairs = zip(value.tile.shape, groups, strict=True)
        split = tuple(part for extent, group in pairs for part in (extent // group, group))
        least = most = builder.value(Reshape(x=value, shape=split))
        for axis in reversed(range(len(groups))):
            least = builder.value(ReduceMin(x=least, axis=2 * axis + 1))
            most = builder.value(ReduceMax(x=most, axis=2 * axis + 1))
        return builder.value(Eq(x=least, y=most))
