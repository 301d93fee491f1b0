"""Tensors at an address that the kernel computes."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import Expression, Printer, Text, in_memory
from cutile.backend.cpu.stage import TensorAt
from cutile.ir.core import Op


def _tensor_at(printer: Printer, op: TensorAt) -> Text:
    """`elements_at(address, f32)`: 16-bit floats as their bits, bools as bytes."""
    kind = printer.use(in_memory(op.dtype))
    return Text(f"{printer.use('elements_at')}({printer.operand(op.address).text}, {kind})")


EXPRESSIONS: dict[type[Op], Expression] = {TensorAt: _tensor_at}
