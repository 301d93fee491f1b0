"""Loops of products that are all that a loop does, made one loop with it.

    for t in range(a, b):                           for u in range((b - a) * n):
        for k in range(c, d):                           t, k = a + u // n, c + u % n      (n = d - c)
            acc = mma(load(t, k), load(k), acc)  -->    acc = mma(load(t, k), load(k), acc)

The loads of the next outer iteration are then begun while the last products of this one run.
"""

from __future__ import annotations

from cutile.backend.gpu.op_facts import inside, is_scalar_work
from cutile.ir.builder import Builder
from cutile.ir.constant import Constant
from cutile.ir.control import For, While
from cutile.ir.core import Function, Op, Value
from cutile.ir.rewriter import KEEP, Copier, Replacement, Rewriter, rewrite
from cutile.ops.arith import Add, FloorDiv, Max, Mul, Sub
from cutile.ops.matmul import Mma


def flatten(function: Function) -> Function:
    """A copy of the function in which perfect nests of main loops are single loops."""
    ones: set[Value] = set()

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Constant) and op.value == 1:
            ones.add(op.result)
        inner = _only_loop(op, ones) if isinstance(op, For) else None
        return KEEP if inner is None or not isinstance(op, For) else _as_one(op, inner, rewriter.builder)

    return rewrite(function, rule)


def _only_loop(outer: For, ones: set[Value]) -> For | None:
    """The loop of products that is all that a loop does, but for numbers.

    None where there is more, or none.
    """
    *work, end = outer.body.operations
    loops = [op for op in work if isinstance(op, For)]
    if len(loops) != 1 or not all(is_scalar_work(op) for op in work if op not in loops):
        return None
    (inner,) = loops
    nested = inside(inner)
    if not any(isinstance(op, Mma) for op in nested) or any(isinstance(op, For | While) for op in nested):
        return None
    own = {*outer.body.arguments, *(value for op in work for value in op.results)}
    steps = all(loop.step in ones for loop in (outer, inner))
    carries = inner.carried == outer.body.arguments[1:] and end.operands == inner.results
    bounds = own.isdisjoint((inner.start, inner.stop)) and outer.start.type == inner.start.type
    return inner if steps and carries and bounds else None


def _as_one(outer: For, inner: For, builder: Builder) -> list[Value]:
    """One loop for two."""
    dtype = outer.induction.tile.dtype
    builder.location = outer.location
    zero = builder.constant(0, dtype)
    count = builder.value(Max(x=builder.value(Sub(x=inner.stop, y=inner.start)), y=zero))
    rows = builder.value(Max(x=builder.value(Sub(x=outer.stop, y=outer.start)), y=zero))
    whole = builder.value(Mul(x=rows, y=count))
    divisor = builder.value(Max(x=count, y=builder.constant(1, dtype)))  # an empty loop divides by nothing
    arguments = [Value(value.type, value.name) for value in outer.body.arguments]
    with builder.block(*arguments) as body:
        turn = arguments[0]
        row = builder.value(FloorDiv(x=turn, y=divisor))
        column = builder.value(Sub(x=turn, y=builder.value(Mul(x=row, y=divisor))))
        named = {
            outer.induction: builder.value(Add(x=outer.start, y=row), outer.induction.name),
            inner.induction: builder.value(Add(x=inner.start, y=column), inner.induction.name),
        }
        named |= dict(zip(inner.body.arguments[1:], arguments[1:], strict=True))
        copier = Copier(builder, named)
        for op in (*outer.body.operations, *inner.body.operations):
            if op is not inner and op is not outer.body.terminator:
                copier.operation(op)
    loop = builder.add(For(start=zero, stop=whole, step=outer.step, carried=outer.carried, body=body))
    return list(loop.results)
