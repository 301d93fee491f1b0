"""The in-memory cache.

Each key is computed once, however many threads ask at the same time.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from cuda_async.locks import new_lock

V = TypeVar("V")
_all: weakref.WeakSet[SingleFlight[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for each in list(_all):
        each.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


class SingleFlight(Generic[V]):
    """A dictionary that makes what it lacks.

    A failure reaches everyone who waited, and is forgotten.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._entries: dict[Hashable, Future[V]] = {}
        _all.add(self)

    def after_fork(self) -> None:
        """In a forked child nobody else is computing: forget what was under way."""
        self._lock = new_lock()
        self._entries = {key: future for key, future in self._entries.items() if future.done()}

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of `key`.

        `make` is called by one of those who ask, the others wait for it.
        """
        future = self._entries.get(key)
        if future is not None:
            return future.result()
        with self._lock:
            future = self._entries.get(key)
            mine = future is None
            if future is None:
                future = self._entries[key] = Future()
        if not mine:
            return future.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                self._entries.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(value)
        return value

    def peek(self, key: Hashable) -> V | None:
        """The value of `key`, if it has been computed."""
        found = self._entries.get(key)
        return found.result() if found is not None and found.done() and found.exception() is None else None

    def ready(self) -> list[V]:
        """What is there."""
        return [each.result() for each in list(self._entries.values()) if each.done() and each.exception() is None]

    def forget(self, key: Hashable) -> None:
        """Drop a key."""
        with self._lock:
            self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)
