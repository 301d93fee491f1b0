"""Conversions between element types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ops import cast

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def convert(op: cast.Convert, kernel: Kernel) -> Call:
    """`to_f16(x)`."""
    source, target = kernel.dtype(op.x.tile.dtype), kernel.dtype(op.dtype)
    made = kernel.bind(f"to_{op.dtype.name}", "cast.convert", source, target, str(kernel.count(op)))
    return Call(made, (kernel.use(op.x),))


EMITTERS = {cast.Convert: convert}
