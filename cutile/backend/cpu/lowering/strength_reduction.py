"""Strength reduction: cheaper operations that give the same elements.

Floats that were clamped are converted to integers without a second clamp:

    t = max(min(t, 127.0), -128.0)      -128 to 127, and never NaN: `min` and `max` drop it
    y.store(t.astype(i8))               truncated only

Quotients of f32 by a divisor that a loop does not change are products with a reciprocal:

    for column: y[column] = e[column] / total     ->     r = 1 / f64(total)
                                                         for column: y[column] = f32(round50(f64(e[column]) * r))

The result has the quotient's bits. The reciprocal and the product have errors of at most 2**-53 of themselves each. So
the product differs from the quotient by at most 2**-52 of it. It is rounded to 50 bits (`quotient` of
`intrinsics/arith.py`) and then to f32. That is how the quotient is rounded, in both cases:

- The quotient is no midpoint between two f32. Take a quotient of two numbers of 24 bits. It differs from each number of
  25 bits that it does not equal by more than 2**-49 of itself, and from midpoints of subnormal numbers, which have
  fewer bits, by no less. The two errors, 2**-52 and 2**-50, are less than that together. So the rounded product is on
  the quotient's side of the midpoint.
- The quotient is a midpoint. Only subnormal quotients are: they have fewer bits than their numerators. A midpoint of
  subnormal numbers has at most 24 bits. So the product, rounded to 50 bits, is the midpoint itself.

Zeros, infinities and NaN give what the quotient gives.

A processor takes many cycles for each division of vectors, and begins a product, a conversion or an addition in every
one or two. What this gains was not measured since the product is rounded.
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

MAX_DEPTH = 8
"""Operations between a conversion and a clamp of its operand. Most clamps stand next to the conversion; the limit keeps
the search short in long chains."""


@dataclass(frozen=True)
class FloatBounds:
    """An interval of floats, from `low` to `high`, both included.

    NaN is possible, unless `never_nan`. `Ranges` of `cutile/analysis/` has intervals of integers alone.
    """

    low: float = -math.inf
    high: float = math.inf
    never_nan: bool = False

    def within(self, low: float, high: float) -> bool:
        """Whether every element is a number from `low` to `high`."""
        return self.never_nan and low <= self.low and self.high <= high


def float_bounds(value: Value, definitions: Mapping[Value, Op], depth: int = MAX_DEPTH) -> FloatBounds:
    """The bounds of a tile's elements.

    Args:
        value: a tile of floats.
        definitions: the operation behind each value.
        depth: how many operations may be looked through.
    """
    op = definitions.get(value)
    match op:
        case Constant():
            # As an element has it: 2**31 - 1 is rounded to 2**31 in f32, which is no i32.
            constant = float(element(op.value, op.dtype))
            return FloatBounds() if math.isnan(constant) else FloatBounds(constant, constant, never_nan=True)
        case _ if depth == 0:
            return FloatBounds()
        case Broadcast() | Permute() | Reshape():
            return float_bounds(op.operands[0], definitions, depth - 1)
        case Floor() | Ceil() | Round():
            x = float_bounds(op.operands[0], definitions, depth - 1)
            whole = all(math.isinf(end) or end == math.floor(end) for end in (x.low, x.high))
            # Clamps to fractions are rare. Their bounds are dropped, not rounded.
            return x if whole else FloatBounds(never_nan=x.never_nan)
        case Min() | Max():
            return _extreme(op, *(float_bounds(operand, definitions, depth - 1) for operand in (op.x, op.y)))
        case _:
            return FloatBounds()


def _extreme(op: Min | Max, x: FloatBounds, y: FloatBounds) -> FloatBounds:
    """The bounds of a `min` or `max`.

    Of a number and NaN, the result is the number. So an operand that may be NaN bounds nothing: the result may be the
    other operand. With `op.nan` the result is NaN, and both operands bound it.
    """
    never_nan = (x.never_nan and y.never_nan) if op.nan else (x.never_nan or y.never_nan)
    if isinstance(op, Min):
        low = min(x.low, y.low)
        ends = [bounds.high for bounds in (x, y) if bounds.never_nan or op.nan]
        return FloatBounds(low, min(ends, default=math.inf), never_nan)
    high = max(x.high, y.high)
    ends = [bounds.low for bounds in (x, y) if bounds.never_nan or op.nan]
    return FloatBounds(max(ends, default=-math.inf), high, never_nan)


def truncation(op: Convert, definitions: Mapping[Value, Op]) -> Op:
    """The conversion, or a `Truncate` if the operand fits the target dtype.

    A `Truncate` does not saturate. It rounds as the conversion does.

    Args:
        op: the conversion of a tile.
        definitions: the operation behind each value.
    """
    source, dtype = op.x.tile.dtype, op.dtype
    if not (source.computes and source.is_float and dtype.is_integer):
        return op
    lowest = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
    if not float_bounds(op.x, definitions).within(lowest, lowest + 2**dtype.bits - 1):
        return op
    cheaper = Truncate(op.x, dtype=dtype, rounding=op.rounding)
    cheaper.location, cheaper.results = op.location, op.results
    return cheaper


def reciprocals(function: Function) -> None:
    """Rewrite quotients in loops without nested loops and branches.

    Lowering has just made the function, and nobody else has it: so it is changed in place, and not copied.
    """
    _visit(function.body)


def _visit(block: Block) -> None:
    operations: list[Op] = []
    for op in block.operations:
        for nested in op.regions:
            _visit(nested)
        # With branches, `own` below would lack the values that are computed in them.
        if isinstance(op, For) and not any(inner.regions for inner in op.body.operations):
            operations += _hoist_reciprocals(op.body)
        operations.append(op)
    block.operations[:] = operations


def _hoist_reciprocals(body: Block) -> list[Op]:
    """Rewrite the quotients of a loop; return the operations to be put before it."""
    own = {*body.arguments, *(value for op in body.operations for value in op.results)}
    constants = {op.result: op.value for op in body.operations if isinstance(op, Constant)}
    ahead: list[Op] = []
    reciprocal_of: dict[Value, Value] = {}
    for at, op in enumerate(body.operations):
        # f64 has no wider type for the product, and lowering divides 16-bit floats as f32.
        if not isinstance(op, Div) or op.result.tile.dtype is not f32:
            continue
        # Lowering writes a constant in the block that uses it: a constant divisor is one of the loop's own values.
        if op.y in own and not (op.y in constants and _is_worth_reciprocal(constants[op.y])):
            continue
        if op.y not in reciprocal_of:
            reciprocal_of[op.y] = _reciprocal(op, constants.get(op.y), ahead)
        product = TimesReciprocal(op.x, reciprocal_of[op.y])
        product.results, product.location = op.results, op.location
        body.operations[at] = product
    return ahead


def _is_worth_reciprocal(divisor: float) -> bool:
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
