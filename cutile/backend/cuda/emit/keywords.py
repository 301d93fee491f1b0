"""Keyword arguments of a call, from an operation's attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.panels import Panels

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel
    from cutile.backend.cuda.emit.text import Call
    from cutile.ir.core import Op


def numbers(op: Op, *names: str) -> list[str]:
    """These attributes, by their names."""
    return [f"{each}={op.attributes[each]!r}" for each in names]


def limit(op: Op) -> list[str]:
    """That waits end, where they do."""
    return ["limited=True"] if op.attributes["limited"] else []


def fed(op: Op, kernel: Kernel) -> Call:
    """Where a product's operands are, in the file."""
    panels = (kernel.panels(Panels(*each)) for each in op.attributes["panels"])
    return kernel.fed(*panels, *numbers(op, "depth", "slots", "slot_bytes", "place"))
