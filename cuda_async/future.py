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
from typing import Any, Generic, TypeVar, cast

from cuda_async.config import config
from cuda_async.nesting import refuse_nested
from cuda_async.op import DeviceOp, UnrunOperationWarning
from cuda_async.policy import SchedulingPolicy, default_stream, next_stream
from cuda_async.run import Run
from cuda_async.site import Site, site_of
from cuda_async.stream import Stream
from cuda_async.waiting import current_task, loop_is_busy, suspend

__all__ = ("DeviceFuture", "FutureState", "into_future", "schedule")

T = TypeVar("T")


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

    __slots__ = ("__weakref__", "_drivers", "_preparing", "_run", "_site", "_started", "_warns")

    def __init__(self, op: DeviceOp[T], stream: Stream) -> None:
        self._site: Site = op.site
        self._started = False
        self._preparing = False
        self._warns = op.warns()
        site = site_of(sys._getframe(3))  # pyright: ignore[reportPrivateUsage]  # of who called schedule()
        self._run: Run[T] = Run(op, stream, op.begin(composed=False, site=site))
        self._drivers: dict[object, Generator[Any, Any, T]] = {}

    @property
    def stream(self) -> Stream:
        """The stream that was chosen."""
        return self._run.stream

    @property
    def state(self) -> FutureState:
        """Where the future is now."""
        if not self._started:
            return FutureState.IDLE
        if not self._run.done:
            return FutureState.EXECUTING
        return FutureState.FAILED if self._run.failed else FutureState.COMPLETE

    def start(self) -> None:
        """Enqueue the work now instead of when the future is first awaited. Does not wait.

        Raises:
            ReentrancyError: called inside the submission of another operation.
        """
        self._submit()
        self._run.watch()

    def _prepares(self) -> bool:
        """Have slow host work (compiling) done on a thread of its own, which then enqueues. Whether there is any."""
        if self._started:
            return self._preparing
        refuse_nested("await")
        preparations = self._run.preparations()
        if not preparations:
            return False
        self._started = self._preparing = True
        context = contextvars.copy_context()  # functions given to then() see the task's variables
        threading.Thread(
            target=context.run,
            args=(self._run.prepare_and_submit, preparations),
            name="cuda_async-prepare",
            daemon=True,
        ).start()
        return True

    def _submit(self) -> None:
        if not self._started:
            refuse_nested("await or start()")
            self._started = True
            self._run.submit()

    def sync(self) -> T:
        """Wait on this thread, without an event loop. Raises what the operation raised."""
        refuse_nested("sync()")
        self._submit()
        return self._run.wait()

    # -- awaiting -----------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, Any, T]:
        run = self._run
        if not run.done:
            if not self._prepares():
                self._submit()
            if not run.done and (self._preparing or not self._spin()):
                run.watch()
                run.raise_interrupt()
                yield from suspend(run)
        return run.outcome()

    def _spin(self) -> bool:
        """Wait very briefly for a short kernel, if nothing else waits for this loop."""
        if self._run.stream.device.kind != "cuda":
            return False  # a spin would keep the interpreter from the workers that do the work
        budget = config().spin_budget_us
        if budget <= 0 or loop_is_busy():
            return False
        end = time.perf_counter() + budget * 1e-6
        while not self._run.poll():
            if time.perf_counter() > end:
                return False
        return True

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
        error = kind if isinstance(kind, BaseException) else value
        if not isinstance(error, BaseException):
            error = cast("type[BaseException]", kind)()
        return self._step(lambda driver: driver.throw(error.with_traceback(trace or error.__traceback__)))

    def close(self) -> None:
        """End the waiting of the current task; the work goes on."""
        driver = self._drivers.pop(current_task(), None)
        if driver is not None:
            driver.close()

    def _step(self, advance: Callable[[Generator[Any, Any, T]], Any]) -> Any:
        task = current_task()
        driver = self._drivers.get(task)
        if driver is None:
            driver = self._drivers[task] = self.__await__()
        try:
            return advance(driver)
        except BaseException:
            self._drivers.pop(task, None)
            raise

    def __del__(self) -> None:
        if getattr(self, "_started", True):
            return
        run = getattr(self, "_run", None)
        if run is None:
            return
        run.abandon()
        if self._warns and not sys.is_finalizing() and sys.exc_info()[1] is None:
            warnings.warn_explicit(
                "the operation made here was scheduled but never run. Await its future, or call .start().",
                UnrunOperationWarning,
                *self._site,
            )

    def __repr__(self) -> str:
        return f"<DeviceFuture {self.state.value} on {self.stream}>"


def schedule(op: DeviceOp[T], policy: SchedulingPolicy) -> DeviceFuture[T]:
    """Choose the stream now; see `DeviceOp.schedule`."""
    return DeviceFuture(op, next_stream(policy))


def into_future(op: DeviceOp[T]) -> DeviceFuture[T]:
    """Choose the default policy's next stream now; see `DeviceOp.into_future`."""
    return DeviceFuture(op, default_stream())
