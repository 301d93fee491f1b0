"""Threads of the runtime: how they are started."""

from __future__ import annotations

import threading

from cuda_async.errors import ContextError

__all__ = ("EXITING", "start_thread")

EXITING = "the interpreter is exiting; no work can be enqueued any more"


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        ContextError: the interpreter is exiting.
        RuntimeError: the system has no thread left.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if "shutdown" not in str(error):  # "can't start new thread": of a limit of the system
            raise
        raise ContextError(0, EXITING) from error
