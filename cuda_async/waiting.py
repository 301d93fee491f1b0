"""How a task waits: on asyncio (and uvloop), and on trio. The only module that knows event loops.

A waiting task sleeps on a future of its loop. Whoever completes the run, on whatever thread, wakes
the loop by its thread-safe call. A loop that was closed meanwhile has nobody left to wake.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from typing import Any, Protocol

__all__ = ("Waitable", "current_task", "loop_is_busy", "suspend")


class Waitable(Protocol):
    """What can be waited for: a run."""

    def when_done(self, waiter: Callable[[], None]) -> None: ...


def current_task() -> object:
    """What stands for the task that runs on this thread; None outside of tasks."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        trio = _trio()
        return None if trio is None else trio.lowlevel.current_task()


def loop_is_busy() -> bool:
    """Whether other tasks of the loop on this thread are ready to run, as far as it tells."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _trio() is not None
    ready = getattr(loop, "_ready", None)  # asyncio's own loops tell; of others, assume that they are
    return ready is None or len(ready) > 0


def suspend(run: Waitable) -> Generator[Any, Any, None]:
    """Suspend the current task until `run` is done. Cancelling the task ends the suspension only.

    Raises:
        RuntimeError: no event loop that is known runs on this thread.
    """
    trio = _trio()
    if trio is not None:
        return _suspend_trio(trio, run)
    return _suspend_asyncio(run)


def _suspend_asyncio(run: Waitable) -> Generator[Any, Any, None]:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not waiter.done():  # it may have been cancelled meanwhile
            waiter.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the loop was closed: nobody waits any more

    run.when_done(wake)
    yield from waiter


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
