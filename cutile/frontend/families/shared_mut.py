"""Accesses of memory that any tile block may write: `SharedMut`, device variables.

A `SharedMut` has the methods of a tensor, and stores. A variable is reached by its address, which is a parameter of the
kernel beside those of its signature.
"""

from __future__ import annotations

from typing import Any

from cutile.frontend.families.atomic import how_of, update_lanes
from cutile.frontend.families.partition import padding_of, partition_of
from cutile.frontend.families.pointer import load_lanes, ordering_of, scope_of, store_lanes
from cutile.frontend.frame import Frame
from cutile.frontend.registry import method
from cutile.frontend.values import TOKEN, PointerRef, SharedRef
from cutile.language import markers
from cutile.language.markers import padding
from cutile.language.variable import DeviceVariable


@method(SharedRef, "partition")
def _partition(frame: Frame, self: SharedRef, shape: Any, padding: Any = padding.ZERO) -> Any:
    fill = padding_of(frame, padding, "partition")
    return partition_of(frame, self.value, shape, "partition", fill=fill, writes="full")


@method(SharedRef, "partition_permuted")
def _partition_permuted(frame: Frame, self: SharedRef, shape: Any, dim_map: Any) -> Any:
    return partition_of(frame, self.value, shape, "partition_permuted", order=dim_map, writes="full")


def _pointer(frame: Frame, variable: DeviceVariable) -> PointerRef:
    """A pointer to the variable."""
    return PointerRef(frame.address_of(variable), variable.dtype)


def _how(frame: Frame, ordering: Any, scope: Any, what: str, *, stores: bool) -> dict[str, Any]:
    order = ordering_of(frame, ordering, what, stores=stores)
    return {"order": order, "scope": scope_of(frame, scope, what), "ordered": True, "what": what}


@method(DeviceVariable, "load")
def _load(frame: Frame, self: DeviceVariable, ordering: Any = markers.ordering.RELAXED, scope: Any = None) -> Any:
    return load_lanes(frame, _pointer(frame, self), **_how(frame, ordering, scope, "Global.load", stores=False)), TOKEN


@method(DeviceVariable, "store")
def _store(
    frame: Frame, self: DeviceVariable, value: Any, ordering: Any = markers.ordering.RELAXED, scope: Any = None
) -> Any:
    how = _how(frame, ordering, scope, "Global.store", stores=True)
    store_lanes(frame, _pointer(frame, self), value, mask=None, **how)
    return TOKEN


@method(DeviceVariable, "atomic_add")
def _atomic_add(
    frame: Frame, self: DeviceVariable, value: Any, ordering: Any = markers.ordering.RELAXED, scope: Any = None
) -> Any:
    what = "Global.atomic_add"
    kind = "addf" if self.dtype.is_float else "add"
    how = how_of(frame, ordering, scope, True, what)
    return update_lanes(frame, _pointer(frame, self), value, None, kind, what, how), TOKEN
