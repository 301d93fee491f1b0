"""Prints and assertions: `print`, its f-strings, `assert`, and their other names."""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from cutile.dtypes import bool_, f32, f64, i32, i64
from cutile.errors import KernelTypeError
from cutile.frontend.families.memory import is_ordered
from cutile.frontend.frame import Frame
from cutile.frontend.operators import is_number, materialize
from cutile.frontend.registry import BUILTINS, operation
from cutile.frontend.structure import field_names, kind_of
from cutile.frontend.values import TOKEN, Described, ListItems, PointerRef, Record, describe, is_tile, items_of, plain
from cutile.ir.core import Value
from cutile.ops import compare
from cutile.ops.cast import Bitcast, Convert
from cutile.ops.debug import MAX_NUMBERS, Assert, Print, percent_format
from cutile.ops.reduce import ReduceMin
from cutile.ops.shape import Reshape


@dataclass(frozen=True)
class Text(Described):
    """An f-string with values that are known only when the kernel runs.

    Attributes:
        pieces: the text before, between and after the values; one more than there are values.
        specs: the `%` format of each value.
    """

    pieces: tuple[str, ...]
    values: tuple[Value, ...]
    specs: tuple[str, ...]

    @property
    def description(self) -> str:
        return f"text {'...'.join(self.pieces)!r}"

    def __add__(self, other: Text) -> Text:
        joined = self.pieces[-1] + other.pieces[0]
        return Text(
            (*self.pieces[:-1], joined, *other.pieces[1:]), self.values + other.values, self.specs + other.specs
        )


def _constant(text: str) -> Text:
    return Text((text,), (), ())


def _text(frame: Frame, value: Any, spec: str = "") -> Text:
    """A value as text, with places for values that only run time knows."""
    value = plain(value)
    if isinstance(value, Text) and not spec:
        return value
    if is_tile(value):
        if spec[-1:] in ("e", "E", "f", "g", "G") and value.tile.dtype.is_integer:
            value = frame.emit(Convert(x=value, dtype=f64))  # as Python does to format an integer so
        try:
            return Text(("", ""), (value,), (percent_format(spec, value.tile.dtype),))
        except KernelTypeError as error:
            frame.type_error(error.message, remedy=error.remedy)
    if isinstance(value, PointerRef):
        frame.type_error("a pointer has no text", remedy="Print ct.ptr_to_int(pointers), its address.")
    if isinstance(value, tuple | Record) and not spec:
        return _of_items(frame, value)
    if is_number(value) or isinstance(value, str | type(None) | type):
        try:
            return _constant(format(value, spec))  # pyright: ignore[reportUnknownArgumentType]
        except (TypeError, ValueError, OverflowError) as error:
            frame.type_error(f"print: {error}", remedy="Formats are Python's, such as {x:5d} or {x:.3f}.")
    frame.type_error(
        f"print: cannot print {describe(value)}", remedy="Print tiles, scalars and constants: load a tile first."
    )


def _of_items(frame: Frame, value: Any) -> Text:
    """A list, tuple, named tuple or dataclass as Python shows it."""
    kind: Any = kind_of(value)
    names = field_names(kind)
    if isinstance(value, Record):  # the module dataclasses wraps the function that it makes for the text
        is_plain = hasattr(kind.__repr__, "__wrapped__") and all(field.repr for field in dataclasses.fields(kind))
    else:
        is_plain = not names or kind.__repr__.__module__ == "collections"
    if not is_plain or kind.__str__ is not object.__str__:
        frame.type_error(f"print: {kind.__name__} has a text of its own", remedy="Print its fields one by one.")
    items = value.items if isinstance(value, Record) else items_of(value)
    text = _constant(f"{kind.__qualname__ if isinstance(value, Record) else kind.__name__}(" if names else "")
    text = text if names else _constant("[" if isinstance(value, ListItems) else "(")
    for position, item in enumerate(items):
        name = f"{names[position]}=" if names else ""
        shown = _constant(repr(item)) if isinstance(item, str) else _text(frame, item)
        text = text + _constant((", " if position else "") + name) + shown
    if isinstance(value, ListItems):
        return text + _constant("]")
    return text + _constant(",)" if len(items) == 1 and not names else ")")


