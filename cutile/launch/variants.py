"""Which compilation of a kernel a launch takes.

The kernel itself, or one with other compile options.

The target says which, and why it pays (`Loaded.variants`): on a GPU, launches of few tile blocks with many iterations
take a kernel that divides these. The kernel itself asks nothing, so that it costs other launches nothing. The integers
that a compiled kernel asks of its launches are computed from data (`Executable` says what that is).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cutile.backend.interface import Change, Target, Variants
from cutile.compile.driver import Compiled
from cutile.compile.kernels import Plan
from cutile.launch.arguments import Checked
from cutile.launch.views import Grid

Counter = Callable[[Sequence[Any], Grid], int]

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "//": int.__floordiv__,
    "min": min,
    "max": max,
}


def counter(count: Any) -> Counter:
    """What computes an integer from checked arguments and a grid.

    Raises:
        ValueError: it is no such data.

    Example:
        >>> counter(["//", ["+", ["grid", 0], 63], 64])((), (100, 1, 1))
        2
    """
    match count:
        case int() if type(count) is int:
            return lambda checked, grid: count
        case ["argument", int() as position]:
            return lambda checked, grid: checked[position]
        case ["extent", int() as position, int() as axis]:
            return lambda checked, grid: checked[position].shape[axis]
        case ["grid", int() as axis]:
            return lambda checked, grid: grid[axis]
        case ["//", ["+", ["extent", int() as position, int() as axis], int() as more], int() as divisor]:
            # tiles along an axis, which is what nearly all count: one call in place of three
            return lambda checked, grid: (checked[position].shape[axis] + more) // divisor
        case [str() as name, left, right] if name in _OPERATIONS:
            return _operation(_OPERATIONS[name], left, right)
        case _:
            raise ValueError(f"{count!r:.80} is no count")


def _operation(function: Callable[[int, int], int], left: Any, right: Any) -> Counter:
    if type(right) is int:  # most divide by a number, or add one
        first = counter(left)
        return lambda checked, grid: function(first(checked, grid), right)
    first, second = counter(left), counter(right)
    return lambda checked, grid: function(first(checked, grid), second(checked, grid))


class Chooser:
    """Asks a target's variants with what a launch counts.

    Attributes:
        max_blocks: tile blocks beyond which a launch takes the kernel itself.
    """

    __slots__ = ("_choose", "_count", "max_blocks")

    def __init__(self, variants: Variants) -> None:
        self._count = counter(variants.count)
        self._choose = variants.choose
        self.max_blocks = variants.max_blocks

    def change(self, checked: Sequence[Checked], grid: Grid) -> Change:
        """What is different in what a launch takes; nothing for the kernel itself."""
        blocks = grid[0] * grid[1] * grid[2]
        return () if blocks > self.max_blocks else self._choose(blocks, self._count(checked, grid))


def chooser_of(compiled: Compiled) -> Chooser | None:
    """What chooses for the launches of a compiled kernel; None where all take it."""
    if "chooser" not in compiled.memo:
        variants = compiled.loaded.variants
        compiled.memo["chooser"] = None if variants is None else Chooser(variants)
    return compiled.memo["chooser"]


def plan_of_launch(plan: Plan, target: Target, checked: Sequence[Checked], grid: Grid) -> Plan:
    """The plan that a launch takes: the kernel's, or a variant's.

    Compiles the kernel where that has not been done.
    """
    chooser = chooser_of(plan.compiled(target))
    return plan if chooser is None else plan.variant(chooser.change(checked, grid))
