"""Write scaled products as plain ones, for targets without such an instruction.

    %t = mma_scaled(%a, %b, %acc, %as, %bs)  ->  %t = mma(mul(convert(%a), repeat(convert(%as))), ..., %acc)

Not one of the passes that every target has: a target calls it, and says what to multiply in. Numbers of 8 or 4 bits
have at most four significant bits, and so have scales: bf16 holds what they make together, as f32 does. Only beyond the
ends of the exponents, which both types share, is anything rounded.
"""

from __future__ import annotations

from cutile.dtypes import DTypeLike
from cutile.ir.core import Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ops.arith import Mul
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma, MmaScaled
from cutile.ops.shape import Broadcast, Reshape


def lower_scaled_mma(function: Function, dtype: DTypeLike) -> Function:
    """A copy of `function` without scaled products.

    Operands are scaled and multiplied in `dtype`, bf16 or f32.
    """

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if not isinstance(op, MmaScaled):
            return KEEP
        make = rewriter.builder.value

        def scaled(x: Value, scale: Value, axis: int) -> Value:
            shape = x.tile.shape
            blocks = scale.tile.shape
            split = (*blocks[: axis + 1], op.block, *blocks[axis + 1 :])
            single = (*blocks[: axis + 1], 1, *blocks[axis + 1 :])
            factor = make(Reshape(x=make(Convert(x=scale, dtype=dtype)), shape=single))
            factor = make(Reshape(x=make(Broadcast(x=factor, shape=split)), shape=shape))
            return make(Mul(x=make(Convert(x=x, dtype=dtype)), y=factor))

        left, right = scaled(op.a, op.a_scale, 1), scaled(op.b, op.b_scale, 0)
        return make(Mma(a=left, b=right, acc=op.acc))

    return rewrite(function, rule)
