"""Where the handlers of calls are registered.

Operations of the language, methods of tiles and tensors, builtins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[..., Any]
"""Takes the frame and the call's arguments; returns what the call means."""

OPERATIONS: dict[str, Handler] = {}
METHODS: dict[tuple[type, str], Handler] = {}
BUILTINS: dict[Any, Handler] = {}
"""Python's builtins that mean something else on tiles."""
FOLDED: dict[Any, Handler] = {}
"""Python's builtins over what is known when the kernel is compiled: they mean what they mean in Python."""


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
