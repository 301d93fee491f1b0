"""The generated text of pipelines, run for its stage counters: each acquire, wait and release, in order.

    turns(text, grid=(2, 3, 1), n=5) -> {("wait", 98304): [0, 1, 2, ...], ...}

The models read the lowered IR. Only the text shows the emitter's part, such as which variable holds which counter.
Tiles have no values here: only numbers are computed.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from cutile.dtypes import DTypeLike, i32

NUMBERS: Mapping[str, Any] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floor_div": int.__floordiv__,
    "min": min,
    "max": max,
    "lt": operator.lt,
    "ne": operator.ne,
}
"""Operations on counters and on the bounds of loops."""


class _Nothing:
    """A value without a meaning; called, or asked for an attribute, it gives itself."""

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __int__(self) -> int:
        return 0


def _of_numbers(kind: str, dtype: DTypeLike, axes: int) -> Callable[..., Any]:
    """An operation on numbers; on tiles it gives nothing."""
    return NUMBERS.get(kind, _Nothing()) if dtype is i32 and not axes else _Nothing()


def _always(value: Any, *_: Any) -> Callable[..., Any]:
    """A function of any arguments that returns the value."""

    def answer(*_: Any) -> Any:
        return value

    return answer


class _Intrinsics:
    """One role's intrinsics of a family: they compute numbers and note barriers."""

    def __init__(self, family: str, turns: dict[tuple[str, int], list[int]], *, loads: bool) -> None:
        self._family = family
        self._turns = turns
        self._loads = loads

    def __getattr__(self, name: str) -> Callable[..., Any]:
        globals_: dict[str, Any] = {
            "binary": _of_numbers,
            "comparison": _of_numbers,
            "constant": _always,
            "is_producer": _always(_always(self._loads)),
            "elected": _always(_always(True)),
            "first_tile": _always(_always(0)),
            "tile_step": _always(_always(1)),
        }
        if self._family == "pipeline" and name in ("acquire", "wait", "release"):
            return functools.partial(self._barrier, name)
        return globals_.get(name, _Nothing())

    def _barrier(self, name: str, offset: int, **_: Any) -> Callable[..., None]:
        """An intrinsic of a barrier at an offset, which notes the counters that it is called with."""

        def note(counter: int, *_: Any) -> None:
            self._turns[name, offset].append(counter)

        return note


def turns(text: str, entry: str, grid: tuple[int, int, int], **numbers: int) -> dict[tuple[str, int], list[int]]:
    """The counters of each acquire, wait and release, by its name and the barriers' offset."""
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    for loads in (True, False):

        def imported(name: str, *rest: Any, loads: bool = loads, **named: Any) -> Any:
            def family_of(_: object, family: str) -> _Intrinsics:
                return _Intrinsics(family, seen, loads=loads)

            if "intrinsics" in name:
                return type("Package", (), {"__getattr__": family_of})()
            return builtins.__import__(name, *rest, **named)

        scope: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": imported}, "range": range}
        exec(compile(text, "<generated>", "exec"), scope)
        function = scope[entry]
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        extents = dict(zip(("grid_x", "grid_y", "grid_z"), grid, strict=True)) | numbers
        function(*(extents.get(name, _Nothing()) for name in names))
    return seen
