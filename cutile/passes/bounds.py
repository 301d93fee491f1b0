"""Prove index checks away, or move them to the launch.

What is left is asserted in the kernel (`checks.py`).

    check_tile(%x, %k) {axis = 1, step = 64}     ->   (gone), where %k certainly is below ceil(x.shape[1] / 64)
                                                 ->   a launch check: `n - 1 < (x.shape[1] + 63) // 64`
                                                 ->   (stays), where only the kernel knows %k

A check moves to the launch where its index runs between two launch-known numbers that are both reached (`ranges.py`),
outside of branches and `while` loops. The loops around it become its guard: a loop without turns checks nothing. So a
launch that fails its checks would have ended in an error, unless an index had wrapped round to a tile, which is an
error here.

The function's facts say how: `checks` is "place" (this), "keep" (all stay in the kernel: the debug mode), "none"
(unchecked accesses) or "deny" (as "place", and what stays is an error); `preconditions` are Python comparisons over the
parameters that the launch verifies. The result's fact `launch_checks` lists what the launch has to verify.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cutile.analysis.affine import Affine, Facts
from cutile.analysis.preconditions import read_preconditions
from cutile.analysis.ranges import ONLY_IN_THE_KERNEL, Ranges
from cutile.errors import KernelTypeError
from cutile.ir.control import For
from cutile.ir.core import Block, Function
from cutile.ir.rewriter import KEEP, rewrite
from cutile.ops.bound import CheckIndex, CheckTile

LaunchCheck = tuple[str, int, int, str, str, str, tuple[str, ...], int]
"""What the launch verifies: the tensor's name, the axis, the step between tiles (of another index: what it is, -1, 0;
of the grid: the error's words, -2, 0); the lowest index (empty: known to be right), the highest (likewise), the number
of tiles; the guards, which all hold where the check counts; the line."""


@dataclass(frozen=True)
class _Context:
    """Where a check stands.

    The loops around it, innermost last; or None inside of branches and `while` loops.
    """

    loops: tuple[For, ...] | None = ()


def bounds(function: Function) -> Function:
    """A copy of `function` without the checks that are proved or left to the launch.

    Raises:
        KernelTypeError: a precondition cannot be understood; or, where checks in the kernel are denied, one would stay.
    """
    mode = function.facts.get("checks", "place")
    facts = Facts()
    read_preconditions(function, facts)
    if mode == "keep":
        return function
    pass_ = _Bounds(Ranges(function, facts), facts)
    gone: set[int] = set()
    launched: list[LaunchCheck] = []
    for op, context in _checks(function.body, _Context()):
        if mode == "none":
            gone.add(id(op))
            continue
        places = pass_.place(op, context)
        if places is not None:
            gone.add(id(op))
            launched += [each for each in places if each not in launched]
        elif mode == "deny":
            raise KernelTypeError(
                f"{function.name}: this access is checked in the kernel, which deny_in_kernel_checks refuses: "
                f"{pass_.why(op, context)}",
                op.location,
                "Index with what the launch knows (block ids, loop variables, extents), state a precondition, or "
                "assume_bounds of the index.",
            )
    result = rewrite(function, lambda op, rewriter: KEEP, drop=lambda op: id(op) in gone)
    if launched:
        result.facts["launch_checks"] = (*function.facts.get("launch_checks", ()), *launched)
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

    def place(self, op: CheckTile | CheckIndex, context: _Context) -> list[LaunchCheck] | None:
        """What the launch must verify in place of a check.

        Nothing where it is proved; None where it must stay.
        """
        index, count = self._ranges.of(op.index), self._count(op)
        if index.low is None or index.high is None or count is None:
            return None
        low_holds = self._facts.at_most(Affine(), index.low)
        high_holds = self._facts.at_most(index.high + 1, count)
        if low_holds and high_holds:
            return []
        guards = self._guards(context)
        if guards is None or not index.reached:
            return None
        low = "" if low_holds else index.low.text
        high = "" if high_holds else index.high.text
        line = op.location.line if op.location is not None else 0
        name, axis, step = self._about(op)
        if any(ONLY_IN_THE_KERNEL in text for text in (low, high, count.text, *guards)):
            return None
        return [(name, axis, step, low, high, count.text, guards, line)]

    def _about(self, op: CheckTile | CheckIndex) -> tuple[str, int, int]:
        """What a check is about: a parameter, its axis and the step; or what an index is."""
        if isinstance(op, CheckIndex):
            return op.what, -1, 0
        if op.x in self._ranges.parameters:
            return op.x.name, op.axis, op.step
        return f"the tile index along axis {op.axis} of the view {op.x.name!r}, in tiles of {op.step},", -1, 0

    def why(self, op: CheckTile | CheckIndex, context: _Context) -> str:
        """Why a check must stay, for people."""
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
        """The conditions under which the loops around have turns.

        None where the launch does not know.
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
                first, last = last, first
            if not (first.reached and last.reached) or first.low is None or last.high is None:
                return None
            if first.varies & last.varies:
                return None
            if not self._facts.at_most(first.low + 1, last.high):
                guards.append(f"{first.low.text} < {last.high.text}")
        return tuple(guards)
