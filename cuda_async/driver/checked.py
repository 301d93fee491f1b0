"""`CheckedDriver`: finds conflicting uses of memory that nothing orders.

It wraps a driver of any kind, and follows the runtime's calls: work on each stream, events recorded, waits for them,
and completions that the host has seen. From these alone it keeps a vector clock for each stream. By these clocks the
first of two conflicting uses must happen before the second. It does not look at the records of `storage.py`, which it
checks.

Frees count as writes. Copies and fills are uses of the memory at their addresses, whether the operation that enqueued
them declared it or not. The uses of a kernel are known from its operation only.

`Device.from_driver(CheckedDriver(HostDriver()))` runs a whole program under it, and `CUDA_ASYNC_CHECK=1` every device
of the process. It costs a look-up for each use, and a copy of a clock for each event.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

from cuda_async.driver.interface import (
    Check,
    DeviceProperties,
    Driver,
    DriverEvent,
    DriverFunction,
    DriverGraph,
    DriverModule,
    DriverStream,
    Early,
    Meet,
    MemoryInfo,
)
from cuda_async.locks import new_lock
from cuda_async.site import Site, format_site, user_site

__all__ = ("CheckedDriver", "CheckedEvent", "CheckedGraph", "CheckedStream", "Clock", "Ledger", "Race")

Clock = dict[int, int]
"""A vector clock: for each stream, by its number, how many of its uses happened before."""


@dataclass(frozen=True, slots=True)
class Race:
    """Two uses of the same memory that nothing orders.

    Attributes:
        first: the earlier call, as words.
        second: the later call, as words.
        site: the user's line of the second call.
    """

    first: str
    second: str
    site: Site

    def __str__(self) -> str:
        return f"{self.second} is not ordered behind {self.first}"


@dataclass(slots=True)
class _Use:
    """A use of memory: the stream's number, the use's number there, words for errors."""

    stream: int
    step: int
    words: str


class _Memory:
    """The last write of a storage, and the last read of each stream since."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: _Use | None = None
        self.readers: list[_Use] = []


def _join(clock: Clock, other: Clock) -> None:
    """Raise a clock: all that happened before `other` then happened before it, too."""
    for stream, step in other.items():
        if clock.get(stream, 0) < step:
            clock[stream] = step


class Ledger:
    """Uses of memory on any number of devices, in the order of the runtime's calls.

    Args:
        report: called with each race when it is found.

    Attributes:
        races: the races that were found.
        uses: the number of uses that were checked.
        host: the clock of the host. Work that the host has seen complete happened before all that is enqueued later.
    """

    def __init__(self, report: Callable[[Race], None] | None = None) -> None:
        self.races: list[Race] = []
        self.uses = 0
        self._report = report
        self._memory: dict[int, _Memory] = {}
        self._blocks: list[tuple[int, int]] = []  # (start, stop) of allocations, in order
        self._lock = new_lock()
        self._streams = 0
        self.host: Clock = {}

    def number_stream(self) -> int:
        """The number of the next stream; 1 for the first."""
        with self._lock:
            self._streams += 1
            return self._streams

    def use(self, stream: CheckedStream, address: int, kind: str, *, write: bool) -> None:
        """Note a use of the storage at `address`, and look for races.

        The work that is enqueued next on `stream` uses it. A use races with an earlier one that the stream's clock
        does not include. A read may race with the last write, a write also with the reads since.
        """
        site = user_site()
        with self._lock:
            self.uses += 1
            clock = stream.clock
            _join(clock, self.host)
            step = clock[stream.number] = clock.get(stream.number, 0) + 1
            use = _Use(stream.number, step, f"the {kind} on stream {stream.number} at {format_site(site)}")
            memory = self._memory.setdefault(address, _Memory())
            conflicting = [] if memory.writer is None else [memory.writer]
            if write:
                conflicting += memory.readers
            races = [
                Race(other.words, use.words, site) for other in conflicting if clock.get(other.stream, 0) < other.step
            ]
            self.races += races
            if write:
                memory.writer, memory.readers = use, []
            else:
                memory.readers = [reader for reader in memory.readers if reader.stream != stream.number]
                memory.readers.append(use)
        if self._report is not None:  # without the lock: it may call anything
            for race in races:
                self._report(race)

    def allocated(self, address: int, nbytes: int) -> None:
        """Note an allocation."""
        with self._lock:
            insort(self._blocks, (address, address + nbytes))

    def freed(self, address: int) -> None:
        """Forget an allocation: the next one at the address is another storage."""
        with self._lock:
            self._memory.pop(address, None)
            position = bisect_right(self._blocks, (address, 0))  # the first one that begins at or behind it
            if position < len(self._blocks) and self._blocks[position][0] == address:
                del self._blocks[position]

    def base(self, address: int) -> int | None:
        """The first address of the allocation that has `address`.

        None for memory that was not allocated on a stream.
        """
        with self._lock:
            position = bisect_right(self._blocks, (address, 1 << 64)) - 1  # the last one that begins at or before it
            if position < 0:
                return None
            start, stop = self._blocks[position]
            return start if address < stop else None

    def seen(self, clock: Clock) -> None:
        """Note that the host has seen everything in `clock` complete."""
        with self._lock:
            _join(self.host, clock)

    def snapshot(self, clock: Clock) -> Clock:
        """A copy of a stream's clock."""
        with self._lock:
            return dict(clock)

    def join(self, clock: Clock, other: Clock) -> None:
        """Order later work of the stream that has `clock` behind `other`."""
        with self._lock:
            _join(clock, other)


