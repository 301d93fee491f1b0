"""Shapes and layouts: what only renames registers, what repeats them, and what moves elements between threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cutile.backend.cuda.emit.text import Call, Expression
from cutile.backend.cuda.ops import ConvertLayout
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


def cat(op: shape.Cat, kernel: Kernel) -> Call:
    """`cat(x, y)`."""
    facts = op.attributes
    layouts = [kernel.layout(name) for name in (*facts["source"], facts["layout"])]
    place = (f"axis={op.axis}", f"offset={facts['offset']}", f"fence={facts['fence']}")
    made = kernel.bind("cat", "shape.cat", kernel.dtype(op.x.tile.dtype), *layouts, *place)
    return Call(made, tuple(map(kernel.use, op.operands)))


def extract(op: shape.Extract, kernel: Kernel) -> Call:
    """`extract(x, i, 0)`."""
    facts = op.attributes
    layouts = (kernel.layout(facts["source"]), kernel.layout(facts["layout"]))
    place = (f"offset={facts['offset']}", f"fence={facts['fence']}")
    made = kernel.bind("extract", "shape.extract", kernel.dtype(op.x.tile.dtype), *layouts, *place)
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS: dict[type[Op], Callable[[Any, Any], Expression]] = {
    **dict.fromkeys((shape.Broadcast, shape.Reshape, shape.Permute, ConvertLayout), reshaping),
    shape.Cat: cat,
    shape.Extract: extract,
}
