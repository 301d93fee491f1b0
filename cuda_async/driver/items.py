"""What stands in a queue.

Begins of runs, records of events, waits for them, calls, work split into pieces, meetings.

An item that raises fails the items behind it, up to the next `Begin`. Streams that wait for an event
recorded behind it fail with a `DependencyError`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from cuda_async.driver.interface import Meet
from cuda_async.driver.ticket import Ticket
from cuda_async.errors import DependencyError, DeviceLostError

if TYPE_CHECKING:
    from cuda_async.driver.queue import QueueStream

__all__ = ("BEGIN", "BEGIN_UNFOLLOWED", "Begin", "Call", "Item", "Meeting", "Parallel", "Record", "Wait")


class Item(ABC):
    """One entry of a queue."""

    __slots__ = ()

    @abstractmethod
    def perform(self, stream: QueueStream) -> bool:
        """Do it, or have it done: False if something else resumes the queue then."""

    def again(self) -> Item:
        """The item for the next launch of a graph.

        Itself, or a new one where it counts its pieces or its ranks.
        """
        return self


class Begin(Item):
    """A run begins. Earlier failures do not fail it.

    Args:
        followed: whether somebody has waited for the run before, and so has its failure. Otherwise the next waiter
            gets it.
    """

    __slots__ = ("_followed",)

    def __init__(self, followed: bool) -> None:
        self._followed = followed

    def perform(self, stream: QueueStream) -> bool:
        if not isinstance(stream.error, DeviceLostError):  # nothing runs on a lost device
            # Of several failures that nobody waited for, the first is told: later ones may follow from it.
            stream.untold = None if self._followed else stream.untold or stream.error
            stream.error = None
        return True


class Record(Item):
    """An event is recorded."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def perform(self, stream: QueueStream) -> bool:
        self.ticket.complete(stream.error or stream.untold, stream.executor.now(stream))
        return True


class Wait(Item):
    """A wait for an event: the queue is parked until then."""

    __slots__ = ("_stream", "_ticket")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._stream: QueueStream | None = None

    def perform(self, stream: QueueStream) -> bool:
        self._stream = (
            stream  # first: the ticket may be done, and another thread in `_resume`, before `when_done` returns
        )
        if self._ticket.when_done(self._resume):
            return False  # parked; nothing of the stream may be touched from here on
        self._join(stream)
        return True

    def _resume(self) -> None:
        stream = cast("QueueStream", self._stream)
        self._join(stream)
        stream.put_back()

    def _join(self, stream: QueueStream) -> None:
        ticket = self._ticket
        stream.executor.joined(stream, ticket)
        if ticket.error is not None and stream.error is None:
            stream.error = _dependent(ticket.error)


def _dependent(error: BaseException) -> BaseException:
    if isinstance(error, DeviceLostError | DependencyError):
        return error
    dependent = DependencyError(f"an operation that this one depends on failed: {type(error).__name__}: {error}")
    dependent.__cause__ = error
    return dependent


class Call(Item):
    """A call of a function; with `always` also behind a failure.

    `kind` and `amount` say how long it takes on a simulated device: bytes of copies, elements of kernels.
    """

    __slots__ = ("_always", "_amount", "_function", "_kind")

    def __init__(self, kind: str, function: Callable[[], object], amount: int, *, always: bool = False) -> None:
        self._kind = kind
        self._function = function
        self._amount = amount
        self._always = always

    def perform(self, stream: QueueStream) -> bool:
        if stream.error is None or self._always:
            try:
                stream.executor.enter(stream, self._kind, self._amount)
                self._function()
            except BaseException as error:  # workers outlive whatever a user's function raises: its waiter gets it
                if stream.error is None:
                    stream.error = error
        return True


class Parallel(Item):
    """Pieces of [0, count), claimed one by one by whichever worker is free.

    `count` is at least 1.
    """

    __slots__ = ("_body", "_claims", "_count", "_error", "_finished", "_grain", "_kind", "_pieces", "_stream")

    def __init__(self, kind: str, body: Callable[[int, int], object], count: int, grain: int) -> None:
        self._kind = kind
        self._body = body
        self._count = count
        self._grain = grain
        self._pieces = -(-count // grain)
        self._claims = itertools.count()  # next() on these two is one step under the interpreter's lock
        self._finished = itertools.count(1)
        self._error: BaseException | None = None
        self._stream: QueueStream | None = None

    def again(self) -> Item:
        return Parallel(self._kind, self._body, self._count, self._grain)

    def perform(self, stream: QueueStream) -> bool:
        if stream.error is not None:
            return True
        executor = stream.executor
        try:
            executor.enter(stream, self._kind, self._count)
        except BaseException as error:
            stream.error = error
            return True
        self._stream = stream
        for _ in range(min(executor.width, self._pieces) - 1):  # this worker is one
            executor.put(self._help)
        return self._work(stream)

    def _help(self) -> None:
        stream = cast("QueueStream", self._stream)
        if self._work(stream):
            stream.resume()

    def _work(self, stream: QueueStream) -> bool:
        """Work on pieces until there are none.

        Returns True on the worker that finished the last one.
        """
        pieces, grain, count, body = self._pieces, self._grain, self._count, self._body
        executor = stream.executor
        while True:
            piece = next(self._claims)
            if piece >= pieces:
                return False
            if self._error is None:  # behind a failure pieces are only counted, so that one worker comes to the last
                start = piece * grain
                try:
                    body(start, min(start + grain, count))
                except BaseException as error:
                    self._error = error
            if next(self._finished) == pieces:
                stream.error = self._error
                return True
            if executor.pressed():  # another stream's work goes first: what is left waits behind it
                executor.put(self._help)
                return False


class Meeting(Item):
    """Work that is done elsewhere, with others: the queue is parked until it is over."""

    __slots__ = ("_make", "_meet", "_stream")

    def __init__(self, make: Callable[[], Meet], meet: Meet | None) -> None:
        self._make = make
        self._meet = meet
        self._stream: QueueStream | None = None

    def again(self) -> Item:
        return Meeting(self._make, self._make())

    def perform(self, stream: QueueStream) -> bool:
        self._stream = stream
        if stream.error is None:
            try:
                stream.executor.enter(stream, "meet", 0)
            except BaseException as error:
                stream.error = error
        # A failure that nobody was told of yet is the failure of whoever waits for this run. So it is the meeting's,
        # too: what fails on one rank fails on all.
        if stream.error is None:
            stream.error = stream.untold
        # A failed stream goes to the meeting as well: the other ranks would wait for it. `_meet` is None in recordings
        # only.
        cast("Meet", self._meet)(self._finish, stream.error, stream.executor.now(stream))
        return False  # parked; nothing of the stream may be touched from here on

    def _finish(self, error: BaseException | None, time: float | None) -> None:
        stream = cast("QueueStream", self._stream)
        if time is not None:  # on simulated devices: the stream goes on at that time
            point = Ticket()
            point.time = time
            stream.executor.joined(stream, point)
        if stream.error is None:
            stream.error = error
        stream.meeting_over()  # first: behind `put_back` the stream may come to its next meeting
        stream.put_back()


BEGIN, BEGIN_UNFOLLOWED = Begin(followed=True), Begin(followed=False)
