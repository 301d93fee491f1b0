"""The kernel's function, ready to run: its generics have values, and Python's builtins know tiles.

Nothing of the user's is changed: the copy has the same code, so breakpoints hit, and globals and cells of its own.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Mapping
from typing import Any

_PACKAGE = __name__.partition(".")[0]


class LiveCopies:
    """Copies of functions, and of the helpers that they name, in which `replaced` stand for Python's builtins."""

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
            scope[name] = self.outside(scope[name])
        return made

    def _cell(self, name: str, cell: types.CellType) -> types.CellType:
        if name in self._generics:
            return types.CellType(self._generics[name])
        try:
            return types.CellType(self.outside(cell.cell_contents))
        except ValueError:  # not yet assigned: the user's own cell says so when it is read
            return cell

    def outside(self, value: Any) -> Any:
        """What a value from outside of the function is in it."""
        own = isinstance(value, types.FunctionType) and not hasattr(value, "__cutile__")
        return self.copy(value) if own and not (value.__module__ or "").startswith(_PACKAGE) else value


def _names(code: types.CodeType) -> set[str]:
    """Every global that code reads, nested functions included."""
    nested = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, nested))
