"""Streams, events and graphs of the simulated driver, and their executor.

They run in virtual time, in a seeded order.
"""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from cuda_async.driver.executor import Executor, Ticket
from cuda_async.driver.fake_code import FakeFunction
from cuda_async.driver.interface import Driver, DriverEvent, DriverGraph, DriverStream, Meet
from cuda_async.driver.items import Item
from cuda_async.driver.queue import QueueEvent, QueueGraph, QueueStream
from cuda_async.errors import InternalError
from cuda_async.locks import new_lock

if TYPE_CHECKING:
    from cuda_async.driver.sim.driver import SimDriver

__all__ = ("SimEvent", "SimExecutor", "SimGraph", "SimStream")

_IDLE_S = 1e-3
"""Virtual seconds that pass when a caller asks whether work is done, and nothing can happen."""

# By kind: the seconds of a piece of work, and the seconds that each of its bytes or tile blocks adds.
_SECONDS = {"launch": (3e-6, 1e-9), "copy": (2e-6, 1e-10), "fill": (2e-6, 1e-10), "call": (5e-6, 0.0)}


class SimExecutor(Executor):
    """Takes one step at a time, under one lock, when a caller waits or asks.

    Attributes:
        seed: picks the steps.
        idle_s: virtual seconds since the last step, in which callers asked and nothing could happen.
        when_idle: functions that are called with `idle_s` when nothing can happen, and return whether something now
            can.
    """

    one_at_a_time = True
    calls_back = False  # nothing happens by itself: waiters must ask

    def __init__(self, seed: int, width: int) -> None:
        self.automatic = True
        self.seed = seed
        self.width = width
        self.random = random.Random(seed)
        self.lock = new_lock()
        self._ready: list[Callable[[], None]] = []
        self.idle_s = 0.0
        self.when_idle: list[Callable[[float], bool]] = []

    def put(self, task: Callable[[], None]) -> None:
        with self.lock:
            self._ready.append(task)

    def pressed(self) -> bool:
        return True  # each piece of a kernel is a step of its own

    def step(self) -> bool:
        """Run one ready task, picked by the seeded number; return False if none is ready."""
        with self.lock:
            if not self._ready:
                return False
            self.idle_s = 0.0
            self._ready.pop(self.random.randrange(len(self._ready)))()
            return True

    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        while not ticket.done:
            with self.lock:
                if not ticket.done and not self.step() and not self._end_waits(math.inf):
                    raise InternalError("the simulated device waits for something that was never enqueued")
        return True

    def enter(self, stream: QueueStream, kind: str, amount: int) -> None:
        driver = cast("SimStream", stream).owner
        if driver.seconds is not None:
            stream.clock += driver.seconds(kind, amount) if kind in _SECONDS else 0.0
        else:
            fixed, per_unit = _SECONDS.get(kind, (1e-7, 0.0))
            stream.clock += (fixed + per_unit * amount) * self.random.uniform(0.5, 2.0)
        driver.advance_to(stream.clock)
        driver.enter(f"run:{kind}")

    def now(self, stream: QueueStream) -> float:
        return stream.clock

    def joined(self, stream: QueueStream, ticket: Ticket) -> None:
        stream.clock = max(stream.clock, ticket.time)
        cast("SimStream", stream).owner.advance_to(stream.clock)

    def progress(self) -> None:
        if self.automatic and not self.step():
            self._end_waits(_IDLE_S)

    def _end_waits(self, seconds: float) -> bool:
        """Let virtual time pass while nothing can happen; return whether a wait ended."""
        self.idle_s += seconds
        # A list, not a generator: all hooks are called, since they share a clock.
        ended = [hook(self.idle_s) for hook in self.when_idle]
        return any(ended)


class SimEvent(QueueEvent):
    """An event that fails with its device, which counts the open ones."""

    __slots__ = ("_driver", "number")

    def __init__(self, driver: SimDriver, executor: Executor, timing: bool, number: int) -> None:
        super().__init__(executor, timing)
        self._driver = driver
        self.number = number

    def failure(self) -> BaseException | None:
        return self._driver.lost or super().failure()

    def close(self) -> None:
        super().close()
        self._driver.events -= 1


