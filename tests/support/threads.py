"""Threads of a test that must come to an end: those that do not are shown with their stacks."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

__all__ = ("Stuck", "changing_often", "run_all")

LIMIT_S = 60.0
"""Seconds that threads may take together; they need one, and more on a busy machine."""


class Stuck(BaseException):
    """Threads have not ended. The text has the stacks of all threads.

    It is no `Exception`: Hypothesis would catch that, and run more examples beside the threads that hold locks.
    """


def run_all(targets: Sequence[Callable[[], object]], *, limit_s: float = LIMIT_S) -> None:
    """Run functions at the same time, each on a thread.

    Raises:
        Stuck: one has not ended in time.
        BaseException: the first error of one.
    """
    errors: list[BaseException] = []
    ready = threading.Barrier(len(targets)) if targets else None

    def call(target: Callable[[], object]) -> None:
        try:
            assert ready is not None
            ready.wait(limit_s)
            target()
        except BaseException as error:
            errors.append(error)

    # Daemons: the process must end although they do not.
    threads = [threading.Thread(target=call, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread for thread in threads if thread.is_alive()]
    if stuck:
        names = ", ".join(thread.name for thread in stuck)
        raise Stuck(f"not ended after {limit_s:g} s: {names}\n\n{_stacks()}")
    if errors:
        raise errors[0]


def _stacks() -> str:
    """The stacks of all threads but this one, innermost frame last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(number, 'a thread')}:\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage]
        if number != threading.get_ident()
    )


@contextmanager
def changing_often() -> Generator[None]:
    """Have threads change after a few instructions.

    Locks that wait for each other in a ring are then met within a second. By default threads change every 5 ms. By then
    a thread has submitted most of its operations.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
