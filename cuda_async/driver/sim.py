"""The simulated driver: real host memory and real functions, in virtual time and seeded order.

Nothing runs by itself. Whoever waits or asks makes the simulation take steps; at each step a seeded
number picks, among the queues whose head is ready, the one that goes on. The same seed and the same
calls give the same order, and another seed gives another legal order: a missing wait shows.

Faults are injected by name and number: `fail("allocate")`, `fail("*", at=7)`, `fail("run:copy")`
for work that fails when it is executed, `lose()` for a device that falls off the bus. Freed memory
is overwritten, and copies and fills outside live memory fail. Use it through `cuda_async.testing`.
"""

from __future__ import annotations

import ctypes
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import cast

from cuda_async.driver.blocks import BlockCache, HostBlock
from cuda_async.driver.fake_code import FakeFunction, FakeModule
from cuda_async.driver.interface import (
    DeviceProperties,
    Driver,
    DriverEvent,
    DriverFunction,
    DriverGraph,
    DriverModule,
    DriverStream,
    MemoryInfo,
)
from cuda_async.driver.queue import Executor, QueueEvent, QueueGraph, QueueStream, Ticket
from cuda_async.errors import DeviceLostError, DriverError, InternalError, LaunchError, OutOfMemoryError

__all__ = ("SimDriver",)

_FREED = 0xDD
_SECONDS = {"launch": (3e-6, 1e-9), "copy": (2e-6, 1e-10), "fill": (2e-6, 1e-10), "call": (5e-6, 0.0)}


class _Fault:
    def __init__(self, name: str, at: int, error: BaseException) -> None:
        self.name = name
        self.left = at
        self.error = error


class _SimExecutor(Executor):
    """Takes one step at a time, under one lock, when somebody waits or asks."""

    one_at_a_time = True
    calls_back = False  # nothing happens by itself: whoever is interested has to ask

    def __init__(self, seed: int, width: int) -> None:
        self.automatic = True
        self.width = width
        self.random = random.Random(seed)
        self.lock = threading.RLock()
        self._ready: list[Callable[[], None]] = []

    def put(self, task: Callable[[], None]) -> None:
        with self.lock:
            self._ready.append(task)

    def pressed(self) -> bool:
        return True  # each piece of a kernel is a step of its own

    def step(self) -> bool:
        """Run one ready task, picked by number. False if none is ready."""
        with self.lock:
            if not self._ready:
                return False
            self._ready.pop(self.random.randrange(len(self._ready)))()
            return True

    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        while not ticket.done:
            with self.lock:
                if not ticket.done and not self.step():
                    raise InternalError("the simulated device waits for something that was never enqueued")
        return True

    def enter(self, stream: QueueStream, kind: str, amount: int) -> None:
        fixed, each = _SECONDS.get(kind, (1e-7, 0.0))
        stream.clock += (fixed + each * amount) * self.random.uniform(0.5, 2.0)
        driver = cast("_SimStream", stream).owner
        driver.pass_time(stream.clock)
        driver.enter(f"run:{kind}")

    def now(self, stream: QueueStream) -> float:
        return stream.clock

    def joined(self, stream: QueueStream, ticket: Ticket) -> None:
        stream.clock = max(stream.clock, ticket.time)

    def progress(self) -> None:
        if self.automatic:
            self.step()


class _SimEvent(QueueEvent):
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


class _SimStream(QueueStream):
    """A queue whose every call can be made to fail, and is written down."""

    __slots__ = ("_driver", "number")

    def __init__(self, driver: SimDriver, executor: Executor, number: int) -> None:
        super().__init__(executor, driver.allocate, driver.free)
        self._driver = driver
        self.number = number

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

    def record(self, event: DriverEvent) -> None:
        self._driver.enter("record", f"record e{_number(event)} on s{self.number}")
        super().record(event)

    def wait_event(self, event: DriverEvent) -> None:
        self._driver.enter("wait_event", f"wait e{_number(event)} on s{self.number}")
        super().wait_event(event)

    def allocate(self, nbytes: int) -> int:
        self._driver.enter("allocate", f"allocate {nbytes} on s{self.number}")
        return super().allocate(nbytes)

    def free(self, address: int) -> None:
        self._driver.log.append(f"free on s{self.number}")  # cannot fail: nobody could handle it
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

    def begin_capture(self) -> None:
        self._driver.enter("begin_capture", f"begin capture on s{self.number}")
        super().begin_capture()

    def end_capture(self) -> DriverGraph:
        recorded = super().end_capture()  # first: after a failure the stream captures no more
        self._driver.enter("end_capture", f"end capture on s{self.number}")
        return _SimGraph(self._driver, cast("QueueGraph", recorded))

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


