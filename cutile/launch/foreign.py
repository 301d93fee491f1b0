"""How tensors of other libraries become arguments of kernels. The host side registers what reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutile.launch.views import View

__all__ = ("foreign_argument", "register_reader")

Reader = Callable[[Any, str], View | None]

_readers: list[Reader] = []


def register_reader(reader: Reader) -> None:
    """Have `reader(argument, function)` asked for the elements of what is no tensor of ours; None where it is none."""
    _readers.append(reader)


def foreign_argument(argument: Any, function: str) -> View | None:
    """The elements of another library's tensor; None where it is none."""
    for reader in _readers:
        view = reader(argument, function)
        if view is not None:
            return view
    return None
