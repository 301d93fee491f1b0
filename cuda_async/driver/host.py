"""The host driver: this machine's CPU as a device.

A stream is an ordered queue (`queue.py`); the pool of worker threads (`pool.py`) runs the queues
of all streams at once and splits each kernel over the workers. Kernels should release the GIL:
`ctypes` functions do.
"""

from __future__ import annotations

import os
import platform
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from cuda_async.config import config, usable_cores
from cuda_async.driver.blocks import Block, BlockCache, HostBlock, PooledDriver
from cuda_async.driver.executor import Executor, Ticket
from cuda_async.driver.interface import (
    DeviceProperties,
    DriverEvent,
    DriverStream,
    Early,
    MemoryInfo,
)
from cuda_async.driver.pool import WorkerPool, worker_pool
from cuda_async.driver.queue import QueueEvent, QueueStream
from cuda_async.errors import ContextError, LaunchError, OutOfMemoryError, ReentrancyError, as_text
from cuda_async.locks import EXITING, Gate

__all__ = ("HostDriver",)


class _PoolExecutor(Executor):
    """Runs queues on the pool of the process, in real time."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.width = self.threads = pool.width

    def put(self, task: Callable[[], None]) -> None:
        self._pool.put(task)

    def pressed(self) -> bool:
        return self._pool.waiting()

    def wait(self, ticket: Ticket, timeout_s: float) -> bool:
        if self._pool.is_worker() and not ticket.done:
            raise ReentrancyError(
                "a worker of the CPU was to wait for work, which may need that worker: a function that a stream calls "
                "(stream.call, on_complete), or a finalizer that a collection on a worker called, waits (sync(), "
                "synchronize()). Wait on another thread; a finalizer may enqueue its operation without a wait."
            )
        gate = Gate()
        if not ticket.when_done(gate.open):
            return True
        if gate.wait(timeout_s):
            return True
        ticket.drop(gate.open)  # or a ticket that is never reached would keep the gate
        if self._pool.closed and not ticket.done:
            raise ContextError(0, EXITING)
        return ticket.done

    def enter(self, stream: QueueStream, kind: str, amount: int) -> None:
        pass

    def now(self, stream: QueueStream) -> float:
        return time.perf_counter()

    def joined(self, stream: QueueStream, ticket: Ticket) -> None:
        pass

    def progress(self) -> None:
        pass


class HostDriver(PooledDriver):
    """The CPU. One object serves the whole process (`Device.host()`)."""

    runs_host_code = True
    dlpack_type = 1

    def __init__(self) -> None:
        total = _total_memory()
        threshold = config().pool_bytes
        # Freed bytes that are kept for reuse: enough for a working set, while most memory is left to other processes.
        self._memory = BlockCache(self._block, min(4 << 30, total // 4) if threshold is None else threshold)
        self._executor = _PoolExecutor(worker_pool())
        self._streams: weakref.WeakSet[QueueStream] = weakref.WeakSet()
        self._properties = DeviceProperties(
            kind="host",
            ordinal=0,
            name=_processor_name(),
            arch="cpu",
            multiprocessor_count=usable_cores(),
            l2_cache_bytes=_last_level_cache(),
            total_memory_bytes=total,
        )
        _drivers.add(self)

    @property
    def properties(self) -> DeviceProperties:
        return self._properties

    def create_stream(self) -> DriverStream:
        stream = QueueStream(self._executor, self._memory.allocate, self._memory.free)
        self._streams.add(stream)
        return stream

    def create_event(self, *, timing: bool = False) -> DriverEvent:
        return QueueEvent(self._executor, timing)

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: Early = "never") -> object:
        raise LaunchError("load_function: the CPU runs no GPU code; compile for the target 'cpu'")

    def pin(self, nbytes: int) -> int:
        return self._memory.allocate(nbytes)  # a host copy needs no page-locked memory

    def unpin(self, address: int, nbytes: int) -> None:
        self._memory.free(address)

    def memory_info(self) -> MemoryInfo:
        memory, total = self._memory, self._properties.total_memory_bytes
        return MemoryInfo(_available_memory(total), total, memory.used, memory.used + memory.kept)

    def _block(self, size: int) -> Block:
        try:
            return HostBlock(size)
        except (MemoryError, OSError, OverflowError, ValueError) as error:  # the last two: too large for a size_t
            raise OutOfMemoryError(
                0,
                "HOST_OUT_OF_MEMORY",
                f"allocating {as_text(size)} bytes failed ({error}); {self._memory.used} bytes are in use and "
                f"{self._memory.kept} kept for reuse (trim() gives those back)",
            ) from error

    def check(self) -> None:
        pass

    def after_fork(self) -> None:
        """Drop the work of threads that the child does not have.

        The next work starts new threads.
        """
        error = ContextError(0, "this process was forked while the work was in flight; it goes on in the parent only")
        for stream in self._streams:
            stream.lose(error)


_drivers: weakref.WeakSet[HostDriver] = weakref.WeakSet()


def _after_fork() -> None:
    for driver in list(_drivers):
        driver.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _total_memory() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 << 30  # Windows: only a basis for the threshold


def _available_memory(total: int) -> int:
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total


def _last_level_cache() -> int:
    """Bytes of the largest cache of the first core; 0 if unknown."""
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        if scale and text[:-1].isdecimal():
            largest = max(largest, int(text[:-1]) * scale)
    return largest
