"""`Executor`: runs the items of queues, and has their clock.

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
    """Runs the tasks of queues, and has their clock."""

    width: int
    """The number of workers over which one kernel is spread."""

    threads: int = 1
    """The number of threads that one piece of a kernel may use, the worker's included."""

    calls_back: bool = True
    """Whether it has threads of its own, which call the waiters of an event."""

    one_at_a_time: bool = False
    """Whether a queue goes to the back after each item, so that another may be next."""

    @abstractmethod
    def put(self, task: Callable[[], None]) -> None:
        """Have `task` run later, on a worker."""

    @abstractmethod
    def pressed(self) -> bool:
        """Whether other tasks wait. A kernel then lets them run between two of its pieces."""

    @abstractmethod
    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        """Wait on the calling thread, at most `timeout_s`; return whether it is complete."""

    @abstractmethod
    def enter(self, stream: QueueStream, kind: str, amount: int) -> None:
        """An item of this kind and amount starts. If this raises, the item fails so."""

    @abstractmethod
    def now(self, stream: QueueStream) -> float:
        """Seconds on the clock of this stream."""

    @abstractmethod
    def joined(self, stream: QueueStream, ticket: Ticket) -> None:
        """The stream has waited for the ticket."""

    @abstractmethod
    def progress(self) -> None:
        """A caller asks whether work is done: advance it, if no thread does."""
