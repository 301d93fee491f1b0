"""Functions of floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ir.core import Op
from cutile.ops import math

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def function(op: Op, kernel: Kernel) -> Call:
    """`exp(x)`, `pow(x, y)`."""
    return _bound(op, op.name, kernel)


def flushing(op: math.Flushing, kernel: Kernel) -> Call:
    """`exp2(x)`, `exp2_ftz(x)`."""
    return _bound(op, f"{op.name}{'_ftz' * op.ftz}", kernel)


def _bound(op: Op, name: str, kernel: Kernel) -> Call:
    dtype = kernel.dtype(op.result.tile.dtype)
    made = kernel.bind(name, "math.function", f'"{name}"', dtype, str(kernel.count(op)))
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = {
    math.Exp: function,
    math.Exp2: flushing,
    math.Log: function,
    math.Log2: function,
    math.Sqrt: function,
    math.Rsqrt: flushing,
    math.Sin: function,
    math.Cos: function,
    math.Tan: function,
    math.Sinh: function,
    math.Cosh: function,
    math.Tanh: function,
    math.Floor: function,
    math.Ceil: function,
    math.Pow: function,
    math.Atan2: function,
}
