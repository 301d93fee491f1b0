"""Comparisons and selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ir.core import Op
from cutile.ops import compare

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def comparison(op: Op, kernel: Kernel) -> Call:
    """`lt(x, y)`."""
    dtype = kernel.dtype(op.operands[0].tile.dtype)
    made = kernel.bind(op.name, "compare.compare", f'"{op.name}"', dtype, str(kernel.count(op)))
    return Call(made, tuple(map(kernel.use, op.operands)))


def select(op: Op, kernel: Kernel) -> Call:
    """`select(condition, x, y)`."""
    made = kernel.bind("select", "compare.select", kernel.dtype(op.result.tile.dtype), str(kernel.count(op)))
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = {
    compare.Eq: comparison,
    compare.Ne: comparison,
    compare.Lt: comparison,
    compare.Le: comparison,
    compare.Gt: comparison,
    compare.Ge: comparison,
    compare.Select: select,
}
