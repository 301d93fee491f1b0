"""Locks that outlive a fork, a signal handler and a finalizer.

Every lock of the two packages is made here.

A signal handler, and a finalizer that a collection calls, may run an operation on a thread that is amid the runtime: a
lock that this thread holds must let it in, so each is an `RLock`, and what it guards is whole between any two calls. In
the child of a fork nobody else is left to release a lock: all are open there.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import RLock

__all__ = ("Gate", "new_lock", "open_all")

_locks: weakref.WeakSet[RLock] = weakref.WeakSet()


def new_lock() -> RLock:
    """A lock that its thread may take again, and that is open in a fork's child."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def open_all() -> None:
    """In the child of a fork.

    Open every lock, whichever thread of the parent's held it.
    """
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # what `threading` calls for its own


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=open_all)


class Gate:
    """Closed until it is opened, once: for one thread that waits.

    `open` is safe anywhere, and may be repeated.

    Not a `threading.Event`, whose own lock a signal handler would wait for if it came amid `set`.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let the waiter go on."""
        try:  # noqa: SIM105 - `suppress` could be interrupted halfway
            self._lock.release()
        except RuntimeError:  # it is open
            pass

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return not self._lock.locked()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait, at most so long (-1: for ever). Whether it is open."""
        return self._lock.acquire(timeout=timeout_s)
