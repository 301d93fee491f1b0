"""Starting a thread of the runtime's.

What an exit refuses is said in the runtime's words.
"""

from __future__ import annotations

import threading

from cuda_async.errors import ContextError

__all__ = ("EXITING", "start_thread")

EXITING = "the interpreter is exiting; no work can be enqueued any more"


def start_thread(thread: threading.Thread) -> None:
    """Start it.

    Raises:
        ContextError: the interpreter is exiting.
    """
    try:
        thread.start()
    except RuntimeError as error:  # "can't create new thread at interpreter shutdown"
        raise ContextError(0, EXITING) from error