def _converted(frame: Frame, part: ast.FormattedValue, spec: str) -> Any:
    """The value of `{x!r}`, `{x!s}`, `{x!a}`, and of `{x=}`, which is `x={x!r}`."""
    value = frame.evaluate(part.value)
    if part.conversion == -1:
        return value
    if is_number(value) or isinstance(value, str | type(None)):
        return {"r": repr, "s": str, "a": ascii}[chr(part.conversion)](value)
    if spec:  # Python formats the text then, and not the number
        frame.type_error(
            f"!{chr(part.conversion)} of {describe(value)}, with a format",
            part,
            "Leave it out: values have one text each.",
        )
    return value


def f_string(frame: Frame, node: ast.JoinedStr) -> Any:
    """An f-string: a str if all of it is known at compile time, else a `Text`."""
    text = _constant("")
    for part in node.values:
        if isinstance(part, ast.Constant):
            text = text + _constant(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue)
        spec = f_string(frame, part.format_spec) if isinstance(part.format_spec, ast.JoinedStr) else ""
        if not isinstance(spec, str):
            frame.type_error(
                "a format must be known when the kernel is compiled",
                part,
                "Use numbers or generics in it: {x:{WIDTH}}.",
            )
        text = text + _text(frame, _converted(frame, part, spec), spec)
    return text.pieces[0] if not text.values else text


def _emit(frame: Frame, text: Text) -> None:
    frame.builder.add(Print(values=text.values, pieces=text.pieces, specs=text.specs))


def _print(frame: Frame, *values: Any, sep: Any = " ", end: Any = "\n") -> None:
    for string, what in ((sep, "sep"), (end, "end")):
        if not isinstance(string, str):
            frame.type_error(
                f"print: {what} must be a constant string, got {describe(string)}", remedy="Print the value instead."
            )
    text = _constant("")
    for position, value in enumerate(values):
        text = text + _constant(sep if position else "") + _text(frame, value)
    _emit(frame, text + _constant(end))


BUILTINS[print] = _print

# Doubled brackets, a placeholder with or without a format, or a lone bracket.
_PLACE = r"\{\{|\}\}|\{(?::([^{}]*))?\}|[{}]"


def _placeholders(frame: Frame, template: Any, values: tuple[Any, ...], what: str) -> Text:
    """A template in which `{}` stand for values in turn."""
    if not isinstance(template, str):
        frame.type_error(
            f"{what}: the format must be a constant string, got {describe(template)}",
            remedy="Write print(value), or give a format such as '{}'.",
        )
    rest = list(values)
    text = _constant("")
    last = 0
    for place in re.finditer(_PLACE, template):
        text = text + _constant(template[last : place.start()])
        last = place.end()
        if place.group() in ("{{", "}}"):
            text = text + _constant(place.group()[0])
        elif place.group() in ("{", "}"):
            frame.type_error(f"{what}: a lone {place.group()!r} in the format {template!r}", remedy="Write it twice.")
        elif not rest:
            frame.type_error(
                f"{what}: the format {template!r} has more places than the {len(values)} values",
                remedy="Give one value for each {}, or write {{}} for the brackets themselves.",
            )
        else:
            text = text + _text(frame, rest.pop(0), place.group(1) or "")
    if rest:
        places = len(values) - len(rest)
        frame.type_error(
            f"{what}: {len(values)} values, but the format {template!r} has {places} places",
            remedy="Write a {} for each value.",
        )
    return text + _constant(template[last:])


@operation
def cuda_tile_print(frame: Frame, format: Any, *values: Any) -> None:
    _emit(frame, _placeholders(frame, format, values, "cuda_tile_print"))


@operation
def print_tko(frame: Frame, format: Any, *values: Any, token: Any = None) -> Any:
    is_ordered(frame, token, "print_tko")
    _emit(frame, _placeholders(frame, format, values, "print_tko"))
    return TOKEN


