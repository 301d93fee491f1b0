"""The reactor: one thread that completes runs of drivers without callbacks.

CUDA's.

It polls the event of the first run in flight on each stream: a stream's runs complete in order. One
thread for all streams: a thread in one event's wait would block the head of the line. It sleeps a
little longer the longer nothing completes, and for good while nothing is in flight. It never touches
an event loop but through what a run's waiters do (`call_soon_threadsafe`). Drivers with threads of
their own (`host`) do not need it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from cuda_async.locks import new_lock
from cuda_async.threads import start_thread

__all__ = ("Reactor", "ReactorStatistics", "Watched", "reactor")

_SHORTEST_SLEEP_S = 10e-6
_LONGEST_SLEEP_S = 500e-6
_GROWTH = 1.25

_AT_ONCE = 8
"""After so many completions it sleeps in any case. A thread that waits for the interpreter's lock takes tens of
microseconds to wake: this thread, which gives the lock away for the length of a driver's call only, would have it back
by then, again and again, and keep an event loop waiting for milliseconds."""


class Watched(Protocol):
    """What can be watched: a run.

    Attributes:
        stream: where it runs. Runs of one stream complete in the order of their `sequence`.
    """

    stream: Any
    sequence: int

    def poll(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReactorStatistics:
    """What the reactor has done.

    Runs handed to it, runs completed, passes over them, runs in flight.
    """

    watched: int
    completed: int
    passes: int
    in_flight: int


class Reactor:
    """Polls what it is given until it is done."""

    def __init__(self) -> None:
        self._new: SimpleQueue[Watched] = SimpleQueue()  # one call puts and wakes, also amid a signal's handler
        self._lock = new_lock()
        self._thread: threading.Thread | None = None
        self._watched = self._completed = self._passes = self._in_flight = 0

    def watch(self, run: Watched) -> None:
        """Have `run.poll()` called until it returns True."""
        self._new.put(run)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    # Where Ctrl-C comes while it starts, there may be a second one later: each takes what it gets.
                    thread = threading.Thread(target=self._poll_for_ever, name="cuda_async-reactor", daemon=True)
                    start_thread(thread)
                    self._thread = thread

    def statistics(self) -> ReactorStatistics:
        """What this reactor has done so far."""
        return ReactorStatistics(self._watched, self._completed, self._passes, self._in_flight + self._new.qsize())

    def _poll_for_ever(self) -> None:
        lines: dict[Any, deque[Watched]] = {}
        sleep = _SHORTEST_SLEEP_S
        while True:
            while not (lines and self._new.empty()):
                try:
                    run = self._new.get(block=not lines)
                except Empty:
                    break
                _line_up(lines, run)
                del run  # it would live on while this sleeps
                self._watched += 1
                self._in_flight += 1
                sleep = _SHORTEST_SLEEP_S
            self._passes += 1
            completed = _poll(lines)
            if completed:
                self._completed += completed
                self._in_flight -= completed
                sleep = _SHORTEST_SLEEP_S
            else:
                sleep = min(sleep * _GROWTH, _LONGEST_SLEEP_S)
            if lines:
                time.sleep(sleep)


def _line_up(lines: dict[Any, deque[Watched]], run: Watched) -> None:
    """Put a run where it belongs among those of its stream.

    Threads may hand them over in another order.
    """
    line = lines.setdefault(run.stream, deque())
    line.append(run)
    if len(line) > 1 and line[-2].sequence > run.sequence:
        lines[run.stream] = deque(sorted(line, key=lambda each: each.sequence))


def _poll(lines: dict[Any, deque[Watched]]) -> int:
    """Complete runs whose turn it is, `_AT_ONCE` at most, and return how many.

    Streams where none is left go.
    """
    left = _AT_ONCE
    for stream, line in list(lines.items()):
        while left and line and line[0].poll():
            line.popleft()
            left -= 1
        if not line:
            del lines[stream]
        elif not left:
            lines[stream] = lines.pop(stream)  # the next pass begins with the others
            break
    return _AT_ONCE - left


_reactor = Reactor()


def reactor() -> Reactor:
    """The reactor of this process."""
    return _reactor


def _replace_after_fork() -> None:
    global _reactor
    _reactor = Reactor()  # its thread did not survive; what it watched belongs to the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_after_fork)
