"""Waiting of tasks: on asyncio (and uvloop), and on trio.

No other module knows event loops. A waiting task sleeps on a future of its loop. The thread that
completes the run wakes the loop by its thread-safe call. One call serves all runs that complete
before the loop handles it. Where the loop was closed meanwhile, no task waits any more.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import asyncio

__all__ = ("Waitable", "current_task", "loop_is_busy", "suspend", "thrown")


class Waitable(Protocol):
    """Work that a task can wait for: a run."""

    def when_done(self, waiter: Callable[[], None]) -> None: ...


def current_task() -> object:
    """The task that runs on this thread; None outside of tasks."""
    asyncio = _asyncio()
    try:
        if asyncio is not None:
            return asyncio.current_task()
    except RuntimeError:  # no loop of asyncio runs on this thread
        pass
    trio = _trio()
    return None if trio is None else trio.lowlevel.current_task()


def loop_is_busy() -> bool:
    """Whether other tasks of this thread's loop may be ready. False where none runs.

    Of asyncio's own loops this is exact; of others it is assumed.
    """
    asyncio = _asyncio()
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        return _trio() is not None
    ready = getattr(loop, "_ready", None)  # asyncio's own loops have this queue of callbacks
    return ready is None or len(ready) > 0


def suspend(run: Waitable) -> Generator[Any, Any, None]:
    """Suspend the current task until `run` is done.

    Cancelling the task ends the suspension only.

    Raises:
        RuntimeError: neither asyncio nor trio runs on this thread.
    """
    trio = _trio()
    if trio is not None:
        return _suspend_trio(trio, run)
    return _suspend_asyncio(run)


def _suspend_asyncio(run: Waitable) -> Generator[Any, Any, None]:
    asyncio = _asyncio()
    if asyncio is None:
        raise RuntimeError("no running event loop")
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    run.when_done(partial(_alarm_of(loop).wake, waiter))
    yield from waiter


_MAX_WOKEN = 32  # tasks woken in one step of the loop: about a tenth of a millisecond


class _Alarm:
    """Wakes tasks of one event loop.

    Tasks that become ready before the loop handles the thread-safe call share that call.
    """

    __slots__ = ("_called", "_loop", "_ready")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # weak, since `_alarms` would keep the loop by its own value
        self._ready: deque[asyncio.Future[None]] = deque()
        self._called = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Wake the task that waits for `waiter`. Any thread may call it."""
        self._ready.append(waiter)
        if self._called:  # `_settle` clears this before it looks at `_ready`: it will find the waiter
            return
        loop = self._loop()
        try:
            self._called = True
            if loop is not None:
                loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop was closed: nobody waits any more
            self.forget()
        except BaseException:  # Ctrl-C: the call may not have been made, so the next waiter makes it
            self._called = False
            raise

    def forget(self) -> None:
        """Forget the tasks of a closed loop: waiters in `_ready` would keep the loop."""
        self._called = False  # so that later wakers call the loop, and come here too
        self._ready.clear()

    def _settle(self) -> None:
        self._called = False
        ready = self._ready
        for _ in range(min(len(ready), _MAX_WOKEN)):
            waiter = ready.popleft()
            if not waiter.done():  # it may have been cancelled meanwhile
                waiter.set_result(None)
        if ready:  # the others in the loop's next step, so that its other callbacks get their turn
            self._called = True
            loop = self._loop()
            if loop is not None:
                loop.call_soon(self._settle)


_alarms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Alarm] = weakref.WeakKeyDictionary()


def _alarm_of(loop: asyncio.AbstractEventLoop) -> _Alarm:
    """The alarm of the loop that runs on this thread."""
    alarm = _alarms.get(loop)
    if alarm is None:
        _forget_closed()
        alarm = _alarms[loop] = _Alarm(loop)
    return alarm


def _forget_closed() -> None:
    """Forget the waiters of closed loops.

    A loop that is closed between a thread-safe call and its handling drops the call, and nobody looks at `_ready`.
    """
    for reference in _alarms.keyrefs():  # a copy: other threads add loops of their own
        loop = reference()
        alarm = _alarms.get(loop) if loop is not None and loop.is_closed() else None
        if alarm is not None:
            alarm.forget()


_imported: Any = None  # asyncio, once it was found


def _asyncio() -> Any:
    """The module asyncio; None where it was not imported, so that no loop of it runs.

    It is not imported here: that takes 60 ms, a third of the time that importing this package takes.
    """
    global _imported
    if _imported is None and "asyncio" in sys.modules:
        import asyncio  # waits until another thread that imports it at this moment has finished

        _imported = asyncio
    return _imported


def _trio() -> Any:
    """The module trio, if it runs on this thread."""
    trio: Any = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_run():
        return None
    return trio


def _suspend_trio(trio: Any, run: Waitable) -> Generator[Any, Any, None]:
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    waiting = True  # read and written on trio's thread only

    def settle() -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            trio.lowlevel.reschedule(task)

    def wake() -> None:
        try:
            token.run_sync_soon(settle)
        except trio.RunFinishedError:
            return  # the loop has ended: no task waits any more

    def abort(_: object) -> Any:
        nonlocal waiting
        waiting = False
        return trio.lowlevel.Abort.SUCCEEDED

    run.when_done(wake)
    yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()


def thrown(
    kind: type[BaseException] | BaseException, value: BaseException | object, trace: TracebackType | None
) -> BaseException:
    """The exception that the arguments of a coroutine's `throw` describe.

    They are an exception; or a class, and an instance of it, or one argument or a tuple of arguments for it.
    """
    error = kind if isinstance(kind, BaseException) else value
    if not isinstance(error, BaseException):
        arguments = () if error is None else cast("tuple[Any, ...]", error) if isinstance(error, tuple) else (error,)
        error = cast("type[BaseException]", kind)(*arguments)
    return error.with_traceback(trace or error.__traceback__)
