"""`Ticket`: one record of an event, a point in a queue for which others wait."""

from __future__ import annotations

from collections.abc import Callable

from cuda_async.locks import new_lock

__all__ = ("Ticket",)

_ticket_lock = new_lock()


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
        with _ticket_lock:
            self.error = error
            self.time = time
            self.done = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:  # without the lock: it may run other queues
            waiter()

    def lose(self, error: BaseException) -> None:
        """The queue will never reach this point: in a child of `fork`, without waiters."""
        self.error = error
        self.done = True
        self._waiters = []

    def when_done(self, waiter: Callable[[], object]) -> bool:
        """Have `waiter` called at completion; False, and no call, if it is complete."""
        with _ticket_lock:
            if self.done:
                return False
            self._waiters.append(waiter)
            return True

    def drop(self, waiter: Callable[[], object]) -> None:
        """Forget a waiter that gave up."""
        with _ticket_lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
