"""Split-K by launches: which of them take a kernel that was compiled to divide the iterations of its tile blocks.

The compiler says it in the fact `division` (`pipeline/split_k_rules.py`); a launch only looks up its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutile.backend.interface import Change

Way = tuple[int, int, int]
"""Tile blocks up to which, and iterations from which on, there are so many pieces."""


class SplitKVariants:
    """The fact `division` of a kernel, as launches ask it.

    Args:
        count: counts the iterations of a tile block, as data.
        ways: the first that holds for a launch says its pieces.

    Example:
        >>> variants = SplitKVariants(100, ((8, 200, 16), (30, 64, 4), (66, 32, 2)))
        >>> [variants.choose(tiles, 100) for tiles in (8, 66, 67)]
        [(('num_pieces', 4),), (('num_pieces', 2),), ()]
    """

    __slots__ = ("_ways", "count", "max_blocks")

    def __init__(self, count: Any, ways: Sequence[Way]) -> None:
        self.count = count
        self.max_blocks = max(tiles for tiles, _, _ in ways)
        self._ways = tuple((tiles, turns, (("num_pieces", pieces),)) for tiles, turns, pieces in ways)

    def choose(self, blocks: int, count: int) -> Change:
        """What is different in what a launch takes; nothing where its iterations are not divided."""
        for max_blocks, min_count, change in self._ways:
            if blocks <= max_blocks and count >= min_count:
                return change
        return ()
