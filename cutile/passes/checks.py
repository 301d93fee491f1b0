"""The pass that makes assertions of index checks, and removes assumptions.

    check_tile(%x, %k) {axis = 1, step = 64}   ->   assert(0 <= %k and %k < ceil_div(dim(%x, 1), 64))

A check whose operands do not change in the loop around it moves ahead of the loop, under the condition that the loop
has an iteration. So does a check whose index counts with the loop: it becomes two checks, of the first and of the last
index. In the debug mode (`checks` is "keep") all checks stay where they are, and assumptions are asserted, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cutile.dtypes import DTypeLike, bool_, f4e2m1fnx2, f32, i32, u8
from cutile.ir import KEEP, Builder, Constant, For, Function, If, Op, Replacement, Rewriter, Value, rewrite
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
from cutile.ops.cast import Bitcast, Convert
from cutile.ops.compare import Eq, Ge, Gt, Le, Lt, Ne, Select
from cutile.ops.create import Iota
from cutile.ops.debug import Assert
from cutile.ops.memory import TensorDim
from cutile.ops.reduce import ReduceMax, ReduceMin
from cutile.ops.shape import Broadcast, Reshape


def checks(function: Function) -> Function:
    """A copy of `function` without checks and assumptions.

    Assertions stand where checks are needed.
    """
    debug = function.facts.get("checks") == "keep"
    placed = function if debug else rewrite(function, _leave_loops)
    return rewrite(placed, _Asserting(function.name, debug).rule)


# Out of loops


def _leave_loops(op: Op, rewriter: Rewriter) -> Replacement:
    """Move checks of fixed indices, and of indices that count, to before a loop."""
    if not isinstance(op, For):
        return KEEP
    definitions = {value: nested for nested in op.body.operations for value in nested.results}
    changing = {*op.body.arguments, *definitions}  # values that may differ from iteration to iteration
    in_body = [nested for nested in op.body.operations if isinstance(nested, CheckTile | CheckIndex)]
    fixed = [check for check in in_body if not changing & set(check.operands)]
    counting = [check for check in in_body if check not in fixed and _counts(op, check, changing, definitions)]
    step: int | None = _constants(rewriter.builder).get(op.step)
    if step is None:  # whether the loop has an iteration depends on the step's sign (`_has_iterations`)
        return KEEP
    counting = counting if step in (1, -1) else []  # by other steps, the last index is not next to `stop`
    if not fixed and not counting:
        return KEEP
    guard = _has_iterations(op, step, rewriter.builder)
    op.body.operations[:] = [nested for nested in op.body.operations if nested not in (*fixed, *counting)]
    builder = rewriter.builder
    if isinstance(guard, bool):
        _check_before(op, fixed, counting, step, definitions, builder)
        return KEEP
    with builder.block() as then:
        _check_before(op, fixed, counting, step, definitions, builder)
        builder.yield_()
    with builder.block() as orelse:
        builder.yield_()
    builder.add(If(condition=guard, then=then, orelse=orelse))
    return KEEP


def _counts(loop: For, check: CheckTile | CheckIndex, changing: set[Value], definitions: Mapping[Value, Op]) -> bool:
    """Whether only the index of a check changes in a loop, and counts with it.

    Such an index is the loop variable, the variable plus a fixed value, or the variable minus a fixed value.
    """
    if changing & {value for value in check.operands if value is not check.index}:
        return False
    if check.index is loop.induction:
        return True
    definition = definitions.get(check.index)
    if not isinstance(definition, Add | Sub):
        return False
    return (definition.x is loop.induction and definition.y not in changing) or (
        isinstance(definition, Add) and definition.y is loop.induction and definition.x not in changing
    )


def _check_before(
    loop: For,
    fixed: Sequence[CheckTile | CheckIndex],
    counting: Sequence[CheckTile | CheckIndex],
    step: int,
    definitions: Mapping[Value, Op],
    builder: Builder,
) -> None:
    """Append the checks that leave a loop.

    Args:
        loop: the loop.
        fixed: checks whose operands do not change in it.
        counting: checks whose index counts with it. The first and the last index are checked: the others lie between.
        step: the loop's step; 1 or -1 if there are counting checks.
        definitions: the operations of the loop's body, by their results.
        builder: appends ahead of the loop.
    """
    builder.current.operations.extend(fixed)
    for check in counting:
        builder.location = check.location
        one = builder.constant(step, loop.induction.tile.dtype)
        ends = [loop.start, builder.value(Sub(x=loop.stop, y=one))]
        definition = definitions.get(check.index)  # the sum or difference; None: the index is the loop's variable
        if definition is not None:
            ends = [
                builder.value(
                    definition.copy_with([end if x is loop.induction else x for x in definition.operands], (), ())
                )
                for end in ends
            ]
        for end in ends:
            operands = [end if value is check.index else value for value in check.operands]
            builder.add(check.copy_with(operands, (), ()))
        # An i32 sum may wrap between two ends that are in range. An i64 sum would take 2**64 iterations to do so.
        if definition is not None and ends[0].tile.dtype is i32:
            distance = builder.value(Sub(x=ends[1], y=ends[0]) if step > 0 else Sub(x=ends[0], y=ends[1]))
            what = "the way from a loop's first index to its last"
            builder.add(CheckIndex(index=distance, count=builder.constant(2**31 - 1), what=what))


def _constants(builder: Builder) -> dict[Value, Any]:
    """The constants that may be used here."""
    visible = (op for block in builder.open_blocks for op in block.operations)
    return {op.result: op.value for op in visible if isinstance(op, Constant)}


def _has_iterations(loop: For, step: int, builder: Builder) -> Value | Literal[True]:
    """Whether a loop has an iteration: True if it certainly has, else a condition."""
    constants = _constants(builder)
    start, stop = constants.get(loop.start), constants.get(loop.stop)
    if start is not None and stop is not None and bool(range(int(start), int(stop), step)):
        return True
    return builder.value((Lt if step > 0 else Gt)(x=loop.start, y=loop.stop))


# Assertions


def _alike(values: Sequence[Value], builder: Builder) -> list[Value]:
    """Integer scalars, converted to the widest dtype among them."""
    widest = max((value.tile.dtype for value in values), key=lambda dtype: dtype.bits)
    return [
        value if value.tile.dtype is widest else builder.value(Convert(x=value, dtype=widest), value.name)
        for value in values
    ]


def _ends(dtype: DTypeLike) -> tuple[int, int]:
    """The least and the greatest number of an integer dtype."""
    signed = dtype.is_signed
    return -(2 ** (dtype.bits - 1)) if signed else 0, 2 ** (dtype.bits - signed) - 1


class _Asserting:
    """The rule that makes assertions of checks, and of assumptions in the debug mode."""

    def __init__(self, name: str, debug: bool) -> None:
        self._name = name
        self._debug = debug
        self._constants: dict[Value, object] = {}

    def rule(self, op: Op, rewriter: Rewriter) -> Replacement:
        """Replace checks and assumptions."""
        if isinstance(op, Constant):
            self._constants[op.result] = op.value
        if isinstance(op, Assumption):
            if self._debug:
                self._assume(op, rewriter.builder)
            return op.x
        if isinstance(op, CheckTile):
            extent = rewriter.builder.value(TensorDim(x=op.x, axis=op.axis))
            raised = rewriter.builder.value(Add(x=extent, y=rewriter.builder.constant(op.step - 1)))
            # Beside a constant index, an assertion reports the count alone, and not as one (`ops.debug.subjects`). So
            # the count has a name.
            name = "count" if op.index in self._constants else ""
            count = rewriter.builder.value(FloorDiv(x=raised, y=rewriter.builder.constant(op.step)), name)
            name = repr(op.x.name) if op.x.name else "a view"
            what = f"the tile index along axis {op.axis} of {name}, in tiles of {op.step},"
            self._within(op, op.index, None, count, what, rewriter.builder)
            return []
        if isinstance(op, CheckIndex):
            self._within(op, op.index, None, op.count, op.what, rewriter.builder)
            return []
        return KEEP

    def _within(self, op: Op, index: Value, low: Value | None, count: Value, what: str, builder: Builder) -> None:
        """Assert `low <= index < count`, in the widest dtype of the three.

        None for `low` is 0.
        """
        # A failed assertion reports the integers that it compares, but no constants (`ops.debug.subjects`).
        numbers = [f"it is {self._constants[index]}"] if index in self._constants else []
        if low is None and count in self._constants:
            numbers.append(f"there are {self._constants[count]}")
        constants = f": {', and '.join(numbers)}" if numbers else ""
        index, count, *rest = _alike([index, count, *([] if low is None else [low])], builder)
        low = rest[0] if rest else builder.constant(0, index.tile.dtype)
        not_before = builder.value(Ge(x=index, y=low))
        before_end = builder.value(Lt(x=index, y=count))
        both = builder.value(And(x=not_before, y=before_end))
        self._require(op, both, f"{what} is out of range{constants}", builder)

    def _require(self, op: Op, condition: Value, message: str, builder: Builder) -> None:
        """Assert a condition at the line of `op`; a tile of conditions for all elements."""
        if not condition.tile.is_scalar:
            flat = builder.value(Convert(x=condition, dtype=i32))
            flat = builder.value(Reshape(x=flat, shape=(flat.tile.size,)))
            least = builder.value(ReduceMin(x=flat, axis=0))
            condition = builder.value(Ne(x=least, y=builder.constant(0)))
        place = op.location
        where = (self._name, "", 0, "") if place is None else (self._name, place.file, place.line, place.text.strip())
        builder.add(Assert(condition=condition, values=(), message=message, where=where, kinds=()))

    def _assume(self, op: Assumption, builder: Builder) -> None:
        """Assert what is assumed."""
        match op:
            case AssumeWithin():
                self._within(op, op.x, op.low, op.high, "a minted index", builder)
            case AssumeBounds():
                if op.lower is not None:
                    holds = self._compared(op, Ge, op.lower, builder)
                    self._require(op, holds, f"assume_bounds: an element is below {op.lower}", builder)
                if op.upper is not None:
                    holds = self._compared(op, Le, op.upper, builder)
                    self._require(op, holds, f"assume_bounds: an element is above {op.upper}", builder)
            case AssumeDivisible():
                self._divisible(op, builder)
            case AssumeSame():
                self._same(op, builder)
            case _:
                raise AssertionError(op.name)

    def _compared(self, op: AssumeBounds, comparison: type[Ge | Le], bound: int, builder: Builder) -> Value:
        """Whether elements are at least, or at most, a bound that the dtype need not hold."""
        dtype, shape = op.x.tile.dtype, op.x.tile.shape
        least, most = _ends(dtype)
        if least <= bound <= most:
            return builder.value(comparison(x=op.x, y=builder.constant(bound, dtype, shape)))
        # Every element lies on one side of such a bound.
        return builder.constant((bound < least) is (comparison is Ge), bool_)

    def _divisible(self, op: AssumeDivisible, builder: Builder) -> None:
        dtype, shape = op.x.tile.dtype, op.x.tile.shape
        value = op.x
        if op.every is not None and op.along is not None:
            # The elements of a group count up from a multiple of `by`: minus its place in the group, each element is
            # that multiple.
            counted = dtype if shape[op.along] <= _ends(dtype)[1] else i32  # i8 counts no axis of 256 elements
            row = builder.value(Iota(length=shape[op.along], dtype=counted))
            place = builder.value(Mod(x=row, y=builder.constant(op.every, counted, (shape[op.along],))))
            if counted is not dtype:
                place = builder.value(Convert(x=place, dtype=dtype))
            ones = tuple(extent if axis == op.along else 1 for axis, extent in enumerate(shape))
            place = builder.value(Broadcast(x=builder.value(Reshape(x=place, shape=ones)), shape=shape))
            value = builder.value(Sub(x=value, y=place))
            groups = tuple(op.every if axis == op.along else 1 for axis in range(len(shape)))
            holds = self._groups_agree(value, groups, builder)
            self._require(op, holds, f"{op.name}: a group does not count up", builder)
        holds = builder.value(Eq(x=self._rest(value, op.by, builder), y=builder.constant(0, dtype, shape)))
        self._require(op, holds, f"{op.name}: an element is no multiple of {op.by}", builder)

    def _rest(self, value: Value, by: int, builder: Builder) -> Value:
        """A tile that is 0 where `by` divides an element."""
        dtype, shape = value.tile.dtype, value.tile.shape
        least, most = _ends(dtype)
        if by <= most:
            return builder.value(Mod(x=value, y=builder.constant(by, dtype, shape)))
        if by == -least:  # -128 is a multiple of 128, which i8 does not hold
            return builder.value(Mod(x=value, y=builder.constant(least, dtype, shape)))
        return value  # no element but 0 is a multiple

    def _same(self, op: AssumeSame, builder: Builder) -> None:
        value, dtype = op.x, op.x.tile.dtype
        if dtype is bool_:
            value = builder.value(Convert(x=value, dtype=i32))
        elif dtype is f4e2m1fnx2:  # pairs, as their bits
            value = builder.value(Bitcast(x=value, dtype=u8))
        elif not dtype.computes:
            value = builder.value(Convert(x=value, dtype=f32))
        if value.tile.dtype.is_float:
            # Reductions to extremes ignore NaN, and no NaN equals itself. So zeros take the place of NaNs, and the
            # places of the NaNs are compared separately.
            is_nan = builder.value(Ne(x=value, y=value))
            places = builder.value(Convert(x=is_nan, dtype=i32))
            zeros = builder.constant(0.0, value.tile.dtype, value.tile.shape)
            value = builder.value(Select(condition=is_nan, x=zeros, y=value))
            same_places = self._groups_agree(places, op.groups, builder)
            holds = builder.value(And(x=self._groups_agree(value, op.groups, builder), y=same_places))
        else:
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
