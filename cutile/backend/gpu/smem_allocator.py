"""The plan of a thread block's shared memory.

Each use has an offset. It has a fence if threads must wait until an earlier use of the place is over.

Small uses get places of their own. Large uses share one place, also with the pipelines before and after them. A place
that is used once, outside of loops, needs no fence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cutile.ir.core import Block, Op
from cutile.ops.reduce import Fold, Reduce

SMALL = 2048
"""Bytes up to which a use gets a place of its own."""
SMALL_TOTAL = 8192  # bytes of all small uses; further ones share the place of the large ones
ALIGNMENT = 128  # bytes; offsets are multiples of it


def aligned(size: int) -> int:
    """A size rounded up to a multiple of `ALIGNMENT`, for the sake of wide accesses."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass
class Span:
    """Memory that several operations work on together, such as a pipeline's.

    Uses before the span begins and after it ends may lie in the same place. Uses in between lie behind it.

    Attributes:
        size: bytes of its own.
        outer: the span that it is in.
        large: bytes of the largest use that lies directly in it.
        used: whether the place behind its own memory has been used.
        inner: the spans directly in it.
    """

    size: int
    outer: Span | None
    large: int = 0
    used: bool = False
    inner: list[Span] = field(default_factory=list["Span"])

    @property
    def start(self) -> int:
        """Its offset in the shared place, in bytes."""
        return 0 if self.outer is None else self.outer.start + self.outer.size

    @property
    def extent(self) -> int:
        """Its own bytes and those of all uses in it, which share a place."""
        return self.size + max([self.large, *(span.extent for span in self.inner)])


@dataclass
class _Use:
    """A use of shared memory by one operation.

    Attributes:
        op: the operation.
        offset: of a small use among the small uses, in bytes.
        span: of a large use, the span that it is in; None for a small use.
    """

    op: Op
    offset: int
    span: Span | None


class SmemAllocator:
    """Collects the uses of shared memory in program order.

    `place` writes the decisions into their operations.

    Attributes:
        bytes: the size of the block's shared memory; 0 before `place`.
    """

    def __init__(self) -> None:
        self._uses: list[_Use] = []
        self._small = 0
        self._own = 0
        self._span = Span(0, None)
        self._shares: list[tuple[Op, int | Span]] = []
        self.bytes = 0

    def use(self, op: Op, size: int, looped: bool) -> None:
        """Record that `op` needs `size` bytes, which may be 0.

        `looped`: whether it is in a loop, so that its next run follows on this one.
        """
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
        """Leave out fences in loops if no thread can be early there.

        Take a loop with two reductions that have places of their own, or with such a reduction and an operation of
        `barriers`. Threads meet in the second before they come to the first again. So neither reduction needs a fence.
        """
        small = {use.op for use in self._uses if use.span is None and use.op.attributes["fence"]}
        for body in bodies:
            meeting = [op for op in body.operations if op in small and isinstance(op, Reduce | Fold)]
            alone = len(meeting) == 1 and not any(isinstance(op, barriers) for op in body.operations)
            for op in meeting:
                op.attributes["fence"] = alone

    def begin(self, size: int) -> tuple[Span, bool]:
        """Begin a span: memory that operations work on together, up to `end`.

        Returns:
            The span, for `share`, and whether an earlier use of its place may still be under way.
        """
        outer = self._span
        self._span = Span(aligned(size), outer)
        outer.inner.append(self._span)
        used, outer.used = outer.used, True
        return self._span, used

    def end(self) -> None:
        """End the span that was begun last."""
        assert self._span.outer is not None
        self._span = self._span.outer

    def reserve(self, size: int) -> int:
        """The offset, for `share`, of memory that no other uses share."""
        start = self._own
        self._own += aligned(size)
        return start

    def share(self, op: Op, place: int | Span) -> None:
        """Record that `op` works on a reserved place, or on a span."""
        self._shares.append((op, place))

    def place(self) -> None:
        """Give every use its offset.

        Reserved places come first, since they need the widest alignment. Then come the spans with the large uses, and
        then the small uses.
        """
        shared = self._span.extent
        for op, place in self._shares:
            op.attributes["offset"] = self._own + place.start if isinstance(place, Span) else place
        for use in self._uses:
            behind = shared + use.offset if use.span is None else use.span.start + use.span.size
            use.op.attributes["offset"] = self._own + behind
        self.bytes = shared + self._small + self._own