class CheckedDriver(Driver):
    """A driver that has `inner` do the work, and checks the order of uses.

    Args:
        inner: the driver that does the work.
        ledger: records the uses; devices that exchange memory share one.
    """

    def __init__(self, inner: Driver, ledger: Ledger | None = None) -> None:
        self.inner = inner
        self.works_alone, self.runs_host_code = inner.works_alone, inner.runs_host_code
        self.dlpack_type, self.array_interface = inner.dlpack_type, inner.array_interface
        self.ledger = Ledger() if ledger is None else ledger

    @property
    def races(self) -> list[Race]:
        """The races that were found, on all devices that share the ledger."""
        return self.ledger.races

    @property
    def uses(self) -> int:
        """The number of uses that were checked."""
        return self.ledger.uses

    # -- Driver -------------------------------------------------------------------------------
    @property
    def properties(self) -> DeviceProperties:
        return self.inner.properties

    def create_stream(self) -> DriverStream:
        return CheckedStream(self.ledger, self.inner.create_stream())

    def create_event(self, *, timing: bool = False) -> DriverEvent:
        return CheckedEvent(self.ledger, self.inner.create_event(timing=timing))

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: Early = "never") -> object:
        return self.inner.load_function(image, entry, shared_bytes, early=early)

    def resident_blocks(self, function: object, threads: int, shared_bytes: int, cluster: int) -> int:
        return self.inner.resident_blocks(function, threads, shared_bytes, cluster)

    def encode_tensor_map(
        self,
        element: str,
        address: int,
        extents: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
        step: int = 1,
    ) -> bytes:
        return self.inner.encode_tensor_map(element, address, extents, strides, box, swizzle, step)

    def load_module(self, image: bytes) -> DriverModule:
        return self.inner.load_module(image)

    def compile_source(self, source: str, name: str, options: tuple[str, ...]) -> str:
        return self.inner.compile_source(source, name, options)

    def borrow_module(self, raw: int) -> DriverModule:
        return self.inner.borrow_module(raw)

    def borrow_function(self, raw: int) -> DriverFunction:
        return self.inner.borrow_function(raw)

    def borrow_stream(self, raw: int) -> DriverStream:
        return CheckedStream(self.ledger, self.inner.borrow_stream(raw))

    def pin(self, nbytes: int) -> int:
        return self.inner.pin(nbytes)

    def unpin(self, address: int, nbytes: int) -> None:
        self.inner.unpin(address, nbytes)

    def memory_info(self) -> MemoryInfo:
        return self.inner.memory_info()

    def pool_high(self) -> tuple[int, int]:
        return self.inner.pool_high()

    def reset_pool_high(self, *, used: bool, reserved: bool) -> None:
        self.inner.reset_pool_high(used=used, reserved=reserved)

    def keep_free(self, nbytes: int) -> None:
        self.inner.keep_free(nbytes)

    def trim(self, keep_bytes: int = 0) -> None:
        self.inner.trim(keep_bytes)

    def unrestricted(self) -> AbstractContextManager[None]:
        return self.inner.unrestricted()

    def check(self) -> None:
        self.inner.check()


class CheckedEvent(DriverEvent):
    """An event that carries the clock of its record."""

    __slots__ = ("_ledger", "clock", "inner")

    def __init__(self, ledger: Ledger, inner: DriverEvent, clock: Clock | None = None) -> None:
        self._ledger = ledger
        self.inner = inner
        self.clock: Clock = {} if clock is None else clock

    def query(self) -> bool:
        clock = self.clock  # read first: another thread may record the event anew during the query
        done = self.inner.query()
        if done:
            self._ledger.seen(clock)
        return done

    def wait(self, timeout_s: float) -> bool:
        clock = self.clock  # as in `query`
        done = self.inner.wait(timeout_s)
        if done:
            self._ledger.seen(clock)
        return done

    def failure(self) -> BaseException | None:
        return self.inner.failure()

    def forget(self) -> None:
        self.inner.forget()

    def elapsed_ms(self, end: DriverEvent) -> float:
        return self.inner.elapsed_ms(cast("CheckedEvent", end).inner)

    def notify(self, callback: Callable[[], None]) -> bool:
        clock = self.clock

        def completed() -> None:
            self._ledger.seen(clock)
            callback()

        return self.inner.notify(completed)

    def without_failure(self) -> DriverEvent:
        return CheckedEvent(self._ledger, self.inner.without_failure(), self.clock)

    def close(self) -> None:
        self.inner.close()


