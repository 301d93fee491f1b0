"""What makes a function an operation of the kernel language: its mark, by which the front end knows it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cutile.tile import live

_P = ParamSpec("_P")
_R = TypeVar("_R")


def operation(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function as an operation of the kernel language; the handler has its name.

    A call gets here only outside of compiled kernels: in an interpreted one, or by mistake.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        running = live.get()
        return function(*args, **kwargs) if running is None else running.operation(call, args, kwargs)

    call.__cutile__ = function.__name__  # type: ignore[attr-defined]
    return call
