"""Arithmetic with another rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ops import rounding

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def rounded(op: rounding.Rounded, kernel: Kernel) -> Call:
    """`add_zero(x, y)`."""
    stem = f"{op.exact_name}_{op.rounding}{'_ftz' * op.ftz}"
    dtype = kernel.dtype(op.result.tile.dtype)
    facts = (f'"{op.exact_name}"', f'"{op.rounding}"', str(op.ftz), dtype, str(kernel.count(op)))
    return Call(kernel.bind(stem, "rounding.rounded", *facts), tuple(map(kernel.use, op.operands)))


EMITTERS = dict.fromkeys(
    (
        rounding.RoundedAdd,
        rounding.RoundedSub,
        rounding.RoundedMul,
        rounding.RoundedDiv,
        rounding.RoundedFma,
        rounding.RoundedSqrt,
    ),
    rounded,
)
