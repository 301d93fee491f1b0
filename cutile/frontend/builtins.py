"""Calls of Python's builtins, of `static_range` and of `Latency`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutile.frontend.comprehensions import MAX_ITEMS
from cutile.frontend.expect import constant_int
from cutile.frontend.families.arith import max_tile, min_tile
from cutile.frontend.frame import Frame
from cutile.frontend.interval import magnitude
from cutile.frontend.registry import BUILTINS, Handler, operation
from cutile.frontend.values import Range, Table, describe, is_tile, items_of
from cutile.frontend.weak import computed, interval_of, is_whole, of_weak
from cutile.language.markers import Latency
from cutile.ops import arith


@operation
def static_range(frame: Frame, start: Any, stop: Any = None, step: Any = 1) -> Any:
    first, last = (0, start) if stop is None else (start, stop)
    bounds = [constant_int(frame, each, "static_range: a bound") for each in (first, last, step)]
    if bounds[2] == 0:
        frame.type_error("static_range: the step is 0", remedy="It would never end: use a step above or below 0.")
    items = range(*bounds)
    if len(items) > MAX_ITEMS:
        frame.type_error(
            f"static_range: {len(items)} turns, each of which is compiled",
            remedy=f"At most {MAX_ITEMS}: use range(...).",
        )
    return tuple(items)


def _range(frame: Frame, *bounds: Any, **named: Any) -> Any:
    if named:
        frame.type_error("range takes no names for its arguments", remedy="Write range(start, stop, step).")
    if not 1 <= len(bounds) <= 3:
        frame.type_error(
            f"range takes 1 to 3 arguments, got {len(bounds)}", remedy="range(stop), or range(start, stop[, step])."
        )
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if step == 0:
        frame.type_error("range: the step is 0", remedy="It would never end: use a step above or below 0.")
    return Range(start, stop, step)


def _abs(frame: Frame, x: Any) -> Any:
    if not is_tile(x):
        return abs(x)
    if is_whole(frame, x):
        return computed(frame, arith.Abs, magnitude(interval_of(frame, x)), x)
    return of_weak(frame, frame.emit(arith.Abs(x=x)), x)


def _min(frame: Frame, *values: Any) -> Any:
    return _extreme(frame, values, min_tile, min)


def _max(frame: Frame, *values: Any) -> Any:
    return _extreme(frame, values, max_tile, max)


def _extreme(frame: Frame, values: tuple[Any, ...], operation: Handler, python: Callable[..., Any]) -> Any:
    items = items_of(values[0]) if len(values) == 1 and isinstance(values[0], tuple) else values
    if not items:
        frame.type_error(f"{python.__name__} of nothing", remedy="Give it values, or a tuple that has some.")
    if len(values) == 1 and not isinstance(values[0], tuple):
        frame.type_error(
            f"{python.__name__} of one value, {describe(values[0])}",
            remedy=f"ct.reduce_{python.__name__}(tile, axis) is the {python.__name__} of its elements.",
        )
    result = items[0]
    for item in items[1:]:
        tiles = is_tile(result) or is_tile(item)
        found = operation(frame, result, item) if tiles else python(result, item)
        whole = tiles and found in frame.compilation.weak
        result = of_weak(frame, found, result, item) if tiles and not whole else found
    return result


def _float(frame: Frame, x: Any) -> Any:
    if is_tile(x):
        frame.type_error("float() of a tile", remedy="Use ct.convert_tile(x, ct.f32).")
    return float(x)


def _int(frame: Frame, x: Any) -> Any:
    if is_tile(x):
        frame.type_error("int() of a tile", remedy="Use ct.convert_tile(x, ct.i32).")
    return int(x)


def _len(frame: Frame, x: Any) -> Any:
    if isinstance(x, Table):
        return len(x.items)
    if isinstance(x, tuple | str):
        return len(items_of(x))
    if isinstance(x, Range) and not any(map(is_tile, (x.start, x.stop, x.step))):
        return len(range(x.start, x.stop, x.step))
    frame.type_error(f"len() of {describe(x)}", remedy="Use x.shape[axis].")


def _latency(frame: Frame, turns: Any) -> Any:
    count = constant_int(frame, turns, "Latency: the number of turns")
    if count < 1:
        frame.type_error(f"Latency: at least 1 turn, got {count}")
    return Latency(count)


BUILTINS.update(
    {Latency: _latency, range: _range, abs: _abs, min: _min, max: _max, float: _float, int: _int, len: _len}
)
