"""The plan of a block's shared memory.

Who lies where, and who must wait until an earlier use is over.

Small uses get places of their own, large ones share one, also with the rings that live before and after them. A place
that is used once, outside of loops, needs no wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cutile.ir.core import Block, Op
from cutile.ops.reduce import Fold, Reduce

SMALL = 2048
"""Bytes up to which a use gets a place of its own."""
SMALL_TOTAL = 8192
ALIGNMENT = 128


def aligned(size: int) -> int:
    """Rounded up to whole lines, so that wide accesses are aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass
class Span:
    """Memory that some operations work on together while others are under way.

    A ring, and what is used in its loop.

    All that is used before and after it may lie in the same place.

    Attributes:
        size: of what is its own, in bytes.
    """

    size: int
    outer: Span | None
    large: int = 0
    used: bool = False
    inner: list[Span] = field(default_factory=list["Span"])

    @property
    def start(self) -> int:
        """Where it begins, from the begin of what shares a place."""
        return 0 if self.outer is None else self.outer.start + self.outer.size

    @property
    def extent(self) -> int:
        """Its bytes, with those of all that is used during it."""
        return self.size + max([self.large, *(span.extent for span in self.inner)])


@dataclass
class _Use:
    op: Op
    offset: int
    span: Span | None
    """In which it is, if it is large."""


class SmemAllocator:
    """Collects the uses of shared memory in program order.

    `place` writes the decisions into their operations.

    Attributes:
        bytes: the size, once placed.
    """

    def __init__(self) -> None:
        self._uses: list[_Use] = []
        self._small = 0
        self._own = 0
        self._span = Span(0, None)
        self._shares: list[tuple[Op, int | Span]] = []
        self.bytes = 0

    def use(self, op: Op, size: int, looped: bool) -> None:
        """Record that `op` needs `size` bytes, which may be none."""
        large = size > SMALL or self._small + aligned(size) > SMALL_TOTAL
        used = self._span.used if large else False
        op.attributes["fence"] = size > 0 and (looped or used)
        self._uses.append(_Use(op, self._small, self._span if large else None))
        if large:
            self._span.large = max(self._span.large, aligned(size))
            self._span.used = True
        else:
            self._small += aligned(size)

    def relax(self, bodies: Iterable[Block], *barriers: type[Op]) -> None:
        """Leave out the waits of loops' uses that no thread can be early for.

        Where two reductions with places of their own stand in the body of a loop, or one beside one of `barriers`,
        threads meet in the other one before they come to the one again.
        """
        small = {use.op for use in self._uses if use.span is None and use.op.attributes["fence"]}
        for body in bodies:
            meeting = [op for op in body.operations if op in small and isinstance(op, Reduce | Fold)]
            alone = len(meeting) == 1 and not any(isinstance(op, barriers) for op in body.operations)
            for op in meeting:
                op.attributes["fence"] = alone

    def begin(self, size: int) -> tuple[Span, bool]:
        """Memory for operations that work on it together from here to `end`.

        Hand it to `share`.

        Also whether an earlier use of its place may still be under way.
        """
        outer = self._span
        self._span = Span(aligned(size), outer)
        outer.inner.append(self._span)
        used, outer.used = outer.used, True
        return self._span, used

    def end(self) -> None:
        """The operations that `begin` was for are over."""
        assert self._span.outer is not None
        self._span = self._span.outer

    def reserve(self, size: int) -> int:
        """A place that nothing else shares, for operations that work on it together.

        Hand it to `share`.
        """
        start = self._own
        self._own += aligned(size)
        return start

    def share(self, op: Op, place: int | Span) -> None:
        """Record that `op` works on a reserved place, or on one between `begin` and `end`."""
        self._shares.append((op, place))

    def place(self) -> None:
        """Give every use its offset.

        The reserved places first, which want the widest alignment, then what is shared by one after the other, then the
        small ones.
        """
        shared = self._span.extent
        for op, place in self._shares:
            op.attributes["offset"] = self._own + place.start if isinstance(place, Span) else place
        for use in self._uses:
            behind = shared + use.offset if use.span is None else use.span.start + use.span.size
            use.op.attributes["offset"] = self._own + behind
        self.bytes = shared + self._small + self._own
