"""`operation` declares a function of the language.

The front end and the pages of the reference read the declarations:

    @operation(FLOATS)
    def tanh(x: Tile) -> Tile:
        \"\"\"The hyperbolic tangent.\"\"\"
        ...

The body is never run. Compiled kernels never call the function. An interpreted kernel does call it, and the interpreter
gives the call its meaning (`cutile.tile.live`). Anywhere else a call is an error.
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
    """Kinds of element types, with a name for messages.

    Attributes:
        words: the plural for elements of these kinds: "floats".
        names: the kinds, as values of `dtype.kind`.
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
        name: the name of the function, and of its handler in the front end.
        function: the declared function itself. If `takes` is given, its parameters without a default are operands.
            Those with a default are markers, and have the names of the markers' classes.
        takes: the kinds of the operands, which are brought to one type; None for an operation that is not element-wise.
        composed: whether the handler composes the operation of others, so that no class and no backend knows it.
        ulps: the largest error of a composition by dtype, in units in the last place; 0.5 for a dtype that is absent.
        note: a condition of the errors.
    """

    name: str
    function: Callable[..., Any]
    takes: Kinds | None
    composed: bool = False
    ulps: Mapping[str, float] = field(default_factory=dict[str, float])
    note: str = ""

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of a call."""
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
        takes: the kinds of numbers that an element-wise operation takes. For any other operation there are none: the
            decorator is used without arguments, and `takes` is the function itself.
    """
    if isinstance(takes, Kinds):
        return functools.partial(_declared, takes=takes)
    return _declared(takes)


def composition(
    takes: Kinds | None = None, *, note: str = "", **ulps: float
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Declare an operation that is composed of others.

    Its handler in `cutile/frontend/families/` composes it.

    Args:
        takes: the kinds of numbers that an element-wise operation takes; None for any other operation.
        note: a condition of the errors, in a few words.
        ulps: the largest error by dtype, in units in the last place; 0.5 for a dtype that is absent.
    """

    def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
        return _declared(function, takes, True, ulps, note)

    return declare


def alike(pattern: Callable[_P, _R]) -> Callable[[Callable[[], None]], Callable[_P, _R]]:
    """Declare an operation with the signature of another, `pattern`.

    The decorated function itself is written without parameters.
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
