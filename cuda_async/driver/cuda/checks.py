"""Checks that are called when a run is over, and failures without a waiter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from cuda_async.driver.interface import Check
from cuda_async.locks import new_lock

__all__ = ("SETTLING", "RunErrors", "Unfollowed")

SETTLING = new_lock()
"""Held while checks are called: another thread that asks about the same work finds them called. It is an RLock, since a
signal handler may interrupt the thread that holds it, and wait for work, too."""

_numbers = count(1)  # of calls of `RunErrors.add`


class Unfollowed:
    """Checks of a stream's work that no waiter follows: the next waiter calls them.

    Attributes:
        checks: the checks, each with the number of the last launch that named it. A check that was called for an
            earlier launch stays, since the last launch may fail, too.
        expects: functions that are called once, when a waiter comes that has nothing else to do.
    """

    __slots__ = ("checks", "expects")

    def __init__(self) -> None:
        self.checks: dict[Check, int] = {}
        self.expects: dict[Callable[[], None], None] = {}  # in order, and each once

    def expect(self) -> None:
        """Note that a caller waits for the stream's work, and has nothing else to do."""
        if self.expects:
            expects, self.expects = self.expects, {}
            for expect in expects:
                expect()

    def drop(self, checks: Iterable[tuple[Check, int]]) -> None:
        """Remove checks that were called, or whose launches a waiter follows."""
        for check, number in checks:
            if self.checks.get(check) == number:
                self.checks.pop(check, None)


class RunErrors:
    """The failures of one run that are not the device's: host functions' and checks'.

    Args:
        unfollowed: the checks of earlier runs that no waiter followed, whose failures are this run's, too.

    Attributes:
        error: the first exception of a host function.
        used: whether the run has host functions or checks. Runs without them share one object.
        followed: whether a waiter follows the run, and so has its failures.
        checks: the checks that are called when the run's work is over, in this order, each with a number. It is a dict,
            since launches name the same checks again and again.
    """

    __slots__ = ("checks", "error", "followed", "unfollowed", "used")

    def __init__(self, unfollowed: Unfollowed | None = None) -> None:
        self.unfollowed = Unfollowed() if unfollowed is None else unfollowed
        self.error: BaseException | None = None
        self.checks: dict[Check, int] = dict(self.unfollowed.checks)
        self.used = bool(self.checks)
        self.followed = False

    def add(self, checks: Iterable[Check]) -> None:
        """Add checks that are called when the work enqueued so far is over."""
        self.used = True
        numbered = {check: next(_numbers) for check in checks}
        self.checks.update(numbered)
        self.unfollowed.checks.update(numbered)

    def follow(self) -> None:
        """Note that a waiter follows the run."""
        self.followed = True
        if self.checks:
            self.unfollowed.drop(tuple(self.checks.items()))
