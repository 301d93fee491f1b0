"""Who is told of what runs.

One observer at most, which may pass it on: see `instrument.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cuda_async.core.operation import Operation
    from cuda_async.core.stream import Stream

__all__ = ("Observation", "Observe", "set_observer")


class Observation(Protocol):
    """What is told of one operation that is about to be enqueued."""

    def enqueued(self, error: BaseException | None) -> None:
        """Everything was enqueued, or `error` ended that. On the submitting thread."""

    def completed(self, error: BaseException | None) -> None:
        """The device is done with it. On whatever thread noticed."""


Observe = Callable[["Operation[Any]", "Stream"], Observation]
"""Called before an operation is enqueued, on the submitting thread."""

observe: Observe | None = None
"""The observer. Replaced as a whole, so that reading it needs no lock."""


def set_observer(observer: Observe | None) -> None:
    """Tell `observer` alone of every operation enqueued from now on."""
    global observe
    observe = observer
