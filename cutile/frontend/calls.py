"""Calls: which handler a function, a bound method or a builtin has, and calling it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from cutile.frontend import builtins, partitions, records, sequences, tensors, tiles, tokens, views
from cutile.frontend.frame import Frame
from cutile.frontend.registry import BUILTINS, FOLDED, METHODS, OPERATIONS, Handler
from cutile.frontend.values import Method

FAMILIES = (tensors, partitions, tiles, builtins, tokens, sequences, records, views)
"""Importing them registers their handlers."""


def handler_of(function: Any) -> Handler | None:
    """The handler of an operation, a bound method or a builtin; None for anything else."""
    if isinstance(function, Method):
        for owner in type(function.owner).__mro__:
            found = METHODS.get((owner, function.name))
            if found is not None:
                return functools.partial(_call_method, found, function.owner)
        return None
    marker = getattr(function, "__cutile__", None)
    if marker is not None:
        return OPERATIONS.get(marker)
    try:
        return BUILTINS.get(function) or FOLDED.get(function)
    except TypeError:  # an unhashable object is no builtin
        return None


def _call_method(method: Handler, owner: Any, frame: Frame, *args: Any, **kwargs: Any) -> Any:
    return method(frame, owner, *args, **kwargs)


def call(frame: Frame, handler: Handler, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a handler; arguments that do not fit its signature are the user's error."""
    try:
        inspect.signature(handler).bind(frame, *args, **kwargs)
    except TypeError as error:
        frame.type_error(f"{name}: {error}")
    return handler(frame, *args, **kwargs)
