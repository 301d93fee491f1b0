"""Atomic updates by address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.pointer import exchange, layout
from cutile.backend.cuda.emit.text import Call, quoted
from cutile.ops import atomic

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def update(op: atomic.AtomicRmw, kernel: Kernel) -> Call:
    """`atomic_add(addresses, value, mask)`."""
    facts = op.attributes
    made = kernel.bind(
        f"atomic_{op.kind}",
        "atomic.update",
        quoted(op.kind),
        kernel.dtype(op.value.tile.dtype),
        layout(op, kernel),
        quoted(op.order),
        quoted(op.scope),
        f"used={facts['used']}",
        f"native={facts['native']}",
        f"exchange={exchange(op)}",
    )
    return Call(made, tuple(map(kernel.use, op.operands)))


def compare_and_swap(op: atomic.AtomicCas, kernel: Kernel) -> Call:
    """`atomic_cas(addresses, expected, value, mask)`."""
    made = kernel.bind(
        "atomic_cas",
        "atomic.compare_and_swap",
        kernel.dtype(op.value.tile.dtype),
        layout(op, kernel),
        quoted(op.order),
        quoted(op.scope),
        f"exchange={exchange(op)}",
    )
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = {atomic.AtomicRmw: update, atomic.AtomicCas: compare_and_swap}
