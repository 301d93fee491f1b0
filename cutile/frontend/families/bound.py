"""Handlers of the `assume_` functions: facts that the author states."""

from __future__ import annotations

from typing import Any

from cutile.frontend.expect import constant_int, shape_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.plain_numbers import bounded, interval_of, is_whole, of_weak, weak
from cutile.frontend.registry import operation
from cutile.frontend.values import PointerRef
from cutile.ops.bound import AssumeBounds, AssumeDivisible, AssumeSame


@operation
def assume_bounds(frame: Frame, x: Any, lower: Any = None, upper: Any = None) -> Any:
    return _assume_bounds(frame, "assume_bounds", x, lower, upper)


def _assume_bounds(frame: Frame, name: str, x: Any, lower: Any, upper: Any) -> Any:
    """Assume bounds; either may be None. Errors have the name of what was called."""
    least = None if lower is None else constant_int(frame, lower, f"{name}: the lower bound")
    most = None if upper is None else constant_int(frame, upper, f"{name}: the upper bound")
    if isinstance(x, int):
        for bound, is_beyond, words in (
            (least, least is not None and x < least, "at least"),
            (most, most is not None and x > most, "at most"),
        ):
            if is_beyond:
                frame.type_error(
                    f"{name}: the constant {x} is not {words} {bound}",
                    remedy="Assumptions must hold; a constant needs none.",
                )
        return x
    result = frame.emit(AssumeBounds(x=tile_of(frame, x, name), lower=least, upper=most))
    if not is_whole(frame, x):
        return of_weak(frame, result, x)
    known = interval_of(frame, x)
    weak(frame, result, known)
    return bounded(frame, result, known.low if least is None else least, known.high if most is None else most)


@operation
def assume_bounds_lower(frame: Frame, x: Any, lower: Any) -> Any:
    return _assume_bounds(frame, "assume_bounds_lower", x, lower, None)


@operation
def assume_bounds_upper(frame: Frame, x: Any, upper: Any) -> Any:
    return _assume_bounds(frame, "assume_bounds_upper", x, None, upper)


@operation
def assume_div_by(frame: Frame, x: Any, by: Any) -> Any:
    divisor = constant_int(frame, by, "assume_div_by: the divisor")
    if isinstance(x, int) and divisor >= 1:  # the operation refuses any other divisor
        if x % divisor:
            frame.type_error(
                f"assume_div_by: the constant {x} is not divisible by {divisor}",
                remedy="Assumptions must hold; a constant needs none.",
            )
        return x
    if isinstance(x, PointerRef):  # the assumption is of the addresses: `by` is in bytes
        assumption = AssumeDivisible(x=x.value, by=divisor, every=None, along=None)
        return PointerRef(frame.emit(assumption), x.dtype)
    result = frame.emit(AssumeDivisible(x=tile_of(frame, x, "assume_div_by"), by=divisor, every=None, along=None))
    return weak(frame, result, interval_of(frame, x)) if is_whole(frame, x) else of_weak(frame, result, x)


@operation
def assume_div_by_every_along(frame: Frame, x: Any, by: Any, every: Any, along: Any) -> Any:
    name = "assume_div_by_every_along"
    divisor = constant_int(frame, by, f"{name}: by")
    group = constant_int(frame, every, f"{name}: every")
    axis = constant_int(frame, along, f"{name}: along")
    return frame.emit(AssumeDivisible(tile_of(frame, x, name), by=divisor, every=group, along=axis))


@operation
def assume_same_elements(frame: Frame, x: Any, groups: Any) -> Any:
    sizes = shape_of(frame, groups, "assume_same_elements")
    return frame.emit(AssumeSame(x=tile_of(frame, x, "assume_same_elements"), groups=sizes))
