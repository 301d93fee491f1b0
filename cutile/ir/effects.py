"""What an operation does besides computing its results. Generic passes ask this and nothing else."""

from __future__ import annotations

import enum


class Effect(enum.IntEnum):
    """Ordered: a region has the greatest effect of its operations."""

    NONE = 0
    """Pure: may be removed when unused, merged with an equal one, moved freely."""
    READ = 1
    """Reads memory: may be removed when unused; does not move over a WRITE to the same tensor."""
    WRITE = 2
    """Writes memory: stays, in order."""
    OUTSIDE = 3
    """Touches what other tile blocks touch too, or what people see: stays, in order, and so do the tile blocks."""
