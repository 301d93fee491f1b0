"""Functions of one float."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ir.core import Op
from cutile.ops import math

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def unary(op: Op, kernel: Kernel) -> Call:
    """`exp(x)`."""
    dtype = kernel.dtype(op.result.tile.dtype)
    made = kernel.bind(op.name, "math.unary", f'"{op.name}"', dtype, str(kernel.count(op)))
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = dict.fromkeys(
    (
        math.Exp,
        math.Exp2,
        math.Log,
        math.Log2,
        math.Sqrt,
        math.Rsqrt,
        math.Sin,
        math.Cos,
        math.Tanh,
        math.Floor,
        math.Ceil,
    ),
    unary,
)
