"""Tiles at any step: where they lie in their tensor, and how far their loops go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cutile.backend.cpu.lowering.nests import Root, Target
from cutile.backend.cpu.lowering.nodes import Extent, Loaded, TensorAxis
from cutile.ir.core import Value
from cutile.ops.compare import Ge, Select
from cutile.ops.view import LoadView, StoreView

if TYPE_CHECKING:
    from cutile.backend.cpu.lowering.lower import Lowering


def _axes(lowering: Lowering, op: LoadView | StoreView) -> list[TensorAxis]:
    scope, limits = lowering.scope, dict(zip(op.limited, op.limits, strict=True))
    made: list[TensorAxis] = []
    for axis, (index, step) in enumerate(zip(op.starts, op.steps, strict=True)):
        plain = lowering.tile_axis(op.x, axis, (index, step))
        size = plain.size
        if axis in limits:
            limit = scope.as_index(lowering.concrete(limits[axis]))
            size = scope.smaller(size, limit, f"{op.x.name or 'view'}_end_{axis}")
        made.append(TensorAxis(plain.start, size, plain.stride, False, plain.may_be_negative, whole=True))
    return made


def load_view(lowering: Lowering, op: LoadView, extents: Sequence[Extent]) -> Loaded:
    """A tile to be read where it is needed."""
    axes = _axes(lowering, op)
    if op.is_plain:  # its blocks may be joined
        axes = [lowering.tile_axis(op.x, *each) for each in enumerate(zip(op.starts, op.shape, strict=True))]
    return lowering.loaded(op.x, axes, extents, op.padding_value)


def store_view(lowering: Lowering, op: StoreView) -> None:
    """Loops over what of the tile lies in the tensor."""
    axes = _axes(lowering, op)
    node = lowering.node(op.value)
    extents = [
        Extent(extent.capacity, _count(lowering, axis, extent)) for axis, extent in zip(axes, node.extents, strict=True)
    ]
    tile = lowering.loaded(op.x, axes, extents)
    lowering.pending.append(Root(tuple(extents), [Target(node, tile=tile)], location=op.location, key=op))


def _count(lowering: Lowering, axis: TensorAxis, extent: Extent) -> Value:
    """The elements to be written along an axis: none where the tile begins before the tensor."""
    scope = lowering.scope
    count = scope.smaller(extent.stop(scope), scope.minus(axis.size, axis.start), "count")
    if axis.may_be_negative:
        inside = scope.shared(("0<=", axis.start), Ge(axis.start, scope.index(0)))
        count = scope.shared(("or 0", inside, count), Select(inside, count, scope.index(0)))
    return count
