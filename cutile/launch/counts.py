"""Integers that a compiled kernel asks of its launches, computed from data.

See `Executable` for what that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
