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
from cuda_async.errors import DeviceLostError, DriverError, InternalError, LaunchError, OutOfMemoryError

__all__ = ("SimDriver",)

_FREED = 0xDD  # freed memory is filled with this byte: a late reader finds large negative numbers


class _Fault:
    """A call that is to fail: its name, the calls until then, the error."""

    def __init__(self, name: str, at: int, error: BaseException) -> None:
        self.name = name
        self.left = at
        self.error = error


class SimDriver(PooledDriver):
    """A device for tests.

    Args:
        seed: picks the order of what may happen in any order.
        ordinal: the number of the device.
        width: the number of simulated workers over which a kernel is spread.
        memory_bytes: the bytes that can be allocated.
        beside: another simulated device of the same machine. Steps of both are picked together, by that device's seed.
        seconds: returns the virtual time of work, in seconds, of its kind (`launch`, `copy`, `fill` or `call`) and its
            size in tile blocks or bytes. By default it is a few microseconds, times a random number.

    Attributes:
        log: the calls of the driver, a line for each: `launch 4 on s1`, `wait e2 on s1`.
        calls: the number of calls, by name.
        time: the virtual time, in seconds.
        lost: the error of a lost device; None while it works.
        events: events that were made and not closed.
        graphs: graphs that were made and not closed.
        open_runs: runs that were begun and not ended.
        automatic: whether a query makes the simulation take a step; a wait always does.

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
        seed: int = 0,
        *,
        ordinal: int = 0,
        width: int = 3,
        memory_bytes: int = 1 << 30,
        beside: SimDriver | None = None,
        seconds: Callable[[str, int], float] | None = None,
    ) -> None:
        self.seconds = seconds
        if beside is None:
            self._executor = SimExecutor(seed, width)
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
            at: 1 for the next call.
            error: the error; by default a `DriverError`, or an `OutOfMemoryError` for memory. A `DeviceLostError` loses
                the device.
        """
        if error is None:
            kind = OutOfMemoryError if call in ("allocate", "pin") else DriverError
            error = kind(999, "SIM_FAULT", f"injected fault in {call}")
        self._faults.append(_Fault(call, at, error))

    def lose(self, error: DeviceLostError | None = None) -> None:
        """Lose the device: every pending and later operation fails with this error."""
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
            if self.lost is not None and not call.startswith("run:"):
                raise self.lost.with_traceback(None)
            for fault in self._faults:
                if fault.name == call or (fault.name == "*" and not call.startswith("run:")):
                    fault.left -= 1
                    if fault.left == 0:
                        self._faults.remove(fault)
                        error = fault.error
                        if isinstance(error, DeviceLostError):
                            self.lost = error
                        del fault  # the exception will hold this frame: a cycle, if the frame held the exception
                        try:
                            raise error
                        finally:
                            del error
            if self.lost is not None:
                raise self.lost.with_traceback(None)

    def pass_time(self, clock: float) -> None:
        """The clock of a stream has reached this time."""
        self.time = max(self.time, clock)

    def allocate(self, nbytes: int) -> int:
        """Allocate memory when the caller calls, not in stream order."""
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
        """Free memory, in stream order, and overwrite it: a late reader finds nonsense."""
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
        address = self._memory.allocate(nbytes)
        ctypes.memset(address, _FREED, nbytes)  # a read before a copy has arrived finds nonsense
        with self._executor.lock:  # a copy may be a step of another thread, which looks through `_pinned`
            self._pinned[address] = nbytes
        return address

    def unpin(self, address: int, nbytes: int) -> None:
        with self._executor.lock:  # as in `pin`
            del self._pinned[address]
        self._memory.free(address)

    def memory_info(self) -> MemoryInfo:
        total = self._properties.total_memory_bytes
        used = self._memory.used
        # `max`: `allocate` checks the bytes of a request, and its block may be larger. So more than all may be in use.
        return MemoryInfo(max(0, total - used), total, used, used + self._memory.kept)

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost.with_traceback(None)
