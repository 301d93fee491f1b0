"""What to call when a run is over, and failures that nobody has waited for yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from cuda_async.driver.interface import Check
from cuda_async.locks import new_lock

__all__ = ("SETTLING", "RunErrors", "Unfollowed")

SETTLING = new_lock()
"""Held while checks are called, so that another thread that looks at the same work finds them called. The thread that
holds it may be interrupted by a signal handler that waits, too."""

_numbers = count(1)


class Unfollowed:
    """The checks of a stream's work that nobody has waited for, nor will by himself.

    The next wait calls them.

    Each has the number of the launch that it was last named for: called for an earlier one, it stays.

    Attributes:
        checks: these.
        expects: what is called once, when somebody begins to wait.
    """

    __slots__ = ("checks", "expects")

    def __init__(self) -> None:
        self.checks: dict[Check, int] = {}
        self.expects: dict[Callable[[], None], None] = {}  # in order, and each once

    def expect(self) -> None:
        """Somebody begins to wait for the stream's work."""
        if self.expects:
            expects, self.expects = self.expects, {}
            for expect in expects:
                expect()

    def drop(self, checks: Iterable[tuple[Check, int]]) -> None:
        """They were called, or somebody follows their launches."""
        for check, number in checks:
            if self.checks.get(check) == number:
                self.checks.pop(check, None)


class RunErrors:
    """The first exception of a host function of one run, and its checks.

    Device errors come from the driver.

    Args:
        unfollowed: what the stream has of runs before that nobody followed, whose failures are this run's, too.

    Attributes:
        error: that exception.
        used: whether the run has either. Those that have none share one object.
        followed: whether somebody waits for the run, and so has its failures.
        checks: what is called when the run's work is over, in this order, each with a number; a dict, since some are
            named again and again.
    """

    __slots__ = ("checks", "error", "followed", "unfollowed", "used")

    def __init__(self, unfollowed: Unfollowed | None = None) -> None:
        self.unfollowed = Unfollowed() if unfollowed is None else unfollowed
        self.error: BaseException | None = None
        self.checks: dict[Check, int] = dict(self.unfollowed.checks)
        self.used = bool(self.checks)
        self.followed = False

    def add(self, checks: Iterable[Check]) -> None:
        """Work was enqueued behind which these are to be called."""
        self.used = True
        numbered = {check: next(_numbers) for check in checks}
        self.checks.update(numbered)
        self.unfollowed.checks.update(numbered)

    def follow(self) -> None:
        """Somebody waits for the run."""
        self.followed = True
        if self.checks:
            self.unfollowed.drop(tuple(self.checks.items()))
            self.unfollowed.expect()
