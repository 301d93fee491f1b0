"""`operation` declares a function of the language.

The front end and the pages of the reference read the declarations:

    @operation(FLOATS)
    def tanh(x: Tile) -> Tile:
        \"\"\"The hyperbolic tangent.\"\"\"
        ...

The body is never run, and compiled kernels never call the function. An interpreted kernel does: the interpreter gives
the call its meaning. Anywhere else a call is an error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, overload

from cutile.tile import live, outside_kernel

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Kinds:
    """Kinds of element types, as a plural for messages.

    Attributes:
        words: what tiles of these are called: "floats".
        names: the kinds, as `dtype.kind` has them.
    """

    words: str
    names: tuple[str, ...]


INTEGERS = Kinds("integers", ("int", "uint"))
BITS = Kinds("integers or bools", ("int", "uint", "bool"))
FLOATS = Kinds("floats", ("float",))


@dataclass(frozen=True)
class Declaration:
    """An operation of the kernel language.

    Attributes:
        name: of the function, and of its handler.
        function: as its author wrote it. If `takes` is given, parameters without a default are operands, and those with
            one are markers of the same names.
        takes: the kinds of its operands, which are brought to one type; None where it is not element-wise.
        composed: whether its handler composes it of other operations, so that no class and no backend knows it.
        ulps: the largest error of a composition by dtype, in units in the last place; 0.5 where nothing is said.
        note: what the errors leave open.
    """

    name: str
    function: Callable[..., Any]
    takes: Kinds | None
    composed: bool = False
    ulps: Mapping[str, float] = field(default_factory=dict[str, float])
    note: str = ""

    @property
    def signature(self) -> inspect.Signature:
        """What a call takes."""
        return inspect.signature(self.function)


DECLARED: dict[str, Declaration] = {}
"""Every operation, by name."""


@overload
def operation(takes: Callable[_P, _R]) -> Callable[_P, _R]: ...
@overload
def operation(takes: Kinds) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def operation(takes: Kinds | Callable[_P, _R]) -> Any:
    """Declare a function as an operation of the kernel language.

    Args:
        takes: the kinds of numbers of an element-wise operation; of another, the function itself.
    """
    if isinstance(takes, Kinds):
        return functools.partial(_declared, takes=takes)
    return _declared(takes)


def composition(
    takes: Kinds | None = None, *, note: str = "", **ulps: float
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Declare an operation that is composed of others.

    `cutile/frontend/families/` says of which.

    Args:
        takes: the kinds of numbers of an element-wise operation; None of another.
        note: what the errors leave open, in a few words.
        ulps: the largest error by dtype, in units in the last place; 0.5 where nothing is said.
    """

    def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
        return _declared(function, takes, True, ulps, note)

    return declare


def alike(pattern: Callable[_P, _R]) -> Callable[[Callable[[], None]], Callable[_P, _R]]:
    """Declare an operation that has another one's signature.

    The function itself has no parameters.
    """

    def declare(function: Callable[[], None]) -> Callable[_P, _R]:
        function.__signature__ = inspect.signature(pattern)  # type: ignore[attr-defined]
        function.__annotations__ = pattern.__annotations__
        declared: Any = _declared(function)
        return declared

    return declare


def _declared(function: Callable[_P, _R], takes: Kinds | None = None, *composed: Any) -> Callable[_P, _R]:
    name = function.__name__
    DECLARED[name] = Declaration(name, function, takes, *composed)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        running = live.get()
        return outside_kernel(name) if running is None else running.operation(call, args, kwargs)

    call.__cutile__ = name  # type: ignore[attr-defined]
    return call


__all__ = ("BITS", "DECLARED", "FLOATS", "INTEGERS", "Declaration", "Kinds", "alike", "composition", "operation")
