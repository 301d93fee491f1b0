"""Arithmetic and bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call
from cutile.ir.core import Op
from cutile.ops import arith

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def binary(op: Op, kernel: Kernel) -> Call:
    """`add(x, y)`."""
    return _named("arith.binary", op, kernel)


def unary(op: Op, kernel: Kernel) -> Call:
    """`neg(x)`."""
    return _named("arith.unary", op, kernel)


def extreme(op: arith.Min | arith.Max, kernel: Kernel) -> Call:
    """`min(x, y)`, `max_nan(x, y)`."""
    name = f"{op.name}{'_nan' * op.nan}{'_ftz' * op.ftz}"
    dtype = kernel.dtype(op.result.tile.dtype)
    made = kernel.bind(name, "arith.binary", f'"{name}"', dtype, str(kernel.count(op)))
    return Call(made, tuple(map(kernel.use, op.operands)))


def _named(factory: str, op: Op, kernel: Kernel) -> Call:
    dtype = kernel.dtype(op.result.tile.dtype)
    made = kernel.bind(op.name, factory, f'"{op.name}"', dtype, str(kernel.count(op)))
    return Call(made, tuple(map(kernel.use, op.operands)))


def fma(op: Op, kernel: Kernel) -> Call:
    """`fma(x, y, z)`."""
    made = kernel.bind("fma", "arith.fma", kernel.dtype(op.result.tile.dtype), str(kernel.count(op)))
    return Call(made, tuple(map(kernel.use, op.operands)))


EMITTERS = {
    arith.Add: binary,
    arith.Sub: binary,
    arith.Mul: binary,
    arith.Div: binary,
    arith.FloorDiv: binary,
    arith.Mod: binary,
    arith.DivTrunc: binary,
    arith.DivCeil: binary,
    arith.Rem: binary,
    arith.MulHi: binary,
    arith.Min: extreme,
    arith.Max: extreme,
    arith.And: binary,
    arith.Or: binary,
    arith.Xor: binary,
    arith.Shl: binary,
    arith.Shr: binary,
    arith.Neg: unary,
    arith.Abs: unary,
    arith.Not: unary,
    arith.Fma: fma,
}
