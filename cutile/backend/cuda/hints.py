"""What the author's hints mean to plans for loops of products."""

from __future__ import annotations

from collections.abc import Iterable


def slots_wanted(latencies: Iterable[int], most: int) -> int:
    """The slots of a ring in which loads run ahead as far as the author said: the operands share one, so the further.

    A slot is in use while the others are filled: loads that run `n` turns ahead need `n + 1`.
    """
    ahead = max(latencies)
    return min(most, ahead + 1) if ahead else most
