"""Calls on raw pointers and on elements at any indices of a tensor. Both become accesses by address.

A pointer is an address in bytes, a u64 value, and the dtype of what is there, which is known when the kernel is
compiled. Offsets are i64 in between, so that an element count times a size does not overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutile.dtypes import DTypeLike, bool_, i64, u64
from cutile.frontend.expect import axis_of, constant_int, dtype_of, index_scalar, marker_of, shape_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape, broadcast_to, is_number, materialize
from cutile.frontend.registry import METHODS, method, operation
from cutile.frontend.tensors import extent
from cutile.frontend.tokens import is_ordered
from cutile.frontend.values import (
    TOKEN,
    MappedRef,
    MutRef,
    PartitionRef,
    PointerRef,
    TensorRef,
    describe,
    is_tile,
    items_of,
)
from cutile.ir.core import Value
from cutile.ir.types import TensorType
from cutile.language import markers
from cutile.ops import arith, compare
from cutile.ops.cast import Convert
from cutile.ops.create import Iota
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress, TensorStride
from cutile.ops.shape import Broadcast, Reshape

Shape = tuple[int, ...]

_PADDING = {"none": 0.0, "zero": 0.0, "neg_zero": -0.0, "nan": float("nan"), "pos_inf": float("inf")}
_PADDING["neg_inf"] = -_PADDING["pos_inf"]


def pointer_of(frame: Frame, value: Any, what: str) -> PointerRef:
    """A tile of pointers."""
    if isinstance(value, PointerRef):
        return value
    frame.type_error(
        f"{what}: expected pointers, got {describe(value)}",
        remedy="Pointers come from a parameter annotated with Ptr[dtype], or from ct.int_to_ptr.",
    )


def lanes_of(frame: Frame, value: Any, dtype: DTypeLike, shape: Shape, what: str) -> Value:
    """A tile of `dtype` and `shape`: numbers and smaller tiles are broadcast."""
    if is_number(value):
        return materialize(frame, value, dtype, shape)
    if not is_tile(value):
        frame.type_error(
            f"{what}: expected a tile of {dtype} or a number, got {describe(value)}", remedy="Load a tile first."
        )
    if value.tile.dtype is not dtype:
        frame.type_error(
            f"{what}: expected a tile of {dtype}, got {value.tile.dtype}",
            remedy=f"Convert it: ct.convert_tile(tile, ct.{dtype.__name__}).",
        )
    if broadcast_shape(frame, [value.tile.shape, shape], what) != shape:
        frame.type_error(
            f"{what}: a tile of shape {value.tile.shape} does not broadcast to {shape}",
            remedy="There is one lane for each index; reshape the tile, or the indices.",
        )
    return broadcast_to(frame, value, shape)


def mask_of(frame: Frame, mask: Any, shape: Shape, what: str) -> Value:
    """A mask; all true for None."""
    return lanes_of(frame, True if mask is None else mask, bool_, shape, f"{what}: the mask")


def scope_of(frame: Frame, scope: Any, what: str) -> str:
    """The word for a scope; the device for None."""
    return marker_of(frame, markers.scope.DEVICE if scope is None else scope, markers.scope, what).value


def wide(frame: Frame, value: Any, what: str) -> Value:
    """Integers as i64."""
    if is_number(value) and isinstance(value, int) and not isinstance(value, bool):
        return materialize(frame, value, i64)
    if is_tile(value) and value.tile.dtype.kind in ("int", "uint"):
        return value if value.tile.dtype is i64 else frame.emit(Convert(x=value, dtype=i64))
    frame.type_error(
        f"{what}: expected integers, got {describe(value)}", remedy="Convert them: ct.convert_tile(tile, ct.i32)."
    )


def advance(frame: Frame, pointers: PointerRef, counts: Value) -> PointerRef:
    """Pointers `counts` (i64) elements further on; the two broadcast."""
    shape = broadcast_shape(frame, [pointers.value.tile.shape, counts.tile.shape], "offset")
    size = pointers.dtype.bits // 8
    steps = counts
    if size > 1:
        steps = frame.emit(arith.Mul(x=counts, y=materialize(frame, size, i64, counts.tile.shape)))
    steps = frame.emit(Convert(x=steps, dtype=u64))
    base, moved = (broadcast_to(frame, each, shape) for each in (pointers.value, steps))
    return PointerRef(frame.emit(arith.Add(x=base, y=moved)), pointers.dtype)


# Making pointers


@operation
def pointer_to_tile(frame: Frame, pointer: Any) -> Any:
    return pointer_of(frame, pointer, "pointer_to_tile")


@operation
def tile_to_pointer(frame: Frame, pointers: Any) -> Any:
    found = pointer_of(frame, pointers, "tile_to_pointer")
    if not found.value.tile.is_scalar:
        frame.type_error(
            f"tile_to_pointer: expected one pointer, got a tile of shape {found.value.tile.shape}",
            remedy="Reshape a tile of one to (): ct.reshape_ptr(pointers, ()).",
        )
    return found


@operation
def addptr(frame: Frame, pointers: Any, count: Any) -> Any:
    counts = wide(frame, count, "addptr")
    if not counts.tile.is_scalar:
        frame.type_error(
            f"addptr: the count must be a scalar, got a tile of shape {counts.tile.shape}",
            remedy="Use ct.addptr_tile(pointers, counts) for one per lane.",
        )
    return advance(frame, pointer_of(frame, pointers, "addptr"), counts)


@operation
def addptr_tile(frame: Frame, pointers: Any, counts: Any) -> Any:
    return advance(frame, pointer_of(frame, pointers, "addptr_tile"), wide(frame, counts, "addptr_tile"))


@operation
def broadcast_ptr(frame: Frame, pointers: Any, shape: Any) -> Any:
    found = pointer_of(frame, pointers, "broadcast_ptr")
    extents = shape_of(frame, shape, "broadcast_ptr")
    if found.value.tile.shape == extents:
        return found
    return PointerRef(frame.emit(Broadcast(x=found.value, shape=extents)), found.dtype)


@operation
def reshape_ptr(frame: Frame, pointers: Any, shape: Any) -> Any:
    found = pointer_of(frame, pointers, "reshape_ptr")
    extents = () if shape == () else shape_of(frame, shape, "reshape_ptr")
    if found.value.tile.shape == extents:
        return found
    return PointerRef(frame.emit(Reshape(x=found.value, shape=extents)), found.dtype)


@operation
def int_to_ptr(frame: Frame, addresses: Any, dtype: Any) -> Any:
    frame.require_unsafe("int_to_ptr")
    wanted = dtype_of(frame, dtype, "int_to_ptr")
    if is_number(addresses):
        return PointerRef(materialize(frame, addresses, u64), wanted)
    if not is_tile(addresses) or addresses.tile.dtype not in (i64, u64):
        frame.type_error(
            f"int_to_ptr: addresses are i64 or u64, got {describe(addresses)}",
            remedy="Convert them: ct.convert_tile(tile, ct.i64).",
        )
    same = addresses.tile.dtype is u64
    return PointerRef(addresses if same else frame.emit(Convert(x=addresses, dtype=u64)), wanted)


@operation
def ptr_to_int(frame: Frame, pointers: Any) -> Any:
    return frame.emit(Convert(x=pointer_of(frame, pointers, "ptr_to_int").value, dtype=i64))


@operation
def ptr_to_ptr(frame: Frame, pointers: Any, dtype: Any) -> Any:
    return PointerRef(pointer_of(frame, pointers, "ptr_to_ptr").value, dtype_of(frame, dtype, "ptr_to_ptr"))


# Loads and stores


def _pad_of(frame: Frame, pad: Any, dtype: DTypeLike, shape: Shape, what: str) -> Value:
    if isinstance(pad, markers.padding):
        pad = _PADDING[pad.value]
    if dtype.kind != "float" and pad in (None, 0):
        pad = False if dtype is bool_ else 0
    return lanes_of(frame, 0 if pad is None else pad, dtype, shape, f"{what}: the padding")


def load_lanes(
    frame: Frame, pointers: PointerRef, *, mask: Any = None, pad: Any = None, what: str = "load", **how: Any
) -> Value:
    """The elements pointed to."""
    shape = pointers.value.tile.shape
    return frame.emit(
        LoadPointer(
            pointers=pointers.value,
            mask=mask_of(frame, mask, shape, what),
            pad=_pad_of(frame, pad, pointers.dtype, shape, what),
            **how,
        )
    )


def store_lanes(frame: Frame, pointers: PointerRef, value: Any, *, mask: Any, what: str = "store", **how: Any) -> None:
    """Write the elements pointed to."""
    shape = pointers.value.tile.shape
    made = StorePointer(
        pointers=pointers.value,
        value=lanes_of(frame, value, pointers.dtype, shape, f"{what}: the value"),
        mask=mask_of(frame, mask, shape, what),
        **how,
    )
    frame.builder.add(made)


@operation
def load_ptr_tko(
    frame: Frame,
    pointers: Any,
    ordering: Any = markers.ordering.WEAK,
    scope: Any = None,
    mask: Any = None,
    pad: Any = None,
    token: Any = None,
    latency: Any = None,
) -> Any:
    del latency  # a hint
    what = "load_ptr_tko"
    how = {
        "order": marker_of(frame, ordering, markers.ordering, what).value,
        "scope": scope_of(frame, scope, what),
        "ordered": is_ordered(frame, token, what),
    }
    return load_lanes(frame, pointer_of(frame, pointers, what), mask=mask, pad=pad, what=what, **how), TOKEN


@operation
def store_ptr_tko(
    frame: Frame,
    pointers: Any,
    value: Any,
    ordering: Any = markers.ordering.WEAK,
    scope: Any = None,
    mask: Any = None,
    token: Any = None,
    latency: Any = None,
) -> Any:
    del latency  # a hint
    what = "store_ptr_tko"
    how = {
        "order": marker_of(frame, ordering, markers.ordering, what).value,
        "scope": scope_of(frame, scope, what),
        "ordered": is_ordered(frame, token, what),
    }
    store_lanes(frame, pointer_of(frame, pointers, what), value, mask=mask, what=what, **how)
    return TOKEN


@method(PointerRef, "load")
def _load(frame: Frame, self: PointerRef, *, mask: Any = None, pad: Any = None) -> Any:
    return load_lanes(frame, self, mask=mask, pad=pad, ordered=True)


@method(PointerRef, "store")
def _store(frame: Frame, self: PointerRef, value: Any, *, mask: Any = None) -> None:
    store_lanes(frame, self, value, mask=mask, ordered=True)


@method(PointerRef, "__sub__")
def _before(frame: Frame, self: PointerRef, counts: Any) -> Any:
    back = wide(frame, counts, "-")
    return advance(frame, self, frame.emit(arith.Neg(x=back)))


METHODS[PointerRef, "offset"] = addptr_tile  # Python's spelling takes both
METHODS[PointerRef, "offset_tile"] = addptr_tile
METHODS[PointerRef, "__add__"] = addptr_tile
METHODS[PointerRef, "broadcast"] = broadcast_ptr
METHODS[PointerRef, "reshape"] = reshape_ptr


# Elements of tensors at any indices


@dataclass(frozen=True)
class Elements:
    """Elements of a tensor: where they are, and which of them are in it (and wanted)."""

    pointers: PointerRef
    mask: Value

    @property
    def shape(self) -> Shape:
        """The lanes."""
        return self.mask.tile.shape


def tensor_of(frame: Frame, x: Any, what: str) -> Value:
    """The tensor behind a tensor, a partition or a `Mut`."""
    if isinstance(x, TensorRef | MutRef | PartitionRef | MappedRef):
        return x.value
    frame.type_error(
        f"{what}: expected a tensor or a Mut, got {describe(x)}",
        remedy="Elements are chosen in memory: store the tile, or choose with ct.select and ct.extract.",
    )


def elements_of(frame: Frame, tensor: Value, index: tuple[Value, ...], mask: Any, what: str) -> Elements:
    """The elements at i64 indices, one per axis, that broadcast; those outside of the tensor are masked off."""
    shape = broadcast_shape(frame, [each.tile.shape for each in index] + _shapes(mask), what)
    kept = None if mask is None else mask_of(frame, mask, shape, what)
    zero = materialize(frame, 0, i64, shape)
    offset: Value | None = None
    for axis, each in enumerate(index):
        place = broadcast_to(frame, each, shape)
        size = wide(frame, extent(frame, tensor, axis), what)
        inside = frame.emit(compare.Lt(x=place, y=broadcast_to(frame, size, shape)))
        inside = frame.emit(arith.And(x=inside, y=frame.emit(compare.Ge(x=place, y=zero))))
        kept = inside if kept is None else frame.emit(arith.And(x=kept, y=inside))
        known = tensor.tensor.strides[axis]
        if known != 1:
            step = frame.emit(TensorStride(x=tensor, axis=axis)) if known is None else materialize(frame, known, i64)
            place = frame.emit(arith.Mul(x=place, y=broadcast_to(frame, step, shape)))
        offset = place if offset is None else frame.emit(arith.Add(x=offset, y=place))
    assert offset is not None, "a tensor has at least one axis"
    assert kept is not None
    base = PointerRef(frame.emit(TensorAddress(x=tensor)), tensor.tensor.dtype)
    return Elements(advance(frame, base, offset), kept)


def _shapes(mask: Any) -> list[Shape]:
    return [mask.tile.shape] if is_tile(mask) else []


def indices_of(frame: Frame, tensor: Value, index: Any, what: str) -> tuple[Value, ...]:
    """One i64 index per axis."""
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if len(items) != tensor.tensor.rank:
        frame.type_error(
            f"{what}: {tensor.name!r} has {tensor.tensor.rank} axes, got {len(items)} indices",
            remedy="Give one tile or scalar of integers per axis, as a tuple.",
        )
    return tuple(wide(frame, item, f"{what}: an index") for item in items)


def is_constant(tensor: Value) -> bool:
    """Whether nothing writes the tensor while the kernel runs: a read-only parameter, which a launch sees to."""
    return isinstance(tensor.type, TensorType)


@operation
def gather(frame: Frame, x: Any, index: Any, *, mask: Any = None, padding_value: Any = 0) -> Any:
    tensor = tensor_of(frame, x, "gather")
    where = elements_of(frame, tensor, indices_of(frame, tensor, index, "gather"), mask, "gather")
    constant = is_constant(tensor) and not frame.unsafe  # raw pointers may lead into any tensor
    how = {"constant": constant, "ordered": not constant}
    return load_lanes(frame, where.pointers, mask=where.mask, pad=padding_value, what="gather", **how)


@operation
def scatter(frame: Frame, y: Any, index: Any, value: Any, *, mask: Any = None) -> None:
    tensor = written(frame, y, "scatter")
    where = elements_of(frame, tensor, indices_of(frame, tensor, index, "scatter"), mask, "scatter")
    store_lanes(frame, where.pointers, value, mask=where.mask, what="scatter", ordered=True)


def written(frame: Frame, y: Any, what: str) -> Value:
    """The tensor behind something that the kernel may write."""
    tensor = tensor_of(frame, y, what)
    if is_constant(tensor):
        frame.type_error(
            f"{what}: {tensor.name!r} is read-only",
            remedy="Annotate it with Mut, and pass a partition of the tensor.",
        )
    return tensor


@dataclass(frozen=True)
class GatherRef:
    """A tensor in tiles of `shape`, whose places along `axis` are chosen one by one."""

    value: Value
    shape: Shape
    axis: int


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
    del latency  # a hint
    what = "load_gather_scatter_view_tko"
    if not isinstance(view, GatherRef):
        frame.type_error(
            f"{what}: expected what make_gather_scatter_view made, got {describe(view)}",
            remedy="Make one: view = ct.make_gather_scatter_view(x, shape, axis).",
        )
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if len(items) != len(view.shape):
        frame.type_error(
            f"{what}: the view has {len(view.shape)} axes, got {len(items)} indices",
            remedy=f"Give a tile of i32 along axis {view.axis}, and a tile index along the others.",
        )
    places: list[Value] = []
    for axis, (item, size) in enumerate(zip(items, view.shape, strict=True)):
        if axis == view.axis:
            chosen = wide(frame, item, f"{what}: the index along axis {axis}")
            if chosen.tile.shape != (size,):
                frame.type_error(
                    f"{what}: along axis {axis} the index must be a tile of shape {(size,)}, got {chosen.tile.shape}",
                    remedy="It says which element each place of the tile takes.",
                )
        else:
            start = wide(frame, index_scalar(frame, item, what), what)
            start = frame.emit(arith.Mul(x=start, y=materialize(frame, constant_int(frame, size, what), i64)))
            counted = frame.emit(Iota(length=size, dtype=i64))
            chosen = frame.emit(arith.Add(x=broadcast_to(frame, start, (size,)), y=counted))
        alone = tuple(size if each == axis else 1 for each in range(len(view.shape)))
        places.append(chosen if alone == (size,) else frame.emit(Reshape(x=chosen, shape=alone)))
    where = elements_of(frame, view.value, tuple(places), None, what)
    how = {
        "order": marker_of(frame, ordering, markers.ordering, what).value,
        "scope": scope_of(frame, scope, what),
        "ordered": is_ordered(frame, token, what) or not is_constant(view.value),
    }
    return load_lanes(frame, where.pointers, mask=where.mask, what=what, **how), TOKEN
