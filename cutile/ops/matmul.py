"""Matrix products with accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.conversion import exact
from cutile.dtypes import (
    DTypeLike,
    bf16,
    f4e2m1fn,
    f8e4m3fn,
    f8e5m2,
    f8e8m0fnu,
    f16,
    f32,
    f64,
    i8,
    i32,
    tf32,
    u8,
)
from cutile.errors import KernelTypeError
from cutile.ir import NUMBER_TILE, PRODUCT_TILE, Accuracy, Op, TileType, Type, Value, attribute, operand

BYTES = (i8, u8)
ACCUMULATORS: dict[DTypeLike, tuple[DTypeLike, ...]] = {
    f16: (f32, f16),
    bf16: (f32,),
    tf32: (f32,),
    f32: (f32,),
    f64: (f64,),
    i8: (i32,),
    u8: (i32,),
    f8e4m3fn: (f32, f16),
    f8e5m2: (f32, f16),
}
"""The dtypes of an accumulator, by the dtype of the operands; the first one is the default.

i8 may be multiplied by u8, and f8e4m3fn by f8e5m2."""
SCALED = (f4e2m1fn, f8e4m3fn, f8e5m2)
SCALES = (f8e8m0fnu, f8e4m3fn)
BLOCKS = (16, 32)
"""Numbers along K that share a scale."""


def _check_shapes(name: str, a: TileType, b: TileType, acc: TileType) -> None:
    ranks = {len(a.shape), len(b.shape), len(acc.shape)}
    if ranks not in ({2}, {3}):
        raise KernelTypeError(
            f"{name}: a, b and acc must have two axes, or three of which the first is a batch, got {a}, {b} and {acc}",
            remedy="Reshape them: a to (M, K), b to (K, N) and acc to (M, N).",
        )
    same_batch = a.shape[:-2] == b.shape[:-2] == acc.shape[:-2]
    if not same_batch or a.shape[-1] != b.shape[-2] or acc.shape[-2:] != (a.shape[-2], b.shape[-1]):
        raise KernelTypeError(
            f"{name}: the shapes do not fit: a is {a.shape}, b is {b.shape}, acc is {acc.shape}",
            remedy=f"{name}(a, b, acc) takes a of (M, K), b of (K, N) and acc of (M, N), each after the same batch.",
        )


def _wide(x: Any, dtype: DTypeLike, acc: DTypeLike) -> Any:
    """An operand in the dtype of the sums (at least f32), which holds it exactly."""
    if not dtype.computes:
        x = exact(x, dtype)
    return np.asarray(x).astype(f32.numpy if acc.bits < 32 else acc.numpy)


SUMS = Accuracy(note="products and sums round in the accumulator's dtype, in any order")


class Mma(Op, name="mma", spelled=("mma", "mmaf", "mmai", "matmul", "x @ y"), accuracy=SUMS):
    """The product of matrices, with the sums in the accumulator's dtype.

    `x @ y` is `matmul(x, y)`: its sums begin with zeros, and it multiplies vectors and batches, too.

    `mma(a, b, acc)` is `a @ b + acc`: `a` is M x K, `b` is K x N, `acc` is M x N; or all three have the batch as their
    first axis. For an accumulator of f16 the sums are f32, and rounded once.

    | a and b | acc |
    | --- | --- |
    | f16, or f8e4m3fn and f8e5m2 in any mixture | f32 or f16 |
    | bf16, tf32 | f32 |
    | f32 (exact products, not tf32) | f32 |
    | f64 | f64 |
    | i8 and u8 in any mixture | i32, which wraps |

    Products are exact, except those of f32 and f64: these are added by fused multiply-adds. The order of the sums is
    free, and so are their last bits. The tensor cores of some GPUs keep fewer bits than an f32 of a sum of products of
    8-bit floats. There, partial sums are added in f32 every few hundred products, unless `use_fast_acc` leaves all sums
    to the tensor cores.

    Examples:
        >>> run(lambda x, y: x * (x @ y), [1.0, 2.0], [3.0, 4.0])
        [11.0, 22.0]
    """

    a: Value = operand(PRODUCT_TILE)
    b: Value = operand(PRODUCT_TILE)
    acc: Value = operand(NUMBER_TILE)
    use_fast_acc: bool = attribute(default=False)

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The dtypes of the operands."""
        return tuple(ACCUMULATORS)

    def infer(self) -> tuple[Type, ...]:
        a, b, acc = self.a.tile, self.b.tile, self.acc.tile
        _check_shapes("mma", a, b, acc)
        mixed = {a.dtype, b.dtype} <= {*BYTES} or (a.dtype.is_float8 and b.dtype.is_float8)
        if a.dtype is not b.dtype and not mixed:
            raise KernelTypeError(
                f"mma: a and b must have one dtype, got {a.dtype} and {b.dtype}",
                remedy=f"Convert one: ct.convert_tile(b, ct.{a.dtype}).",
            )
        allowed = ACCUMULATORS.get(a.dtype, ())
        if acc.dtype not in allowed:
            accumulators = " or ".join(each.name for each in allowed)
            if not accumulators:
                known = ", ".join(each.name for each in ACCUMULATORS)
                raise KernelTypeError(
                    f"mma: {a.dtype} has no matrix product; there are those of {known}", remedy="Convert the operands."
                )
            raise KernelTypeError(
                f"mma: {a.dtype} accumulates in {accumulators}, got {acc.dtype}",
                remedy=f"Start from ct.constant(0, acc.shape, ct.{allowed[0]}), and convert the result.",
            )
        if self.use_fast_acc and (not a.dtype.is_float8 or acc.dtype is not f32):
            raise KernelTypeError(
                f"mma: use_fast_acc is for floats of 8 bits that add up in f32, got {a.dtype} and {acc.dtype}",
                remedy="Leave it out: sums of other products are as fast as they get.",
            )
        return (acc,)

    def reference(self, a: Any, b: Any, acc: Any) -> Any:
        dtype = self.acc.tile.dtype
        product = _wide(a, self.a.tile.dtype, dtype) @ _wide(b, self.b.tile.dtype, dtype)
        return (product + _wide(acc, dtype, dtype)).astype(dtype.numpy)


