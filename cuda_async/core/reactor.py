"""The reactor: a thread that completes runs of drivers without callbacks (CUDA).

It polls the event of the first run in flight on each stream, since a stream's runs complete in order.
It polls, and does not wait for an event: one thread serves all streams, and a wait for one stream
would delay the others. The longer nothing completes, the longer it sleeps between two passes; it
blocks while nothing is in flight. It reaches event loops only through the waiters of runs
(`call_soon_threadsafe`). Drivers with threads of their own (`host`) do not need it.
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

_MIN_SLEEP_S = 10e-6
_MAX_SLEEP_S = 500e-6
_SLEEP_GROWTH = 1.25  # of the sleep, after each pass without a completion

_MAX_COMPLETIONS = 8
"""Completions after which a pass ends, and the thread sleeps. A thread that waits for the interpreter's lock takes tens
of microseconds to wake. This thread gives the lock away only for the length of a driver's call: without the sleep it
would have the lock back by then, again and again, and keep an event loop waiting for milliseconds."""


class Watched(Protocol):
    """A run, as the reactor knows it.

    Attributes:
        stream: the stream that it runs on.
        sequence: runs of one stream complete in the order of these numbers.
    """

    stream: Any
    sequence: int

    def poll(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReactorStatistics:
    """Counts of the reactor.

    Attributes:
        watched: runs that it was given so far.
        completed: runs that it saw complete.
        passes: passes over the streams.
        in_flight: runs that it watches now.
    """

    watched: int
    completed: int
    passes: int
    in_flight: int


class Reactor:
    """Polls each run that it is given until the run is done."""

    def __init__(self) -> None:
        self._new: SimpleQueue[Watched] = SimpleQueue()  # `put` is reentrant: a signal's handler may call it
        self._lock = new_lock()
        self._thread: threading.Thread | None = None
        self._watched = self._completed = self._passes = self._in_flight = 0

    def watch(self, run: Watched) -> None:
        """Have `run.poll()` called until it returns True."""
        self._new.put(run)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    # Ctrl-C while it starts may lead to a second thread later. That is harmless: each polls the runs
                    # that it takes from the queue.
                    thread = threading.Thread(target=self._poll_for_ever, name="cuda_async-reactor", daemon=True)
                    start_thread(thread)
                    self._thread = thread

    def statistics(self) -> ReactorStatistics:
        """What this reactor has done so far."""
        return ReactorStatistics(self._watched, self._completed, self._passes, self._in_flight + self._new.qsize())

    def _poll_for_ever(self) -> None:
        lines: dict[Any, deque[Watched]] = {}
        sleep = _MIN_SLEEP_S
        while True:
            while not (lines and self._new.empty()):  # blocks only where nothing is in flight
                try:
                    run = self._new.get(block=not lines)
                except Empty:
                    break
                _line_up(lines, run)
                del run  # this frame would keep it while it sleeps
                self._watched += 1
                self._in_flight += 1
                sleep = _MIN_SLEEP_S
            self._passes += 1
            completed = _poll(lines)
            if completed:
                self._completed += completed
                self._in_flight -= completed
                sleep = _MIN_SLEEP_S
            else:
                sleep = min(sleep * _SLEEP_GROWTH, _MAX_SLEEP_S)
            if lines:
                time.sleep(sleep)


def _line_up(lines: dict[Any, deque[Watched]], run: Watched) -> None:
    """Insert a run among those of its stream, in the order of their submission.

    Threads may hand over runs in another order.
    """
    line = lines.setdefault(run.stream, deque())
    line.append(run)
    if len(line) > 1 and line[-2].sequence > run.sequence:
        lines[run.stream] = deque(sorted(line, key=lambda waiting: waiting.sequence))


def _poll(lines: dict[Any, deque[Watched]]) -> int:
    """Complete runs that are over, `_MAX_COMPLETIONS` at most, and return how many.

    A stream without a run in flight is removed from `lines`.
    """
    left = _MAX_COMPLETIONS
    for stream, line in list(lines.items()):
        while left and line and line[0].poll():
            line.popleft()
            left -= 1
        if not line:
            del lines[stream]
        elif not left:
            lines[stream] = lines.pop(stream)  # to the end: the next pass begins with the other streams
            break
    return _MAX_COMPLETIONS - left


_reactor = Reactor()


def reactor() -> Reactor:
    """The reactor of this process."""
    return _reactor


def _replace_after_fork() -> None:
    global _reactor
    _reactor = Reactor()  # the thread does not survive a fork; the runs that it watched are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_after_fork)
