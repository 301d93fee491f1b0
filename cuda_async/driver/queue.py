"""Ordered queues of host work, for every driver whose kernels are host code.

A stream is a queue of items (`items.py`), and one executor runs the items of all streams. A queue that has to wait for
an event is parked: the event puts the queue back, and no thread waits. The executor of the host driver is a pool of
threads. That of the simulated driver picks the next task by a seeded number.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from cuda_async.driver.executor import Executor, Ticket
from cuda_async.driver.interface import Check, Driver, DriverEvent, DriverGraph, DriverStream, Meet
from cuda_async.driver.items import BEGIN, BEGIN_UNFOLLOWED, Call, Item, Meeting, Parallel, Record, Wait
from cuda_async.errors import ContextError, DeviceLostError, LaunchError, without_traceback
from cuda_async.locks import new_lock

__all__ = ("QueueEvent", "QueueGraph", "QueueStream", "check_pattern")

_IDLE, _QUEUED, _RUNNING = range(3)  # no items; put to the executor; a worker runs its items, or it is parked
_COPY_GRAIN = 1 << 20  # bytes; one thread does not fill the memory bus, but waking another takes longer than so few
_CHECK_S = 50e-6  # seconds between two calls of a check, which most often waits for another process's message


class QueueEvent(DriverEvent):
    """An event of queues."""

    __slots__ = ("_executor", "ticket", "timing")

    def __init__(self, executor: Executor, timing: bool) -> None:
        self._executor = executor
        self.timing = timing
        self.ticket: Ticket | None = None

    def query(self) -> bool:
        ticket = self.ticket
        if ticket is None or ticket.done:
            return True
        self._executor.progress()
        return ticket.done

    def wait(self, timeout_s: float) -> bool:
        ticket = self.ticket
        return ticket is None or ticket.done or self._executor.wait(ticket, timeout_s)

    def failure(self) -> BaseException | None:
        return None if self.ticket is None else self.ticket.error

    def elapsed_ms(self, end: DriverEvent) -> float:
        later = cast("QueueEvent", end).ticket
        earlier = self.ticket
        if earlier is None or later is None or not (earlier.done and later.done):
            raise ValueError("elapsed_time: both events must have been recorded and complete")
        return (later.time - earlier.time) * 1e3

    def notify(self, callback: Callable[[], None]) -> bool:
        if self.ticket is not None and not self.ticket.done and not self._executor.calls_back:
            return False
        if self.ticket is None or not self.ticket.when_done(callback):
            callback()
        return True

    def without_failure(self) -> DriverEvent:
        silent = QueueEvent(self._executor, False)
        ticket = self.ticket
        if ticket is not None:
            point = silent.ticket = Ticket()
            if not ticket.when_done(lambda: point.complete(None, ticket.time)):
                point.complete(None, ticket.time)
        return silent

    def forget(self) -> None:
        ticket, self.ticket = self.ticket, None
        if ticket is not None and ticket.error is not None:
            ticket.error = without_traceback(ticket.error)  # its traceback keeps the frames of waiters

    def close(self) -> None:
        self.ticket = None


class QueueGraph(DriverGraph):
    """A recorded list of items."""

    __slots__ = ("items",)

    def __init__(self, items: list[Item]) -> None:
        self.items = items

    @property
    def nodes(self) -> int:
        return len(self.items)

    def instantiate(self) -> None:
        pass

    def upload(self, stream: DriverStream) -> None:
        pass

    def close(self) -> None:
        self.items = []


class QueueStream(DriverStream):
    """A queue of items on an executor."""

    __slots__ = (
        "__weakref__",
        "_expects",
        "_followed",
        "_free",
        "_items",
        "_lock",
        "_recorded",
        "_state",
        "_told",
        "allocator",
        "clock",
        "error",
        "executor",
        "parked",
        "untold",
    )

    def __init__(self, executor: Executor, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self.executor = executor
        self.allocator = allocate
        self._free = free
        self.error: BaseException | None = None
        self.untold: BaseException | None = None  # the first failure of earlier runs that nobody waited for
        self._followed = True  # whether a waiter has the failure of the present run
        self._expects: dict[Callable[[], None], None] = {}  # `expect` of checks; a dict keeps the order, and each once
        self.clock = 0.0
        self._items: deque[Item] = deque()
        self._lock = new_lock()
        self._state = _IDLE
        self._told = True  # False from a change of `_state` until the executor has the task: a finalizer may `put` then
        self._recorded: list[Item] | None = None  # the items of a capture
        self.parked = 0  # meetings that have begun and are not over

    # -- the queue ----------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """Append an item and have the queue run; in a capture, record the item."""
        if self._recorded is not None:
            self._recorded.append(item)
            return
        try:
            self._items.append(item)  # before the lock: a worker looks for items under the lock before it goes idle
            # No call under the lock: at a call a collection could run a finalizer that waits for this stream, and so
            # for a worker, which waits for the lock.
            with self._lock:
                if self._state and self._told:
                    return
                self._told = False
                self._state = self._state or _QUEUED
            self.executor.put(self.run)
            self._told = True
        except BaseException as error:
            self._repair(error)
            raise

    def _repair(self, error: BaseException) -> None:
        """Mend the queue after an error of `put`: a signal's exception, or a closed pool."""
        with self._lock:
            if isinstance(error, ContextError):  # the pool is closed: the items are lost
                self._items.clear()
                self.parked = 0
                self._state = _IDLE
                return
            if not self._items or self._state == _RUNNING:
                return
            self._state = _QUEUED
        self.executor.put(self.run)  # maybe a second time: `run` lets one worker in

    def put_call(self, kind: str, function: Callable[[], object], amount: int) -> None:
        """Append a function."""
        self.put(Call(kind, function, amount))

    def run(self) -> None:
        """Run items until the queue is empty or parked; the task of the executor.

        One worker at a time runs them.
        """
        with self._lock:
            if self._state != _QUEUED:  # it was put twice
                return
            self._state = _RUNNING
        self._go_on()

    def _go_on(self) -> None:
        executor = self.executor
        items = self._items
        while True:
            try:
                item = items.popleft()  # without the lock: only the one worker takes items
            except IndexError:
                with self._lock:  # no call, as in `put`
                    if not items:
                        self._state = _IDLE
                        return
                continue
            if not item.perform(self):  # another function resumes the queue
                return
            if executor.one_at_a_time:
                self.put_back()
                return

    def put_back(self) -> None:
        """Have the executor run the rest. Only for the owner of a running or parked queue."""
        self._state = _QUEUED  # without the lock: nobody else changes the state of such a queue
        self.executor.put(self.run)

    def resume(self) -> None:
        """Go on after an item that other workers have finished."""
        if self.executor.one_at_a_time:
            self.put_back()
        else:
            self._go_on()

    def forget(self, failure: BaseException) -> None:
        if self.error is failure and not isinstance(failure, DeviceLostError):
            self.error = without_traceback(failure)

    def lose(self, error: BaseException) -> None:
        """Drop all items, in a child of `fork`: the threads that would run them are gone."""
        for item in self._items:
            if isinstance(item, Record):
                item.ticket.lose(error)
        self._items.clear()
        self.parked = 0
        self._state = _IDLE
        self.error = self.untold = None

    # -- DriverStream -------------------------------------------------------------------------

    def begin_run(self) -> None:
        self.put(BEGIN if self._followed else BEGIN_UNFOLLOWED)
        self._followed = False

    def continue_run(self) -> None:
        if self._followed and self._recorded is None:
            self.begin_run()

    def followed(self) -> None:
        self._followed = True  # and no more: this must be quick, as each wait for an operation calls it

    def awaited(self) -> None:
        if self._expects:
            expects, self._expects = self._expects, {}
            for expect in expects:
                expect()

    def end_run(self) -> None:
        pass

    def begin_capture(self) -> None:
        self._recorded = []

    def end_capture(self) -> DriverGraph:
        items, self._recorded = self._recorded or [], None
        return QueueGraph(items)

    def launch_graph(self, graph: DriverGraph) -> None:
        # In a capture the ranks do not meet. They meet at each launch of the graph of which this one becomes a part.
        meets = self._recorded is None
        for item in cast("QueueGraph", graph).items:
            self.put(item.met_by(self._met) if meets and isinstance(item, Meeting) else item.again())

    def check_behind(self, check: Check, *, expect: Callable[[], None] | None = None) -> None:
        if expect is not None and self._recorded is None:
            self._expects[expect] = None
        self.put(Call("check", partial(_call_until_known, check), 0))

    def record(self, event: DriverEvent) -> None:
        ticket = Ticket()
        self.put(Record(ticket))
        # Behind `put`: where Ctrl-C ends that, the event keeps its earlier record. Nobody would reach the new ticket.
        cast("QueueEvent", event).ticket = ticket

    def wait_event(self, event: DriverEvent) -> None:
        ticket = cast("QueueEvent", event).ticket
        if ticket is not None:
            self.put(Wait(ticket))

    def query(self) -> bool:
        if self._state:
            self.executor.progress()
        return not self._state

    def allocate(self, nbytes: int) -> int:
        return self.allocator(nbytes)

    def free(self, address: int) -> None:
        self.put(Call("free", lambda: self._free(address), 0, always=True))

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        if nbytes <= _COPY_GRAIN:
            self.put(Call("copy", lambda: ctypes.memmove(destination, source, nbytes), nbytes))
            return

        def move(start: int, stop: int) -> None:
            ctypes.memmove(destination + start, source + start, stop - start)

        self.put(Parallel("copy", move, nbytes, _COPY_GRAIN))

    def copy_peer(
        self, destination: int, destination_driver: Driver, source: int, source_driver: Driver, nbytes: int
    ) -> None:
        self.copy(destination, source, nbytes)  # the addresses are this process's, whatever the device

    def fill(self, destination: int, nbytes: int, pattern: bytes) -> None:
        check_pattern(nbytes, pattern)
        if len(set(pattern)) == 1:

            def spread(start: int, stop: int) -> None:
                ctypes.memset(destination + start, pattern[0], stop - start)

        else:
            # Each piece copies this block. Its length, as the grain, is a multiple of the pattern's length.
            block = pattern * (min(nbytes, _COPY_GRAIN) // len(pattern))

            def spread(start: int, stop: int) -> None:
                ctypes.memmove(destination + start, block, stop - start)

        self.put(Parallel("fill", spread, nbytes, _COPY_GRAIN))

    def call(self, function: Callable[[], None]) -> None:
        self.put(Call("call", function, 1))

    def meet(self, make: Callable[[], Meet]) -> None:
        self.put(Meeting(make, self._met(make) if self._recorded is None else None))

    def _met(self, make: Callable[[], Meet]) -> Meet:
        """Make a meeting. The stream is parked until it is over, or until making it fails."""
        with self._lock:
            self.parked += 1
        try:
            return make()
        except BaseException:
            self.meeting_over()
            raise

    def meeting_over(self) -> None:
        """A meeting is over; `Meeting` calls this."""
        with self._lock:
            self.parked = max(0, self.parked - 1)

    @property
    def threads(self) -> int:  # type: ignore[override]
        return self.executor.threads

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        if count < 1 or grain < 1:
            raise LaunchError(f"parallel_for: count and grain must be at least 1, got {count} and {grain}")
        self.put(Parallel("launch", body, count, grain))

    def launch_function(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> None:
        raise LaunchError("launch_function: this device runs host code; use parallel_for, or a CUDA device")

    def close(self) -> None:
        """Nothing to give back: the items that are left hold what they need."""


def check_pattern(nbytes: int, pattern: bytes) -> None:
    """Refuse a fill that is no whole number of patterns.

    Raises:
        ValueError: the pattern is not 1, 2 or 4 bytes long, or does not divide `nbytes`.
    """
    if len(pattern) not in (1, 2, 4) or nbytes < 1 or nbytes % len(pattern):
        raise ValueError(
            f"fill: expected a pattern of 1, 2 or 4 bytes that divides the size; got {len(pattern)} bytes for {nbytes}"
        )


def _call_until_known(check: Check) -> None:
    """Call a check until it can tell how work went.

    Later work of the stream waits for that, while on a GPU it would go on.
    """
    while check() is False:
        time.sleep(_CHECK_S)
