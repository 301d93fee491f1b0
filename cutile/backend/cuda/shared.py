"""The plan of a block's shared memory: who lies where, and who must wait until an earlier use is over.

Small uses get places of their own, large ones share one. A place that is used once, outside of loops, needs no wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutile.ir.core import Op

SMALL = 2048
"""Bytes up to which a use gets a place of its own."""
SMALL_TOTAL = 8192
ALIGNMENT = 128


def aligned(size: int) -> int:
    """Rounded up to whole lines, so that wide accesses are aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass
class _Use:
    op: Op
    offset: int
    large: bool


class Arena:
    """Collects the uses of shared memory in program order; `place` writes the decisions into their operations.

    Attributes:
        bytes: the size, once placed.
    """

    def __init__(self) -> None:
        self._uses: list[_Use] = []
        self._small = 0
        self._large = 0
        self._own = 0
        self._large_used = False
        self._shares: list[tuple[Op, int]] = []
        self.bytes = 0

    def use(self, op: Op, size: int, looped: bool) -> None:
        """Record that `op` needs `size` bytes, which may be none."""
        large = size > SMALL or self._small + aligned(size) > SMALL_TOTAL
        used = self._large_used if large else False
        op.attributes["fence"] = size > 0 and (looped or used)
        self._uses.append(_Use(op, 0 if large else self._small, large))
        if large:
            self._large = max(self._large, aligned(size))
            self._large_used = True
        else:
            self._small += aligned(size)

    def reserve(self, size: int) -> int:
        """A place that nothing else shares, for operations that work on it together; hand it to `share`."""
        start = self._own
        self._own += aligned(size)
        return start

    def share(self, op: Op, place: int) -> None:
        """Record that `op` works on a reserved place."""
        self._shares.append((op, place))

    def place(self) -> None:
        """Give every use its offset: the reserved places first, which want the widest alignment, then the large place,
        then the small ones."""
        for op, place in self._shares:
            op.attributes["offset"] = place
        for each in self._uses:
            each.op.attributes["offset"] = self._own + (each.offset if each.large else self._large + each.offset)
        self.bytes = self._large + self._small + self._own
