"""Fold constants, and name minima and maxima.

Constants (`fold`):

    %0 = constant() {value = 63} : i32        %2 = constant() {value = 191} : i32
    %1 = constant() {value = 128} : i32   ->
    %2 = add(%0, %1) : i32

A pure operation on constants becomes a constant, by its own NumPy meaning. Operations that change nothing go too: of
integers `x + 0`, `x * 1` and `x // 1`, a broadcast or reshape to the shape of its operand, and a selection by a
constant. The test whether the grid is empty becomes False, since it never is. A load from a tensor without elements
becomes its padding: targets count on an element along each axis.

Minima and maxima of integers, in place of selections by a comparison (`minmax`):

    %2 = gt(%0, %1)              ->   %2 = max(%0, %1)
    %3 = select(%2, %0, %1)

So a target has one form of code for them, which is chosen with its toolchain in mind. Selections of floats stay: they
differ from minima in the sign of zeros, and where an operand is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.conversion import element, exact, is_float
from cutile.dtypes import bool_
from cutile.ir import KEEP, Constant, Effect, Function, Op, Replacement, Rewriter, Value, rewrite
from cutile.ops.arith import Add, FloorDiv, Max, Min, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Compare, Eq, Ge, Gt, Le, Lt, Select
from cutile.ops.elementwise import Binary, FloatUnary, Unary
from cutile.ops.grid import NumTileBlocks
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Broadcast, Extract, Permute, Reshape
from cutile.ops.view import LoadView

_FIRST: dict[type[Compare], type[Min | Max]] = {Lt: Min, Le: Min, Gt: Max, Ge: Max}
"""The extreme that is a selection of the comparison's first operand where the comparison holds, else of its second."""
_SECOND: dict[type[Compare], type[Min | Max]] = {Lt: Max, Le: Max, Gt: Min, Ge: Min}
"""The extreme that is a selection of the comparison's second operand where the comparison holds, else of its first."""


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


_ELEMENTWISE = (Binary, FloatUnary, Unary, Convert)
_SAME_EVERYWHERE = (Broadcast, Reshape, Permute)  # a splat (a tile of one constant) becomes a splat
_NEUTRAL: dict[type[Op], int] = {Add: 0, Sub: 0, Mul: 1, FloorDiv: 1}
"""The second operand with which an operation on integers is its first operand."""


def fold(function: Function) -> Function:
    """A copy of `function` with constants folded."""
    constants: dict[Value, Constant] = {}
    positive: set[Value] = set()  # extents of the grid, which are at least 1

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Constant):
            constants[op.result] = op
            return KEEP
        if isinstance(op, NumTileBlocks):
            positive.add(op.result)
        if isinstance(op, LoadTile | LoadView) and 0 in op.x.tensor.shape:
            padding = op.padding_value if isinstance(op, LoadView) else 0
            return rewriter.builder.value(_constant(element(padding, op.result.tile.dtype).item(), op))
        if isinstance(op, Select) and op.condition in constants:
            return op.x if constants[op.condition].value else op.y
        if isinstance(op, Eq) and op.x in positive and op.y in constants and constants[op.y].value == 0:
            false = Constant(value=False, dtype=bool_, shape=())
            never = rewriter.builder.value(false)
            constants[never] = false
            return never
        if op.effect is not Effect.NONE or op.regions or len(op.results) != 1 or not op.operands:
            return KEEP
        if isinstance(op, Broadcast | Reshape | Extract) and op.x.type == op.result.type:
            return op.x
        numbers = [constants.get(value) for value in op.operands]
        if all(each is not None for each in numbers):
            value = _evaluate(op, [each for each in numbers if each is not None])
            if value is not None:
                constant = _constant(value, op)
                folded = rewriter.builder.value(constant)
                constants[folded] = constant
                return folded
        neutral = _NEUTRAL.get(type(op))
        if neutral is not None and op.result.tile.dtype.is_integer:
            left, right = numbers
            if right is not None and right.value == neutral:
                return op.operands[0]
            if left is not None and left.value == neutral and isinstance(op, Add | Mul):
                return op.operands[1]
        return KEEP

    return rewrite(function, rule)


def _constant(value: Any, op: Op) -> Constant:
    """A constant in the place of `op`."""
    tile = op.result.tile
    constant = Constant(value=value, dtype=tile.dtype, shape=tile.shape)
    if "layout" in op.attributes:  # a target has said which threads hold it
        constant.attributes["layout"] = op.attributes["layout"]
    return constant


def _evaluate(op: Op, operands: list[Constant]) -> Any:
    """The value of an element-wise operation on splats.

    None if this operation is not folded.
    """
    if isinstance(op, _SAME_EVERYWHERE):
        return operands[0].value
    if not isinstance(op, _ELEMENTWISE):
        return None
    scalars = [element(each.value, each.dtype) for each in operands]
    with np.errstate(all="ignore"):
        result = np.asarray(op.reference(*scalars))
    dtype = op.result.tile.dtype
    return (exact(result, dtype) if is_float(dtype) else result).item()