def constant_text(message: Any) -> str:
    """A message as text after a colon, with dots for values that only run time knows."""
    if not isinstance(message, Text):
        words = message if is_number(message) or isinstance(message, str) else describe(message)
        return "" if message is None or message == "" else f": {words}"
    return f": {'...'.join(message.pieces)}"


def require(frame: Frame, condition: Value, message: Any, what: str) -> None:
    """Have the launch fail with `message` unless every element of `condition` holds."""
    if not isinstance(message, str | Text):
        frame.type_error(
            f"{what}: the message must be a string, got {describe(message)}",
            remedy='Write an f-string, such as f"n is {n}", or constant words.',
        )
    values, kinds = (), ()
    if isinstance(message, Text):
        values, kinds = _reported(frame, message, what)
        pieces = [piece.replace("%", "%%") for piece in message.pieces]
        message = pieces[0] + "".join(map("".join, zip(message.specs, pieces[1:], strict=True)))
    place = frame.builder.location
    place = None if place is None else place.of_user()
    where = (frame.kernel, "", 0, "") if place is None else (frame.kernel, place.file, place.line, place.text.strip())
    condition = _all(frame, condition)
    frame.builder.add(Assert(condition=condition, values=values, message=message, where=where, kinds=kinds))


def _reported(frame: Frame, message: Text, what: str) -> tuple[tuple[Value, ...], tuple[str, ...]]:
    """The values of an assertion's message, as integers, and their dtypes."""
    tile = next((value.tile for value in message.values if not value.tile.is_scalar), None)
    if tile is not None:
        frame.type_error(
            f"{what}: the message shows a tile of shape {tile.shape}; it may show scalars",
            remedy="Reduce it, such as ct.reduce_max(tile, 0), or print it before the assert.",
        )
    if len(message.values) > MAX_NUMBERS:
        frame.type_error(
            f"{what}: the message shows {len(message.values)} values that are known only when the kernel runs; it may "
            f"show {MAX_NUMBERS}",
            remedy="Leave some out, or print them before the assert.",
        )
    values: list[Value] = []
    dtypes: list[str] = []
    for value in message.values:
        if value.tile.dtype.is_float and value.tile.dtype.bits < f32.bits:
            value = frame.emit(Convert(x=value, dtype=f32))
        dtype = value.tile.dtype
        dtypes.append(dtype.name)
        if dtype.is_float:
            value = frame.emit(Bitcast(x=value, dtype=i32 if dtype is f32 else i64))
        elif dtype is bool_:
            value = frame.emit(Convert(x=value, dtype=i32))
        values.append(value)
    return tuple(values), tuple(dtypes)


def _all(frame: Frame, condition: Value) -> Value:
    """Whether every element holds."""
    if condition.tile.dtype is not bool_:
        zero = materialize(frame, 0, condition.tile.dtype, condition.tile.shape)
        condition = frame.emit(compare.Ne(x=condition, y=zero))
    if condition.tile.is_scalar:
        return condition
    flat = frame.emit(Convert(x=condition, dtype=i32))
    if len(flat.tile.shape) > 1:
        flat = frame.emit(Reshape(x=flat, shape=(flat.tile.size,)))
    least = frame.emit(ReduceMin(x=flat, axis=0))  # reductions take numbers, and not bools
    return frame.emit(compare.Ne(x=least, y=materialize(frame, 0, i32)))


@operation
def cuda_tile_assert(frame: Frame, condition: Any, message: Any = "") -> None:
    what = "cuda_tile_assert"
    if is_tile(condition):
        require(frame, condition, message, what)
    elif not is_number(condition):
        frame.type_error(
            f"{what}: the condition must be a bool, got {describe(condition)}", remedy="Compare: n > 0, or t == t."
        )
    elif not condition:
        frame.type_error(
            f"{what}: the condition is false{constant_text(message)}",
            remedy="It is decided when the kernel is compiled, by its generics and the types of its arguments.",
        )
