"""`Executor`: what runs the items of queues, and says what time it is.

Each driver of host code has its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from cuda_async.driver.ticket import Ticket

if TYPE_CHECKING:
    from cuda_async.driver.queue import QueueStream

__all__ = ("Executor",)


class Executor(ABC):
    """Runs the tasks of queues, and says what time it is."""

    width: int
    """On how many workers one kernel is spread."""

    threads: int = 1
    """How many threads one piece of a kernel may use, the worker's included."""

    calls_back: bool = True
    """Whether it has threads of its own that can call the waiters of an event."""

    one_at_a_time: bool = False
    """Whether a queue goes to the back after each item, so that another may be next."""

    @abstractmethod
    def put(self, task: Callable[[], None]) -> None:
        """Run `task` soon."""

    @abstractmethod
    def pressed(self) -> bool:
        """Whether other tasks wait: a kernel then lets them in between two of its pieces."""

    @abstractmethod
    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        """Wait on the calling thread, at most so long. Whether the ticket is complete."""

    @abstractmethod
    def enter(self, stream: QueueStream, kind: str, amount: int) -> None:
        """An item of this kind starts. May raise, and the item fails with that."""

    @abstractmethod
    def now(self, stream: QueueStream) -> float:
        """Seconds on the clock of this stream."""

    @abstractmethod
    def joined(self, stream: QueueStream, ticket: Ticket) -> None:
        """The stream has waited for the ticket."""

    @abstractmethod
    def progress(self) -> None:
        """Somebody asks whether work is done: advance it, if nobody else does."""
