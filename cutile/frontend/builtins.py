"""Calls of Python's builtins, the language's `static_` functions, and `Latency`.

Builtins over tuples and constant ranges (`enumerate`, `zip`, `sum`, `any`, ...) are unrolled.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

from cutile.dtypes import bool_, i32
from cutile.frontend.constant_calls import is_constant
from cutile.frontend.displays import MAX_ITEMS, static_items
from cutile.frontend.expect import constant_int
from cutile.frontend.families.debug import constant_text
from cutile.frontend.families.elementwise import max_tile, min_tile
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary, is_number, require_computed, truth
from cutile.frontend.plain_numbers import (
    Interval,
    computed,
    interval_of,
    is_weak,
    is_whole,
    length_of,
    magnitude,
    of_weak,
    weak,
)
from cutile.frontend.registry import BUILTINS, FOLDED, Handler, operation
from cutile.frontend.structure import gone_through, iterator, own_method
from cutile.frontend.values import (
    IteratorItems,
    ListItems,
    MappedRef,
    MutRef,
    PartitionIndex,
    PartitionRef,
    PointerRef,
    Range,
    Record,
    SharedRef,
    Table,
    TensorRef,
    converted,
    describe,
    is_tile,
    items_of,
    noun,
)
from cutile.ir import TileType, Value
from cutile.language import MappedPartitionMut, Mut, Ptr, SharedMut, Tensor
from cutile.language.mapped import PartitionIndex as MintedIndex
from cutile.language.markers import Latency
from cutile.language.partition import Partition, PartitionMut
from cutile.ops import arith
from cutile.ops.arith import And, Or
from cutile.ops.cast import Convert
from cutile.ops.math import Round


def _items(frame: Frame, value: Any, what: str) -> tuple[Any, ...]:
    return static_items(frame, value, None, what)


def _tuple(frame: Frame, items: Any = ()) -> Any:
    return _items(frame, items, "tuple()")


def _list(frame: Frame, items: Any = ()) -> Any:
    return ListItems(_items(frame, items, "list()"))


def _enumerate(frame: Frame, items: Any, start: Any = 0) -> Any:
    if not isinstance(start, int):
        frame.type_error(
            f"enumerate: the start must be a constant integer, got {describe(start)}", remedy="Add it to the index."
        )
    return iterator(frame, enumerate(_items(frame, items, "enumerate()"), start))


def _zip(frame: Frame, *iterables: Any, strict: Any = False) -> Any:
    columns = [_items(frame, each, "zip()") for each in iterables]
    if _decided(frame, strict, "zip: strict") and len({len(each) for each in columns}) > 1:
        lengths = ", ".join(str(len(each)) for each in columns)
        frame.type_error(f"zip: the lengths differ: {lengths}", remedy="Slice the longer, or leave strict out.")
    return iterator(frame, zip(*columns, strict=False))


def _product(frame: Frame, *iterables: Any, repeat: Any = 1) -> Any:
    columns = [_items(frame, iterable, "itertools.product()") for iterable in iterables]
    columns *= constant_int(frame, repeat, "itertools.product: repeat")
    count = math.prod(map(len, columns))
    if count > MAX_ITEMS:
        frame.type_error(
            f"itertools.product: {count} items", remedy=f"Each is compiled: at most {MAX_ITEMS}. Write loops."
        )
    return iterator(frame, itertools.product(*columns))


def _chain(frame: Frame, *iterables: Any) -> Any:
    parts = [_items(frame, iterable, "itertools.chain()") for iterable in iterables]
    return iterator(frame, itertools.chain(*parts))


def _folded(frame: Frame, function: Any, items: Any, *initial: Any) -> Any:
    """`functools.reduce` of a tuple's items, which may be tiles."""
    if is_tile(items):
        frame.type_error("functools.reduce goes over tuples", remedy="Write ct.reduce(tile, axis, identity, function).")
    values = (*initial[:1], *_items(frame, items, "functools.reduce()"))
    if not values or len(initial) > 1:
        frame.type_error(
            "functools.reduce of no items" if not values else "functools.reduce takes 2 or 3 arguments",
            remedy="Write functools.reduce(function, items, initial).",
        )
    result, *rest = values
    for item in rest:
        result = frame.invoke(function, result, item, node=frame.node)
    return result


def _decided(frame: Frame, value: Any, what: str) -> bool:
    """Whether a value is true, which has to be known now."""
    decided = truth(frame, value)
    if isinstance(decided, bool):
        return decided
    frame.type_error(
        f"{what} must be known when the kernel is compiled, got {describe(value)}",
        remedy="Use a constant or a generic.",
    )


def _reversed(frame: Frame, items: Any) -> Any:
    return iterator(frame, _items(frame, items, "reversed()")[::-1])


def _changes_nothing(start: Any, neutral: int, values: tuple[Any, ...]) -> bool:
    """Whether `start` combined with the first value gives just that value.

    It does not if the value is a bool, which becomes an integer, or if `start` is a float beside an integer.
    """
    first = values[0] if values else True
    return type(start) is int and start == neutral and not isinstance(first, bool) and not _is_bool(first)