class _SimGraph(QueueGraph):
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
    return event.number if isinstance(event, _SimEvent) else -1


class SimDriver(Driver):
    """A device for tests.

    Args:
        seed: picks the order of what may happen in any order.
        ordinal: the number of the device.
        width: on how many simulated workers a kernel is spread.
        memory_bytes: how much can be allocated.
        beside: another simulated device of the same machine, whose steps are taken together with this one's
            (its seed counts).

    Attributes:
        log: what was asked of the driver, one line each: `launch 4 on s1`, `wait e2 on s1`.
        calls: how often each call was made.
        time: virtual seconds.
        automatic: whether asking if work is done makes the simulation go on; waiting always does.

    Example:
        >>> from cuda_async import Device, value
        >>> driver = SimDriver(seed=1)
        >>> value(3).sync_on(Device.from_driver(driver).new_stream())
        3
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        ordinal: int = 0,
        width: int = 3,
        memory_bytes: int = 1 << 30,
        beside: SimDriver | None = None,
    ) -> None:
        if beside is None:
            self._executor = _SimExecutor(seed, width)
        else:
            self._executor = beside.executor
        self._memory = BlockCache(HostBlock, memory_bytes)
        self._live: dict[int, int] = {}
        self._pinned: dict[int, int] = {}
        self._faults: list[_Fault] = []
        self._properties = DeviceProperties(
            kind="sim",
            ordinal=ordinal,
            name=f"simulated device (seed {seed})",
            arch="cpu",
            multiprocessor_count=width,
            l2_cache_bytes=0,
            total_memory_bytes=memory_bytes,
        )
        self._streams = 0
        self._by_number: weakref.WeakValueDictionary[int, _SimStream] = weakref.WeakValueDictionary()
        self._modules: dict[bytes, FakeModule] = {}
        self._event_numbers = 0
        self.events = 0
        """Events that were made and not closed."""
        self.open_runs = 0
        """Runs that were begun and not ended."""
        self.graphs = 0
        """Graphs that were made and not closed."""
        self.lost: DeviceLostError | None = None
        self.log: list[str] = []
        self.calls: Counter[str] = Counter()
        self.time = 0.0

    @property
    def executor(self) -> _SimExecutor:
        """What takes the steps."""
        return self._executor

    @property
    def automatic(self) -> bool:
        return self._executor.automatic

    @automatic.setter
    def automatic(self, on: bool) -> None:
        self._executor.automatic = on

    # -- control ------------------------------------------------------------------------------

    def fail(self, call: str, *, at: int = 1, error: BaseException | None = None) -> None:
        """Make the `at`-th call of this name from now on fail, once.

        Args:
            call: `allocate`, `copy`, `fill`, `call`, `launch`, `record`, `wait_event`, `begin_run`, `pin`,
                `load_module`, `begin_capture`, `end_capture`, `instantiate`, `upload`, `launch_graph`, `create_stream`,
                `create_event`; `run:` before copy, fill, call or launch for work that fails when executed;
                `*` for any call.
            at: 1 for the next one.
            error: what is raised; a `DriverError` (for memory: `OutOfMemoryError`) unless given. A
                `DeviceLostError` loses the device.
        """
        if error is None:
            kind = OutOfMemoryError if call in ("allocate", "pin") else DriverError
            error = kind(999, "SIM_FAULT", f"injected fault in {call}")
        self._faults.append(_Fault(call, at, error))

    def lose(self, error: DeviceLostError | None = None) -> None:
        """Lose the device: every pending and later operation fails with this error."""
        self.lost = error or DeviceLostError(719, "SIM_DEVICE_LOST", "the simulated device was lost")

    def step(self) -> bool:
        """Let one thing happen. False if nothing can."""
        return self._executor.step()

    def run_until_idle(self) -> int:
        """Let everything happen that can; return the number of steps."""
        steps = 0
        while self._executor.step():
            steps += 1
        return steps

    # -- for streams --------------------------------------------------------------------------

    def enter(self, call: str, line: str | None = None) -> None:
        """A call begins: count it, write it down, and fail it if it is its turn."""
        with self._executor.lock:
            self.calls[call] += 1
            if line is not None:
                self.log.append(line)
            if self.lost is not None and not call.startswith("run:"):
                raise self.lost.with_traceback(None)
            for fault in self._faults:
                if fault.name == call or (fault.name == "*" and not call.startswith("run:")):
                    fault.left -= 1
                    if fault.left == 0:
                        self._faults.remove(fault)
                        if isinstance(fault.error, DeviceLostError):
                            self.lost = fault.error
                        raise fault.error
            if self.lost is not None:
                raise self.lost.with_traceback(None)

    def pass_time(self, clock: float) -> None:
        """The clock of some stream has reached this."""
        self.time = max(self.time, clock)

    def allocate(self, nbytes: int) -> int:
        """Take memory, in the caller's time."""
        limit = self._properties.total_memory_bytes
        if self._memory.used + nbytes > limit:
            raise OutOfMemoryError(
                2, "SIM_OUT_OF_MEMORY", f"{nbytes} bytes asked for, {self._memory.used} of {limit} in use"
            )
        address = self._memory.allocate(nbytes)
        with self._executor.lock:
            self._live[address] = nbytes
        return address

    def free(self, address: int) -> None:
        """Give memory back, in the stream's time; what still reads it reads nonsense."""
        nbytes = self._live.pop(address, None)
        if nbytes is None:
            raise InternalError(f"memory at {address:#x} was freed twice")
        ctypes.memset(address, _FREED, nbytes)
        self._memory.free(address)

    def require(self, address: int, nbytes: int) -> None:
        """Refuse an access outside live memory of this device.

        Raises:
            DriverError: no allocation holds all of it.
        """
        for memory in (self._live, self._pinned):
            for start, size in memory.items():
                if start <= address and address + nbytes <= start + size:
                    return
        raise DriverError(700, "SIM_ILLEGAL_ADDRESS", f"{nbytes} bytes at {address:#x} are not allocated")

    # -- Driver -------------------------------------------------------------------------------

    @property
    def properties(self) -> DeviceProperties:
        return self._properties

    def create_stream(self) -> DriverStream:
        self.enter("create_stream")
        self._streams += 1
        stream = self._by_number[self._streams] = _SimStream(self, self._executor, self._streams - 1)
        return stream

    def create_event(self, *, timing: bool = False) -> DriverEvent:
        self.enter("create_event")
        self.events += 1
        self._event_numbers += 1
        return _SimEvent(self, self._executor, timing, self._event_numbers)

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: bool = False) -> object:
        raise LaunchError("load_function: a simulated device runs no GPU code; compile for the target 'cpu'")

    def define_module(self, image: bytes, *functions: FakeFunction) -> None:
        """Have `image` stand for a module with these functions (see `FakeFunction`)."""
        self._modules[image] = FakeModule(functions)

    def load_module(self, image: bytes) -> DriverModule:
        self.enter("load_module")
        module = self._modules.get(image)
        if module is None:
            raise DriverError(200, "SIM_INVALID_IMAGE", "no module was defined for this image; see define_module()")
        return module

    def borrow_module(self, raw: int) -> DriverModule:
        for module in self._modules.values():
            if module.raw == raw:
                return module
        raise DriverError(400, "SIM_INVALID_HANDLE", f"there is no module {raw:#x}")

    def borrow_function(self, raw: int) -> DriverFunction:
        for module in self._modules.values():
            for function in module.functions.values():
                if function.raw == raw:
                    return function
        raise DriverError(400, "SIM_INVALID_HANDLE", f"there is no function {raw:#x}")

    def borrow_stream(self, raw: int) -> DriverStream:
        stream = self._by_number.get(raw)
        if stream is None:
            raise DriverError(400, "SIM_INVALID_HANDLE", f"there is no stream {raw:#x}")
        return stream  # closing a simulated stream gives nothing back, so both may

    def pin(self, nbytes: int) -> int:
        self.enter("pin")
        address = self._memory.allocate(nbytes)
        self._pinned[address] = nbytes
        return address

    def unpin(self, address: int, nbytes: int) -> None:
        del self._pinned[address]
        self._memory.free(address)

    def memory_info(self) -> MemoryInfo:
        total = self._properties.total_memory_bytes
        used = self._memory.used
        return MemoryInfo(total - used, total, used, used + self._memory.kept)

    def pool_high(self) -> tuple[int, int]:
        return self._memory.used_high, self._memory.reserved_high

    def reset_pool_high(self, *, used: bool, reserved: bool) -> None:
        self._memory.reset_high(used=used, reserved=reserved)

    def keep_free(self, nbytes: int) -> None:
        self._memory.threshold = nbytes

    def trim(self, keep_bytes: int = 0) -> None:
        self._memory.trim(keep_bytes)

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost.with_traceback(None)
