"""Two passes over tile indices: `bounds` for checks, `reach` for far indices.

`bounds` removes index checks that it proves, or moves them to the launch. `checks.py` asserts the others in the kernel.

    check_tile(%x, %k) {axis = 1, step = 64}     ->   (gone), where %k certainly is below ceil(x.shape[1] / 64)
                                                 ->   a launch check: `n - 1 < (x.shape[1] + 63) // 64`
                                                 ->   (stays), where only the kernel knows %k

A check moves to the launch where its index runs between two launch-known numbers that are both reached (`ranges.py`),
outside of branches and `while` loops. The loops around it become its guards: a loop without iterations checks nothing.
So a launch that fails its checks would have ended in an error in the kernel. The exception is an index that would have
wrapped round to a tile: the launch makes that an error, too.

The function's fact `checks` has one of four values:

    "place"     checks are proved, moved to the launch, or stay, as above
    "keep"      all checks stay in the kernel: the debug mode
    "none"      accesses are unchecked
    "deny"      as "place", and a check that stays is an error

The fact `preconditions` has Python comparisons over the parameters, which the launch verifies. The result's fact
`launch_checks` lists what else the launch has to verify.

`reach` runs before `bounds`. It brings indices far outside of a tensor to one just outside, in 32 bits.

    load_tile(%x, %i) {shape = 64} with %i : i64   ->   %2 = max(min(%i, 33538048), -1)
                                                        %3 = convert(%2) {dtype = i32}
                                                        load_tile(%x, %3) {shape = 64}

Targets find an element by `index * step` in 32 bits, threads as well as TMA units. The product must not wrap round to
an element. It cannot for an index that is checked, nor for one whose range says so. Any other index is clamped in its
own width, which is 32 or 64 bits: the front end widens narrower ones. That changes no result: all indices below 0 give
the same padding, as do all past the largest extent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cutile.analysis.affine import Affine, Facts
from cutile.analysis.preconditions import read_preconditions
from cutile.analysis.ranges import ONLY_IN_THE_KERNEL, Range, Ranges
from cutile.dtypes import i32
from cutile.errors import KernelTypeError
from cutile.ir import KEEP, Block, Builder, For, Function, Op, Replacement, Rewriter, Value, rewrite
from cutile.ops.arith import Max, Min
from cutile.ops.bound import CheckIndex, CheckTile
from cutile.ops.cast import Convert
from cutile.ops.compare import Lt, Select
from cutile.ops.memory import MAX_EXTENT, LoadTile
from cutile.ops.view import LoadView, StoreView

_MAX_I32 = 2**31 - 1
_MAX_TILE = 2**19
"""The room that is left below 2**31 for the elements of the first tile past every tensor, along one axis."""
_Checked = tuple[Value, int, int, Value]
"""The tensor, the axis, the step between tiles and the index of a check."""


def reach(function: Function) -> Function:
    """A copy of `function` whose accesses take i32 indices.

    Their products with the steps between tiles do not wrap.
    """
    accesses = [op for op in function.walk() if isinstance(op, LoadTile | LoadView | StoreView)]
    if not accesses:
        return function
    facts = Facts()
    read_preconditions(function, facts)
    ranges = Ranges(function, facts)
    near = _near(function, ranges, facts)
    not_negative = {
        (id(op), at) for op in accesses for at, value in enumerate(op.index) if _not_below(ranges.of(value), value)
    }
    if all(value.tile.dtype is i32 and (id(op), at) in near for op in accesses for at, value in enumerate(op.index)):
        return function
    originals = iter(accesses)  # a rule sees copies; they come in the order of the originals

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if not isinstance(op, LoadTile | LoadView | StoreView):
            return KEEP
        builder, original, steps = rewriter.builder, id(next(originals)), _steps(op)

        def in_reach(at: int, value: Value) -> Value:
            if (original, at) in near:
                return _narrow(builder, value)
            if at < len(steps):
                return _just_outside(builder, value, steps[at], (original, at) in not_negative)
            return _narrow(builder, _at_most(builder, value))  # after the indices come limits, in elements

        index = tuple(in_reach(at, value) for at, value in enumerate(op.index))
        if index != op.index:
            copy = op.copy_with([*op.operands[: len(op.operands) - len(index)], *index], (), op.results)
            rewriter.builder.current.operations.append(copy)
            return op.results
        return KEEP

    return rewrite(function, rule)


def _steps(op: LoadTile | LoadView | StoreView) -> tuple[int, ...]:
    return op.shape if isinstance(op, LoadTile) else op.steps


def _near(function: Function, ranges: Ranges, facts: Facts) -> set[tuple[int, int]]:
    """The indices, by access and position, whose products with the step fit 32 bits."""
    checked_at_all = function.facts.get("checks", "place") != "none"  # else neither launch nor kernel makes a check
    near: set[tuple[int, int]] = set()

    def visit(operations: list[Op], checked: frozenset[_Checked]) -> None:
        for op in operations:
            if isinstance(op, CheckTile) and checked_at_all:
                checked |= {(op.x, op.axis, op.step, op.index)}
            if isinstance(op, LoadTile | LoadView | StoreView):
                tile = op.value.tile.shape if isinstance(op, StoreView) else op.shape
                for axis, (step, extent) in enumerate(zip(_steps(op), tile, strict=True)):
                    index_range = ranges.of(op.index[axis])
                    tiles = ranges.tiles(op.x, axis, step)
                    if (op.x, axis, step, op.index[axis]) in checked or _fits(index_range, tiles, step, extent, facts):
                        near.add((id(op), axis))
                for at in range(len(tile), len(op.index)):
                    if op.index[at].tile.dtype is i32:
                        near.add((id(op), at))
            for block in op.regions:
                visit(block.operations, checked)

    visit(function.body.operations, frozenset())
    return near


def _fits(index: Range, tiles: Affine, step: int, extent: int, facts: Facts) -> bool:
    """Whether a range keeps the elements of a tile within 32 bits.

    The range's numbers may say so. Or the range ends in the tensor: at most at the first tile past its `tiles`.
    """
    low = index.low.low if index.low is not None else None
    if low is None or low * step < -_MAX_I32 or index.high is None:
        return False
    high = index.high.high
    return (high is not None and high * step + extent <= _MAX_I32) or facts.at_most(index.high, tiles)


def _not_below(index: Range, value: Value) -> bool:
    """Whether an index is 0 or above: its range says so, and the index cannot wrap."""
    low, high = index.low, index.high
    if low is None or high is None or low.low is None or high.high is None:
        return False
    return low.low >= 0 and Affine(high.high).fits(value.tile.dtype)


def _narrow(builder: Builder, value: Value) -> Value:
    return value if value.tile.dtype is i32 else builder.value(Convert(x=value, dtype=i32))


def _just_outside(builder: Builder, value: Value, step: int, not_negative: bool) -> Value:
    """An index, clamped to -1 and to the first tile that begins past every tensor.

    Args:
        builder: appends to the new function.
        value: the index.
        step: elements from tile to tile.
        not_negative: whether the index is known not to be below 0.
    """
    dtype = value.tile.dtype
    past = MAX_EXTENT // step + 1
    # The elements of the first tile past every tensor may not fit 32 bits. Then -1 stands for it, which is outside too.
    if past * step > _MAX_I32 - _MAX_TILE:
        inside = builder.value(Lt(x=value, y=builder.constant(past, dtype)))
        value = builder.value(Select(condition=inside, x=value, y=builder.constant(-1, dtype)))
    else:
        value = builder.value(Min(x=value, y=builder.constant(past, dtype)))
    if not not_negative:
        value = builder.value(Max(x=value, y=builder.constant(-1, dtype)))
    return _narrow(builder, value)


def _at_most(builder: Builder, limit: Value) -> Value:
    """A limit in elements, clamped to 32 bits: no extent of a tensor is larger."""
    return builder.value(Min(x=limit, y=builder.constant(_MAX_I32, limit.tile.dtype)))


LaunchCheck = tuple[str, int, int, str, str, str, tuple[str, ...], str]
"""A check that the launch makes: `low >= 0` and `high < count`, where all guards hold. Its entries are

