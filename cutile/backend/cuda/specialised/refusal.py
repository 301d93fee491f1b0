"""Rules of which the first that does not hold is why a kernel has no plan."""

from __future__ import annotations


class Refused(Exception):
    """A rule does not hold; the text is the reason."""


def require(holds: bool, reason: str) -> None:
    """A rule.

    Raises:
        Refused: it does not hold.
    """
    if not holds:
        raise Refused(reason)
