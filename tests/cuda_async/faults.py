"""How many faults a test run has injected: counted by the fault tests, printed at its end."""

from __future__ import annotations

from collections import Counter

__all__ = ("Tried", "tried")


class Tried:
    """Counts by scenario."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, scenario: str, faults: int) -> int:
        """That many faults are tried in this scenario. Returns the number."""
        self.counts[scenario] += faults
        return faults

    def lines(self) -> list[str]:
        """The report: nothing if nothing was tried."""
        if not self.counts:
            return []
        each = [f"  {count:>5}  {scenario}" for scenario, count in sorted(self.counts.items())]
        return [f"{sum(self.counts.values())} faults were injected, one at a time:", *each]


tried = Tried()
