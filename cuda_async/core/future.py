"""`DeviceFuture`: an operation on a chosen stream, to be awaited by any tasks.

Four states: idle (nothing enqueued), executing, complete, failed. The stream is fixed when the
future is made; all work is enqueued when the future is first awaited. Awaiting never blocks the
event loop: a brief spin if the loop has nothing else to do, then the task sleeps until a thread
of the driver or the reactor wakes the loop.

A future is a `collections.abc.Coroutine`, so `asyncio.create_task`, `TaskGroup` and `gather` take it.
Cancelling a task that awaits it ends the waiting, not the work: all that the device may touch is held
until the device is done.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from cuda_async.config import config
from cuda_async.core.lease import Lease, PlainUse, Use, end, enter
from cuda_async.core.nesting import refuse_nested
from cuda_async.core.operation import Operation, UnrunOperationWarning, whole
from cuda_async.core.prerequisite import do_prerequisites
from cuda_async.core.run import Run, abandon
from cuda_async.core.stream import Stream
from cuda_async.core.waiting import current_task, loop_is_busy, suspend, thrown
from cuda_async.locks import start_thread
from cuda_async.site import site_of

__all__ = ("DeviceFuture", "FutureState")

T = TypeVar("T")

_SPIN_POLL_S = 20e-6  # seconds between two looks whether another thread's spin has ended, which takes about as long


class FutureState(Enum):
    """The state of a `DeviceFuture`."""

    IDLE = "idle"
    EXECUTING = "executing"
    COMPLETE = "complete"
    FAILED = "failed"


_REMEDIES = {
    **dict.fromkeys(("get", "get_result", "join", "result", "wait"), "future.sync(), or await future"),
    **dict.fromkeys(
        ("cancel", "cancelled"),
        "asyncio.create_task(future).cancel(), which ends the waiting: a device takes no work back",
    ),
    **dict.fromkeys(("done", "is_done", "ready", "running"), "future.state, which is a FutureState"),
    "exception": "try: future.sync(), or await future, which raises it",
    **dict.fromkeys(("add_done_callback", "then"), "op.then(function) before the operation is scheduled"),
}
"""The end of an error, by a name that futures of other libraries have."""


class DeviceFuture(Coroutine[Any, Any, T], Generic[T]):
    """The future result of an operation. Await it any number of times, in any tasks.

    Made by `op.schedule(policy)` and `op.into_future()`.

    Raises:
        OwnershipError: (when made) the operation was used before.

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
        "__weakref__", "_ended_leases", "_finished", "_leases", "_op", "_result", "_run", "_started", "_stream",
        "_waits",
    )  # fmt: skip

    def __init__(self, op: Operation[T], stream: Stream) -> None:
        # The frames: this one, `fastpath.schedule`, `DeviceOp.schedule`, the user's.
        site = site_of(sys._getframe(3))  # pyright: ignore[reportPrivateUsage]
        self._leases = op.begin(composed=False, site=site)
        self._op: Operation[T] | None = op
        self._stream = stream
        self._started = self._finished = False
        self._run: Run[T] | None = None
        self._result: Any = None
        self._waits: dict[object, Generator[Any, Any, T]] | None = None  # `__await__` of each task
        # Leases that were ended when a task was cancelled before its first step, each with its uses and guards.
        self._ended_leases: list[tuple[Lease, Sequence[Use | PlainUse], Any]] | None = None

    @property
    def stream(self) -> Stream:
        """The stream that was chosen."""
        return self._stream

    @property
    def state(self) -> FutureState:
        """The current state."""
        if not self._started:
            return FutureState.IDLE
        run = self._run
        if run is None or not run.done:
            # Finished without a run: on the fast path of `fastpath.py`.
            return FutureState.COMPLETE if self._finished else FutureState.EXECUTING
        return FutureState.FAILED if run.failed else FutureState.COMPLETE

    def start(self) -> None:
        """Enqueue the work now instead of when the future is first awaited. Does not wait.

        Raises:
            ReentrancyError: called inside the submission of another operation.
        """
        if self._started and self._run is None:
            return  # it has finished, or another thread is enqueueing it and will follow it: nothing is left to do
        run = self._submitted()
        if run is not None:
            run.watch()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # The class is named as users know it: futures of the fast path are of a class of its own.
            remedy = f"; write {_REMEDIES[name]}" if name in _REMEDIES else ""
            raise AttributeError(f"'DeviceFuture' object has no attribute {name!r}{remedy}", name=name, obj=self)

    def sync(self) -> T:
        """Wait on this thread, without an event loop, and return the result.

        Raises:
            ReentrancyError: called inside the submission of another operation.
            BaseException: the operation's error.
        """
        refuse_nested("sync()")
        run = self._submitted(waited=True)
        return self._result if run is None else run.wait()

    def _submitted(self, *, waited: bool = False) -> Run[T] | None:
        """The run, enqueued now if it was not; None where the operation has finished.

        Args:
            waited: whether the caller waits for the run. Then slow prerequisites may be done on its thread.
        """
        if self._started:
            return self._find_run()
        refuse_nested("await or start()")
        return self._submit(waited=waited)

    def _submit(self, *, waited: bool = False) -> Run[T] | None:
        op, run = self._op, self._make_run()
        if run is None:
            return self._find_run()
        try:
            if waited and op is not None:
                do_prerequisites(op, self._stream.device)
            run.submit()
        except BaseException as error:
            run.leave(error)
            raise
        return run

    def _make_run(self) -> Run[T] | None:
        """Take the operation, and make its run; None where another thread has taken it."""
        op = self._op
        if op is None:
            return None
        if self._ended_leases is not None:
            self._renew_leases(self._ended_leases)
        run = Run(op, self._stream, self._leases)
        # No call from the test to the end of the next assignment: at a call threads could change, and two could take
        # the operation. Nor can a signal come amid the assignment: either the future or the run owns the operation.
        if self._started:
            return None
        self._run, self._started, self._op = run, True, None
        return run

    def _find_run(self) -> Run[T] | None:
        """The run of a future that was started; None if it finished without one.

        Waits while another thread spins for it.
        """
        while self._run is None and not self._finished:
            time.sleep(_SPIN_POLL_S)  # another thread is in its spin, and makes a run if that takes too long
        return self._run

    # -- awaiting -----------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, Any, T]:
        __tracebackhide__ = True
        run = self._find_run() if self._started else self._begin()
        if run is None:
            return self._result
        if not run.done:
            if not loop_is_busy():  # nothing else to do: checks may ask other processes now
                self._stream.driver.awaited()
            run.watch()
            run.raise_interrupt()  # Ctrl-C during the submission is raised now, not when the device is done
            yield from suspend(run)
        return run.outcome()

    def _begin(self) -> Run[T] | None:
        """Enqueue the work, and spin briefly if no other task waits for this loop.

        Returns:
            The run; None where the operation finished without one.
        """
        refuse_nested("await")
        op, stream = self._op, self._stream
        if op is None:  # another thread has taken it
            return self._find_run()
        preparations = list(op.preparations(stream.device))
        if preparations:
            return self._prepare(preparations)
        run = self._submit()
        if run is not None and not run.done and self._may_spin():
            stream.driver.awaited()
            self._spin(run.poll)
        return run

    # -- cancelled before it began ------------------------------------------------------------

    def _end_leases(self) -> None:
        """End the operation's leases: its task was cancelled before the first step.

        If another task awaits the future all the same, `_renew_leases` enters them again.
        """
        op = self._op
        if op is not None and self._ended_leases is None:
            leases = [lease for part in whole(op) for lease in part.leases]
            self._ended_leases = [(lease, lease.uses, lease.guarded) for lease in leases if lease.active]
            end(leases)

    def _renew_leases(self, ended: list[tuple[Lease, Sequence[Use | PlainUse], Any]]) -> None:
        """Enter leases that `_end_leases` ended.

        Raises:
            OwnershipError: another operation uses the memory meanwhile.
        """
        for lease, uses, guarded in ended:
            lease.uses, lease.guarded, lease.active = uses, guarded, True
            try:
                enter(lease)
            except BaseException:
                end([lease for lease, *_ in ended])
                raise
        self._ended_leases = None

    def _may_spin(self) -> bool:
        """Whether a brief spin delays neither another task nor a thread of the device."""
        return self._stream.device.driver.works_alone and config().spin_budget_us > 0 and not loop_is_busy()

    @staticmethod
    def _spin(is_done: Callable[[], bool]) -> bool:
        """Call `is_done` until it returns True, or the spin budget is spent.

        Returns the last answer.
        """
        clock = time.perf_counter
        end = clock() + config().spin_budget_us * 1e-6
        while not is_done():
            if clock() > end:
                return False
        return True

    def _prepare(self, preparations: list[Callable[[], object]]) -> Run[T] | None:
        """Have a new thread do slow host work (compiling), and then enqueue the operation."""
        run = self._make_run()
        if run is None:
            return self._find_run()
        try:
            context = contextvars.copy_context()  # functions given to then() see the task's variables
            thread = threading.Thread(
                target=context.run,
                args=(run.prepare_and_submit, preparations),
                name="cuda_async-prepare",
                daemon=True,
            )
            start_thread(thread)
        except BaseException as error:
            run.leave(error)
            raise
        return run

    # -- Coroutine: each task that drives this future has a generator of its own ----------------

    def send(self, value: Any) -> Any:
        """Advance the current task's wait; for event loops."""
        return self._step(lambda wait: wait.send(value))

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Throw into the current task's wait; for event loops."""
        error = thrown(kind, value, trace)
        if not self._started and not self._in_progress():
            self._end_leases()
        return self._step(lambda wait: wait.throw(error))

    def close(self) -> None:
        """End the current task's wait; the work goes on."""
        wait = self._waits.pop(current_task(), None) if self._waits else None
        if wait is not None:
            wait.close()
        elif not self._started:
            self._end_leases()

    def _in_progress(self) -> bool:
        return bool(self._waits) and current_task() in self._waits

    def _step(self, advance: Callable[[Generator[Any, Any, T]], Any]) -> Any:
        task, waits = current_task(), self._waits
        if waits is None:
            waits = self._waits = {}
        wait = waits.get(task)
        if wait is None:
            wait = waits[task] = self.__await__()
        try:
            return advance(wait)
        except BaseException:  # StopIteration included, by which a generator returns
            waits.pop(task, None)
            raise

    def __del__(self) -> None:
        op = getattr(self, "_op", None)  # absent where __init__ failed; gone once it was started
        if op is None or self._started:
            return
        abandon(op, self._leases)
        # No warning where the future was cancelled, or an exception is why the program did not come to it.
        if self._ended_leases is None and op.warns() and not sys.is_finalizing() and sys.exc_info()[1] is None:
            warnings.warn_explicit(
                "the operation made here was scheduled but never run. Await its future, or call .start().",
                UnrunOperationWarning,
                *op.site,
            )

    def __repr__(self) -> str:
        return f"<DeviceFuture {self.state.value} on {self.stream}>"
