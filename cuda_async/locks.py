"""Locks that are safe with forks, signal handlers and finalizers; thread starts.

Every lock of the two packages is made here.

A signal handler, or a finalizer that a collection calls, may run an operation on a thread that is inside the runtime's
code. A lock that the thread holds must let it in again, so each is an `RLock`. Therefore the data that a lock guards
must be consistent between any two calls, not only when the lock is released. In the child of a fork the threads that
held locks do not exist: all locks are open there.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from cuda_async.errors import ContextError

if TYPE_CHECKING:
    from threading import RLock

__all__ = ("EXITING", "Gate", "new_lock", "open_all", "start_thread")

EXITING = "the interpreter is exiting; no work can be enqueued any more"

_locks: weakref.WeakSet[RLock] = weakref.WeakSet()


def new_lock() -> RLock:
    """A lock that its holder may take again, and that is open in a fork's child."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def open_all() -> None:
    """Open every lock, in the child of a fork."""
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as `threading` does with its own locks


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=open_all)


class Gate:
    """Closed until it is opened, once. `open` is safe anywhere, and may be repeated.

    It is no `threading.Event`: a signal handler that runs inside `set` would wait for the event's own lock.
    """

    __slots__ = ("_lock", "is_open")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_open = False
        """Whether it was opened."""

    def open(self) -> None:
        """Let the waiters go on."""
        self.is_open = True  # first: by it an interrupted waiter knows that it may have the lock
        try:  # noqa: SIM105 - `suppress` could be interrupted halfway
            self._lock.release()
        except RuntimeError:  # it is open
            pass

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait `timeout_s` seconds at most (-1: for ever). Whether the gate is open."""
        try:
            self._lock.acquire(timeout=timeout_s)
        finally:  # also where Ctrl-C comes when the lock was acquired
            if self.is_open:
                self.open()  # it stays open for other waiters
        return self.is_open


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
