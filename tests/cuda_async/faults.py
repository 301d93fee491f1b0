"""How many faults a test run has injected: counted by the fault tests, printed at its end."""

from __future__ import annotations

from collections import Counter

__all__ = ("Tried", "tried")


class Tried:
    """Numbers of injected faults, by scenario."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, scenario: str, faults: int) -> int:
        """Count faults that are tried in a scenario, and return their number."""
        self.counts[scenario] += faults
        return faults

    def lines(self) -> list[str]:
        """The lines of the report; none where no fault was tried."""
        if not self.counts:
            return []
        counts = [f"  {count:>5}  {scenario}" for scenario, count in sorted(self.counts.items())]
        return [f"{sum(self.counts.values())} faults were injected, one at a time:", *counts]


tried = Tried()
