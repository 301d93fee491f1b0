"""The items of a queue: begins of runs, records, waits, calls, kernels, meetings.

An item that raises fails the items behind it, up to the next `Begin`. Streams that wait for an event
recorded behind it fail with a `DependencyError`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from cuda_async.driver.executor import Ticket
from cuda_async.driver.interface import Meet
from cuda_async.errors import DependencyError, DeviceLostError

if TYPE_CHECKING:
    from cuda_async.driver.queue import QueueStream

__all__ = ("BEGIN", "BEGIN_UNFOLLOWED", "Begin", "Call", "Item", "Meeting", "Parallel", "Record", "Wait")


class Item(ABC):
    """One entry of a queue."""

    __slots__ = ()

    @abstractmethod
    def perform(self, stream: QueueStream) -> bool:
        """Do the item's work; False if the queue is parked, and resumed when it is done."""

    def again(self) -> Item:
        """The item for the next launch of a graph: itself, if it has no state."""
        return self


class Begin(Item):
    """The beginning of a run. Earlier failures do not fail it.

    Args:
        followed: whether a waiter of the run before gets that run's failure. If not, the next waiter gets it.
    """

    __slots__ = ("_followed",)

    def __init__(self, followed: bool) -> None:
        self._followed = followed

    def perform(self, stream: QueueStream) -> bool:
        if not isinstance(stream.error, DeviceLostError):  # nothing runs on a lost device
            # Of several failures without a waiter the first one is kept: later ones may follow from it.
            stream.untold = None if self._followed else stream.untold or stream.error
            stream.error = None
        return True


class Record(Item):
    """A record of an event."""

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
        # Set first: the ticket may complete, and another thread run `_resume`, before `when_done` returns.
        self._stream = stream
        if self._ticket.when_done(self._resume):
            return False  # parked: another thread may have the stream already
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
    """A call of a function.

    Args:
        kind: the kind of work, for the time that it takes on a simulated device.
        function: the function.
        amount: its bytes or elements, for the same purpose.
        always: whether it is called even behind a failure.
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
            except BaseException as error:  # a user's function may raise anything: its waiter gets that
                if stream.error is None:
                    stream.error = error
        return True


class Parallel(Item):
    """Pieces of [0, count), which free workers claim one by one.

    Args:
        kind: the kind of work, for the time that it takes on a simulated device.
        body: `body(start, stop)` does one piece.
        count: at least 1.
        grain: the length of a piece, but for the last.
    """

    __slots__ = ("_body", "_claims", "_count", "_error", "_finished", "_grain", "_kind", "_pieces", "_stream")

    def __init__(self, kind: str, body: Callable[[int, int], object], count: int, grain: int) -> None:
        self._kind = kind
        self._body = body
        self._count = count
        self._grain = grain
        self._pieces = -(-count // grain)
        self._claims = itertools.count()  # `next` of a counter is atomic
        self._finished = itertools.count(1)  # the next number is that of the piece that finishes next
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
        for _ in range(min(executor.width, self._pieces) - 1):  # the worker of this call helps, too
            executor.put(self._help)
        return self._work(stream)

    def _help(self) -> None:
        stream = cast("QueueStream", self._stream)
        if self._work(stream):
            stream.resume()

    def _work(self, stream: QueueStream) -> bool:
        """Work on pieces until none is left, or another task waits.

        Returns True on the worker that finished the last piece.
        """
        pieces, grain, count, body = self._pieces, self._grain, self._count, self._body
        executor = stream.executor
        while True:
            piece = next(self._claims)
            if piece >= pieces:
                return False
            if self._error is None:  # else the piece is only counted: some worker must finish the last one
                start = piece * grain
                try:
                    body(start, min(start + grain, count))
                except BaseException as error:
                    self._error = error
            if next(self._finished) == pieces:
                stream.error = self._error
                return True
            if executor.pressed():  # another task goes first: the pieces that are left wait behind it
                executor.put(self._help)
                return False


class Meeting(Item):
    """A meeting with other streams: the queue is parked until it is over.

    Args:
        make: makes `meet`, anew for each launch of a graph.
        meet: see `DriverStream.meet`; None in a recording, which is never performed.
    """

    __slots__ = ("_make", "_meet", "_stream")

    def __init__(self, make: Callable[[], Meet], meet: Meet | None) -> None:
        self._make = make
        self._meet = meet
        self._stream: QueueStream | None = None

    def met_by(self, met: Callable[[Callable[[], Meet]], Meet]) -> Meeting:
        """The meeting for the next launch of a graph: `met` makes its `Meet` anew."""
        return Meeting(self._make, met(self._make))

    def perform(self, stream: QueueStream) -> bool:
        self._stream = stream
        if stream.error is None:
            try:
                stream.executor.enter(stream, "meet", 0)
            except BaseException as error:
                stream.error = error
        # The waiter of this run gets an earlier failure that had no waiter. So the meeting fails as well: a failure on
        # one rank is one on all.
        if stream.error is None:
            stream.error = stream.untold
        # A failed stream goes to the meeting as well: the other ranks would wait for it.
        cast("Meet", self._meet)(self._finish, stream.error, stream.executor.now(stream))
        return False  # parked: another thread may have the stream already

    def _finish(self, error: BaseException | None, time: float | None) -> None:
        stream = cast("QueueStream", self._stream)
        if time is not None:  # on simulated devices: the stream goes on at that time
            point = Ticket()
            point.time = time
            stream.executor.joined(stream, point)
        if stream.error is None:
            stream.error = error
        stream.meeting_over()  # first: after `put_back` the stream may come to its next meeting
        stream.put_back()


BEGIN, BEGIN_UNFOLLOWED = Begin(followed=True), Begin(followed=False)
