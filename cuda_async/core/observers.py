"""The observer of operations: one at most, so that a run without any pays nothing.

The observer of `instrument.py` passes each call on to any number of instruments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cuda_async.core.operation import Operation
    from cuda_async.core.stream import Stream

__all__ = ("Observation", "Observe", "set_observer")


class Observation(Protocol):
    """The observer's object for one operation: it is told of each stage."""

    def enqueued(self, error: BaseException | None) -> None:
        """Everything was enqueued, or `error` stopped that. On the submitting thread."""

    def completed(self, error: BaseException | None) -> None:
        """The device is done with the operation. On the thread that noticed."""


Observe = Callable[["Operation[Any]", "Stream"], Observation]
"""Called before an operation is enqueued, on the submitting thread."""

observe: Observe | None = None
"""The observer. Replaced as a whole, so that reading it needs no lock."""


def set_observer(observer: Observe | None) -> None:
    """Tell `observer` alone of every operation enqueued from now on."""
    global observe
    observe = observer
