"""The runtime thread, and `Call`: a function to be called on it, awaited.

One thread of the process makes the calls, first come first served. The function of a call enqueues work and returns at
once. If it returns `Started`, the call then waits for that work, while the thread is free for other calls.
"""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, cast

from cuda_async.core.waiting import suspend, thrown
from cuda_async.locks import Gate, new_lock, start_thread

__all__ = ("Call", "Started", "post")

T = TypeVar("T")


class _Thread:
    """The runtime thread: it runs functions in order, and starts with the first one."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = new_lock()
        self._thread: threading.Thread | None = None

    def put(self, task: Callable[[], object]) -> None:
        self._tasks.put(task)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="cuda_async-runtime", daemon=True)
                    self._thread = thread  # set before it starts: two threads would not keep the order of calls
                    try:
                        start_thread(thread)
                    except BaseException:
                        if not thread.is_alive():
                            self._thread = None
                        raise

    def _run(self) -> None:
        while True:
            self._tasks.get()()


_thread = _Thread()


def _after_fork() -> None:
    global _thread
    _thread = _Thread()  # the calls that are queued are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def post(function: Callable[[], object]) -> None:
    """Have `function` called on the runtime thread, in order. Does not wait.

    It must not raise.
    """
    _thread.put(function)


class _Work(Protocol):
    """Work that the device does: a run."""

    def when_done(self, waiter: Callable[[], None]) -> None: ...
    def outcome(self) -> Any: ...


class Started(Generic[T]):
    """The return value of a function whose call ends with work of the device.

    Args:
        work: the runs to wait for. The outcome of the first is the call's; a failure of any is raised.
    """

    __slots__ = ("work",)

    def __init__(self, *work: _Work) -> None:
        self.work = work


class _State(Enum):
    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    WITHDRAWN = "withdrawn"


class Call(Coroutine[Any, Any, T], Generic[T]):
    """A call to be made on the runtime thread, once it is awaited.

    It may be awaited once.

    Cancelling the task that awaits it withdraws a call that has not begun. It waits for a function that runs, since
    that uses the caller's objects. It does not stop work of the device, which keeps the objects that it uses.
    """

    __slots__ = ("__weakref__", "_driver", "_error", "_function", "_lock", "_result", "_state", "_waiters", "name")

    def __init__(self, name: str, function: Callable[[], T | Started[T]]) -> None:
        self.name = name
        self._function: Callable[[], T | Started[T]] | None = function
        self._lock = new_lock()
        self._state = _State.NEW
        self._waiters: list[Callable[[], None]] = []
        self._result: T | Started[T] | None = None
        self._error: BaseException | None = None
        self._driver: Generator[Any, Any, T] | None = None

    # -- on the runtime thread ----------------------------------------------------------------

    def _make(self, context: contextvars.Context) -> None:
        with self._lock:
            if self._state is _State.WITHDRAWN:
                return
            self._state = _State.RUNNING
            function, self._function = self._function, None
        try:
            self._result = context.run(cast("Callable[[], Any]", function))
        except BaseException as error:
            self._error = error
        del function  # it refers to buffers, which the frame of a waiter below must not keep
        with self._lock:
            self._state = _State.DONE
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def when_done(self, waiter: Callable[[], None]) -> None:
        """Have `waiter` called once, on some thread, when the function has returned.

        It is called at once if the function has returned.
        """
        with self._lock:
            if self._state is not _State.DONE:
                self._waiters.append(waiter)
                return
        waiter()

    # -- awaiting -----------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, Any, T]:
        with self._lock:
            if self._state is not _State.NEW:
                raise RuntimeError(f"{self.name}: this call was awaited before; call it again for another one")
            self._state = _State.QUEUED
        context = contextvars.copy_context()
        _thread.put(lambda: self._make(context))
        yield from self._returned()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle
        result = self._result
        if not isinstance(result, Started):
            return cast("T", result)
        started = cast("Started[T]", result)
        for work in started.work:
            yield from suspend(work)
        outcomes = [work.outcome() for work in started.work]  # all are asked, since each raises its failure
        return cast("T", outcomes[0])

    def _returned(self) -> Generator[Any, Any, None]:
        """Wait until the function has returned; withdraw the call if cancelled or closed.

        A function that runs uses the caller's objects. So the caller must not go on before it returns.
        """
        try:
            yield from suspend(self)
        except GeneratorExit:  # a closed generator cannot be suspended again
            if not self._withdraw():
                self._block()
            raise
        except BaseException:
            if not self._withdraw():
                try:
                    yield from suspend(self)
                except BaseException:  # cancelled again, or for good: the function only enqueues, and returns soon
                    self._block()
            raise

    def _withdraw(self) -> bool:
        """Drop the call if it has not begun; return whether it will never run."""
        with self._lock:
            if self._state is _State.QUEUED:
                self._state = _State.WITHDRAWN
                self._function = None
            return self._state is _State.WITHDRAWN

    def _block(self) -> None:
        """Wait on this thread until the function has returned."""
        returned = Gate()
        self.when_done(returned.open)
        returned.wait()

    # -- Coroutine ----------------------------------------------------------------------------

    def _generator(self) -> Generator[Any, Any, T]:
        if self._driver is None:
            self._driver = self.__await__()
        return self._driver

    def send(self, value: Any) -> Any:
        """Advance; for event loops."""
        return self._generator().send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Throw into the waiting; for event loops."""
        error = thrown(kind, value, trace)
        return self._generator().throw(error)

    def close(self) -> None:
        """Give the call up; see the class."""
        if self._driver is not None:
            self._driver.close()

    def __repr__(self) -> str:
        return f"<Call {self.name}, {self._state.value}>"
