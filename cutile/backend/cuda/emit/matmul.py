"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ops import matmul

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def mma(op: matmul.Mma, kernel: Kernel) -> Call:
    """`mma(a, b, acc)`."""
    facts = op.attributes
    left, right = facts["source"]
    made = kernel.bind(
        "mma",
        "matmul.mma",
        kernel.dtype(op.a.tile.dtype),
        kernel.dtype(op.acc.tile.dtype),
        kernel.layout(left),
        kernel.layout(right),
        kernel.layout(facts["layout"]),
        f"offset={facts['offset']}",
        f"fence={facts['fence']}",
    )
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = {matmul.Mma: mma}
