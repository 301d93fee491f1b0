"""`Report`: the errors of one compilation.

A statement that fails is reported, and those after it are still read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cutile.errors import KernelError

MAX_ERRORS = 10


class Suppressed(KernelError):
    """Raised by what uses a value whose own error is in the report already.

    Never seen by a user.
    """


class TooMany(Exception):
    """The report is full."""


@dataclass
class Report:
    """Every error so far."""

    errors: list[KernelError] = field(default_factory=list[KernelError])
    found: int = 0
    """How many errors there were, those included that came again."""
    held: int = 0
    """How many guesses are under way whose errors will be dropped."""

    def add(self, error: KernelError) -> None:
        """Remember an error, unless it is about one that was reported."""
        if isinstance(error, Suppressed):
            return
        self.found += 1
        if any(_same(error, each) for each in self.errors):
            return
        self.errors.append(error)
        if len(self.errors) >= MAX_ERRORS and not self.held:
            raise TooMany

    def mark(self) -> tuple[int, int]:
        """What `drop` goes back to."""
        return len(self.errors), self.found

    def drop(self, mark: tuple[int, int]) -> None:
        """Forget what came after a mark."""
        count, self.found = mark
        del self.errors[count:]


def _same(a: KernelError, b: KernelError) -> bool:
    """Whether two errors are of one expression, perhaps of a function called twice."""
    if a.location is None or b.location is None:
        return str(a) == str(b)
    x, y = a.location, b.location
    return a.message == b.message and (x.file, x.line, x.column) == (y.file, y.line, y.column)
