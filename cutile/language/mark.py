"""What makes a function an operation of the kernel language: its mark, by which the front end knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def operation(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function as an operation of the kernel language; the handler has its name."""
    function.__cutile__ = function.__name__  # type: ignore[attr-defined]
    return function
