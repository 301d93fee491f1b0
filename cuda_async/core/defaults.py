"""The defaults that `with device:` and `with stream:` set, as context variables.

Context variables and not globals, so that tasks and threads do not see each other's choice. Each holds
its stack of choices as a chain: (innermost, the rest). The device keeps no token of `ContextVar.set`, so that several
threads and tasks may enter the same device at once.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.stream import Stream

__all__ = ("current_device", "current_stream", "enter", "innermost", "leave")

T = TypeVar("T")

Chain = tuple[T, "Chain[T] | None"]

current_device: ContextVar[Chain[Device] | None] = ContextVar("cuda_async_device", default=None)
current_stream: ContextVar[Chain[Stream] | None] = ContextVar("cuda_async_stream", default=None)


def enter(variable: ContextVar[Chain[T] | None], item: T) -> None:
    """Make `item` the default until `leave`."""
    variable.set((item, variable.get()))


def leave(variable: ContextVar[Chain[T] | None]) -> None:
    """Undo the latest `enter` of this context."""
    chain = variable.get()
    variable.set(None if chain is None else chain[1])


def innermost(variable: ContextVar[Chain[T] | None]) -> T | None:
    """The default that was entered last, if any."""
    chain = variable.get()
    return None if chain is None else chain[0]
