"""What the author's hints mean to plans for loops of products."""

from __future__ import annotations

from cutile.ops.memory import LoadTile


def slots_wanted(left: LoadTile, right: LoadTile, most: int) -> int:
    """The slots of a ring in which loads run ahead as far as the author said: the operands share one, so the further.

    A slot is in use while the others are filled: loads that run `n` turns ahead need `n + 1`.
    """
    ahead = max(left.latency, right.latency)
    return min(most, ahead + 1) if ahead else most
