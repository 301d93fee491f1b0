"""Reductions along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ops import reduce

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def reduction(op: reduce.Reduce, kernel: Kernel) -> Call:
    """`reduce_max(x)`."""
    facts = op.attributes
    made = kernel.bind(
        op.name,
        "reduce.reduce",
        f'"{op.name}"',
        kernel.dtype(op.x.tile.dtype),
        kernel.layout(facts["source"]),
        f"axis={op.axis}",
        f"offset={facts['offset']}",
        f"fence={facts['fence']}",
    )
    return Call(made, (kernel.use(op.x),))


EMITTERS = dict.fromkeys((reduce.ReduceSum, reduce.ReduceProd, reduce.ReduceMax, reduce.ReduceMin), reduction)
