"""Functions of floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ir.core import Op
from cutile.ops import OPS, math
from cutile.ops.registry import family

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


# Every operation of the family is a function of libdevice: `LIBDEVICE` in `intrinsics/math.py` has their names.
EMITTERS = {op: flushing if issubclass(op, math.Flushing) else function for op in OPS.values() if family(op) == "math"}
