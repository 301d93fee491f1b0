"""Calls that state what an author assumes of indices, extents and elements."""

from __future__ import annotations

from typing import Any

from cutile.frontend.expect import constant_int, shape_of, tile_of
from cutile.frontend.frame import Frame
from cutile.frontend.registry import operation
from cutile.frontend.values import PointerRef
from cutile.frontend.weak import bounded, interval_of, is_whole, of_weak, weak
from cutile.ops.bound import AssumeBounds, AssumeDivisible, AssumeSame


@operation
def assume_bounds(frame: Frame, x: Any, lower: Any = None, upper: Any = None) -> Any:
    least = None if lower is None else constant_int(frame, lower, "assume_bounds: the lower bound")
    most = None if upper is None else constant_int(frame, upper, "assume_bounds: the upper bound")
    if isinstance(x, int):
        return x
    result = frame.emit(AssumeBounds(x=tile_of(frame, x, "assume_bounds"), lower=least, upper=most))
    if not is_whole(frame, x):
        return of_weak(frame, result, x)
    known = interval_of(frame, x)
    weak(frame, result, known)
    return bounded(frame, result, known.low if least is None else least, known.high if most is None else most)


@operation
def assume_bounds_lower(frame: Frame, x: Any, lower: Any) -> Any:
    return assume_bounds(frame, x, lower, None)


@operation
def assume_bounds_upper(frame: Frame, x: Any, upper: Any) -> Any:
    return assume_bounds(frame, x, None, upper)


@operation
def assume_div_by(frame: Frame, x: Any, by: Any) -> Any:
    divisor = constant_int(frame, by, "assume_div_by: the divisor")
    if isinstance(x, int):
        return x
    if isinstance(x, PointerRef):
        made = AssumeDivisible(x=x.value, by=divisor, every=None, along=None)
        return PointerRef(frame.emit(made), x.dtype)
    result = frame.emit(AssumeDivisible(x=tile_of(frame, x, "assume_div_by"), by=divisor, every=None, along=None))
    return weak(frame, result, interval_of(frame, x)) if is_whole(frame, x) else of_weak(frame, result, x)


@operation
def assume_div_by_every_along(frame: Frame, x: Any, by: Any, every: Any, along: Any) -> Any:
    what = "assume_div_by_every_along"
    numbers = [constant_int(frame, each, what) for each in (by, every, along)]
    return frame.emit(AssumeDivisible(tile_of(frame, x, what), by=numbers[0], every=numbers[1], along=numbers[2]))


@operation
def assume_same_elements(frame: Frame, x: Any, groups: Any) -> Any:
    sizes = shape_of(frame, groups, "assume_same_elements")
    return frame.emit(AssumeSame(x=tile_of(frame, x, "assume_same_elements"), groups=sizes))
