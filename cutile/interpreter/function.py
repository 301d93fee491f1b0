"""The kernel's function, ready to run: its generics have values, and Python's builtins know tiles.

Nothing of the user's is changed: the copy has the same code, so breakpoints hit, and globals and cells of its own.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def live_function(
    function: Callable[..., Any], generics: Mapping[str, Any], replaced: Mapping[str, Any]
) -> Callable[..., Any]:
    """A copy of `function`, and of the helpers that it names, in which `replaced` stand for Python's builtins."""
    return _Copies(generics, replaced).copy(function)


class _Copies:
    def __init__(self, generics: Mapping[str, Any], replaced: Mapping[str, Any]) -> None:
        self._generics = generics
        self._builtins = {**vars(builtins), **replaced}
        self._made: dict[Any, Any] = {}

    def copy(self, function: Any) -> Any:
        """The copy of one function; made once, so that functions that call each other find it."""
        if function in self._made:
            return self._made[function]
        code: types.CodeType = function.__code__
        scope: dict[str, Any] = {"__builtins__": self._builtins}  # a function finds its builtins when it is made
        cells = tuple(
            self._cell(name, cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
        )
        made = types.FunctionType(code, scope, function.__name__, function.__defaults__, cells)
        made.__kwdefaults__ = function.__kwdefaults__
        self._made[function] = made
        scope.update({name: value for name, value in function.__globals__.items() if name != "__builtins__"})
        for name in _names(code) & scope.keys():
            scope[name] = self._outside(scope[name])
        return made

    def _cell(self, name: str, cell: types.CellType) -> types.CellType:
        if name in self._generics:
            return types.CellType(self._generics[name])
        try:
            return types.CellType(self._outside(cell.cell_contents))
        except ValueError:  # not yet assigned: the user's own cell says so when it is read
            return cell

    def _outside(self, value: Any) -> Any:
        own = isinstance(value, types.FunctionType) and not hasattr(value, "__cutile__")
        return self.copy(value) if own and not (value.__module__ or "").startswith(_PACKAGE) else value


def _names(code: types.CodeType) -> set[str]:
    """Every global that code reads, nested functions included."""
    nested = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, nested))
