"""Other looks at the same memory: views made of a view, by arithmetic alone."""

from __future__ import annotations

import math

from cuda_async import OwnershipError
from cutile.errors import ArgumentError
from cutile.host.checks import DTypeSpec, element_type, new_shape
from cutile.host.overlap import common_element
from cutile.host.shapes import ShapeLike, is_contiguous, reshape_shape, row_major_strides
from cutile.launch.views import View

__all__ = ("piece", "refuse_common_elements", "reinterpreted", "reshaped")


def reshaped(view: View, shape: ShapeLike, method: str) -> View:
    """The same elements under another shape. Raises ArgumentError where they would have to be moved."""
    extents = reshape_shape(shape, view.shape, view.strides, method=method)
    return View(view.storage, view.offset, view.dtype, extents, row_major_strides(extents))


def reinterpreted(view: View, dtype: DTypeSpec, shape: ShapeLike) -> View:
    """The same bytes as another dtype, under another shape.

    Raises:
        ArgumentTypeError: there is no such dtype.
        ArgumentError: the number of bytes differs, the elements are not contiguous, or the first one is not aligned.
    """
    chosen = element_type(dtype, "reinterpret")
    extents = new_shape(shape, "reinterpret")
    size = math.prod(view.shape) * (view.dtype.bits // 8)
    wanted = math.prod(extents) * (chosen.bits // 8)
    if wanted != size:
        raise ArgumentError(
            f"reinterpret: {chosen.name} of shape {extents} takes {wanted} bytes, the tensor ({view.dtype.name}, "
            f"shape {view.shape}) has {size}; the number of bytes must stay the same"
        )
    if not is_contiguous(view.shape, view.strides):
        raise ArgumentError(
            f"reinterpret: the elements of a tensor of shape {view.shape} and strides {view.strides} do not follow "
            "one another in memory; dup() gives a contiguous copy"
        )
    if view.address % (chosen.bits // 8):
        raise ArgumentError(
            f"reinterpret: the first element is at {view.address:#x}, which is no multiple of the "
            f"{chosen.bits // 8} bytes of {chosen.name}; dup() gives an aligned copy"
        )
    return View(view.storage, view.offset, chosen, extents, row_major_strides(extents))


def piece(view: View, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """Some of the elements, or all in another order; `offset` counts elements from the first one."""
    start = view.offset + offset * (view.dtype.bits // 8)
    return View(view.storage, start, view.dtype, shape, strides)


def refuse_common_elements(view: View, use: str) -> bool:
    """True where each index names an element of its own, so that tile blocks may write them in any order.

    Raises:
        OwnershipError: two indices name one element; says which.
    """
    common = common_element(view.shape, view.strides)
    if common is None:
        return True
    one, other = common
    which = f", {one} and {other} among them" if one else ""
    raise OwnershipError(
        f"{use}: indices of the tensor ({view.dtype.name}, shape {view.shape}, strides {view.strides}) name the same "
        f"element{which}: what it holds in the end would depend on which tile block is last. dup() gives a copy in "
        "which each has its own; to write the memory as it is, take the tensor that it is a look at"
    )
