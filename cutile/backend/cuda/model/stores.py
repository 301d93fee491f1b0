"""A model of results on their way through shared memory, and of a cluster's sums.

It goes through what the first warpgroup of a lowered kernel does (`protocol.py`), in order: all warpgroups do the same,
and each warp has places of its own, but for the sums that other thread blocks send, which lie across all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.cuda.model.protocol import Event, ProtocolError, first_group
from cutile.backend.cuda.ops import ScatterPartials, TmaStore
from cutile.ir.core import Function


def check_stores(function: Function) -> None:
    """Check that each piece of each result is stored once, where nothing else is.

    No place is written while TMA, or another warp, may still read it. A delayed result is stored before the next one.
    Stages of the pipeline are written when nothing is loaded any more, and all products are over.

    Raises:
        ProtocolError: a place is written too early, or not all of a result.
    """
    if not any(isinstance(op, TmaStore) for op in function.walk()):
        return
    put_off = any(isinstance(op, TmaStore) and op.packed for op in function.walk())
    for tiles, turns in ((1, 0), (2, 1), (3, 2), (1, 9), (2, 9)):
        events = first_group(function, tiles, turns)
        _check_places(events)
        _check_pieces(events, tiles, put_off)
    if any(isinstance(op, ScatterPartials) for op in function.walk()):
        pieces = int(function.facts["persistent"])
        for piece in (0, pieces - 1):
            events = first_group(function, 1, 2 * pieces, pieces, piece)
            _check_places(events)
            _check_sums(events)


def _check_places(events: Sequence[Event]) -> None:
    """That a place is written when TMA has read it, a stage when all loads are over."""
    under_way: list[tuple[bool, int]] = []
    left, running = sum(event.what == "begin" for event in events), 0
    for event in events:
        if event.what == "begin":
            left, running = left - 1, running + 1
        elif event.what == "finish":
            running = min(running, event.count)
        elif event.what == "store":
            del under_way[: max(0, len(under_way) - event.pending)]
            if (event.in_ring, event.place) in under_way:
                raise ProtocolError(f"piece {event.count} is written to a place that is still being read")
            under_way.append((event.in_ring, event.place))
            if event.in_ring and (running or left):
                raise ProtocolError(f"piece {event.count} is written to a slot of the ring that is still in use")


def _check_pieces(events: Sequence[Event], tiles: int, put_off: bool) -> None:
    """That the pieces of results are stored in order, delayed ones before the next.

    If none is delayed, what is kept in words is the left operand of a product.
    """
    stores = [event for event in events if event.what == "store" or (put_off and event.what == "keep")]
    results = count = 0
    for tensor in dict.fromkeys(event.tensor for event in stores if event.what == "store"):
        pieces = [event.count for event in stores if event.what == "store" and event.tensor is tensor]
        results, count = pieces.count(0), max(pieces) + 1
        if pieces != list(range(count)) * results:
            raise ProtocolError(f"of {results} results, the pieces {pieces} are stored")
    kept = [event.what == "keep" for event in stores]
    if any(kept) and kept != ([True] + [False] * count) * (tiles - 1) + [False] * count:
        raise ProtocolError(f"of {tiles} results, all but one put off, {results} are stored, each before the next")


def _check_sums(events: Sequence[Event]) -> None:
    """That partial sums come to a place of their own, and all warps read them.

    They read it before it is used again.
    """
    stored: set[int] = set()
    unread: set[int] = set()
    for event in events:
        if event.what == "store" and not event.in_ring:
            if event.base in unread:
                raise ProtocolError(f"piece {event.count} is written over sums that other warps have yet to add up")
            stored.add(event.base)
        elif event.what == "deal out" and event.base in stored:
            raise ProtocolError("sums are sent to a place that results are stored through")
        elif event.what == "add up":
            unread.add(event.base)
        elif event.what == "meet":
            unread.clear()
