"""Builtins over tuples and constant ranges: `enumerate`, `zip`, `sum`, `any`, ...

All are unrolled.
"""

from __future__ import annotations

import ast
from typing import Any

from cutile.frontend.comprehensions import static_items
from cutile.frontend.constant_calls import is_constant
from cutile.frontend.families.debug import constant_text
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary, is_number, truth
from cutile.frontend.registry import BUILTINS, FOLDED, operation
from cutile.frontend.values import Record, describe, is_tile, items_of
from cutile.ops.arith import And, Or


def _items(frame: Frame, value: Any, what: str) -> tuple[Any, ...]:
    return static_items(frame, value, None, what)


def _tuple(frame: Frame, items: Any = ()) -> Any:
    return _items(frame, items, "tuple()")


def _enumerate(frame: Frame, items: Any, start: Any = 0) -> Any:
    if not isinstance(start, int):
        frame.type_error(
            f"enumerate: the start must be a constant integer, got {describe(start)}", remedy="Add it to the index."
        )
    return tuple(enumerate(_items(frame, items, "enumerate()"), start))


def _zip(frame: Frame, *iterables: Any, strict: Any = False) -> Any:
    columns = [_items(frame, each, "zip()") for each in iterables]
    if strict and len({len(each) for each in columns}) > 1:
        lengths = ", ".join(str(len(each)) for each in columns)
        frame.type_error(f"zip: the lengths differ: {lengths}", remedy="Slice the longer, or leave strict out.")
    return tuple(zip(*columns, strict=False))


def _reversed(frame: Frame, items: Any) -> Any:
    return _items(frame, items, "reversed()")[::-1]


def _sum(frame: Frame, items: Any, start: Any = 0) -> Any:
    values = _items(frame, items, "sum()")
    if is_number(start) and start == 0 and values:
        start, values = values[0], values[1:]
    for each in values:
        start = binary(frame, ast.Add, start, each)
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
    values = _items(frame, items, "sorted()")
    for item in values:
        if not is_number(item):
            frame.type_error(
                f"sorted: expected numbers that are known when the kernel is compiled, got {describe(item)}",
                remedy="Order tiles and scalars with ct.min_tile and ct.max_tile.",
            )
    return tuple(sorted(values, reverse=bool(reverse)))


def _bool(frame: Frame, x: Any = False) -> Any:
    return truth(frame, x)


def _isinstance(frame: Frame, x: Any, kind: Any) -> Any:
    kinds = items_of(kind) if isinstance(kind, tuple) else (kind,)
    for each in kinds:
        if not isinstance(each, type):
            frame.type_error(f"isinstance: expected a class, got {describe(each)}", remedy="Such as tuple or ct.f32.")
    if isinstance(x, Record):
        return issubclass(x.kind, kinds)
    if is_tile(x):
        return any(each is x.tile.dtype or each.__name__ == "Tile" for each in kinds)
    return isinstance(x, kinds)


def _round(frame: Frame, x: Any, digits: Any = None) -> Any:
    if is_tile(x):
        frame.type_error(f"round() of {describe(x)}", remedy="Use ct.floor(x + 0.5), or ct.convert_tile to an integer.")
    return round(x, digits)


def _divmod(frame: Frame, x: Any, y: Any) -> Any:
    return binary(frame, ast.FloorDiv, x, y), binary(frame, ast.Mod, x, y)


def _pow(frame: Frame, x: Any, y: Any) -> Any:
    return binary(frame, ast.Pow, x, y)


BUILTINS[divmod] = _divmod
FOLDED.update(
    {
        tuple: _tuple,
        list: _tuple,
        enumerate: _enumerate,
        zip: _zip,
        reversed: _reversed,
        sum: _sum,
        any: _any,
        all: _all,
        sorted: _sorted,
        bool: _bool,
        isinstance: _isinstance,
        round: _round,
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
