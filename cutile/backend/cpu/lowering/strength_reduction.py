"""Strength reduction: cheaper operations that give the same elements.

Floats that were clamped are converted to integers without a second clamp:

    t = max(min(t, 127.0), -128.0)      -128 to 127, and never NaN: `min` and `max` drop it
    y.store(t.astype(i8))               truncated only

Quotients of f32 by a divisor that a loop does not change are products with a reciprocal:

    for column: y[column] = e[column] / total     ->     r = 1 / f64(total)
                                                         for column: y[column] = f32(f64(e[column]) * r)

The result is the same. Take two numbers of 24 bits whose quotient has more bits than 24. It then differs from each
midpoint between two numbers of 24 bits by more than 2**-50 of itself. The reciprocal and the product have errors of at
most 2**-53 of themselves. So the product is on the quotient's side of the midpoint, and is rounded as the quotient is.
Zeros, infinities and NaN give what the quotient gives. The exception is a subnormal quotient that is a midpoint itself:
the result is then either neighbour.

A division of vectors takes as long as a dozen other instructions, the product and its two conversions as long as four.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cutile.backend.cpu.stage import TimesReciprocal, Truncate
from cutile.conversion import element
from cutile.dtypes import f32, f64
from cutile.ir import Block, Constant, For, Function, Op, Value
from cutile.ops.arith import Div, Max, Min
from cutile.ops.cast import Convert
from cutile.ops.math import Ceil, Floor, Round
from cutile.ops.shape import Broadcast, Permute, Reshape

DEPTH = 8
"""Operations that the search for a clamp looks through. A clamp stands next to the conversion of its result."""


@dataclass(frozen=True)
class FloatBounds:
    """From `low` to `high`, both included; NaN too, unless `number` is true."""

    low: float = -math.inf
    high: float = math.inf
    number: bool = False

    def within(self, low: float, high: float) -> bool:
        """Whether every element is a number from `low` to `high`."""
        return self.number and low <= self.low and self.high <= high


def float_bounds(value: Value, made_by: Mapping[Value, Op], depth: int = DEPTH) -> FloatBounds:
    """The bounds of a tile's elements.

    Args:
        value: a tile of floats.
        made_by: the operation behind each value.
        depth: how many operations may be looked through.
    """
    op = made_by.get(value)
    match op:
        case Constant():
            # As an element has it: 2**31 - 1 is rounded to 2**31 in f32, which is no i32.
            number = float(element(op.value, op.dtype))
            return FloatBounds() if math.isnan(number) else FloatBounds(number, number, number=True)
        case _ if depth == 0:
            return FloatBounds()
        case Broadcast() | Permute() | Reshape():
            return float_bounds(op.operands[0], made_by, depth - 1)
        case Floor() | Ceil() | Round():
            x = float_bounds(op.operands[0], made_by, depth - 1)
            whole = all(math.isinf(end) or end == math.floor(end) for end in (x.low, x.high))
            return x if whole else FloatBounds(number=x.number)
        case Min() | Max():
            return _extreme(op, *(float_bounds(each, made_by, depth - 1) for each in (op.x, op.y)))
        case _:
            return FloatBounds()


def _extreme(op: Min | Max, x: FloatBounds, y: FloatBounds) -> FloatBounds:
    """The bounds of a `min` or `max`.

    Of a number and NaN, the result is the number. So an operand that may be NaN bounds nothing: the result may be the
    other operand. With `op.nan` the result is NaN, and both operands bound it.
    """
    number = (x.number and y.number) if op.nan else (x.number or y.number)
    if isinstance(op, Min):
        low = min(x.low, y.low)
        ends = [each.high for each in (x, y) if each.number or op.nan]
        return FloatBounds(low, min(ends, default=math.inf), number)
    high = max(x.high, y.high)
    ends = [each.low for each in (x, y) if each.number or op.nan]
    return FloatBounds(max(ends, default=-math.inf), high, number)


def truncation(op: Convert, made_by: Mapping[Value, Op]) -> Op:
    """A conversion, or a `Truncate` in its place if `op.x` was clamped to its range.

    Args:
        op: the conversion of a tile.
        made_by: the operation behind each value.
    """
    source, dtype = op.x.tile.dtype, op.dtype
    if not (source.computes and source.is_float and dtype.is_integer):
        return op
    lowest = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
    if not float_bounds(op.x, made_by).within(lowest, lowest + 2**dtype.bits - 1):
        return op
    cheaper = Truncate(op.x, dtype=dtype, rounding=op.rounding)
    cheaper.location, cheaper.results = op.location, op.results
    return cheaper


def reciprocals(function: Function) -> None:
    """Rewrite the quotients of a lowered function's innermost loops, in place."""
    _visit(function.body)


def _visit(block: Block) -> None:
    operations: list[Op] = []
    for op in block.operations:
        for nested in op.regions:
            _visit(nested)
        if isinstance(op, For) and not any(inner.regions for inner in op.body.operations):
            operations += _ahead(op.body)
        operations.append(op)
    block.operations[:] = operations


def _ahead(body: Block) -> list[Op]:
    """Rewrite the quotients of a loop; return the operations to be put before it."""
    own = {*body.arguments, *(value for op in body.operations for value in op.results)}
    constants = {op.result: op.value for op in body.operations if isinstance(op, Constant)}
    ahead: list[Op] = []
    reciprocal_of: dict[Value, Value] = {}
    for at, op in enumerate(body.operations):
        if not isinstance(op, Div) or op.result.tile.dtype is not f32:
            continue
        # Lowering writes a constant in the block that uses it: a constant divisor is one of the loop's own values.
        if op.y in own and not (op.y in constants and _has_reciprocal(constants[op.y])):
            continue
        if op.y not in reciprocal_of:
            reciprocal_of[op.y] = _reciprocal(op, constants.get(op.y), ahead)
        product = TimesReciprocal(op.x, reciprocal_of[op.y])
        product.results, product.location = op.results, op.location
        body.operations[at] = product
    return ahead


def _has_reciprocal(divisor: float) -> bool:
    """Whether a constant is worth a reciprocal in f64.

    A power of two is not: LLVM multiplies in f32 by its reciprocal.
    """
    # The mantissa that `frexp` gives is 0.5 for a power of two, and 0 for 0.
    return math.isfinite(divisor) and abs(math.frexp(float(np.float32(divisor)))[0]) not in (0.0, 0.5)


def _reciprocal(quotient: Div, divisor: float | None, ahead: list[Op]) -> Value:
    """Append `1 / y`, in f64."""
    if divisor is not None:
        constant = Constant(value=1.0 / float(np.float32(divisor)), dtype=f64, shape=())
        return _append(constant, quotient, ahead)
    one = _append(Constant(value=1.0, dtype=f64, shape=()), quotient, ahead)
    wide = _append(Convert(quotient.y, dtype=f64), quotient, ahead)
    reciprocal = _append(Div(one, wide), quotient, ahead)
    reciprocal.name = "reciprocal"
    return reciprocal


def _append(op: Op, quotient: Div, ahead: list[Op]) -> Value:
    op.results = tuple(Value(kind) for kind in op.infer())
    op.location = quotient.location
    ahead.append(op)
    return op.result
