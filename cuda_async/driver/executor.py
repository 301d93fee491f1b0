"""`Executor`: runs the items of queues. `Ticket`: a point for which others wait.

Each driver of host code has an executor of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda_async.driver.queue import QueueStream

__all__ = ("Executor", "Ticket")


class Ticket:
    """One record of an event: a point in a queue.

    Attributes:
        done: whether the queue has reached it.
        error: the error of the work before it, if that failed.
        time: when the queue reached it, in seconds on the executor's clock.
    """

    __slots__ = ("_waiters", "done", "error", "time")

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.time = 0.0
        self._waiters: list[Callable[[], object]] = []

    def complete(self, error: BaseException | None, time: float) -> None:
        """The queue has reached this point."""
        self.error = error
        self.time = time
        self.done = True  # before the waiters are called: see `when_done`
        waiters = self._waiters
        while waiters:
            try:
                waiter = waiters.pop(0)
            except IndexError:  # `when_done`, on another thread, has taken the last waiter back
                return
            waiter()

    def lose(self, error: BaseException) -> None:
        """The queue will never reach this point: in a child of `fork`, without waiters."""
        self.error = error
        self.done = True
        self._waiters = []

    def when_done(self, waiter: Callable[[], object]) -> bool:
        """Have `waiter` called at completion; False, and no call, if it is complete.

        It takes no lock: at any call a collection may run a finalizer that waits for a ticket, and the worker that
        completes this ticket would wait for the lock. So the waiter is added before `done` is read again, and
        `complete` sets `done` before it looks for waiters.
        """
        if self.done:
            return False
        self._waiters.append(waiter)
        return not (self.done and self._take_back(waiter))

    def drop(self, waiter: Callable[[], object]) -> None:
        """Forget a waiter that gave up."""
        self._take_back(waiter)

    def _take_back(self, waiter: Callable[[], object]) -> bool:
        """Remove a waiter. Whether it was there: else `complete` calls it."""
        try:
            self._waiters.remove(waiter)
        except ValueError:
            return False
        return True


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
