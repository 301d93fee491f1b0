"""Calls on raw pointers: accesses by address.

A pointer is an address in bytes, a u64 value, and the dtype of what is there, which is known when the kernel is
compiled. Offsets are i64 in between, so that an element count times a size does not overflow.
"""

from __future__ import annotations

from typing import Any

from cutile.dtypes import DTypeLike, bool_, i64, u64
from cutile.frontend.expect import A_STORE, BY_ADDRESS, dtype_of, latency_of, marker_of, shape_of
from cutile.frontend.families.memory import is_ordered
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape, broadcast_to, is_number, materialize
from cutile.frontend.plain_numbers import adapted
from cutile.frontend.registry import METHODS, method, operation
from cutile.frontend.values import (
    TOKEN,
    IndexComponent,
    PointerRef,
    describe,
    is_tile,
)
from cutile.ir.core import Value
from cutile.language import markers
from cutile.ops import arith
from cutile.ops.cast import Convert
from cutile.ops.pointer import LOAD_ORDERS, STORE_ORDERS, LoadPointer, StorePointer
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
    value = adapted(frame, value, dtype)
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


def ordering_of(frame: Frame, value: Any, what: str, *, stores: bool) -> str:
    """The word of an ordering that loads, or stores, may have."""
    order: str = marker_of(frame, value, markers.ordering, what).value
    words = STORE_ORDERS if stores else LOAD_ORDERS
    if order not in words:
        choices = ", ".join(f"ct.ordering.{word.upper()}" for word in words)
        other = "a load acquires" if stores else "a store releases"
        frame.type_error(
            f"{what}: a {'store' if stores else 'load'} cannot be ct.ordering.{order.upper()}",
            remedy=f"It is one of {choices}; {other}, and an atomic update may do both.",
        )
    return order


def scope_of(frame: Frame, scope: Any, what: str) -> str:
    """The word for a scope; the device for None."""
    return marker_of(frame, markers.scope.DEVICE if scope is None else scope, markers.scope, what).value


def wide(frame: Frame, value: Any, what: str) -> Value:
    """Integers as i64."""
    if isinstance(value, IndexComponent):
        value = value.value
    if is_number(value) and isinstance(value, int) and not isinstance(value, bool):
        return materialize(frame, value, i64)
    if is_tile(value) and value.tile.dtype.is_integer:
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
    pointer = pointer_of(frame, pointers, "tile_to_pointer")
    if not pointer.value.tile.is_scalar:
        frame.type_error(
            f"tile_to_pointer: expected one pointer, got a tile of shape {pointer.value.tile.shape}",
            remedy="Reshape a tile of one to (): ct.reshape_ptr(pointers, ()).",
        )
    return pointer


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
    pointer = pointer_of(frame, pointers, "broadcast_ptr")
    extents = shape_of(frame, shape, "broadcast_ptr")
    if pointer.value.tile.shape == extents:
        return pointer
    return PointerRef(frame.emit(Broadcast(x=pointer.value, shape=extents)), pointer.dtype)


@operation
def reshape_ptr(frame: Frame, pointers: Any, shape: Any) -> Any:
    pointer = pointer_of(frame, pointers, "reshape_ptr")
    extents = () if shape == () else shape_of(frame, shape, "reshape_ptr")
    if pointer.value.tile.shape == extents:
        return pointer
    return PointerRef(frame.emit(Reshape(x=pointer.value, shape=extents)), pointer.dtype)


@operation
def int_to_ptr(frame: Frame, addresses: Any, dtype: Any) -> Any:
    frame.require_unsafe("int_to_ptr")
    element = dtype_of(frame, dtype, "int_to_ptr")
    if is_number(addresses):
        return PointerRef(materialize(frame, addresses, u64), element)
    if not is_tile(addresses) or addresses.tile.dtype not in (i64, u64):
        frame.type_error(
            f"int_to_ptr: addresses are i64 or u64, got {describe(addresses)}",
            remedy="Convert them: ct.convert_tile(tile, ct.i64).",
        )
    same = addresses.tile.dtype is u64
    return PointerRef(addresses if same else frame.emit(Convert(x=addresses, dtype=u64)), element)


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
    if not dtype.is_float and pad in (None, 0):  # 0.0 is no integer, and 0 is no bool
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
    op = StorePointer(
        pointers=pointers.value,
        value=lanes_of(frame, value, pointers.dtype, shape, f"{what}: the value"),
        mask=mask_of(frame, mask, shape, what),
        **how,
    )
    frame.builder.add(op)


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
    what = "load_ptr_tko"
    latency_of(frame, latency, what, BY_ADDRESS)
    how = {
        "order": ordering_of(frame, ordering, what, stores=False),
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
    what = "store_ptr_tko"
    latency_of(frame, latency, what, A_STORE)
    how = {
        "order": ordering_of(frame, ordering, what, stores=True),
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
