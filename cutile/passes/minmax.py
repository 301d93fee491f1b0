"""Name the lesser and the greater of integers by what they are.

    %2 = gt(%0, %1)              ->   %2 = max(%0, %1)
    %3 = select(%2, %0, %1)

What a kernel's author picks by a comparison, a target then makes as it makes every minimum and maximum: in a way that
is safe from its toolchain, too. Not floats: a comparison knows nothing of the sign of zeros, nor which operand is NaN.
"""

from __future__ import annotations

from cutile.ir.core import Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ops.arith import Max, Min
from cutile.ops.compare import Compare, Ge, Gt, Le, Lt, Select

_FIRST: dict[type[Compare], type[Min | Max]] = {Lt: Min, Le: Min, Gt: Max, Ge: Max}
_SECOND: dict[type[Compare], type[Min | Max]] = {Lt: Max, Le: Max, Gt: Min, Ge: Min}
"""What it is to pick the first operand of a comparison where that holds, and what to pick the second."""


def minmax(function: Function) -> Function:
    """A copy of `function` with minima and maxima for selections by a comparison.

    Integers only.
    """
    comparisons: dict[Value, Compare] = {}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Compare):
            comparisons[op.result] = op
        if not isinstance(op, Select) or not op.x.tile.dtype.is_integer:
            return KEEP
        comparison = comparisons.get(op.condition)
        if comparison is None or type(comparison) not in _FIRST:
            return KEEP
        for picked, kinds in (((comparison.x, comparison.y), _FIRST), ((comparison.y, comparison.x), _SECOND)):
            if (op.x, op.y) == picked:
                return rewriter.builder.value(kinds[type(comparison)](x=op.x, y=op.y))
        return KEEP

    return rewrite(function, rule)
