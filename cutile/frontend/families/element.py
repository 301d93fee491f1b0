"""Calls on elements at any indices of a tensor.

They become accesses by address, with the tensor's bounds in the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutile.dtypes import i64
from cutile.frontend.expect import (
    A_STORE,
    BY_ADDRESS,
    axis_of,
    index_between,
    index_scalar,
    indices,
    latency_of,
    shape_of,
)
from cutile.frontend.families.memory import extent, is_ordered
from cutile.frontend.families.pointer import (
    Shape,
    advance,
    load_lanes,
    mask_of,
    ordering_of,
    scope_of,
    store_lanes,
    wide,
)
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape, broadcast_to, materialize
from cutile.frontend.plain_numbers import I64
from cutile.frontend.registry import operation
from cutile.frontend.shared_accesses import Reached, is_shared
from cutile.frontend.values import (
    TOKEN,
    Described,
    MappedRef,
    MutRef,
    PartitionRef,
    PointerRef,
    TensorRef,
    describe,
    is_tile,
    items_of,
)
from cutile.ir import MutType, TensorType, Value
from cutile.language import markers
from cutile.ops import arith, compare
from cutile.ops.create import Iota
from cutile.ops.memory import MAX_EXTENT
from cutile.ops.pointer import TensorAddress, TensorStride
from cutile.ops.shape import Reshape


@dataclass(frozen=True)
class Elements:
    """Elements of a tensor: their addresses, and a mask of the lanes to access."""

    pointers: PointerRef
    mask: Value

    @property
    def shape(self) -> Shape:
        """The shape of the lanes."""
        return self.mask.tile.shape


def tensor_of(frame: Frame, x: Any, what: str) -> Value:
    """The tensor behind a tensor, a partition or a `Mut`."""
    if isinstance(x, TensorRef | MutRef | PartitionRef | MappedRef):
        return x.value
    frame.type_error(
        f"{what}: expected a tensor or a Mut, got {describe(x)}",
        remedy="Elements are chosen in memory: store the tile, or choose with ct.select and ct.extract.",
    )


def elements_of(
    frame: Frame, tensor: Value, index: tuple[Value, ...], mask: Any, what: str, *, every: bool | None = None
) -> Elements:
    """The elements at i64 indices, one per axis, that broadcast.

    Elements outside of the tensor are masked off.

    Args:
        every: which indices the interpreter requires in the tensor. True: every one, since one outside is most likely a
            mistake. False: at least one, since padding may be meant. None: none, for a tile whose index was checked.
    """
    shape = broadcast_shape(frame, [each.tile.shape for each in index] + _shapes(mask), what)
    within = own_mask = None if mask is None else mask_of(frame, mask, shape, what)
    if every is not None:
        frame.reach(tensor, index, within, what, every=every)
    zero = materialize(frame, 0, i64, shape)
    offset: Value | None = None
    for axis, each in enumerate(index):
        place = broadcast_to(frame, each, shape)
        size = wide(frame, extent(frame, tensor, axis), what)
        inside = frame.emit(compare.Lt(x=place, y=broadcast_to(frame, size, shape)))
        inside = frame.emit(arith.And(x=inside, y=frame.emit(compare.Ge(x=place, y=zero))))
        within = inside if within is None else frame.emit(arith.And(x=within, y=inside))
        known = tensor.tensor.strides[axis]
        if known != 1:
            step = frame.emit(TensorStride(x=tensor, axis=axis)) if known is None else materialize(frame, known, i64)
            place = frame.emit(arith.Mul(x=place, y=broadcast_to(frame, step, shape)))
        offset = place if offset is None else frame.emit(arith.Add(x=offset, y=place))
    if offset is None:  # a tensor without axes has one element, which is always there
        offset = zero
    if within is None:
        within = materialize(frame, True, None, shape)
    base = PointerRef(frame.emit(TensorAddress(x=tensor)), tensor.tensor.dtype)
    pointers = advance(frame, base, offset)
    frame.compilation.reached[pointers.value] = Reached(tensor, base.value, index, own_mask)
    return Elements(pointers, within)


def _shapes(mask: Any) -> list[Shape]:
    return [mask.tile.shape] if is_tile(mask) else []


def indices_of(frame: Frame, tensor: Value, index: Any, what: str) -> tuple[Value, ...]:
    """One i64 index per axis."""
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if len(items) != tensor.tensor.rank:
        frame.type_error(
            f"{what}: {tensor.name!r} has {tensor.tensor.rank} axes, got {indices(items)}",
            remedy="Give one tile or scalar of integers per axis, as a tuple.",
        )
    # A number beyond 64 bits is outside of every tensor, as the nearest i64 is.
    items = tuple(min(max(item, I64.low), I64.high) if type(item) is int else item for item in items)
    return tuple(wide(frame, item, f"{what}: an index") for item in items)


def along_tile(frame: Frame, index: Value, size: int, step: int) -> Value:
    """The indices, i64<size>, of a tile's elements along an axis.

    They begin at the element `index * step`.
    """
    if index.tile.dtype is i64:  # clamped to just outside on either side, so that the product cannot wrap
        index = index_between(frame, index, -1, MAX_EXTENT // step + 1)
    begin = frame.emit(arith.Mul(x=wide(frame, index, "an index"), y=materialize(frame, step, i64)))
    counted = frame.emit(Iota(length=size, dtype=i64))
    return frame.emit(arith.Add(x=broadcast_to(frame, begin, (size,)), y=counted))


def is_constant(tensor: Value) -> bool:
    """Whether nothing writes the tensor while the kernel runs.

    The launch sees to it for a read-only parameter.
    """
    return isinstance(tensor.type, TensorType) and tensor.type.stable


@operation
def gather(
    frame: Frame,
    x: Any,
    index: Any,
    *,
    mask: Any = None,
    padding_value: Any = 0,
    ordering: Any = markers.ordering.WEAK,
    scope: Any = None,
) -> Any:
    what = "gather"
    tensor = tensor_of(frame, x, what)
    where = elements_of(frame, tensor, indices_of(frame, tensor, index, what), mask, what, every=False)
    order = ordering_of(frame, ordering, what, stores=False)
    # In an unsafe kernel a raw pointer may write to any tensor.
    constant = is_constant(tensor) and not frame.unsafe and order == "weak"
    how = {"constant": constant, "ordered": not constant, "order": order, "scope": scope_of(frame, scope, what)}
    return load_lanes(frame, where.pointers, mask=where.mask, pad=padding_value, what=what, **how)


@operation
def scatter(
    frame: Frame,
    y: Any,
    index: Any,
    value: Any,
    *,
    mask: Any = None,
    ordering: Any = markers.ordering.WEAK,
    scope: Any = None,
) -> None:
    what = "scatter"
    tensor = written(frame, y, what)
    where = elements_of(frame, tensor, indices_of(frame, tensor, index, what), mask, what, every=True)
    how = {"order": ordering_of(frame, ordering, what, stores=True), "scope": scope_of(frame, scope, what)}
    store_lanes(frame, where.pointers, value, mask=where.mask, what=what, ordered=True, **how)


def written(frame: Frame, y: Any, what: str) -> Value:
    """The tensor of a value that the kernel may write."""
    tensor = tensor_of(frame, y, what)
    if is_constant(tensor) or not (frame.unsafe or is_written(frame, tensor)):
        frame.type_error(
            f"{what}: {tensor.name!r} is read-only",
            remedy="Annotate it with SharedMut, and pass the tensor; or with Mut, and pass a partition of it.",
        )
    return tensor


def is_written(frame: Frame, tensor: Value) -> bool:
    """Whether a tensor is a `Mut` or `SharedMut` parameter, and no view."""
    return isinstance(tensor.type, MutType) or is_shared(tensor, frame.builder.open_blocks[0].arguments)


@dataclass(frozen=True)
class GatherRef(Described):
    """A tensor in tiles of `shape`, whose elements along `axis` are chosen one by one."""

    value: Value
    shape: Shape
    axis: int

    @property
    def description(self) -> str:
        return f"gather view of {self.value.name!r} with tiles of {self.shape}"


@operation
def make_gather_scatter_view(frame: Frame, x: Any, shape: Any, axis: Any = 0) -> Any:
    what = "make_gather_scatter_view"
    tensor = tensor_of(frame, x, what)
    extents = shape_of(frame, shape, what)
    if len(extents) != tensor.tensor.rank:
        frame.type_error(
            f"{what}: {tensor.name!r} has {tensor.tensor.rank} axes, the tile shape {extents} has {len(extents)}",
            remedy="Give the tile one extent per axis of the tensor.",
        )
    return GatherRef(tensor, extents, axis_of(frame, axis, len(extents), what))


def _view_elements(frame: Frame, view: Any, index: Any, what: str) -> Elements:
    """The elements of a tile of a gather view."""
    if not isinstance(view, GatherRef):
        frame.type_error(
            f"{what}: expected what make_gather_scatter_view made, got {describe(view)}",
            remedy="Make one: view = ct.make_gather_scatter_view(x, shape, axis).",
        )
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if len(items) != len(view.shape):
        frame.type_error(
            f"{what}: the view has {len(view.shape)} axes, got {indices(items)}",
            remedy=f"Give a tile of i32 along axis {view.axis}, and a tile index along the others.",
        )
    places: list[Value] = []
    for axis, (item, size) in enumerate(zip(items, view.shape, strict=True)):
        if axis == view.axis:
            index_tile = wide(frame, item, f"{what}: the index along axis {axis}")
            if index_tile.tile.shape != (size,):
                frame.type_error(
                    f"{what}: along axis {axis} the index must be a tile of shape {(size,)}, "
                    f"got {index_tile.tile.shape}",
                    remedy="It says which element each place of the tile takes.",
                )
        else:
            index_tile = along_tile(frame, index_scalar(frame, item, what), size, size)
        alone = tuple(size if each == axis else 1 for each in range(len(view.shape)))
        places.append(index_tile if alone == (size,) else frame.emit(Reshape(x=index_tile, shape=alone)))
    return elements_of(frame, view.value, tuple(places), None, what, every=False)


@operation
def load_gather_scatter_view_tko(
    frame: Frame,
    view: Any,
    index: Any,
    ordering: Any = markers.ordering.WEAK,
    scope: Any = None,
    token: Any = None,
    latency: Any = None,
) -> Any:
    what = "load_gather_scatter_view_tko"
    latency_of(frame, latency, what, BY_ADDRESS)
    where = _view_elements(frame, view, index, what)
    how = {
        "order": ordering_of(frame, ordering, what, stores=False),
        "scope": scope_of(frame, scope, what),
        "ordered": is_ordered(frame, token, what) or not is_constant(view.value),
    }
    return load_lanes(frame, where.pointers, mask=where.mask, what=what, **how), TOKEN


@operation
def store_gather_scatter_view_tko(
    frame: Frame,
    view: Any,
    value: Any,
    index: Any,
    ordering: Any = markers.ordering.WEAK,
    scope: Any = None,
    token: Any = None,
    latency: Any = None,
) -> Any:
    what = "store_gather_scatter_view_tko"
    latency_of(frame, latency, what, A_STORE)
    where = _view_elements(frame, view, index, what)
    written(frame, TensorRef(view.value), what)
    order = ordering_of(frame, ordering, what, stores=True)
    is_ordered(frame, token, what)
    place = scope_of(frame, scope, what)
    store_lanes(frame, where.pointers, value, mask=where.mask, what=what, order=order, scope=place, ordered=True)
    return TOKEN
