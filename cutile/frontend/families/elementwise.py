"""Element-wise calls with handlers of their own; others are derived.

They become one of several operations, or take plain numbers, or are composed of other operations.
"""

from __future__ import annotations

import functools
from typing import Any

from cutile.dtypes import DTypeLike, f32, u16, u32, u64
from cutile.frontend.derived import Language, Term, composed, composed_of_bits, operands
from cutile.frontend.expect import marker_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import (
    broadcast_shape,
    broadcast_to,
    is_number,
    narrowed,
    truth,
    unify,
    widened,
)
from cutile.frontend.plain_numbers import ceil_divided, computed, interval_of, is_whole, largest, least, of_weak
from cutile.frontend.registry import OPERATIONS, operation
from cutile.frontend.values import describe, is_tile, to_tile
from cutile.ir.core import Op, Value
from cutile.language import markers
from cutile.language.declare import FLOATS, INTEGERS
from cutile.ops import arith, compare, rounding

DIVISIONS: dict[markers.rounding, type[Op]] = {
    markers.rounding.ZERO: arith.DivTrunc,
    markers.rounding.NEGATIVE_INF: arith.FloorDiv,
    markers.rounding.POSITIVE_INF: arith.DivCeil,
}


@operation
def divi(frame: Frame, x: Any, y: Any, rounding: Any = markers.rounding.ZERO) -> Any:
    mode = marker_of(frame, rounding, markers.rounding, "divi")
    if mode not in DIVISIONS:
        frame.type_error(
            f"divi: integers are not rounded to {mode.name}", remedy="Use ZERO, NEGATIVE_INF or POSITIVE_INF."
        )
    a, b = operands(frame, [x, y], INTEGERS, "divi")
    return frame.emit(DIVISIONS[mode](x=a, y=b))


@operation
def true_div(frame: Frame, x: Any, y: Any) -> Any:
    a, b = operands(frame, [x, y], FLOATS, "true_div")
    if a.tile.dtype is not f32:
        return frame.emit(arith.Div(x=a, y=b))
    return frame.emit(rounding.RoundedDiv(x=a, y=b, rounding="approx", ftz=True))


@operation
def min_tile(frame: Frame, x: Any, y: Any) -> Any:
    return _smaller_or_larger(frame, arith.Min, x, y, "min_tile")


@operation
def max_tile(frame: Frame, x: Any, y: Any) -> Any:
    return _smaller_or_larger(frame, arith.Max, x, y, "max_tile")


def _smaller_or_larger(frame: Frame, op: type[arith.Min | arith.Max], x: Any, y: Any, what: str) -> Any:
    if is_whole(frame, x) and is_whole(frame, y) and (is_tile(x) or is_tile(y)):
        interval = (least if op is arith.Min else largest)(interval_of(frame, x), interval_of(frame, y))
        return computed(frame, op, interval, x, y)
    a, b = unify(frame, widened(frame, [x, y]), what)
    return narrowed(frame, frame.emit(op(x=a, y=b)), x, y)


