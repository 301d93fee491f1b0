"""The simulated driver: Python functions in virtual time and seeded order.

Its memory is host memory. Nothing runs by itself: a wait or a query makes the simulation take steps. At each step a
seeded number picks one of the queues that can go on. The same seed and the same calls give the same order. Another seed
gives another legal order, in which a missing wait may show.

Faults are injected by name and number: `fail("allocate")`, `fail("*", at=7)`, `fail("run:copy")` for work that fails
when it is executed, `lose()` for a device that falls off the bus. Freed memory is overwritten, and copies and fills
outside of live memory fail. Use it through `cuda_async.testing`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable

from cuda_async.driver.blocks import BlockCache, HostBlock, PooledDriver
from cuda_async.driver.fake_code import FakeFunction, FakeModule
from cuda_async.driver.interface import (
    DeviceProperties,
    DriverEvent,
    DriverFunction,
    DriverModule,
    DriverStream,
    Early,
    MemoryInfo,
)
from cuda_async.driver.sim.virtual import SimEvent, SimExecutor, SimStream
from cuda_async.errors import ArgumentError, DeviceLostError, DriverError, InternalError, LaunchError, OutOfMemoryError

__all__ = ("SimDriver",)

_FREED = 0xDD  # freed memory is filled with this byte: a late reader finds large negative numbers


class _Fault:
    """A call that is to fail.

    Attributes:
        name: its name; `*` for any.
        calls_left: calls of the name until then, the failing one included.
        error: the error that it raises.
    """

    def __init__(self, name: str, at: int, error: BaseException) -> None:
        self.name = name
        self.calls_left = at
        self.error = error

    def counts(self, call: str) -> bool:
        """Whether a call is one of the name. `*` is for calls alone: `run:` is work."""
        return self.name == call or (self.name == "*" and not call.startswith("run:"))


class SimDriver(PooledDriver):
    """A device for tests.

    Args:
        seed: picks the order of what may happen in any order; 0 if it is left out.
        ordinal: the number of the device.
        width: the number of simulated workers over which a kernel is spread; 3 if it is left out.
        memory_bytes: the bytes that can be allocated. Pinned memory is the host's, and does not count.
        beside: another simulated device of the same machine. Steps of both are picked together, by that device's seed
            and over its workers: `seed` and `width` are left out.
        seconds: returns the virtual time of work, in seconds, of its kind (`launch`, `copy`, `fill` or `call`) and its
            size in tile blocks or bytes. By default it is a few microseconds, times a random number.

    Attributes:
        log: a line for each call on a stream but `begin_run`: `launch 4 on s1`, `wait e2 on s1`.
        calls: by name, the number of calls, and of pieces of work that were executed (`run:copy`). Frees do not count.
        time: the virtual time, in seconds.
        lost: the error of a lost device; None while it works.
        events: events that were made and not closed.
        graphs: graphs that were made and not closed.
        open_runs: runs that were begun and not ended.
        automatic: whether a query makes the simulation take a step; a wait always does.

    Raises:
        ValueError: `seed` or `width` is given with `beside`.

    Example:
        >>> from cuda_async import Device, value
        >>> driver = SimDriver(seed=1)
        >>> value(3).sync_on(Device.from_driver(driver).new_stream())
        3
    """

    runs_host_code = True
    dlpack_type = 12  # kDLExtDev: a device outside of the standard

    def __init__(
        self,
        seed: int | None = None,
        *,
        ordinal: int = 0,
        width: int | None = None,
        memory_bytes: int = 1 << 30,
        beside: SimDriver | None = None,
        seconds: Callable[[str, int], float] | None = None,
    ) -> None:
        self.seconds = seconds
        if beside is None:
            self._executor = SimExecutor(0 if seed is None else seed, 3 if width is None else width)
        else:
            for name, number in (("seed", seed), ("width", width)):
                if number is not None:
                    raise ArgumentError(
                        f"{name}: a device beside another one has that device's, got {number}; leave it out, and give "
                        "it to the first device"
                    )
            self._executor = beside.executor
        self._memory = BlockCache(HostBlock, memory_bytes)
        self._host_memory = BlockCache(HostBlock, memory_bytes)
        self._live: dict[int, int] = {}
        self._pinned: dict[int, int] = {}
        self._faults: list[_Fault] = []
        self._properties = DeviceProperties(
            kind="sim",
            ordinal=ordinal,
            name=f"simulated device (seed {self._executor.seed})",
            arch="cpu",
            multiprocessor_count=self._executor.width,
            l2_cache_bytes=0,
            total_memory_bytes=memory_bytes,
        )
        self._streams = 0
        self._by_number: weakref.WeakValueDictionary[int, SimStream] = weakref.WeakValueDictionary()
        self._modules: dict[bytes, FakeModule] = {}
        self._event_numbers = 0
        self.events = 0
        self.open_runs = 0
        self.graphs = 0
        self.lost: DeviceLostError | None = None
        self.log: list[str] = []
        self.calls: Counter[str] = Counter()
        self.time = 0.0

    @property
    def executor(self) -> SimExecutor:
        """The executor, which takes the steps."""
        return self._executor

    @property
    def pinned_bytes(self) -> int:
        """Bytes of pinned memory in use, in whole blocks."""
        return self._host_memory.used

    @property
    def automatic(self) -> bool:
        return self._executor.automatic

    @automatic.setter
    def automatic(self, on: bool) -> None:
        self._executor.automatic = on

    # -- control ------------------------------------------------------------------------------

    def fail(self, call: str, *, at: int = 1, error: BaseException | None = None) -> None:
        """Make the `at`-th call of this name from now on fail, once.

        Each fault counts all calls of its name, also those that fail by another fault. If several are due at one call,
        it raises the error of the first that was injected.

        Args:
            call: `allocate`, `copy`, `fill`, `call`, `launch`, `meet`, `record`, `wait_event`, `begin_run`, `pin`,
                `load_module`, `begin_capture`, `end_capture`, `instantiate`, `upload`, `launch_graph`, `create_stream`,
                `create_event`; `run:` before copy, fill, call, launch or meet for work that fails when executed;
                `*` for any call.
            at: 1 for the next call.
            error: the error; by default a `DriverError`, or an `OutOfMemoryError` for memory. A `DeviceLostError` loses
                the device.
        """
        if error is None:
            kind = OutOfMemoryError if call in ("allocate", "pin") else DriverError
            error = kind(999, "SIM_FAULT", f"injected fault in {call}")
        self._faults.append(_Fault(call, at, error))

    def lose(self, error: DeviceLostError | None = None) -> None:
        """Lose the device: every later call and wait fails with this error.

        A wait for finished work does so, too.
        """
        self.lost = error or DeviceLostError(719, "SIM_DEVICE_LOST", "the simulated device was lost")

    def step(self) -> bool:
        """Take one step; return False if nothing can happen."""
        return self._executor.step()

    def run_until_idle(self) -> int:
        """Take steps until nothing can happen; return their number."""
        steps = 0
        while self._executor.step():
            steps += 1
        return steps

    # -- for streams --------------------------------------------------------------------------

    def enter(self, call: str, line: str | None = None) -> None:
        """A call begins: count it, log it, and raise its fault if one is due."""
        with self._executor.lock:
            self.calls[call] += 1
            if line is not None:
                self.log.append(line)
            if self.lost is not None:
                self.check()
            if self._faults and (error := self._due_error(call)) is not None:
                try:
                    raise error
                finally:
                    del error  # the exception holds this frame: a cycle, if the frame held the exception

    def _due_error(self, call: str) -> BaseException | None:
        """The error of the first fault that is due. All faults count the call."""
        errors: list[BaseException] = []
        for fault in [*self._faults]:
            if fault.counts(call):
                fault.calls_left -= 1
                if not fault.calls_left:
                    self._faults.remove(fault)
                    errors.append(fault.error)
                    if isinstance(fault.error, DeviceLostError):
                        self.lost = fault.error
        return errors[0] if errors else None

    def advance_to(self, clock: float) -> None:
        """Note that the clock of a stream has reached this time, in seconds."""
        self.time = max(self.time, clock)

    def allocate(self, nbytes: int) -> int:
        """Allocate memory when the caller calls, not in stream order."""
        limit = self._properties.total_memory_bytes
        if self._memory.used + nbytes > limit:
            raise OutOfMemoryError(
                2, "SIM_OUT_OF_MEMORY", f"{nbytes} bytes asked for, {self._memory.used} of {limit} in use"
            )
        address = self._memory.allocate(nbytes)
        with self._executor.lock:  # a step of another thread may look through `_live`
            self._live[address] = nbytes
        return address

    def free(self, address: int) -> None:
        """Free memory, in stream order, and overwrite it: a late reader finds nonsense.

        Called in a step, and so under the executor's lock, as `require` is.
        """
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
        stream = self._by_number[self._streams] = SimStream(self, self._executor, self._streams - 1)
        return stream

    def create_event(self, *, timing: bool = False) -> DriverEvent:
        self.enter("create_event")
        self.events += 1
        self._event_numbers += 1
        return SimEvent(self, self._executor, timing, self._event_numbers)

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: Early = "never") -> object:
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
        return stream  # the stream itself: to close it does nothing, so that lender and borrower may both do it

    def pin(self, nbytes: int) -> int:
        self.enter("pin")
        address = self._host_memory.allocate(nbytes)
        ctypes.memset(address, _FREED, nbytes)  # a read before a copy has arrived finds nonsense
        with self._executor.lock:  # a copy may be a step of another thread, which looks through `_pinned`
            self._pinned[address] = nbytes
        return address

    def unpin(self, address: int, nbytes: int) -> None:
        with self._executor.lock:  # as in `pin`
            del self._pinned[address]
        self._host_memory.free(address)

    def memory_info(self) -> MemoryInfo:
        total = self._properties.total_memory_bytes
        used = self._memory.used
        # `max`: `allocate` checks the bytes of a request, and its block may be larger. So more than all may be in use.
        return MemoryInfo(max(0, total - used), total, used, used + self._memory.kept)

    def check(self) -> None:
        if self.lost is not None:
            # One exception object serves all callers: its traceback would grow, and keep their frames.
            raise self.lost.with_traceback(None)