class CheckedGraph(DriverGraph):
    """A recording of the inner driver, which takes streams of its own only."""

    __slots__ = ("inner",)

    def __init__(self, inner: DriverGraph) -> None:
        self.inner = inner

    @property
    def nodes(self) -> int:
        return self.inner.nodes

    def instantiate(self) -> None:
        self.inner.instantiate()

    def upload(self, stream: DriverStream) -> None:
        self.inner.upload(cast("CheckedStream", stream).inner)

    def close(self) -> None:
        self.inner.close()


class CheckedStream(DriverStream):
    """A stream with a clock: how much of each stream is ordered before its next work."""

    __slots__ = ("_captures", "_ledger", "clock", "inner", "number")

    def __init__(self, ledger: Ledger, inner: DriverStream) -> None:
        self._ledger = ledger
        self.inner = inner
        self.number = ledger.number_stream()
        self.clock: Clock = {}
        self._captures = False

    def use(self, address: int, *, write: bool) -> None:
        """Note that the next work uses the storage at `address`; for `Storage.use`."""
        self._ledger.use(self, address, "write" if write else "read", write=write)

    def _touch(self, address: int, what: str, *, write: bool) -> None:
        """As `use`, for an address anywhere in a storage."""
        if not self._captures:  # launches of a graph call `use` themselves
            base = self._ledger.base(address)
            if base is not None:
                self._ledger.use(self, base, what, write=write)

    def record(self, event: DriverEvent) -> None:
        checked = cast("CheckedEvent", event)
        self.inner.record(checked.inner)
        checked.clock = self._ledger.snapshot(self.clock)

    def wait_event(self, event: DriverEvent) -> None:
        checked = cast("CheckedEvent", event)
        self.inner.wait_event(checked.inner)
        self._ledger.join(self.clock, checked.clock)

    def allocate(self, nbytes: int) -> int:
        address = self.inner.allocate(nbytes)
        self._ledger.allocated(address, nbytes)
        self._ledger.use(self, address, "allocation", write=True)
        return address

    def free(self, address: int) -> None:
        self._ledger.use(self, address, "free", write=True)
        self._ledger.freed(address)
        self.inner.free(address)

    @property
    def raw(self) -> int:
        return self.inner.raw

    def begin_run(self) -> None:
        self.inner.begin_run()

    def continue_run(self) -> None:
        self.inner.continue_run()

    def end_run(self) -> None:
        self.inner.end_run()

    def expect_output(self) -> None:
        self.inner.expect_output()

    def enter(self) -> None:
        self.inner.enter()

    def leave(self) -> None:
        self.inner.leave()

    def check_behind(self, check: Check, *, expect: Callable[[], None] | None = None) -> None:
        self.inner.check_behind(check, expect=expect)

    def awaited(self) -> None:
        self.inner.awaited()

    def forget(self, failure: BaseException) -> None:
        self.inner.forget(failure)

    def followed(self) -> None:
        self.inner.followed()

    def query(self) -> bool:
        return self.inner.query()

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self._touch(source, "copy from", write=False)
        self._touch(destination, "copy to", write=True)
        self.inner.copy(destination, source, nbytes)

    def copy_peer(
        self, destination: int, destination_driver: Driver, source: int, source_driver: Driver, nbytes: int
    ) -> None:
        self._touch(source, "copy from", write=False)
        self._touch(destination, "copy to", write=True)
        target, origin = (
            driver.inner if isinstance(driver, CheckedDriver) else driver
            for driver in (destination_driver, source_driver)
        )
        self.inner.copy_peer(destination, target, source, origin, nbytes)

    def fill(self, destination: int, nbytes: int, pattern: bytes) -> None:
        self._touch(destination, "fill", write=True)
        self.inner.fill(destination, nbytes, pattern)

    def call(self, function: Callable[[], None]) -> None:
        self.inner.call(function)

    def meet(self, make: Callable[[], Meet]) -> None:
        self.inner.meet(make)

    @property
    def parked(self) -> int:  # type: ignore[override]
        return self.inner.parked

    @property
    def threads(self) -> int:  # type: ignore[override]
        return self.inner.threads

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        self.inner.parallel_for(body, count, grain)

    def launch_function(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> None:
        self.inner.launch_function(function, grid, block, shared_bytes, parameters)

    def prepare_launch(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> Callable[[], None]:
        return self.inner.prepare_launch(function, grid, block, shared_bytes, parameters)

    def begin_capture(self) -> None:
        self.inner.begin_capture()
        self._captures = True  # no work runs now: each launch of the graph calls `use` for it

    def end_capture(self) -> DriverGraph:
        self._captures = False
        return CheckedGraph(self.inner.end_capture())

    def launch_graph(self, graph: DriverGraph) -> None:
        self.inner.launch_graph(cast("CheckedGraph", graph).inner)

    def close(self) -> None:
        self.inner.close()
