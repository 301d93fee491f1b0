"""Views made of a view by arithmetic alone: reshaped, reinterpreted, cut.

Nothing is copied.

Two indices of a view may name one element: overlapping windows over a signal, axes of stride 0. Such views are only
read, since the last of several writers would decide the element's value. `may_overlap` clears most views at once: in
the order of their strides, each axis steps beyond the elements that the axes before it reach. For the other views,
`common_element` looks for a difference d of two indices: an integer for each axis, not all 0, with |d| < extent and
sum(d * stride) = 0. It tries all values of d for all axes but the two longest, and solves for these two by the modular
inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from cuda_async import OwnershipError
from cutile.errors import ArgumentError
from cutile.host.shapes import (
    DTypeSpec,
    ShapeLike,
    element_type,
    is_contiguous,
    new_shape,
    reshape_shape,
    row_major_strides,
)
from cutile.launch.views import View

if TYPE_CHECKING:
    from cuda_async.collective import Buffer

__all__ = (
    "collective_buffer",
    "common_element",
    "may_overlap",
    "piece",
    "refuse_common_elements",
    "reinterpreted",
    "reshaped",
)


def collective_buffer(view: View) -> Buffer:
    """The elements for a collective. Raises ArgumentError if not contiguous."""
    from cuda_async.collective import Buffer  # most programs have one rank

    if not is_contiguous(view.shape, view.strides):
        raise ArgumentError(
            f"collective: the elements of the tensor ({view.dtype.name}, shape {view.shape}) are not contiguous; pass "
            "a copy (dup())"
        )
    return Buffer(view.storage, view.dtype.numpy, math.prod(view.shape), view.offset)


def reshaped(view: View, shape: ShapeLike, method: str) -> View:
    """The same elements under another shape.

    Raises ArgumentError if they would have to be moved.
    """
    extents = reshape_shape(shape, view.shape, view.strides, method=method)
    return View(view.storage, view.offset, view.dtype, extents, row_major_strides(extents))


def reinterpreted(view: View, dtype: DTypeSpec, shape: ShapeLike) -> View:
    """The same bytes as another dtype, under another shape.

    Raises:
        ArgumentTypeError: there is no such dtype.
        ArgumentError: the number of bytes differs, the elements are not contiguous, or the first one is not aligned.
    """
    element = element_type(dtype, "reinterpret")
    extents = new_shape(shape, "reinterpret")
    size = math.prod(view.shape) * (view.dtype.bits // 8)
    nbytes = math.prod(extents) * (element.bits // 8)
    if nbytes != size:
        raise ArgumentError(
            f"reinterpret: {element.name} of shape {extents} takes {nbytes} bytes, the tensor ({view.dtype.name}, "
            f"shape {view.shape}) has {size}; the number of bytes must stay the same"
        )
    if not is_contiguous(view.shape, view.strides):
        raise ArgumentError(
            f"reinterpret: the elements of a tensor of shape {view.shape} and strides {view.strides} do not follow "
            "one another in memory; dup() gives a contiguous copy"
        )
    if view.address % (element.bits // 8):
        raise ArgumentError(
            f"reinterpret: the first element is at {view.address:#x}, which is no multiple of the "
            f"{element.bits // 8} bytes of {element.name}; dup() gives an aligned copy"
        )
    return View(view.storage, view.offset, element, extents, row_major_strides(extents))


def piece(view: View, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """The view of some elements, or of all in another order.

    `offset` counts elements from the first one.
    """
    start = view.offset + offset * (view.dtype.bits // 8)
    return View(view.storage, start, view.dtype, shape, strides)


def refuse_common_elements(view: View, use: str) -> bool:
    """Refuse to write a view in which two indices name one element; else return True.

    Raises:
        OwnershipError: two indices name one element; names both.
    """
    common = common_element(view.shape, view.strides)
    if common is None:
        return True
    index, other = common
    words = f", {index} and {other} among them" if index else ""
    raise OwnershipError(
        f"{use}: indices of the tensor ({view.dtype.name}, shape {view.shape}, strides {view.strides}) name the same "
        f"element{words}: what it holds in the end would depend on which tile block is last. dup() gives a copy in "
        "which each has its own; to write the memory as it is, take the tensor that it is a look at"
    )


Index = tuple[int, ...]

_MAX_TRIALS = 1 << 20  # about a second; tensors of up to four axes that fit into 64 GiB need fewer


def may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices may name one element; False is certain, and found at once.

    >>> may_overlap((4, 8), (8, 1)), may_overlap((4, 8), (1, -4)), may_overlap((4, 8), (4, 1))
    (False, False, True)
    """
    if 0 in shape:
        return False
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for stride, extent in zip(strides, shape, strict=True)):
        if extent == 1:
            continue
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def common_element(shape: Sequence[int], strides: Sequence[int]) -> tuple[Index, Index] | None:
    """Two indices that name one element; None if there are none.

    Two empty tuples if a search would take too long: there may be such indices.

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
    *searched_axes, first, second = axes  # the two longest are solved for; one axis alone does not overlap itself
    if math.prod(2 * shape[axis] - 1 for axis in searched_axes) > _MAX_TRIALS:
        return (), ()
    for steps in product(*(range(1 - shape[axis], shape[axis]) for axis in searched_axes)):
        rest = -sum(step * strides[axis] for step, axis in zip(steps, searched_axes, strict=True))
        solution = _solve(strides[first], shape[first] - 1, strides[second], shape[second] - 1, rest, any(steps))
        if solution is not None:
            return _pair(len(shape), dict(zip(axes, (*steps, *solution), strict=True)))
    return None


def _pair(rank: int, steps: dict[int, int]) -> tuple[Index, Index]:
    """The smallest two indices that differ by these steps, which are given by axis."""
    differences = [steps.get(axis, 0) for axis in range(rank)]
    return tuple(max(-step, 0) for step in differences), tuple(max(step, 0) for step in differences)


def _solve(a: int, most_x: int, b: int, most_y: int, rest: int, zeros: bool) -> tuple[int, int] | None:
    """Integers x and y with a * x + b * y = rest, |x| <= most_x, |y| <= most_y.

    None if there are none. `zeros`: whether x and y may both be 0.
    """
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
