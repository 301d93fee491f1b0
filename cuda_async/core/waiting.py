"""How a task waits: on asyncio (and uvloop), and on trio.

The only module that knows event loops.

A waiting task sleeps on a future of its loop. The thread that completes the run wakes
the loop by its thread-safe call: one for all that complete before the loop has got round to it. A
loop that was closed meanwhile has nobody left to wake.
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
    """What can be waited for: a run."""

    def when_done(self, waiter: Callable[[], None]) -> None: ...


def current_task() -> object:
    """What stands for the task that runs on this thread; None outside of tasks."""
    asyncio = _asyncio()
    try:
        if asyncio is not None:
            return asyncio.current_task()
    except RuntimeError:
        pass
    trio = _trio()
    return None if trio is None else trio.lowlevel.current_task()


def loop_is_busy() -> bool:
    """Whether other tasks of this thread's loop are ready, as far as it tells."""
    asyncio = _asyncio()
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        return _trio() is not None
    ready = getattr(loop, "_ready", None)  # asyncio's own loops tell; of others, assume that they are
    return ready is None or len(ready) > 0


def suspend(run: Waitable) -> Generator[Any, Any, None]:
    """Suspend the current task until `run` is done.

    Cancelling the task ends the suspension only.

    Raises:
        RuntimeError: no event loop that is known runs on this thread.
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


_AT_ONCE = 32  # tasks woken in one step of the loop: about a tenth of a millisecond


class _Alarm:
    """Wakes tasks of one event loop.

    Those that are ready before the loop has got round to it share one call of it.
    """

    __slots__ = ("_called", "_loop", "_ready")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ready: deque[asyncio.Future[None]] = deque()
        self._called = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Wake the task that waits for `waiter`. Any thread may call it."""
        self._ready.append(waiter)
        if self._called:  # cleared before the loop looks at what is ready: it will find this
            return
        loop = self._loop()
        try:
            self._called = True
            if loop is not None:
                loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop was closed: nobody waits any more
            self._called = False  # so that later ones come here too: waiters left in `_ready` would hold the loop
            self._ready.clear()
        except BaseException:  # Ctrl-C: the next one calls
            self._called = False
            raise

    def _settle(self) -> None:
        self._called = False
        ready = self._ready
        for _ in range(min(len(ready), _AT_ONCE)):
            waiter = ready.popleft()
            if not waiter.done():  # it may have been cancelled meanwhile
                waiter.set_result(None)
        if ready:
            self._called = True
            loop = self._loop()
            if loop is not None:
                loop.call_soon(self._settle)


_alarms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Alarm] = weakref.WeakKeyDictionary()


def _alarm_of(loop: asyncio.AbstractEventLoop) -> _Alarm:
    """The alarm of the loop that runs on this thread."""
    alarm = _alarms.get(loop)
    if alarm is None:
        alarm = _alarms[loop] = _Alarm(loop)
    return alarm


_imported: Any = None


def _asyncio() -> Any:
    """The module asyncio.

    None where nobody has imported it, so that no loop of it runs.

    Importing it takes 60 ms, a third of what importing this package takes.
    """
    global _imported
    if _imported is None and "asyncio" in sys.modules:
        import asyncio  # of another thread that imports it at this moment, this waits for the end

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
    waiting = True

    def settle() -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            trio.lowlevel.reschedule(task)

    def wake() -> None:
        try:
            token.run_sync_soon(settle)
        except trio.RunFinishedError:
            return  # nobody waits any more

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

    They are an instance; or a class, and an instance, an argument or a tuple of arguments of its constructor.
    """
    error = kind if isinstance(kind, BaseException) else value
    if not isinstance(error, BaseException):
        arguments = () if error is None else cast("tuple[Any, ...]", error) if isinstance(error, tuple) else (error,)
        error = cast("type[BaseException]", kind)(*arguments)
    return error.with_traceback(trace or error.__traceback__)
