"""Handlers of calls: operations of the language, methods, Python's builtins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[..., Any]
"""Takes the frame and the call's arguments; returns the value of the call."""

OPERATIONS: dict[str, Handler] = {}
"""By the name of the function in the language."""
METHODS: dict[tuple[type, str], Handler] = {}
"""By the owner's class in the front end, and the method's name. `__add__` and `__sub__` of pointers are `+` and `-`."""
BUILTINS: dict[Any, Handler] = {}
"""Python's builtins with a meaning of their own on tiles."""
FOLDED: dict[Any, Handler] = {}
"""Python's builtins with Python's meaning, over tuples and constants."""


def operation(handler: Handler) -> Handler:
    """Register the handler of the language's function of the same name."""
    OPERATIONS[handler.__name__] = handler
    return handler


def method(owner: type, name: str) -> Callable[[Handler], Handler]:
    """Register the handler of a method."""

    def register(handler: Handler) -> Handler:
        METHODS[owner, name] = handler
        return handler

    return register