@operation
def ceil_div(frame: Frame, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            frame.type_error("ceil_div: division by zero", remedy="Both numbers are known now.")
        return -(-a // b)
    if is_whole(frame, a) and is_whole(frame, b):
        return computed(frame, arith.DivCeil, ceil_divided(interval_of(frame, a), interval_of(frame, b)), a, b)
    x, y = unify(frame, widened(frame, [a, b]), "ceil_div")
    return of_weak(frame, narrowed(frame, frame.emit(arith.DivCeil(x=x, y=y)), a, b), a, b)


@composed
def clamp(ct: Language, x: Any, low: Any, high: Any) -> Any:
    numbers = (x, low, high)
    if not any(isinstance(each, Term) for each in numbers):
        for number in numbers:
            if not is_number(number):
                what = f"clamp: expected a tile or a number, got {describe(number)}"
                ct.frame.type_error(what, remedy=to_tile(number))
        return min(max(x, low), high)
    floats = any(each.dtype.is_float if isinstance(each, Term) else isinstance(each, float) for each in numbers)
    if floats:  # as in NumPy, NaN stays NaN
        return ct.minf(ct.maxf(x, low, nan=True), high, nan=True)
    return ct.min_tile(ct.max_tile(x, low), high)


PREDICATES: dict[str, type[Op]] = {
    "eq": compare.Eq,
    "ne": compare.Ne,
    "lt": compare.Lt,
    "le": compare.Le,
    "gt": compare.Gt,
    "ge": compare.Ge,
}
OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _ordered(frame: Frame, predicate: str, x: Value, y: Value) -> Value:
    """A comparison that is false where either is NaN, as IEEE 754's all but `!=` are."""
    if predicate == "ne" and x.tile.dtype.is_float:
        less, greater = frame.emit(compare.Lt(x=x, y=y)), frame.emit(compare.Gt(x=x, y=y))
        return frame.emit(arith.Or(x=less, y=greater))
    return frame.emit(PREDICATES[predicate](x=x, y=y))


def _register_comparison(predicate: str) -> None:
    name = f"{predicate}_tile"

    def handler(frame: Frame, x: Any, y: Any) -> Any:
        a, b = unify(frame, widened(frame, [x, y]), name)
        return _ordered(frame, predicate, a, b)

    OPERATIONS[name] = handler


for _predicate in PREDICATES:
    _register_comparison(_predicate)


@operation
def cmpi(frame: Frame, x: Any, y: Any, predicate: Any) -> Any:
    which = marker_of(frame, predicate, markers.predicate, "cmpi").value
    a, b = operands(frame, widened(frame, [x, y]), INTEGERS, "cmpi")
    return frame.emit(PREDICATES[which](x=a, y=b))


@operation
def cmpf(frame: Frame, x: Any, y: Any, predicate: Any, cmp_ordering: Any = markers.cmp_ordering.ORDERED) -> Any:
    which: str = marker_of(frame, predicate, markers.predicate, "cmpf").value
    ordering = marker_of(frame, cmp_ordering, markers.cmp_ordering, "cmpf")
    a, b = operands(frame, [x, y], FLOATS, "cmpf")
    if ordering is markers.cmp_ordering.ORDERED:
        return _ordered(frame, which, a, b)
    # An unordered comparison is true where the ordered opposite is false, so also where either is NaN.
    return frame.emit(arith.Not(x=_ordered(frame, OPPOSITE[which], a, b)))


@operation
def select(frame: Frame, condition: Any, x: Any, y: Any) -> Any:
    if not is_tile(condition):
        return x if truth(frame, condition) else y
    if not condition.tile.dtype.is_bool:
        frame.type_error(
            f"select: the condition must be a tile of bools, got {describe(condition)}",
            remedy="Compare it first, as in ct.select(tile > 0, x, y).",
        )
    if condition.tile.is_scalar and is_whole(frame, x) and is_whole(frame, y):
        interval = interval_of(frame, x).join(interval_of(frame, y))
        return computed(frame, functools.partial(compare.Select, condition), interval, x, y)
    left, right = unify(frame, [x, y], "select")
    shape = broadcast_shape(frame, [condition.tile.shape, left.tile.shape], "select")
    return frame.emit(
        compare.Select(
            condition=broadcast_to(frame, condition, shape),
            x=broadcast_to(frame, left, shape),
            y=broadcast_to(frame, right, shape),
        )
    )


@composed
def isnan(ct: Language, x: Term) -> Any:
    return x != x


@composed
def isinf(ct: Language, x: Term) -> Any:
    return abs(x) == float("inf")


@composed
def isfinite(ct: Language, x: Term) -> Any:
    return abs(x) < float("inf")


@composed
def sigmoid(ct: Language, x: Term) -> Any:
    # The exponential of -|x| is at most 1, and a small result keeps its precision.
    small = ct.exp(-abs(x))
    return ct.select(x < 0, small, 1.0) / (small + 1.0)


@composed
def logaddexp(ct: Language, x: Term, y: Term) -> Any:
    # The difference of equal infinities would be NaN.
    distance = ct.select(x == y, 0.0, abs(x - y))
    return ct.maxf(x, y, nan=True) + ct.log1p(ct.exp(-distance))


BITS: dict[int, DTypeLike] = {16: u16, 32: u32, 64: u64}
"""The unsigned integers by their number of bits."""


@composed_of_bits
def copysign(ct: Language, x: Term, y: Term) -> Any:
    integer, sign = BITS[x.dtype.bits], 1 << x.dtype.bits - 1
    magnitude = ct.bitcast(x, integer) & (sign - 1)
    return ct.bitcast(magnitude | (ct.bitcast(y, integer) & sign), x.dtype)


@composed_of_bits
def nextafter(ct: Language, x: Term, y: Term) -> Any:
    integer, sign = BITS[x.dtype.bits], 1 << x.dtype.bits - 1
    bits = ct.bitcast(x, integer)
    # Floats of one sign are ordered as their bits are: a neighbour's bits differ by 1.
    bits = ct.select((x < y) ^ (x < 0.0), bits + 1, bits - 1)
    smallest = (ct.bitcast(y, integer) & sign) | 1
    bits = ct.select(x == 0.0, smallest, bits)
    result = ct.select(x == y, y, ct.bitcast(bits, x.dtype))
    return ct.select((x != x) | (y != y), x + y, result)
