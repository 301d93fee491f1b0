"""The reactor: one thread that completes runs whose driver cannot call back (CUDA).

It polls the events of all runs in flight. One thread for all streams: a thread in one event's wait
would block the head of the line. It sleeps a little longer the longer nothing completes, and for
good while nothing is in flight. It never touches an event loop but through what a run's waiters do
(`call_soon_threadsafe`). Drivers with threads of their own (`host`) do not need it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

__all__ = ("Reactor", "ReactorStatistics", "Watched", "reactor")

_SHORTEST_SLEEP_S = 10e-6
_LONGEST_SLEEP_S = 500e-6
_GROWTH = 1.25


class Watched(Protocol):
    """What can be watched: a run."""

    def poll(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReactorStatistics:
    """What the reactor has done: runs handed to it, runs completed, passes over them, runs in flight."""

    watched: int
    completed: int
    passes: int
    in_flight: int


class Reactor:
    """Polls what it is given until it is done."""

    def __init__(self) -> None:
        self._new: deque[Watched] = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watched = self._completed = self._passes = self._in_flight = 0

    def watch(self, run: Watched) -> None:
        """Have `run.poll()` called until it returns True."""
        self._new.append(run)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._poll_for_ever, name="cuda_async-reactor", daemon=True)
                    self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    def statistics(self) -> ReactorStatistics:
        """What this reactor has done so far."""
        return ReactorStatistics(self._watched, self._completed, self._passes, self._in_flight + len(self._new))

    def _poll_for_ever(self) -> None:
        pending: list[Watched] = []
        sleep = _SHORTEST_SLEEP_S
        while True:
            if not pending and not self._new:
                self._wake.clear()
                if not self._new:  # else it came between the look and the clearing
                    self._wake.wait()
            while self._new:
                pending.append(self._new.popleft())
                self._watched += 1
                sleep = _SHORTEST_SLEEP_S
            self._passes += 1
            left = [run for run in pending if not run.poll()]
            if len(left) < len(pending):
                self._completed += len(pending) - len(left)
                sleep = _SHORTEST_SLEEP_S
            else:
                sleep = min(sleep * _GROWTH, _LONGEST_SLEEP_S)
            pending = left
            self._in_flight = len(pending)
            if pending:
                time.sleep(sleep)


_reactor = Reactor()


def reactor() -> Reactor:
    """The reactor of this process."""
    return _reactor


def _replace_after_fork() -> None:
    global _reactor
    _reactor = Reactor()  # its thread did not survive; what it watched belongs to the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_after_fork)
