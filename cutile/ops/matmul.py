"""Matrix product with accumulation."""

from __future__ import annotations

from typing import Any

from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i8, i32, u8
from cutile.errors import KernelTypeError
from cutile.ir.core import NUMBER_TILE, Op, Value, operand
from cutile.ir.types import Type

ACCUMULATORS: dict[DTypeLike, tuple[DTypeLike, ...]] = {
    f16: (f32, f16),
    bf16: (f32,),
    f32: (f32,),
    f64: (f64,),
    i8: (i32,),
    u8: (i32,),
}


class Mma(Op, name="mma", spelled=("mma",)):
    """`a @ b + acc`, with the products and sums in the accumulator's dtype (f32 for an f16 accumulator, rounded once).

    `a` is M x K, `b` is K x N, `acc` is M x N. f16 and bf16 accumulate in f32 (f16 also in f16), f32 in f32 (exact
    products, not tf32), f64 in f64, i8 and u8 in i32.

    Examples:
        >>> run(lambda x: ct.mma(x.reshape((2, 2)), x.reshape((2, 2)), ct.constant(0.0, (2, 2), ct.f32)).reshape((4,)),
        ...     [1.0, 2.0, 3.0, 4.0])
        [7.0, 10.0, 15.0, 22.0]
    """

    a: Value = operand(NUMBER_TILE)
    b: Value = operand(NUMBER_TILE)
    acc: Value = operand(NUMBER_TILE)

    def infer(self) -> tuple[Type, ...]:
        a, b, acc = self.a.tile, self.b.tile, self.acc.tile
        if not len(a.shape) == len(b.shape) == len(acc.shape) == 2:
            raise KernelTypeError(
                f"mma: a, b and acc must have two axes, got {a}, {b} and {acc}",
                remedy="Reshape the tiles: mma(a, b, acc) takes a of (M, K), b of (K, N) and acc of (M, N).",
            )
        if a.shape[1] != b.shape[0] or acc.shape != (a.shape[0], b.shape[1]):
            raise KernelTypeError(
                f"mma: the shapes do not fit: a is {a.shape}, b is {b.shape}, acc is {acc.shape}",
                remedy="mma(a, b, acc) takes a of (M, K), b of (K, N) and acc of (M, N).",
            )
        if a.dtype is not b.dtype:
            raise KernelTypeError(
                f"mma: a and b must have one dtype, got {a.dtype} and {b.dtype}",
                remedy="Convert one: ct.convert_tile(b, a.dtype).",
            )
        allowed = ACCUMULATORS.get(a.dtype, ())
        if acc.dtype not in allowed:
            wanted = " or ".join(each.name for each in allowed) or "no accumulator: it has no matrix product"
            raise KernelTypeError(
                f"mma: {a.dtype} accumulates in {wanted}, got {acc.dtype}",
                remedy="Make the accumulator with such a dtype, and convert the result with ct.convert_tile.",
            )
        return (acc,)

    def reference(self, a: Any, b: Any, acc: Any) -> Any:
        wide = f32.numpy if acc.dtype.itemsize < 4 else acc.dtype
        return (a.astype(wide) @ b.astype(wide) + acc.astype(wide)).astype(acc.dtype)
