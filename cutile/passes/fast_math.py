"""Passes that a target may call: faster forms, and scaled products as plain ones.

The target says which faster forms it gains from, and in which dtype it multiplies scaled operands.

Faster, less exact forms of operations, where `fast_math` permits them:

    %2 = mul(%0, %1)             ->   %3 = fma(%0, %1, %c)        contract
    %3 = add(%2, %c)
    %4 = div(%0, %1)             ->   %4 = rounded_div(%0, %1) {rounding = 'full'}

Every form is an operation of the language, with a bound of its error, so that backends need nothing new.

Scaled products as plain ones, for targets without such an instruction (`lower_scaled_mma`):

    %t = mma_scaled(%a, %b, %acc, %as, %bs)  ->  %t = mma(mul(convert(%a), repeat(convert(%as))), ..., %acc)

Numbers of 8 or 4 bits have at most four significant bits, and so have scales. Products of the two have at most eight
bits, which bf16 and f32 hold. A product is rounded only beyond the range of exponents, which bf16 and f32 share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from cutile.dtypes import DTypeLike, f32
from cutile.ir import KEEP, Block, Constant, Function, Op, Replacement, Rewriter, Value, rewrite
from cutile.ops.arith import Add, Div, Fma, Mul, Neg, Sub
from cutile.ops.cast import Convert
from cutile.ops.math import Exp, Exp2, Flushing, Sqrt, Tanh
from cutile.ops.matmul import Mma, MmaScaled
from cutile.ops.rounding import NEAREST, RoundedDiv, RoundedSqrt, RoundedTanh
from cutile.ops.shape import Broadcast, Reshape
from cutile.passes.redundancy import dce

FACT = "fast_math"
"""The fact of a function with the forms that were made faster, and how often."""


def fast_math(function: Function, parts: Collection[str], contracted: Collection[DTypeLike]) -> Function:
    """A copy of `function` with the faster forms that `parts` permit.

    Args:
        function: the kernel, after the neutral passes.
        parts: the parts of `CompileOptions.fast_math` from which the target gains.
        contracted: dtypes for which the target has a fused multiply-add.
    """
    if not parts:
        return function
    relaxed = _Relaxed(function, frozenset(parts), frozenset(contracted))
    copy = dce(rewrite(function, relaxed.rule))  # products that were fused are used no more
    copy.facts[FACT] = tuple(f"{what}: {count}" for what, count in relaxed.done.items())
    return copy


def exact_parts(
    function: Function, parts: Collection[str], gains: Collection[str], contracted: Collection[DTypeLike]
) -> Iterator[str]:
    """A line for each part of `fast_math` that changes nothing, with the reason.

    Args:
        function: the kernel, as `fast_math` gets it.
        parts: the parts that the author permits.
        gains: the parts from which the target gains.
        contracted: as for `fast_math`.
    """
    for part in parts:
        if part not in gains:
            yield f"fast_math={part!r}: this target gains nothing by it"
        elif not fast_math(function, (part,), contracted).facts.get(FACT):
            yield f"fast_math={part!r}: the kernel has no operation that it would change"


class _Relaxed:
    """The rule, with a count of its replacements."""

    def __init__(self, function: Function, parts: frozenset[str], contracted: frozenset[DTypeLike]) -> None:
        self._parts = parts
        self._contracted = contracted
        self._uses = Counter(value for op in function.walk() for value in op.operands)
        self._products: dict[Value, tuple[Mul, Block]] = {}
        self.done: Counter[str] = Counter()

    def rule(self, op: Op, rewriter: Rewriter) -> Replacement:
        """Replace an operation by a faster form, if there is one."""
        if isinstance(op, Mul) and self._uses[rewriter.original.results[0]] == 1:
            self._products[op.result] = op, rewriter.builder.current
        faster = None
        if isinstance(op, Add | Sub) and "contract" in self._parts:
            faster = self._fused(op, rewriter)
        elif isinstance(op, Div) and op.result.tile.dtype is f32:
            faster = self._divided(op, rewriter)
        elif isinstance(op, Sqrt) and op.result.tile.dtype is f32:
            faster = self._root(op, rewriter)
        elif isinstance(op, Tanh) and op.result.tile.dtype is f32 and "tanh" in self._parts:
            self.done["tanh within 2**-11 of itself"] += 1
            faster = rewriter.builder.value(RoundedTanh(x=op.x, rounding="approx"))
        elif isinstance(op, Exp) and op.result.tile.dtype is f32 and "exp" in self._parts:
            faster = self._power(op, rewriter)
        elif isinstance(op, Flushing) and op.result.tile.dtype is f32 and "ftz" in self._parts and not op.ftz:
            self.done[f"{op.name} with flush to zero"] += 1
            faster = rewriter.builder.value(type(op)(x=op.x, ftz=True))
        return KEEP if faster is None else faster

    def _fused(self, op: Add | Sub, rewriter: Rewriter) -> Value | None:
        """`x * y + z` with one rounding, of a product that nothing else uses.

        None where no such product is added.
        """
        if op.result.tile.dtype not in self._contracted:
            return None
        make = rewriter.builder.value
        for product, other in ((op.x, op.y), (op.y, op.x)):
            # A product outside of the loop or branch that adds it stays there, where it is computed less often.
            mul, block = self._products.get(product, (None, None))
            if mul is None or block is not rewriter.builder.current:
                continue
            self.done["contracted multiply-adds"] += 1
            if isinstance(op, Add):
                return make(Fma(x=mul.x, y=mul.y, z=other))
            if product is op.x:  # x * y - z; a negation is exact
                return make(Fma(x=mul.x, y=mul.y, z=make(Neg(x=other))))
            return make(Fma(x=make(Neg(x=mul.x)), y=mul.y, z=other))
        return None

    def _divided(self, op: Div, rewriter: Rewriter) -> Value | None:
        ftz = "ftz" in self._parts
        if "div" in self._parts:
            self.done["divisions within 2 ulp"] += 1
            return rewriter.builder.value(RoundedDiv(x=op.x, y=op.y, rounding="full", ftz=ftz))
        if not ftz:
            return None
        self.done["divisions with flush to zero"] += 1
        return rewriter.builder.value(RoundedDiv(x=op.x, y=op.y, rounding=NEAREST, ftz=True))

    def _root(self, op: Sqrt, rewriter: Rewriter) -> Value | None:
        ftz = "ftz" in self._parts
        if "sqrt" in self._parts:
            self.done["square roots within 2 ulp"] += 1
            return rewriter.builder.value(RoundedSqrt(x=op.x, rounding="approx", ftz=ftz))
        if not ftz:
            return None
        self.done["square roots with flush to zero"] += 1
        return rewriter.builder.value(RoundedSqrt(x=op.x, rounding=NEAREST, ftz=True))

    def _power(self, op: Exp, rewriter: Rewriter) -> Value:
        """`2 ** (x * log2(e))`.

        The rounding of the product costs precision in proportion to `x`.
        """
        self.done["exp by way of exp2"] += 1
        make = rewriter.builder.value
        tile = op.x.tile
        factor = make(Constant(value=math.log2(math.e), dtype=f32, shape=tile.shape))
        return make(Exp2(x=make(Mul(x=op.x, y=factor)), ftz="ftz" in self._parts))


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
