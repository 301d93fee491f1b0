"""Sums that meet in the shared memory of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import limit, numbers, offset
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.nearby import AddNearby, DealOut

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def deal_out(op: DealOut, kernel: Kernel) -> Call:
    """`deal_out(acc)`."""
    made = kernel.bind(
        "deal_out",
        "nearby.deal_out",
        kernel.dtype(op.x.tile.dtype),
        kernel.layout(op.attributes["layout"]),
        str(op.parts),
        str(op.blocks),
        f"place={offset(op.place, kernel)}",
        f"offset={offset(op.arrived, kernel)}",
        *limit(op),
    )
    return Call(made, (kernel.use(op.x),))


def add_nearby(op: AddNearby, kernel: Kernel) -> Call:
    """`add_nearby(part)`."""
    made = kernel.bind(
        "add_nearby",
        "nearby.add",
        kernel.dtype(op.x.tile.dtype),
        kernel.layout(op.attributes["source"]),
        *numbers(op, "parts", "blocks"),
        f"place={offset(op.place[0], kernel)}",
    )
    return Call(made, (kernel.use(op.part),))


EMITTERS = {
    DealOut: deal_out,
    AddNearby: add_nearby,
}
