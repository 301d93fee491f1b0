"""Arguments of calls, checked: shapes, axes, indices, tiles, dtypes, markers.

Each function raises KernelTypeError with what was expected, what came, and the remedy; `what` names the call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from cutile.dtypes import EVERY_DTYPE, DTypeMeta, as_dtype, i32, i64
from cutile.errors import as_text
from cutile.frontend.frame import Frame
from cutile.frontend.operators import is_number, materialize
from cutile.frontend.plain_numbers import I32, I64, Interval
from cutile.frontend.values import describe, is_tile, items_of, plain, to_tile
from cutile.ir.core import Value
from cutile.language.facts import Marker
from cutile.language.markers import Latency
from cutile.ops.arith import Max, Min
from cutile.ops.cast import Convert

M = TypeVar("M", bound=Marker)

_MAX_ELEMENTS = 2**62  # elements of a tile: backends count up to twice as many in a signed 64-bit integer


def shape_of(frame: Frame, value: Any, what: str) -> tuple[int, ...]:
    """A shape: a tuple of constant positive integers, or one of them."""
    items = items_of(value) if isinstance(value, tuple) else (value,)
    for axis, item in enumerate(items):
        if not isinstance(item, int) or isinstance(item, bool):
            place = f" for axis {axis}" if len(items) > 1 else ""
            frame.type_error(
                f"{what}: the shape must be constant integers, got {describe(item)}{place}",
                remedy="Tile shapes are fixed when a kernel is compiled, and a tensor's extents at the launch: use "
                "numbers, generics (`*, N: Const`), the shape of a Mut, or what ct.static_range counts. A name "
                "that an `if` or a loop assigns anew is known only when the kernel runs.",
            )
        if item < 1:
            order = {"load_tile": " The shape comes first, then the index.", "iota": " It counts from 0: ct.iota(8)."}
            frame.type_error(
                f"{what}: the shape {as_text(items)} has an extent below 1",
                remedy="Every extent of a tile is at least 1." + order.get(what, ""),
            )
    if max(items, default=1) > i32.max or math.prod(items) >= _MAX_ELEMENTS:
        frame.type_error(
            f"{what}: the shape {as_text(items)} is larger than a tile can be",
            remedy=f"An extent is at most {i32.max}: load smaller tiles in a loop.",
        )
    return tuple(items)


def constant_int(frame: Frame, value: Any, what: str) -> int:
    """A compile-time integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    frame.type_error(
        f"{what} must be a constant integer, got {describe(value)}",
        remedy="It is needed when the kernel is compiled: use a number, a generic, the shape of a Mut, or what "
        "ct.static_range counts.",
    )


def axis_of(frame: Frame, value: Any, rank: int, what: str) -> int:
    """A constant axis; negative ones count from the end."""
    if value is None or isinstance(value, tuple):
        frame.type_error(
            f"{what} goes along one axis, got {describe(value)}",
            remedy="One axis after the other, the last first; or reshape, so that they are one.",
        )
    axis = constant_int(frame, value, f"{what}: the axis")
    if not -rank <= axis < rank:
        frame.type_error(
            f"{what}: there is no axis {as_text(axis)}, the rank is {rank}",
            remedy=f"The axes are {-rank} to {rank - 1}." if rank else "A scalar has no axes.",
        )
    return axis % rank


def axes_of(frame: Frame, value: Any, rank: int, what: str) -> tuple[int, ...]:
    """Constant axes, in order: one, a tuple of them, or None for all."""
    if value is None:
        return tuple(range(rank))
    items = items_of(value) if isinstance(value, tuple) else (value,)
    axes = sorted(axis_of(frame, item, rank, what) for item in items)
    if len({*axes}) < len(axes):
        frame.type_error(f"{what}: an axis is named twice in {value}", remedy="Name each axis once.")
    return tuple(axes)