0. the tensor's name; for another index its description; for the grid the error's whole text,
1. the axis; -1 for another index, -2 for the grid,
2. the step between tiles; 0 where there are none,
3. `low`, the lowest index, as Python over the parameters; empty where `low >= 0` is proved,
4. `high`, the highest index, likewise; empty where `high < count` is proved,
5. `count`, the number of tiles,
6. the guards: comparisons that hold if the loops around the check have iterations,
7. the place, as an error shows it.
"""


@dataclass(frozen=True)
class _Context:
    """Where a check stands.

    Attributes:
        loops: the `for` loops around the check, innermost last; None inside of a branch or a `while` loop.
    """

    loops: tuple[For, ...] | None = ()


def bounds(function: Function) -> Function:
    """A copy of `function` without checks that are proved, or that the launch makes.

    Raises:
        KernelTypeError: a precondition cannot be read; or checks in the kernel are denied, and one would stay.
    """
    mode = function.facts.get("checks", "place")
    facts = Facts()
    read_preconditions(function, facts)  # also if all checks stay, since a wrong precondition is an error
    if mode == "keep":
        return function
    pass_ = _Bounds(Ranges(function, facts), facts)
    dropped: set[int] = set()
    launch_checks: list[LaunchCheck] = []
    for op, context in _checks(function.body, _Context()):
        if mode == "none":
            dropped.add(id(op))
            continue
        checks = pass_.launch_checks(op, context)
        if checks is not None:
            dropped.add(id(op))
            known = {each[:-1] for each in launch_checks}  # without the place: the first place stands for all
            launch_checks += [check for check in checks if check[:-1] not in known]
        elif mode == "deny":
            raise KernelTypeError(
                f"{function.name}: this access is checked in the kernel, which deny_in_kernel_checks refuses: "
                f"{pass_.why(op, context)}",
                op.location,
                "Index with what the launch knows (block ids, loop variables, extents), state a precondition, or "
                "assume_bounds of the index.",
            )
    result = rewrite(function, lambda op, rewriter: KEEP, drop=lambda op: id(op) in dropped)
    if launch_checks:
        result.facts["launch_checks"] = (*function.facts.get("launch_checks", ()), *launch_checks)
    return result


def _checks(block: Block, context: _Context) -> Iterator[tuple[CheckTile | CheckIndex, _Context]]:
    for op in block.operations:
        if isinstance(op, CheckTile | CheckIndex):
            yield op, context
        inner = _Context(None)
        if isinstance(op, For) and context.loops is not None:
            inner = _Context((*context.loops, op))
        for nested in op.regions:
            yield from _checks(nested, inner)


class _Bounds:
    """Proves single checks."""

    def __init__(self, ranges: Ranges, facts: Facts) -> None:
        self._ranges = ranges
        self._facts = facts

    def launch_checks(self, op: CheckTile | CheckIndex, context: _Context) -> list[LaunchCheck] | None:
        """The checks that the launch must make in place of one in the kernel.

        An empty list where the check is proved; None where it must stay.
        """
        index, count = self._ranges.of(op.index), self._count(op)
        if index.low is None or index.high is None or count is None:
            return None
        low_holds = self._facts.at_most(Affine(), index.low)
        high_holds = self._facts.at_most(index.high + 1, count)
        if low_holds and high_holds:
            return []
        guards = self._guards(context)
        if guards is None or not index.reached:  # the launch would refuse what may never happen
            return None
        low = "" if low_holds else index.low.text
        high = "" if high_holds else index.high.text
        place = op.location.of_user().show() if op.location is not None else ""
        name, axis, step = self._about(op)
        if any(ONLY_IN_THE_KERNEL in text for text in (low, high, count.text, *guards)):
            return None
        return [(name, axis, step, low, high, count.text, guards, place)]

    def _about(self, op: CheckTile | CheckIndex) -> tuple[str, int, int]:
        """The first three entries of a `LaunchCheck`."""
        if isinstance(op, CheckIndex):
            return op.what, -1, 0
        if op.x in self._ranges.parameters:
            return op.x.name, op.axis, op.step
        return f"the tile index along axis {op.axis} of the view {op.x.name!r}, in tiles of {op.step},", -1, 0

    def why(self, op: CheckTile | CheckIndex, context: _Context) -> str:
        """Why a check must stay, as words for the error."""
        index = self._ranges.of(op.index)
        if index.low is None or index.high is None or self._count(op) is None:
            return "the launch does not know between which numbers the index lies"
        if context.loops is None:
            return "it stands in a branch or a while loop, and may not be reached"
        return "the index may stay short of the ends of its range, so that the launch cannot decide"

    def _count(self, op: CheckTile | CheckIndex) -> Affine | None:
        if isinstance(op, CheckTile):
            return self._ranges.tiles(op.x, op.axis, op.step)
        return self._ranges.of(op.count).launch_known

    def _guards(self, context: _Context) -> tuple[str, ...] | None:
        """The conditions under which the loops around a check have iterations.

        None where the launch does not know them.
        """
        if context.loops is None:
            return None
        guards: list[str] = []
        for loop in context.loops:
            step = self._ranges.of(loop.step).launch_known
            first, last = self._ranges.of(loop.start), self._ranges.of(loop.stop)
            if step is None:
                return None
            if not self._facts.at_most(Affine(1), step):
                if not self._facts.at_most(step, Affine(-1)):
                    return None
                first, last = last, first  # it counts down
            if not (first.reached and last.reached) or first.low is None or last.high is None:
                return None
            if first.varies & last.varies:  # both depend on one number: their extremes may be in different iterations
                return None
            if not (self._ranges.is_exact(loop.start) and self._ranges.is_exact(loop.stop)):
                return None  # the guard below would count iterations that a loop with a wrapped bound does not run
            if not self._facts.at_most(first.low + 1, last.high):
                guards.append(f"{first.low.text} < {last.high.text}")
        return tuple(guards)
