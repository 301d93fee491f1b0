"""Do two indices of a layout name one element? Pure arithmetic on extents and strides, exact where it is affordable.

Overlapping windows over a signal and axes of stride 0 are layouts to read: of two tile blocks that write one, which
value stays depends on who is last. Most layouts are told apart at once: sorted by stride, each axis steps over all that
those before it reach. For the others whole numbers d, not all 0, with |d| < extent and sum(d * stride) = 0 are looked
for: two axes by the extended Euclidean algorithm, the rest by trying.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

__all__ = ("common_element", "may_overlap")

Index = tuple[int, ...]

_MOST_TRIALS = 1 << 20  # about a second; tensors of up to four axes that fit into 64 GiB take fewer


def may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices may name one element; False is certain, and found at once.

    >>> may_overlap((4, 8), (8, 1)), may_overlap((4, 8), (1, -4)), may_overlap((4, 8), (4, 1))
    (False, False, True)
    """
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for stride, extent in zip(strides, shape, strict=True)):
        if extent == 1:
            continue
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def common_element(shape: Sequence[int], strides: Sequence[int]) -> tuple[Index, Index] | None:
    """Two indices that name one element; None where there are none. Two empty ones where that is too long to find out.

    >>> common_element((3, 4), (2, 1))
    ((0, 2), (1, 0))
    >>> common_element((2, 3), (3, 2)) is None
    True
    """
    if not may_overlap(shape, strides):
        return None
    axes = sorted((axis for axis, extent in enumerate(shape) if extent > 1), key=lambda axis: shape[axis])
    for axis in axes:
        if strides[axis] == 0:
            return _pair(len(shape), {axis: 1})
    *tried, first, second = axes  # the two longest are solved for
    if math.prod(2 * shape[axis] - 1 for axis in tried) > _MOST_TRIALS:
        return (), ()
    for steps in product(*(range(1 - shape[axis], shape[axis]) for axis in tried)):
        rest = -sum(step * strides[axis] for step, axis in zip(steps, tried, strict=True))
        solved = _solve(strides[first], shape[first] - 1, strides[second], shape[second] - 1, rest, any(steps))
        if solved is not None:
            return _pair(len(shape), dict(zip(axes, (*steps, *solved), strict=True)))
    return None


def _pair(rank: int, steps: dict[int, int]) -> tuple[Index, Index]:
    """The two first indices that differ by these steps."""
    differences = [steps.get(axis, 0) for axis in range(rank)]
    return tuple(max(-step, 0) for step in differences), tuple(max(step, 0) for step in differences)


def _solve(a: int, most_x: int, b: int, most_y: int, rest: int, zeros: bool) -> tuple[int, int] | None:
    """Whole x and y with a * x + b * y = rest, |x| <= most_x, |y| <= most_y; `zeros`: whether both may be 0."""
    divisor = math.gcd(a, b)
    if rest % divisor:
        return None
    a, b, rest = a // divisor, b // divisor, rest // divisor
    if rest == 0 and not zeros:
        return (abs(b), -a if b > 0 else a) if abs(b) <= most_x and abs(a) <= most_y else None
    period = abs(b)
    low, high = sorted(((rest - most_y * period) / a, (rest + most_y * period) / a))
    low, high = max(-most_x, math.floor(low)), min(most_x, math.ceil(high))  # at most one too far at either end
    x = low + (rest * pow(a, -1, period) - low) % period
    while x <= high:
        y = (rest - a * x) // b
        if abs(y) <= most_y:
            return x, y
        x += period
    return None
