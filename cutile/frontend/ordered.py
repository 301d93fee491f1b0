"""Accesses of whole tiles that are ordered with those of other tile blocks.

Element by element, by address.

An ordering other than WEAK is one of single elements: whoever reads a tile finds each element as some store left it,
not all of them as one store did. What an ACQUIRE load, or a RELEASE store, orders are the tile block's other accesses.
"""

from __future__ import annotations

from typing import Any

from cutile.frontend.families.element import Elements, along_tile, elements_of
from cutile.frontend.families.partition import Place, as_it_lies, place_of, require_written, stored_tile
from cutile.frontend.families.pointer import load_lanes, scope_of, store_lanes, wide
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_to
from cutile.frontend.values import PartitionRef
from cutile.ir.core import Value
from cutile.language.markers import padding
from cutile.ops import arith, compare
from cutile.ops.shape import Permute, Reshape


def load(frame: Frame, part: PartitionRef, index: Any, what: str, order: str, scope: Any) -> Value:
    """The tile at an index, each element read as `order` says."""
    place = place_of(frame, part, index, what)
    where = _elements(frame, part, place, what)
    how = {"order": order, "scope": scope_of(frame, scope, what), "ordered": True}
    tile = load_lanes(frame, where.pointers, mask=where.mask, pad=padding(part.padding), what=what, **how)
    return frame.emit(Permute(x=tile, axes=part.order)) if part.order else tile


def store(frame: Frame, part: PartitionRef, value: Any, index: Any, what: str, order: str, scope: Any) -> None:
    """Write the tile at an index, each element as `order` says."""
    require_written(frame, part, what)
    tile = as_it_lies(frame, part, stored_tile(frame, part, value, what))
    where = _elements(frame, part, place_of(frame, part, index, what), what)
    how = {"order": order, "scope": scope_of(frame, scope, what), "ordered": True}
    store_lanes(frame, where.pointers, tile, mask=where.mask, what=what, **how)


def _elements(frame: Frame, part: PartitionRef, place: Place, what: str) -> Elements:
    """The elements of a tile, in the order of the tensor's axes.

    Those past its edges, or its limits, masked off.
    """
    indices: list[Value] = []
    mask: Value | None = None
    for axis, (index, size, step) in enumerate(zip(place.index, place.shape, place.steps, strict=True)):
        along = along_tile(frame, index, size, step)
        alone = tuple(size if each == axis else 1 for each in range(len(place.shape)))
        along = along if alone == (size,) else frame.emit(Reshape(x=along, shape=alone))
        indices.append(along)
        if axis in place.limits:
            limit = broadcast_to(frame, wide(frame, place.limits[axis], what), alone)
            mask = _both(frame, mask, frame.emit(compare.Lt(x=along, y=limit)), place.shape)
    return elements_of(frame, part.value, tuple(indices), mask, what)


def _both(frame: Frame, x: Value | None, y: Value, shape: tuple[int, ...]) -> Value:
    y = broadcast_to(frame, y, shape)
    return y if x is None else frame.emit(arith.And(x=x, y=y))
