"""Calls of arithmetic that become one of several operations.

Handlers of all others are derived from declarations.
"""

from __future__ import annotations

from typing import Any

from cutile.dtypes import f32
from cutile.frontend.composed import Language, Term, composed
from cutile.frontend.derived import operands
from cutile.frontend.expect import marker_of
from cutile.frontend.frame import Frame
from cutile.frontend.interval import ceil_divided, largest, least
from cutile.frontend.operators import narrowed, unify, widened
from cutile.frontend.registry import operation
from cutile.frontend.values import is_tile
from cutile.frontend.weak import computed, interval_of, is_whole, of_weak
from cutile.ir.core import Op
from cutile.language import markers
from cutile.language.declare import FLOATS, INTEGERS
from cutile.ops import arith, rounding

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
        return min(max(x, low), high)
    floats = any(each.dtype.is_float if isinstance(each, Term) else isinstance(each, float) for each in numbers)
    if floats:  # as NumPy has it: what is NaN stays NaN
        return ct.minf(ct.maxf(x, low, nan=True), high, nan=True)
    return ct.min_tile(ct.max_tile(x, low), high)
