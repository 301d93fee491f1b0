"""Atomic updates by raw pointer, of a tensor's elements, and of a whole tile."""

from __future__ import annotations

from typing import Any

from cutile.frontend.expect import index_scalar, indices, marker_of
from cutile.frontend.families.element import Elements, along_tile, elements_of, indices_of, written
from cutile.frontend.families.memory import is_ordered
from cutile.frontend.families.pointer import lanes_of, mask_of, pointer_of, scope_of
from cutile.frontend.frame import Frame
from cutile.frontend.registry import OPERATIONS, operation
from cutile.frontend.values import TOKEN, MutRef, PartitionRef, PointerRef, describe, items_of
from cutile.ir.core import Value
from cutile.language import markers
from cutile.ops.arith import Neg
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.shape import Reshape


def how_of(frame: Frame, ordering: Any, scope: Any, ordered: bool, what: str) -> dict[str, Any]:
    """The attributes that say how an update is ordered."""
    order = marker_of(frame, ordering, markers.ordering, what)
    if order is markers.ordering.WEAK:
        frame.type_error(
            f"{what}: an atomic update is never WEAK",
            remedy="Use ct.ordering.RELAXED where nothing else needs to be ordered with it.",
        )
    return {"order": order.value, "scope": scope_of(frame, scope, what), "ordered": ordered}


@operation
def atomic_rmw_tko(
    frame: Frame,
    pointers: Any,
    value: Any,
    mode: Any,
    ordering: Any = markers.ordering.RELAXED,
    scope: Any = None,
    mask: Any = None,
    token: Any = None,
) -> Any:
    what = "atomic_rmw_tko"
    address = pointer_of(frame, pointers, what)
    kind = marker_of(frame, mode, markers.atomic, what).value
    how = how_of(frame, ordering, scope, is_ordered(frame, token, what), what)
    return update_lanes(frame, address, value, mask, kind, what, how), TOKEN


@operation
def atomic_cas_tko(
    frame: Frame,
    pointers: Any,
    expected: Any,
    value: Any,
    ordering: Any = markers.ordering.RELAXED,
    scope: Any = None,
    mask: Any = None,
    token: Any = None,
) -> Any:
    what = "atomic_cas_tko"
    address = pointer_of(frame, pointers, what)
    shape = address.value.tile.shape
    swap = AtomicCas(
        pointers=address.value,
        expected=lanes_of(frame, expected, address.dtype, shape, f"{what}: what to compare with"),
        value=lanes_of(frame, value, address.dtype, shape, f"{what}: the value"),
        mask=mask_of(frame, mask, shape, what),
        **how_of(frame, ordering, scope, is_ordered(frame, token, what), what),
    )
    return frame.emit(swap), TOKEN


def _elements(frame: Frame, y: Any, index: Any, mask: Any, what: str) -> Elements:
    tensor = written(frame, y, what)
    return elements_of(frame, tensor, indices_of(frame, tensor, index, what), mask, what, every=True)


def update_lanes(
    frame: Frame,
    pointers: PointerRef,
    value: Any,
    mask: Any,
    kind: str,
    what: str,
    how: dict[str, Any],
    index: tuple[Value, ...] = (),
) -> Value:
    """Update the elements pointed to, and return them as they were before."""
    shape = pointers.value.tile.shape
    update = AtomicRmw(
        pointers=pointers.value,
        value=lanes_of(frame, value, pointers.dtype, shape, f"{what}: the value"),
        mask=mask_of(frame, mask, shape, what),
        index=index,
        kind=kind,
        **how,
    )
    return frame.emit(update)


def _register(name: str, *, signed: str, unsigned: str, real: str, negated: bool = False) -> None:
    """Register `atomic_<name>` on elements.

    Args:
        signed, unsigned, real: the kind of update for dtypes of this kind; bools take `signed`.
        negated: whether the value is subtracted.
    """
    what = f"atomic_{name}"

    def handler(
        frame: Frame,
        y: Any,
        index: Any,
        value: Any,
        *,
        mask: Any = None,
        ordering: Any = markers.ordering.RELAXED,
        scope: Any = None,
    ) -> Any:
        where = _elements(frame, y, index, mask, what)
        dtype = where.pointers.dtype
        kind = {"uint": unsigned, "float": real}.get(dtype.kind, signed)
        if negated and not dtype.is_bool:
            value = frame.emit(Neg(x=lanes_of(frame, value, dtype, where.shape, f"{what}: the value")))
        return update_lanes(
            frame, where.pointers, value, where.mask, kind, what, how_of(frame, ordering, scope, True, what)
        )

    OPERATIONS[what] = handler


_register("add", signed="add", unsigned="add", real="addf")
_register("sub", signed="add", unsigned="add", real="addf", negated=True)
_register("max", signed="max", unsigned="umax", real="max")
_register("min", signed="min", unsigned="umin", real="min")
for _name in ("and", "or", "xor", "xchg"):
    _register(_name, signed=_name, unsigned=_name, real=_name)


@operation
def atomic_cas(
    frame: Frame,
    y: Any,
    index: Any,
    expected: Any,
    value: Any,
    *,
    mask: Any = None,
    ordering: Any = markers.ordering.RELAXED,
    scope: Any = None,
) -> Any:
    what = "atomic_cas"
    where = _elements(frame, y, index, mask, what)
    swap = AtomicCas(
        pointers=where.pointers.value,
        expected=lanes_of(frame, expected, where.pointers.dtype, where.shape, f"{what}: what to compare with"),
        value=lanes_of(frame, value, where.pointers.dtype, where.shape, f"{what}: the value"),
        mask=where.mask,
        **how_of(frame, ordering, scope, True, what),
    )
    return frame.emit(swap)


@operation
def atomic_red_view_tko(
    frame: Frame,
    part: Any,
    value: Any,
    index: Any,
    mode: Any,
    ordering: Any = markers.ordering.RELAXED,
    scope: Any = None,
) -> Any:
    what = "atomic_red_view_tko"
    whole = isinstance(part, PartitionRef) and part.writes == "full" and part.order is None and part.steps is None
    if not isinstance(part, MutRef) and not whole:
        frame.type_error(
            f"{what}: expected a Mut or a partition of the whole of one, got {describe(part)}",
            remedy="Tiles of a block's own tile need no atomic update: load, compute, store.",
        )
    how = how_of(frame, ordering, scope, True, what)
    if how["order"] != "relaxed" or how["scope"] == "system":
        frame.type_error(
            f"{what}: it is RELAXED, among the tile block or the device; got {how['order']}, {how['scope']}",
            remedy="For another order use ct.atomic_add and its kin, or pointers.",
        )
    shape = part.value.mut.tile if isinstance(part, MutRef) else part.shape
    items = items_of(index) if isinstance(index, tuple) else (index,)
    if len(items) != len(shape):
        frame.type_error(
            f"{what}: {part.value.name!r} has {len(shape)} axes, got {indices(items)}",
            remedy="Give one tile index per axis, as a tuple.",
        )
    starts = tuple(index_scalar(frame, item, what) for item in items)
    places: list[Value] = []
    for axis, (start, size) in enumerate(zip(starts, shape, strict=True)):
        along = along_tile(frame, start, size, size)
        alone = tuple(size if each == axis else 1 for each in range(len(shape)))
        places.append(along if alone == (size,) else frame.emit(Reshape(x=along, shape=alone)))
    where = elements_of(frame, part.value, tuple(places), None, what)
    kind = marker_of(frame, mode, markers.atomic, what).value
    update_lanes(frame, where.pointers, value, where.mask, kind, what, how, starts)
    return TOKEN
