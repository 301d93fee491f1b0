"""`DeviceFuture`: an operation with its stream chosen, to be awaited by any number of tasks.

Four states: idle (nothing enqueued), executing, complete, failed. The stream is fixed when the
future is made; the work is enqueued, whole, when it is first awaited. Awaiting never blocks the
event loop: a brief spin if the loop has nothing else to do, then the task sleeps until a thread
of the driver or the reactor wakes the loop.

It is a `collections.abc.Coroutine`, so `asyncio.create_task`, `TaskGroup` and `gather` take it.
Cancelling a task that awaits it ends the waiting, not the work: what the device may touch is held
until the device is done.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from types import TracebackType
from typing import Any, Generic, TypeVar

from cuda_async.config import config
from cuda_async.nesting import refuse_nested
from cuda_async.op import DeviceOp, UnrunOperationWarning
from cuda_async.policy import SchedulingPolicy, default_stream, next_stream
from cuda_async.run import Run, abandon
from cuda_async.site import site_of
from cuda_async.straight import enqueue, short_way
from cuda_async.stream import Stream
from cuda_async.waiting import current_task, loop_is_busy, suspend, thrown

__all__ = ("DeviceFuture", "FutureState", "into_future", "schedule")

T = TypeVar("T")

_GLANCE_S = 20e-6


class FutureState(Enum):
    """Where a `DeviceFuture` is."""

    IDLE = "idle"
    EXECUTING = "executing"
    COMPLETE = "complete"
    FAILED = "failed"


class DeviceFuture(Coroutine[Any, Any, T], Generic[T]):
    """The result of an operation, to come; made by `op.schedule(policy)` and `op.into_future()`.

    Example:
        >>> import asyncio
        >>> from cuda_async import global_policy, value
        >>> async def main():
        ...     future = value(42).schedule(global_policy())
        ...     return await future, await future
        >>> asyncio.run(main())
        (42, 42)
    """

    __slots__ = (
        "__weakref__", "_drivers", "_finished", "_leases", "_op", "_preparing", "_result", "_run", "_started",
        "_stream",
    )  # fmt: skip

    def __init__(self, op: DeviceOp[T], stream: Stream) -> None:
        site = site_of(sys._getframe(3))  # pyright: ignore[reportPrivateUsage]  # of who called schedule()
        self._leases = op.begin(composed=False, site=site)
        self._op: DeviceOp[T] | None = op
        self._stream = stream
        self._started = self._preparing = self._finished = False
        self._run: Run[T] | None = None  # stays so where a brief spin is all the waiting that there is
        self._result: Any = None
        self._drivers: dict[object, Generator[Any, Any, T]] | None = None

    @property
    def stream(self) -> Stream:
        """The stream that was chosen."""
        return self._stream

    @property
    def state(self) -> FutureState:
        """Where the future is now."""
        if not self._started:
            return FutureState.IDLE
        run = self._run
        if run is None or not run.done:
            return FutureState.COMPLETE if self._finished else FutureState.EXECUTING
        return FutureState.FAILED if run.failed else FutureState.COMPLETE

    def start(self) -> None:
        """Enqueue the work now instead of when the future is first awaited. Does not wait.

        Raises:
            ReentrancyError: called inside the submission of another operation.
        """
        run = self._submitted()
        if run is not None:
            run.watch()

    def sync(self) -> T:
        """Wait on this thread, without an event loop. Raises what the operation raised."""
        refuse_nested("sync()")
        run = self._submitted()
        return self._result if run is None else run.wait()

    def _submitted(self) -> Run[T] | None:
        """The run, which is enqueued now if it was not; None where all is done."""
        if self._started:
            return self._find_run()
        refuse_nested("await or start()")
        run = self._make_run()
        run.submit()
        return run

    def _make_run(self) -> Run[T]:
        op, self._op = self._op, None
        assert op is not None, "it was started before"
        run = self._run = Run(op, self._stream, self._leases)
        self._started = True
        return run

    def _find_run(self) -> Run[T] | None:
        """The run of what was started before; None if there was none and all is done."""
        while self._run is None and not self._finished:
            time.sleep(_GLANCE_S)  # another thread is in its spin at this moment
        return self._run

    # -- awaiting -----------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, Any, T]:
        run = self._find_run() if self._started else self._begin()
        if run is None:
            return self._result
        if not run.done:
            run.watch()
            run.raise_interrupt()
            yield from suspend(run)
        return run.outcome()

    def _begin(self) -> Run[T] | None:
        """Enqueue the work, and wait very briefly if nothing else waits for this loop. None if all is done then."""
        refuse_nested("await")
        op, stream = self._op, self._stream
        assert op is not None, "it was started before"
        preparations = list(op.preparations(stream.device))
        if preparations:
            return self._prepare(preparations)
        spins = self._may_spin()
        straight = short_way(op, stream, waited=True) if spins else None
        if straight is None:
            run = self._make_run()
            run.submit()
            if spins and not run.done:
                _spin(run.poll)
            return run
        self._op, self._started = None, True
        launched = enqueue(op, stream, straight, self._leases)
        if isinstance(launched, Run):
            self._run = launched
            return launched
        try:
            if _spin(launched.event.query) and launched.finish():
                self._result, self._finished = launched.handles, True
                return None
        except BaseException:  # Ctrl-C: what was enqueued goes on, and holds what it uses
            self._run = launched.take_over()
            self._run.watch()
            raise
        run = self._run = launched.take_over()
        run.poll()  # what failed is done
        return run

    def _may_spin(self) -> bool:
        """Whether a brief wait keeps nobody from anything. Not on the CPU, whose workers need the interpreter."""
        return self._stream.device.kind == "cuda" and config().spin_budget_us > 0 and not loop_is_busy()

    def _prepare(self, preparations: list[Callable[[], object]]) -> Run[T]:
        """Have slow host work (compiling) done on a thread of its own, which then enqueues."""
        run = self._make_run()
        self._preparing = True
        context = contextvars.copy_context()  # functions given to then() see the task's variables
        threading.Thread(
            target=context.run,
            args=(run.prepare_and_submit, preparations),
            name="cuda_async-prepare",
            daemon=True,
        ).start()
        return run

    # -- Coroutine: each task that drives this object has a generator of its own ----------------

    def send(self, value: Any) -> Any:
        """Advance the waiting of the current task; for event loops."""
        return self._step(lambda driver: driver.send(value))

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Throw into the waiting of the current task; for event loops."""
        error = thrown(kind, value, trace)
        return self._step(lambda driver: driver.throw(error))

    def close(self) -> None:
        """End the waiting of the current task; the work goes on."""
        driver = self._drivers.pop(current_task(), None) if self._drivers else None
        if driver is not None:
            driver.close()

    def _step(self, advance: Callable[[Generator[Any, Any, T]], Any]) -> Any:
        task, drivers = current_task(), self._drivers
        if drivers is None:
            drivers = self._drivers = {}
        driver = drivers.get(task)
        if driver is None:
            driver = drivers[task] = self.__await__()
        try:
            return advance(driver)
        except BaseException:
            drivers.pop(task, None)
            raise

    def __del__(self) -> None:
        op = getattr(self, "_op", None)  # absent where __init__ failed; gone once it was started
        if op is None or self._started:
            return
        abandon(op, self._leases)
        if op.warns() and not sys.is_finalizing() and sys.exc_info()[1] is None:
            warnings.warn_explicit(
                "the operation made here was scheduled but never run. Await its future, or call .start().",
                UnrunOperationWarning,
                *op.site,
            )

    def __repr__(self) -> str:
        return f"<DeviceFuture {self.state.value} on {self.stream}>"


def _spin(is_done: Callable[[], bool]) -> bool:
    """Ask until it is done or the time for that is up. Whether it is done."""
    clock = time.perf_counter
    end = clock() + config().spin_budget_us * 1e-6
    while not is_done():
        if clock() > end:
            return False
    return True


def schedule(op: DeviceOp[T], policy: SchedulingPolicy) -> DeviceFuture[T]:
    """Choose the stream now; see `DeviceOp.schedule`."""
    return DeviceFuture(op, next_stream(policy))


def into_future(op: DeviceOp[T]) -> DeviceFuture[T]:
    """Choose the default policy's next stream now; see `DeviceOp.into_future`."""
    return DeviceFuture(op, default_stream())
