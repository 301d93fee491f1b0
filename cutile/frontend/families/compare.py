"""Calls of comparisons by upstream's names, and selection."""

from __future__ import annotations

import functools
from typing import Any

from cutile.frontend.composed import Language, Term, composed
from cutile.frontend.derived import operands
from cutile.frontend.expect import marker_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import broadcast_shape, broadcast_to, unify, widened
from cutile.frontend.registry import OPERATIONS, operation
from cutile.frontend.values import describe, is_tile
from cutile.frontend.weak import computed, interval_of, is_whole
from cutile.ir.core import Op, Value
from cutile.language import markers
from cutile.language.declare import FLOATS, INTEGERS
from cutile.ops import arith, compare

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
    """A comparison that is false where either is NaN. IEEE has it so but for `!=`."""
    if predicate == "ne" and x.tile.dtype.is_float:
        less, greater = frame.emit(compare.Lt(x=x, y=y)), frame.emit(compare.Gt(x=x, y=y))
        return frame.emit(arith.Or(x=less, y=greater))
    return frame.emit(PREDICATES[predicate](x=x, y=y))


def _named(predicate: str) -> None:
    name = f"{predicate}_tile"

    def handler(frame: Frame, x: Any, y: Any) -> Any:
        a, b = unify(frame, widened(frame, [x, y]), name)
        return _ordered(frame, predicate, a, b)

    OPERATIONS[name] = handler


for _predicate in PREDICATES:
    _named(_predicate)


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
    return frame.emit(arith.Not(x=_ordered(frame, OPPOSITE[which], a, b)))  # true where the opposite is not, NaN too


@operation
def select(frame: Frame, condition: Any, x: Any, y: Any) -> Any:
    if not is_tile(condition):
        return x if condition else y
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
