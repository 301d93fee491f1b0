"""Conversions between element types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ops import cast

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def convert(op: cast.Convert, kernel: Kernel) -> Call:
    """`to_f16(x)`."""
    source, target = op.x.tile.dtype, op.dtype
    arguments = [kernel.dtype(source), kernel.dtype(target), str(kernel.count(op))]
    if op.rounding is not None:
        arguments.append(f'"{op.rounding}"')
    capability = kernel.capability
    if "storage" in (source.kind, target.kind) and capability > (8, 0):
        arguments.append(f"capability={capability}")
    made = kernel.bind(f"to_{op.dtype.name}", "cast.convert", *arguments)
    return Call(made, (kernel.use(op.x),))


def bitcast(op: cast.Bitcast, kernel: Kernel) -> Call:
    """`as_u32(x)`."""
    source, target = kernel.dtype(op.x.tile.dtype), kernel.dtype(op.dtype)
    made = kernel.bind(f"as_{op.dtype.name}", "cast.bitcast", source, target, str(kernel.count(op)))
    return Call(made, (kernel.use(op.x),))


EMITTERS = {cast.Convert: convert, cast.Bitcast: bitcast}