class MmaScaled(Op, name="mma_scaled", spelled=("mmaf_scaled",), accuracy=SUMS):
    """`(a * a_scale) @ (b * b_scale) + acc` in f32.

    There is one scale for each block of 16 or 32 numbers along K.

    `a` is M x K and `b` is K x N, of f4e2m1fn, f8e4m3fn or f8e5m2; `a_scale` is M x (K / block) and `b_scale` is
    (K / block) x N, of f8e8m0fnu (as in MXFP8 and MXFP4) or f8e4m3fn (as in NVFP4). Scaling an operand is exact, unless
    the result leaves the range of exponents of f32. The reference backend sums in f64 and rounds once, the others sum
    in f32.
    """

    a: Value = operand(PRODUCT_TILE)
    b: Value = operand(PRODUCT_TILE)
    acc: Value = operand(NUMBER_TILE)
    a_scale: Value = operand(PRODUCT_TILE)
    b_scale: Value = operand(PRODUCT_TILE)

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The dtypes of the operands."""
        return SCALED

    def infer(self) -> tuple[Type, ...]:
        a, b, acc, a_scale, b_scale = (each.tile for each in self.operands)
        _check_shapes("mmaf_scaled", a, b, acc)
        if len(a.shape) != 2 or a.dtype not in SCALED or b.dtype not in SCALED or acc.dtype is not f32:
            names = ", ".join(each.name for each in SCALED)
            raise KernelTypeError(
                f"mmaf_scaled: a and b are matrices of {names}, acc of f32; got {a}, {b} and {acc}",
                remedy="Convert them, or use ct.mma, which has no scales.",
            )
        if a_scale.dtype is not b_scale.dtype or a_scale.dtype not in SCALES:
            names = " or ".join(each.name for each in SCALES)
            raise KernelTypeError(
                f"mmaf_scaled: the scales are {names}; got {a_scale.dtype} and {b_scale.dtype}",
                remedy="Convert them: ct.convert_tile(scale, ct.f8e8m0fnu).",
            )
        (rows, depth), columns = a.shape, b.shape[1]
        if not any(
            depth % block == 0
            and a_scale.shape == (rows, depth // block)
            and b_scale.shape == (depth // block, columns)
            for block in BLOCKS
        ):
            raise KernelTypeError(
                f"mmaf_scaled: scales of {a_scale.shape} and {b_scale.shape} do not fit a of {a.shape}, b of {b.shape}",
                remedy="For blocks of 16 or 32 they are (M, K / block) and (K / block, N).",
            )
        return (acc,)

    @property
    def block(self) -> int:
        """Numbers along K that share a scale."""
        return self.a.tile.shape[1] // self.a_scale.tile.shape[1]

    def reference(self, a: Any, b: Any, acc: Any, a_scale: Any, b_scale: Any) -> Any:
        scale = self.a_scale.tile.dtype
        left = exact(a, self.a.tile.dtype) * np.repeat(exact(a_scale, scale), self.block, axis=1)
        right = exact(b, self.b.tile.dtype) * np.repeat(exact(b_scale, scale), self.block, axis=0)
        return (left @ right + np.asarray(acc).astype(np.float64)).astype(np.float32)