def _is_bool(value: Any) -> bool:
    return is_tile(value) and value.tile.dtype is bool_


def _sum(frame: Frame, items: Any, start: Any = 0) -> Any:
    values = _items(frame, items, "sum()")
    if _changes_nothing(start, 0, values):
        start, values = values[0], values[1:]
    for each in values:
        start = binary(frame, ast.Add, start, each)
    return start


def _prod(frame: Frame, items: Any, start: Any = 1) -> Any:
    values = _items(frame, items, "math.prod()")
    if _changes_nothing(start, 1, values):
        start, values = values[0], values[1:]
    for each in values:
        start = binary(frame, ast.Mult, start, each)
    return start


def _any(frame: Frame, items: Any) -> Any:
    return _combined(frame, items, "any()", Or, False)


def _all(frame: Frame, items: Any) -> Any:
    return _combined(frame, items, "all()", And, True)


def _combined(frame: Frame, items: Any, what: str, op: Any, neutral: bool) -> Any:
    result: Any = neutral
    for each in _items(frame, items, what):
        flag = truth(frame, each)
        if isinstance(flag, bool):
            if flag is not neutral:
                return flag
        else:
            result = flag if isinstance(result, bool) else frame.emit(op(x=result, y=flag))
    return result


def _sorted(frame: Frame, items: Any, reverse: Any = False) -> Any:
    if is_tile(items):
        frame.type_error(f"sorted() goes over a tuple, not over {describe(items)}", remedy="Write ct.sort(tile, axis).")
    values = _items(frame, items, "sorted()")
    for item in values:
        if not is_number(item):
            frame.type_error(
                f"sorted: expected numbers that are known when the kernel is compiled, got {describe(item)}",
                remedy="Order tiles and scalars with ct.min_tile and ct.max_tile.",
            )
    return ListItems(sorted(values, reverse=_decided(frame, reverse, "sorted: reverse")))


def _str(frame: Frame, x: Any = "") -> Any:
    if not is_constant(x):
        frame.type_error(
            f"str() of {describe(x)}",
            remedy="print(f'{x}') formats values; other text has to be known when the kernel is compiled.",
        )
    return str(x)


def _bool(frame: Frame, x: Any = False) -> Any:
    return truth(frame, x)


def _isinstance(frame: Frame, x: Any, kind: Any) -> Any:
    kinds = tuple(_classes(frame, kind))
    if is_tile(x):
        own = _class_of_number(frame, x)
        return any(each is x.tile.dtype or each.__name__ == "Tile" or issubclass(own, each) for each in kinds)
    if isinstance(x, Record):
        return issubclass(x.kind, kinds)
    python = next((each for ours, each in _OF_PYTHON if isinstance(x, ours)), None)
    if python is not None:
        return issubclass(python, kinds)
    annotation = next((each for ours, each in _ANNOTATIONS if isinstance(x, ours)), None)
    if isinstance(x, PartitionRef) and x.writes:
        annotation = PartitionMut
    if annotation is None:
        return isinstance(x, kinds)
    # A kernel may name the classes of callers, `ct.Tensor` and `ct.Partition`, which have the annotations' names.
    names = {each.__name__ for each in annotation.__mro__}
    return any(issubclass(annotation, each) or each.__name__ in names for each in kinds)


def _classes(frame: Frame, kind: Any) -> Iterator[type]:
    """The classes of `int`, of `int | float` and of tuples of both."""
    if isinstance(kind, type):
        yield kind
    elif sides := items_of(kind) if isinstance(kind, tuple) else get_args(kind):
        for side in sides:
            yield from _classes(frame, side)
    elif kind != ():
        frame.type_error(f"isinstance: expected a class, got {describe(kind)}", remedy="Such as tuple or ct.f32.")


def _class_of_number(frame: Frame, x: Value) -> type:
    """Python's class of a plain number or a truth value; `object` for other tiles.

    A truth value is a bool, whether it is compared or passed: there is no other dtype of truth values.
    """
    if not x.tile.is_scalar:
        return object
    if x.tile.dtype.is_bool:
        return bool
    return object if not is_weak(frame, x) else int if is_whole(frame, x) else float


_OF_PYTHON = ((ListItems, list), (IteratorItems, Iterator), (Table, dict), (Range, range))
"""Python's class of each value that the front end has in place of an object of that class."""

_ANNOTATIONS = (
    (SharedRef, SharedMut),
    (TensorRef, Tensor),
    (MutRef, Mut),
    (MappedRef, MappedPartitionMut),
    (PointerRef, Ptr),
    (PartitionIndex, MintedIndex),
    (PartitionRef, Partition),
)
"""The annotation of each kind of value in memory, and of an index into it.

A `SharedRef` is also a `TensorRef`, so it comes first."""


