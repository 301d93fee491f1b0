"""Specialised warps: products by fused multiply-adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import fed
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.outer import OuterMma

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def outer(op: OuterMma, kernel: Kernel) -> Call:
    """`multiply(acc, counter)`."""
    made = kernel.bind(
        "multiply",
        "outer.multiply",
        kernel.layout(op.attributes["layout"]),
        fed(op, kernel),
    )
    return Call(made, (kernel.use(op.acc), kernel.use(op.counter)))


EMITTERS = {
    OuterMma: outer,
}
