"""The kernels that the host side itself launches, on a GPU.

What no copy of the driver can do.

Imported when first needed, and compiled then, as any kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from cuda_async import DeviceOp
from cutile.dtypes import DTypeLike, f64
from cutile.entry import entry
from cutile.errors import ArgumentError
from cutile.host.shapes import is_contiguous, row_major_strides
from cutile.host.transfer import fresh_op
from cutile.language import Mut, Tensor, constant, convert_tile, get_tile_block_id, iota, load_tile_like, select
from cutile.launch.views import TiledView, View

__all__ = (
    "below_one",
    "cast",
    "convert_to_new",
    "count",
    "count_onto",
    "gather",
    "gather_onto",
    "gather_to_new",
    "half_open",
    "ones",
    "ones_onto",
    "ramp",
    "ramp_onto",
)

T = TypeVar("T")

_TILES = {1: (1024,), 2: (32, 64), 3: (1, 32, 64)}


@entry
def gather(dst: Mut, src: Tensor):
    """dst = src, whatever their strides."""
    dst.store(load_tile_like(src, dst))


@entry
def count(dst: Mut):
    """dst[i] = i."""
    (n,) = dst.shape
    block, _, _ = get_tile_block_id()
    dst.store(convert_tile(iota((n,)) + block * n, dst.dtype))


@entry
def ramp(dst: Mut, start: f64, step: f64):
    """dst[i] = start + i * step."""
    (n,) = dst.shape
    block, _, _ = get_tile_block_id()
    dst.store(convert_tile(convert_tile(iota((n,)) + block * n, f64) * step + start, dst.dtype))


@entry
def ones(dst: Mut):
    """dst = 1."""
    dst.store(constant(1, dst.shape, dst.dtype))


@entry
def below_one(dst: Mut):
    """dst = 0 where it is 1: numbers in (0, 1] become numbers in [0, 1)."""
    number = dst.load()
    dst.store(select(number < 1, number, number - number))


@entry
def cast(dst: Mut, src: Tensor):
    """dst = src, as another dtype."""
    dst.store(convert_tile(load_tile_like(src, dst), dst.dtype))


class _Elements:
    """Elements as arguments of `gather`."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __kernel_input__(self) -> View:
        return self.view

    def __kernel_output__(self) -> TiledView:
        return TiledView(self.view, _tile(self.view))


def _tile(view: View) -> tuple[int, ...]:
    tile = _TILES.get(len(view.shape))
    if tile is None:
        raise ArgumentError(
            f"copy: elements of shape {view.shape} and strides {view.strides} are not contiguous, and a GPU kernel "
            f"writes at most {max(_TILES)} axes; copy slices of fewer axes"
        )
    return tile


def count_onto(destination: View) -> DeviceOp[None]:
    """An op that gives the elements of a view of one axis their own positions.

    Raises:
        OwnershipError: an operation that has not finished uses them.
    """
    return count(_Elements(destination)).map(lambda done: None)


def ramp_onto(destination: View, start: float, step: float) -> DeviceOp[None]:
    """An op that writes numbers in equal steps to a view of one axis.

    Raises as `count_onto`.
    """
    return ramp(_Elements(destination), start, step).map(lambda done: None)


def ones_onto(destination: View) -> DeviceOp[None]:
    """An op that sets the elements of a view of one axis to 1. Raises as `count_onto`."""
    return ones(_Elements(destination)).map(lambda done: None)


def half_open(destination: View) -> DeviceOp[None]:
    """An op that replaces 1 by 0 in a view of one axis. Raises as `count_onto`."""
    return below_one(_Elements(destination)).map(lambda done: None)


def gather_onto(destination: View, source: View) -> DeviceOp[None]:
    """An op that copies elements onto others of the same shape and dtype.

    Raises:
        ArgumentError: they have more than 3 axes.
        OwnershipError: they overlap, or an operation that has not finished uses one of the two.
    """
    return gather(_Elements(destination), _Elements(source)).map(lambda done: None)


def gather_to_new(source: View, make: Callable[[View], T]) -> DeviceOp[T]:
    """An op that copies elements to a new contiguous tensor and yields `make` of it.

    Raises:
        ArgumentError: they have more than 3 axes.
        OwnershipError: an operation that has not finished writes them.
    """
    _tile(source)
    new = fresh_op(source.dtype, source.shape).map(_Elements)
    return gather(new, _Elements(source)).first().map(lambda elements: make(elements.view))


def convert_to_new(source: View, dtype: DTypeLike, make: Callable[[View], T]) -> DeviceOp[T]:
    """An op that copies elements to a new contiguous tensor of another dtype.

    It yields `make` of that tensor.

    Raises:
        ArgumentError: they are not contiguous and have more than 3 axes.
        OwnershipError: an operation that has not finished writes them.
    """
    shape = source.shape
    if is_contiguous(shape, source.strides):
        flat = (math.prod(shape),)
        source = View(source.storage, source.offset, source.dtype, flat, row_major_strides(flat))
    _tile(source)
    new = fresh_op(dtype, source.shape).map(_Elements)

    def shaped(elements: _Elements) -> T:
        view = elements.view
        return make(View(view.storage, view.offset, view.dtype, shape, row_major_strides(shape)))

    return cast(new, _Elements(source)).first().map(shaped)
