"""Ordered queues of host work, for every driver whose kernels are host code.

A stream is a queue of items; one executor runs the items of all streams. The head of a queue that
has to wait for an event is parked: the event puts the queue back, and no thread waits. The host
driver's executor is a pool of threads; the simulated one picks the next task by a seeded number.

An item that raises fails the items behind it, up to the next begin of a run, and, as a
`DependencyError`, the streams that wait for an event recorded behind it.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import cast

from cuda_async.driver.interface import Driver, DriverEvent, DriverGraph, DriverStream
from cuda_async.errors import DependencyError, DeviceLostError, LaunchError

__all__ = ("Executor", "QueueEvent", "QueueGraph", "QueueStream", "Ticket", "check_pattern", "replace_ticket_lock")

_COPY_GRAIN = 1 << 20  # one thread does not fill a memory bus; below this, waking a second costs more

_ticket_lock = threading.Lock()


def replace_ticket_lock() -> None:
    """Make the module usable in the child of a fork, whose parent may have held the lock."""
    global _ticket_lock
    _ticket_lock = threading.Lock()


class Ticket:
    """One record of an event: a point in a queue."""

    __slots__ = ("_waiters", "done", "error", "time")

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.time = 0.0
        self._waiters: list[Callable[[], object]] = []

    def complete(self, error: BaseException | None, time: float) -> None:
        """The queue has reached this point."""
        with _ticket_lock:
            self.error = error
            self.time = time
            self.done = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def lose(self, error: BaseException) -> None:
        """The queue will never reach this point, and whoever waited is gone."""
        self.error = error
        self.done = True
        self._waiters = []

    def when_done(self, waiter: Callable[[], object]) -> bool:
        """Have `waiter` called at completion; False, and no call, if it is complete."""
        with _ticket_lock:
            if self.done:
                return False
            self._waiters.append(waiter)
            return True

    def drop(self, waiter: Callable[[], object]) -> None:
        """Forget a waiter that gave up."""
        with _ticket_lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


class Executor(ABC):
    """Runs the tasks of queues, and says what time it is."""

    width: int
    """On how many workers one kernel is spread."""

    calls_back: bool = True
    """Whether it has threads of its own that can call whoever waits for an event."""

    one_at_a_time: bool = False
    """Whether a queue goes to the back after each item, so that another may be next."""

    @abstractmethod
    def put(self, task: Callable[[], None]) -> None:
        """Run `task` soon."""

    @abstractmethod
    def pressed(self) -> bool:
        """Whether other tasks wait: a kernel then lets them in between two of its pieces."""

    @abstractmethod
    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        """Wait on the calling thread, at most so long. Whether the ticket is complete."""

    @abstractmethod
    def enter(self, stream: QueueStream, kind: str, amount: int) -> None:
        """An item of this kind starts. May raise, and the item fails with that."""

    @abstractmethod
    def now(self, stream: QueueStream) -> float:
        """Seconds on the clock of this stream."""

    @abstractmethod
    def joined(self, stream: QueueStream, ticket: Ticket) -> None:
        """The stream has waited for the ticket."""

    @abstractmethod
    def progress(self) -> None:
        """Somebody asks whether work is done: advance it, if nobody else does."""


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

    def close(self) -> None:
        self.ticket = None


class _Item(ABC):
    """One entry of a queue. `perform` returns False when something else will resume the queue."""

    __slots__ = ()

    @abstractmethod
    def perform(self, stream: QueueStream) -> bool: ...

    def again(self) -> _Item:
        """This item, to be performed once more."""
        return self


class _Begin(_Item):
    __slots__ = ()

    def perform(self, stream: QueueStream) -> bool:
        if not isinstance(stream.error, DeviceLostError):
            stream.error = None
        return True


class _Record(_Item):
    __slots__ = ("ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def perform(self, stream: QueueStream) -> bool:
        self.ticket.complete(stream.error, stream.executor.now(stream))
        return True


class _Wait(_Item):
    __slots__ = ("_stream", "_ticket")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._stream: QueueStream | None = None

    def perform(self, stream: QueueStream) -> bool:
        self._stream = stream
        if self._ticket.when_done(self._resume):
            return False  # parked; nothing of the stream may be touched from here on
        self._join(stream)
        return True

    def _resume(self) -> None:
        stream = cast("QueueStream", self._stream)
        self._join(stream)
        stream.executor.put(stream.run)

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


class _Call(_Item):
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
            except BaseException as error:
                if stream.error is None:
                    stream.error = error
        return True


class _Parallel(_Item):
    """Pieces of [0, count), claimed one by one by whichever worker is free."""

    __slots__ = ("_body", "_claims", "_count", "_error", "_finished", "_grain", "_kind", "_pieces", "_stream")

    def __init__(self, kind: str, body: Callable[[int, int], object], count: int, grain: int) -> None:
        self._kind = kind
        self._body = body
        self._count = count
        self._grain = grain
        self._pieces = -(-count // grain)
        self._claims = itertools.count()  # next() on these two is atomic
        self._finished = itertools.count(1)
        self._error: BaseException | None = None
        self._stream: QueueStream | None = None

    def again(self) -> _Item:
        return _Parallel(self._kind, self._body, self._count, self._grain)

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
        for _ in range(min(executor.width, self._pieces) - 1):
            executor.put(self._help)
        return self._work(stream)

    def _help(self) -> None:
        stream = cast("QueueStream", self._stream)
        if self._work(stream):
            stream.resume()

    def _work(self, stream: QueueStream) -> bool:
        """Work on pieces until there are none. True on the worker that finished the last one."""
        pieces, grain, count, body = self._pieces, self._grain, self._count, self._body
        executor = stream.executor
        while True:
            piece = next(self._claims)
            if piece >= pieces:
                return False
            if self._error is None:
                start = piece * grain
                try:
                    body(start, min(start + grain, count))
                except BaseException as error:
                    self._error = error
            if next(self._finished) == pieces:
                stream.error = self._error
                return True
            if executor.pressed():
                executor.put(self._help)
                return False


class QueueGraph(DriverGraph):
    """A recorded list of items."""

    __slots__ = ("items",)

    def __init__(self, items: list[_Item]) -> None:
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
        "_active",
        "_free",
        "_items",
        "_lock",
        "_recorded",
        "allocator",
        "clock",
        "error",
        "executor",
    )

    def __init__(self, executor: Executor, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        self.executor = executor
        self.allocator = allocate
        self._free = free
        self.error: BaseException | None = None
        self.clock = 0.0
        self._items: deque[_Item] = deque()
        self._lock = threading.Lock()
        self._active = False
        self._recorded: list[_Item] | None = None

    # -- the queue ----------------------------------------------------------------------------

    def put(self, item: _Item) -> None:
        """Append an item and see to it that the queue runs; or record it."""
        if self._recorded is not None:
            self._recorded.append(item)
            return
        with self._lock:
            self._items.append(item)
            if self._active:
                return
            self._active = True
        self.executor.put(self.run)

    def put_call(self, kind: str, function: Callable[[], object], amount: int) -> None:
        """Append a function."""
        self.put(_Call(kind, function, amount))

    def run(self) -> None:
        """Run items until the queue is empty or parked. One worker at a time is in here."""
        executor = self.executor
        while True:
            with self._lock:
                if not self._items:
                    self._active = False
                    return
                item = self._items.popleft()
            if not item.perform(self):
                return
            if executor.one_at_a_time:
                executor.put(self.run)
                return

    def resume(self) -> None:
        """Go on behind an item that other workers have finished."""
        if self.executor.one_at_a_time:
            self.executor.put(self.run)
        else:
            self.run()

    def lose(self, error: BaseException) -> None:
        """Drop everything enqueued: the threads that would run it did not survive a fork."""
        self._lock = threading.Lock()
        for item in self._items:
            if isinstance(item, _Record):
                item.ticket.lose(error)
        self._items.clear()
        self._active = False
        self.error = None

    # -- DriverStream -------------------------------------------------------------------------

    def begin_run(self) -> None:
        self.put(_BEGIN)

    def end_run(self) -> None:
        pass

    def begin_capture(self) -> None:
        self._recorded = []

    def end_capture(self) -> DriverGraph:
        items, self._recorded = self._recorded or [], None
        return QueueGraph(items)

    def launch_graph(self, graph: DriverGraph) -> None:
        for item in cast("QueueGraph", graph).items:
            self.put(item.again())

    def record(self, event: DriverEvent) -> None:
        ticket = cast("QueueEvent", event).ticket = Ticket()
        self.put(_Record(ticket))

    def wait_event(self, event: DriverEvent) -> None:
        ticket = cast("QueueEvent", event).ticket
        if ticket is not None:
            self.put(_Wait(ticket))

    def query(self) -> bool:
        if self._active:
            self.executor.progress()
        return not self._active

    def allocate(self, nbytes: int) -> int:
        return self.allocator(nbytes)

    def free(self, address: int) -> None:
        self.put(_Call("free", lambda: self._free(address), 0, always=True))

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        if nbytes <= _COPY_GRAIN:
            self.put(_Call("copy", lambda: ctypes.memmove(destination, source, nbytes), nbytes))
            return

        def move(start: int, stop: int) -> None:
            ctypes.memmove(destination + start, source + start, stop - start)

        self.put(_Parallel("copy", move, nbytes, _COPY_GRAIN))

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
            # One short run of the pattern, copied: the pieces are multiples of any pattern's length.
            block = pattern * (min(nbytes, _COPY_GRAIN) // len(pattern))

            def spread(start: int, stop: int) -> None:
                ctypes.memmove(destination + start, block, stop - start)

        self.put(_Parallel("fill", spread, nbytes, _COPY_GRAIN))

    def call(self, function: Callable[[], None]) -> None:
        self.put(_Call("call", function, 1))

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        if count < 1 or grain < 1:
            raise LaunchError(f"parallel_for: count and grain must be at least 1, got {count} and {grain}")
        self.put(_Parallel("launch", body, count, grain))

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


_BEGIN = _Begin()


def check_pattern(nbytes: int, pattern: bytes) -> None:
    """Refuse a fill that is no whole number of patterns.

    Raises:
        ValueError: the pattern is not 1, 2 or 4 bytes long, or does not divide `nbytes`.
    """
    if len(pattern) not in (1, 2, 4) or nbytes < 1 or nbytes % len(pattern):
        raise ValueError(
            f"fill: expected a pattern of 1, 2 or 4 bytes that divides the size; got {len(pattern)} bytes for {nbytes}"
        )