class SimStream(QueueStream):
    """A queue whose calls are logged, and can be made to fail."""

    __slots__ = ("_driver", "_steps", "number")

    def __init__(self, driver: SimDriver, executor: Executor, number: int) -> None:
        super().__init__(executor, driver.allocate, driver.free)
        self._driver = driver
        self.number = number
        self._steps = driver.executor.lock

    @property
    def owner(self) -> SimDriver:
        """The device of this stream."""
        return self._driver

    @property
    def raw(self) -> int:
        return self.number + 1  # as everywhere, 0 is no handle

    def begin_run(self) -> None:
        self._driver.enter("begin_run")
        self._driver.open_runs += 1
        super().begin_run()

    def end_run(self) -> None:
        self._driver.open_runs -= 1
        super().end_run()

    def put(self, item: Item) -> None:
        # Between appending the item and telling the executor another thread must not take a step: it would find
        # nothing ready, and take its wait for one that never ends.
        with self._steps:
            super().put(item)

    def record(self, event: DriverEvent) -> None:
        self._driver.enter("record", f"record e{_number(event)} on s{self.number}")
        with self._steps:  # else a waiter would find the new ticket before it is in the queue
            super().record(event)

    def wait_event(self, event: DriverEvent) -> None:
        self._driver.enter("wait_event", f"wait e{_number(event)} on s{self.number}")
        super().wait_event(event)

    def allocate(self, nbytes: int) -> int:
        self._driver.enter("allocate", f"allocate {nbytes} on s{self.number}")
        return super().allocate(nbytes)

    def free(self, address: int) -> None:
        self._driver.log.append(f"free on s{self.number}")  # no `enter`: a free never fails, as nobody could handle it
        super().free(address)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self._driver.enter("copy", f"copy {nbytes} on s{self.number}")

        def move() -> None:
            self._driver.require(source, nbytes)
            self._driver.require(destination, nbytes)
            ctypes.memmove(destination, source, nbytes)

        self.put_call("copy", move, nbytes)

    def copy_peer(
        self, destination: int, destination_driver: Driver, source: int, source_driver: Driver, nbytes: int
    ) -> None:
        from cuda_async.driver.sim.driver import SimDriver

        self._driver.enter("copy", f"copy {nbytes} from another device on s{self.number}")

        def move() -> None:
            for driver, address in ((source_driver, source), (destination_driver, destination)):
                if isinstance(driver, SimDriver):
                    driver.require(address, nbytes)
            ctypes.memmove(destination, source, nbytes)

        self.put_call("copy", move, nbytes)

    def fill(self, destination: int, nbytes: int, pattern: bytes) -> None:
        self._driver.enter("fill", f"fill {nbytes} on s{self.number}")
        self.put_call("check", lambda: self._driver.require(destination, nbytes), 0)
        super().fill(destination, nbytes, pattern)

    def call(self, function: Callable[[], None]) -> None:
        self._driver.enter("call", f"call on s{self.number}")
        super().call(function)

    def meet(self, make: Callable[[], Meet]) -> None:
        self._driver.enter("meet", f"meet on s{self.number}")
        super().meet(make)

    def begin_capture(self) -> None:
        self._driver.enter("begin_capture", f"begin capture on s{self.number}")
        super().begin_capture()

    def end_capture(self) -> DriverGraph:
        recorded = super().end_capture()  # first: even if the call fails, the capture has ended
        self._driver.enter("end_capture", f"end capture on s{self.number}")
        return SimGraph(self._driver, cast("QueueGraph", recorded))

    def launch_graph(self, graph: DriverGraph) -> None:
        self._driver.enter("launch_graph", f"launch graph of {graph.nodes} on s{self.number}")
        super().launch_graph(graph)

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        self._driver.enter("launch", f"launch {count} on s{self.number}")
        super().parallel_for(body, count, grain)

    def launch_function(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> None:
        if not isinstance(function, FakeFunction):
            super().launch_function(function, grid, block, shared_bytes, parameters)
            return
        self._driver.enter("launch", f"launch {function.name} on s{self.number}")
        self.put_call("launch", function.prepare(grid, block, shared_bytes, parameters), 1)


class SimGraph(QueueGraph):
    """Recorded items; each step of making them a graph can be made to fail."""

    __slots__ = ("_driver",)

    def __init__(self, driver: SimDriver, recorded: QueueGraph) -> None:
        super().__init__(recorded.items)
        self._driver = driver
        driver.graphs += 1

    def instantiate(self) -> None:
        self._driver.enter("instantiate")

    def upload(self, stream: DriverStream) -> None:
        self._driver.enter("upload")

    def close(self) -> None:
        super().close()
        self._driver.graphs -= 1


def _number(event: DriverEvent) -> int:
    return event.number if isinstance(event, SimEvent) else -1