def _round(frame: Frame, x: Any, digits: Any = None) -> Any:
    if not is_tile(x):
        return round(x, digits)
    if digits is not None:
        frame.type_error(
            f"round() of {describe(x)} to {describe(digits)} digits",
            remedy="It is rounded to whole numbers: round(x * 100.0) / 100.0 keeps two digits.",
        )
    require_computed(frame, "round", x)
    if x.tile.dtype.is_bool:
        frame.type_error(f"round() of {_named(x)}", remedy=f"Convert it first: {converted(x, 'i32', 'x')}.")
    return of_weak(frame, frame.emit(Round(x=x)), x) if x.tile.dtype.is_float else x


def _divmod(frame: Frame, x: Any, y: Any) -> Any:
    return binary(frame, ast.FloorDiv, x, y), binary(frame, ast.Mod, x, y)


def _pow(frame: Frame, x: Any, y: Any) -> Any:
    return binary(frame, ast.Pow, x, y)


BUILTINS.update({divmod: _divmod, round: _round})
FOLDED.update(
    {
        tuple: _tuple,
        list: _list,
        enumerate: _enumerate,
        zip: _zip,
        reversed: _reversed,
        itertools.product: _product,
        itertools.chain: _chain,
        functools.reduce: _folded,
        sum: _sum,
        math.prod: _prod,
        any: _any,
        all: _all,
        sorted: _sorted,
        bool: _bool,
        str: _str,
        isinstance: _isinstance,
        pow: _pow,
    }
)


@operation
def static_eval(frame: Frame, value: Any) -> Any:
    if not is_constant(value):
        frame.type_error(
            f"static_eval: {describe(value)} is known only when the kernel runs",
            remedy="Give it constants: numbers, generics, shapes, dtypes, and functions of Python of them.",
        )
    return value


@operation
def static_assert(frame: Frame, condition: Any, message: Any = None) -> None:
    decided = truth(frame, condition)
    if not isinstance(decided, bool):
        frame.type_error(
            "static_assert: the condition is known only when the kernel runs",
            remedy="Assert constants, generics, dtypes and shapes; check values on the host.",
        )
    if not decided:
        frame.type_error(
            f"the assertion is false{constant_text(message)}",
            remedy="It is decided when the kernel is compiled, by its generics and the types of its arguments.",
        )


@operation
def static_range(frame: Frame, start: Any, stop: Any = None, step: Any = 1) -> Any:
    first, last = (0, start) if stop is None else (start, stop)
    bounds = [constant_int(frame, each, "static_range: a bound") for each in (first, last, step)]
    if bounds[2] == 0:
        frame.type_error("static_range: the step is 0", remedy="It would never end: use a step above or below 0.")
    count = length_of(*bounds)
    if count > MAX_ITEMS:
        frame.type_error(
            f"static_range: {count} turns, each of which is compiled",
            remedy=f"At most {MAX_ITEMS}: use range(...).",
        )
    return tuple(range(*bounds))


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
    if own := own_method(frame, x, "__abs__"):
        return frame.invoke(own, x, node=frame.node)
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
    """`min` or `max`: `operation` for tiles and scalars, `python` for numbers."""
    items = items_of(gone_through(frame, values[0])) if len(values) == 1 and isinstance(values[0], tuple) else values
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
        extreme = operation(frame, result, item) if tiles else python(result, item)
        has_interval = tiles and extreme in frame.compilation.weak  # which `of_weak` would replace by a wider one
        result = of_weak(frame, extreme, result, item) if tiles and not has_interval else extreme
    return result


def _named(x: Any) -> str:
    return f"a {noun(x)} of {x.tile.dtype}"


def _float(frame: Frame, x: Any) -> Any:
    if not is_tile(x):
        return float(x)
    if not is_weak(frame, x):
        frame.type_error(f"float() of {_named(x)}", remedy=f"Use {converted(x, 'f32', 'x')}.")
    return binary(frame, ast.Div, x, 1) if is_whole(frame, x) else x


def _int(frame: Frame, x: Any) -> Any:
    if not is_tile(x):
        return int(x)
    if x.tile == TileType(bool_):  # Python's True is 1
        return weak(frame, frame.emit(Convert(x=x, dtype=i32)), Interval(0, 1))
    if not is_whole(frame, x):
        frame.type_error(f"int() of {_named(x)}", remedy=f"Use {converted(x, 'i32', 'x')}.")
    return x


def _len(frame: Frame, x: Any) -> Any:
    if isinstance(x, Table):
        return len(x.items)
    if isinstance(x, tuple | str):
        return len(items_of(x))
    if isinstance(x, Range) and all(isinstance(bound, int) for bound in (x.start, x.stop, x.step)):
        return length_of(x.start, x.stop, x.step)
    remedy = "range(n) has max(n, 0) items." if isinstance(x, Range) else "Use x.shape[axis]."
    frame.type_error(f"len() of {describe(x)}", remedy=remedy)


def _latency(frame: Frame, turns: Any) -> Any:
    count = constant_int(frame, turns, "Latency: the number of turns")  # iterations; `turns` is the public name
    if count < 1:
        frame.type_error(f"Latency: at least 1 turn, got {count}", remedy="Leave it out to let the compiler choose.")
    return Latency(count)


BUILTINS.update(
    {Latency: _latency, range: _range, abs: _abs, min: _min, max: _max, float: _float, int: _int, len: _len}
)
