"""Tiles from nothing. (Constants are written by `kernel.py`, which decides whether they need a name.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ops import create

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def iota(op: create.Iota, kernel: Kernel) -> Call:
    """`iota()`."""
    layout = kernel.layout(op.attributes["layout"])
    return Call(kernel.bind("iota", "create.iota", kernel.dtype(op.dtype), layout), ())


EMITTERS = {create.Iota: iota}
