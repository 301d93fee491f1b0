"""Shapes and layouts: registers renamed, repeated, or moved between threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cutile.backend.cuda.emit.generic import emitter
from cutile.backend.cuda.emit.text import Call, Expression
from cutile.backend.cuda.ops import ConvertLayout
from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.errors import IRError
from cutile.ir.core import Op
from cutile.ops import shape

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel

Reshaping = shape.Broadcast | shape.Reshape | shape.Permute | ConvertLayout


def reshaping(op: Reshaping, kernel: Kernel) -> Expression:
    """By the decision in `how`; `keep` is no code at all."""
    facts, dtype = op.attributes, kernel.dtype(op.x.tile.dtype)
    how, x = facts["how"], kernel.use(op.x)
    if how == "keep":
        return x
    if how == "splat":
        return Call(kernel.bind("splat", "shape.splat", dtype, str(kernel.count(op))), (x,))
    if how == "first":
        return Call(kernel.bind("first", "shape.first", dtype, str(kernel.source_layout(op).registers)), (x,))
    layouts = (kernel.layout(facts["source"]), kernel.layout(facts["layout"]))
    if how == "repeat":
        return Call(kernel.bind("broadcast", "shape.broadcast", dtype, *layouts), (x,))
    if how == "take":
        return Call(kernel.bind("rearrange", "shape.rearrange", dtype, *layouts), (x,))
    if how == "exchange":
        return Call(kernel.bind("exchange", "quads.exchange", dtype, *layouts), (x,))
    if how == "move":
        place = (f"offset={facts['offset']}", f"fence={facts['fence']}")
        return Call(kernel.bind("move", "shape.move", dtype, *layouts, *place), (x,))
    raise IRError(f"{op.name}: cuda knows no {how!r}")


MOVED = ("dtype", "source", "layout")
"""What factories of functions that move elements between threads take."""

EMITTERS: dict[type[Op], Callable[[Any, Any], Expression]] = {
    **dict.fromkeys((shape.Broadcast, shape.Reshape, shape.Permute, ConvertLayout), reshaping),
    shape.Cat: emitter(Intrinsic("shape.cat", (*MOVED, "axis=", "offset=", "fence="))),
    shape.Extract: emitter(Intrinsic("shape.extract", (*MOVED, "offset=", "fence="))),
}
