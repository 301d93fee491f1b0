"""The schedule of tile blocks: who does what of one, which of them run beside each other, which comes when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cutile.backend.cuda.pipeline.tile_order import Order

NUM_SMS = 132
"""Tile blocks that are at work at one time: the multiprocessors of an H100 or H200."""


@dataclass(frozen=True)
class Cooperative:
    """Warpgroups share a tile block, whose iterations one thread block does.

    Attributes:
        undivided: why they are not divided among several.
        divisible: whether they could be, where that is asked for.
        delayed: whether a result is stored under the next tile block's products (`delayed_epilogue.py`).
    """

    undivided: str = "the kernel does more than multiply in a loop"
    divisible: bool = False
    delayed: bool = False


@dataclass(frozen=True)
class PingPong:
    """Each warpgroup has tile blocks of its own (`warpgroups.py`)."""

    undivided: str = "warp groups have tile blocks of their own"


@dataclass(frozen=True)
class SplitK:
    """Several thread blocks may share a tile block's iterations (`split_k.py`).

    Attributes:
        pieces: into which these may be divided.
        parts: of a tile's columns that the thread blocks of a cluster add up; 0 where sums meet in a workspace.
    """

    pieces: int
    parts: int = 0


Schedule = Cooperative | PingPong | SplitK
"""Who does what of a tile block."""


@dataclass(frozen=True)
class Tiles:
    """How a kernel's tile blocks are gone through.

    Attributes:
        cluster: blocks that share what they load.
        along: the axis of the grid along which a cluster's blocks are neighbours.
        rows, columns: the axes of the grid along which a result's are.
        grouped: rows of tile blocks, or of clusters of them, that are gone through together: those at work cover a
            square of the result, so that they read as little as may be.
        schedule: who does what of one.
        order: which one comes when.
    """

    cluster: int = 1
    along: int = 0
    rows: int = 0
    columns: int = 1
    grouped: int = 1
    schedule: Schedule = field(default_factory=Cooperative)
    order: Order = field(default_factory=Order)


def square_group(rows: int, columns: int, together: int = 1) -> int:
    """Rows of tile blocks (or clusters) that make a square with those beside them.

    Args:
        rows, columns: of a tile.
        together: tile blocks of a cluster that lie below each other.

    Example:
        >>> square_group(128, 128), square_group(128, 256), square_group(128, 256, together=2)
        (11, 16, 8)
    """
    return max(1, round(math.sqrt(NUM_SMS * columns / rows) / together))
