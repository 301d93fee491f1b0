"""Handlers of element-wise operations, derived from their declarations.

Operands of one type, markers, one operation.

What a handler needs stands in the declaration (`cutile/language/declare.py`), and in the classes that are spelled with
the name: one that rounds as floats do, and for some a second one for the other roundings.
"""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

from cutile.dtypes import f32
from cutile.errors import IRError
from cutile.frontend.expect import marker_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import unify
from cutile.frontend.registry import Handler
from cutile.frontend.values import is_tile
from cutile.ir.core import Op, Value
from cutile.language import markers
from cutile.language.declare import FLOATS, Declaration, Kinds
from cutile.ops import OPS

PROMISES = ("overflow",)
"""Markers that change no result: integers wrap whatever is promised, and a promise that holds changes nothing."""


def require_kind(frame: Frame, tile: Value, kinds: Kinds, what: str) -> Value:
    """A tile of one of the kinds of dtype."""
    if tile.tile.dtype.kind in kinds.names:
        return tile
    if kinds is FLOATS and is_tile(tile) and not tile.tile.dtype.is_bool:
        remedy = "Convert first: ct.convert_tile(x, ct.f32)."
    else:
        remedy = f"The operators take any numbers; {what} takes {kinds.words}."
    frame.type_error(f"{what}: expected a tile of {kinds.words}, got {tile.type}", remedy=remedy)


def operands(frame: Frame, values: list[Any], kinds: Kinds, what: str) -> list[Value]:
    """Tiles of one type, of one of the kinds.

    Numbers alone are f32 where floats are wanted.
    """
    dtype = f32 if kinds is FLOATS and not any(map(is_tile, values)) else None
    return [require_kind(frame, tile, kinds, what) for tile in unify(frame, values, what, dtype)]


def spelled(name: str) -> tuple[type[Op], type[Op] | None]:
    """The operation that a function of the language becomes.

    And the one for other roundings, if there is one.

    Raises:
        IRError: none in `cutile/ops/` is spelled so, or several are.
    """
    ops = [op for op in OPS.values() if name in op.spelled]
    plain = [op for op in ops if "rounding" not in op.fields]
    rounded = [op for op in ops if "rounding" in op.fields]
    if len(plain) != 1 or len(rounded) > 1:
        raise IRError(f"{name}: expected one class in cutile/ops/ that is spelled so, got {[op.name for op in ops]}")
    return plain[0], rounded[0] if rounded else None


def _fact(mark: Any) -> str | bool:
    """What stands in the IR: the word of a rounding, a flag for a choice between two."""
    return mark.value if isinstance(mark, markers.rounding) else mark.name == "ENABLED"


class _Derived:
    """The handler of an element-wise operation.

    What it needs of the declaration is read when it is first called: a process calls few of them.
    """

    def __init__(self, declaration: Declaration, takes: Kinds) -> None:
        self.__name__ = declaration.name
        self._declaration, self._takes = declaration, takes

    @cached_property
    def _ops(self) -> tuple[type[Op], type[Op] | None]:
        return spelled(self.__name__)

    @cached_property
    def _signature(self) -> inspect.Signature:
        parameters = self._declaration.signature.parameters.values()
        return inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters])

    @cached_property
    def _choices(self) -> dict[str, Any]:
        parameters = self._signature.parameters.values()
        return {each.name: getattr(markers, each.name) for each in parameters if each.default is not each.empty}

    @property
    def __signature__(self) -> inspect.Signature:
        frame = inspect.Parameter("frame", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return inspect.Signature([frame, *self._signature.parameters.values()])

    def __call__(self, frame: Frame, *args: Any, **kwargs: Any) -> Any:
        (plain, rounded), name = self._ops, self.__name__
        call = self._signature.bind(*args, **kwargs)
        call.apply_defaults()
        marks = {key: marker_of(frame, call.arguments.pop(key), kind, name) for key, kind in self._choices.items()}
        facts = {key: _fact(mark) for key, mark in marks.items() if key not in PROMISES}
        tiles = operands(frame, list(call.arguments.values()), self._takes, name)
        if rounded is None or set(facts.values()) <= {markers.rounding.NEAREST_EVEN.value, False}:
            return frame.emit(plain(*tiles, **{key: fact for key, fact in facts.items() if key in plain.fields}))
        if tiles[0].tile.dtype.bits == 16:
            frame.type_error(
                f"{name}: a rounding other than NEAREST_EVEN, and ftz, are for f32 and f64, got {tiles[0].type}",
                remedy="Convert first: ct.convert_tile(x, ct.f32).",
            )
        return frame.emit(rounded(*tiles, **facts))


def derive(declaration: Declaration) -> Handler:
    """The handler of an element-wise operation."""
    assert declaration.takes is not None
    return _Derived(declaration, declaration.takes)