def index_scalar(frame: Frame, value: Any, what: str) -> Value:
    """One index: a scalar of i32, or of i64 where 32 bits may not hold it.

    A number beyond 64 signed bits is clamped to them: it stays outside of every tensor.
    """
    value = plain(value)
    if isinstance(value, int) and not isinstance(value, bool):
        nearest = min(max(value, I64.low), I64.high)
        return materialize(frame, nearest, i32 if I32.low <= nearest <= I32.high else i64)
    if is_tile(value) and value.tile.is_scalar and value.tile.dtype.is_integer:
        wanted = i32 if Interval.of(value.tile.dtype).fits(i32) else i64
        return value if value.tile.dtype is wanted else frame.emit(Convert(x=value, dtype=wanted))
    frame.type_error(
        f"{what}: an index must be an integer scalar, got {describe(value)}",
        remedy="Indices count in tiles: an integer for each axis, such as those of ct.get_tile_block_id().",
    )


def index_between(frame: Frame, value: Value, least: int, most: int) -> Value:
    """An index clamped between two numbers, as an i32 scalar."""
    for op, number in ((Max, least), (Min, most)):
        value = frame.emit(op(x=value, y=materialize(frame, number, value.tile.dtype)))
    return value if value.tile.dtype is i32 else frame.emit(Convert(x=value, dtype=i32))


def tile_of(frame: Frame, value: Any, what: str) -> Value:
    """A tile; a number becomes a scalar."""
    if is_tile(value):
        return value
    if is_number(value):
        return materialize(frame, value)
    frame.type_error(f"{what}: expected a tile, got {describe(value)}", remedy=to_tile(value))


def dtype_of(frame: Frame, value: Any, what: str) -> Any:
    """An element type."""
    if isinstance(value, DTypeMeta):
        return value
    try:
        return as_dtype(value)
    except (TypeError, ValueError):  # NumPy asks an object for a `dtype`, which may be of any kind
        names = ", ".join(f"ct.{each.__name__}" for each in EVERY_DTYPE)
        frame.type_error(
            f"{what}: expected an element type such as ct.f32, got {describe(value)}", remedy=f"There are {names}."
        )


def marker_of(frame: Frame, value: Any, kind: type[M], what: str) -> M:
    """A marker such as `ct.rounding.ZERO`; a bool for ENABLED and DISABLED."""
    if isinstance(value, kind):
        return value
    names = {member.name: member for member in kind}
    if isinstance(value, bool) and set(names) == {"ENABLED", "DISABLED"}:
        return names["ENABLED" if value else "DISABLED"]
    choices = ", ".join(f"ct.{kind.__name__}.{name}" for name in names)
    frame.type_error(
        f"{what}: {kind.__name__} must be one of ct.{kind.__name__}'s members, got {describe(value)}",
        remedy=f"There are {choices}.",
    )


def flag_of(frame: Frame, value: Any, what: str) -> bool:
    """Yes or no, known while the kernel is compiled."""
    if isinstance(value, bool):
        return value
    frame.type_error(
        f"{what}: expected True or False, got {describe(value)}",
        remedy="It must be known when the kernel is compiled: a generic may decide it, as in `FAST == 1`.",
    )


BY_ADDRESS, A_STORE = "accesses by address are not begun ahead", "a store is not begun ahead"
"""Reasons why an operation ignores a latency."""


def latency_of(frame: Frame, value: Any, what: str, unused: str = "") -> int:
    """How many iterations ahead a load may begin; 0 for None.

    `unused` is the reason why this operation ignores a latency, which the plan shows; empty if it obeys.
    """
    if value is None:
        return 0
    iterations = constant_int(frame, int(value) if isinstance(value, Latency) else value, f"{what}: the latency")
    if iterations < 1:
        frame.type_error(
            f"{what}: the latency is a number of turns, at least 1, got {iterations}",
            remedy="Leave it out to let the compiler choose.",
        )
    if unused:
        frame.compilation.unused[f"latency={iterations} of {what}: {unused}"] = None
    return iterations


def indices(items: Sequence[Any]) -> str:
    """The number of indices in words, for messages.

    Example:
        >>> indices((1, 2)), indices((1,))
        ('2 indices', '1 index')
    """
    return "1 index" if len(items) == 1 else f"{len(items)} indices"
