"""Which launches take a kernel that divides the turns of its tile blocks.

Those of few tile blocks with many turns.

A compiled kernel says by its fact `division` (`Executable`) how its turns are counted, and how few tile blocks and how
many turns make it worth while to divide them, into how many pieces. A launch knows these numbers. One that divides
takes another kernel, compiled for so many pieces, so that the first one asks nothing and costs others nothing. What it
takes depends on the kernel, the extents and the device alone, so that equal launches have equal results.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.interface import Target
from cutile.compile.driver import Compiled
from cutile.compile.kernels import Plan
from cutile.launch.arguments import Checked
from cutile.launch.counts import Counter, counter
from cutile.launch.views import Grid


class Division:
    """Into how many pieces launches of a kernel divide the turns of a tile block.

    Args:
        turns: counts them, from checked arguments and a grid.
        ways: tile blocks up to which, and turns from which on, there are so many pieces; the first that holds counts.

    Attributes:
        most: tile blocks beyond which nothing is divided.

    Example:
        >>> division = Division(lambda checked, grid: 100, ((8, 200, 16), (30, 64, 4), (66, 32, 2)))
        >>> [division.pieces((), (tiles, 1, 1)) for tiles in (8, 30, 31, 66, 67)]
        [4, 4, 2, 2, 1]
    """

    __slots__ = ("_turns", "_ways", "most")

    def __init__(self, turns: Counter, ways: Sequence[tuple[int, int, int]]) -> None:
        self._turns = turns
        self._ways = ways
        self.most = max(tiles for tiles, _, _ in ways)

    def pieces(self, checked: Sequence[Checked], grid: Grid) -> int:
        """The pieces of a launch; 1 where nothing is divided."""
        tiles = grid[0] * grid[1] * grid[2]
        if tiles > self.most:
            return 1
        turns = self._turns(checked, grid)
        for most, least, pieces in self._ways:
            if tiles <= most and turns >= least:
                return pieces
        return 1


def division_of(compiled: Compiled) -> Division | None:
    """How launches of a compiled kernel divide its turns; None where they do not."""
    if "division" not in compiled.memo:
        said = compiled.executable.facts.get("division")
        compiled.memo["division"] = None if said is None else Division(counter(said[0]), said[1])
    return compiled.memo["division"]


def taken(plan: Plan, target: Target, checked: Sequence[Checked], grid: Grid) -> Plan:
    """What a launch takes: the plan itself, or that for its pieces.

    Compiles the plan where that has not been done.
    """
    division = division_of(plan.compiled(target))
    pieces = 1 if division is None else division.pieces(checked, grid)
    return plan if pieces == 1 else plan.divided(pieces)
