"""The reactor: a thread that completes runs of drivers without callbacks (CUDA).

It polls the event of the first run in flight on each stream, since a stream's runs complete in order.
It polls, and does not wait for an event: one thread serves all streams, and a wait for one stream
would delay the others. Each question takes the interpreter's lock from threads that submit work. So it
asks seldom while more is submitted. It asks for no run that has just begun: a run is expected to take
about as long as the run before it on its stream. It blocks while nothing is in flight. It reaches event
loops only through the waiters of runs (`call_soon_threadsafe`). Drivers with threads of their own
(`host`) do not need it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from cuda_async.locks import new_lock, start_thread

__all__ = ("Reactor", "ReactorStatistics", "Watched", "reactor")

_MIN_PAUSE_S = 10e-6  # between two passes: a shorter one would only take the interpreter's lock more often
_MAX_PAUSE_S = 500e-6  # between two questions for a run: its end is noticed at most so much later

_BUSY_S = 1e-3
"""Seconds after a run was handed over in which more runs are expected. The thread that submits them needs the
interpreter's lock."""

_SHARE_OF_AGE = {True: 0.5, False: 0.03}
"""The pause until the next question for a run, as a share of the run's age; by whether more runs are submitted. The end
of a run is noticed late by at most this share of its length. While more runs are submitted, it matters more that
questions are few than that the answer comes early."""

_SHARE_OF_LAST = {True: 0.9, False: 0.5}
"""The age at which a run is first asked, as a share of the time that the preceding run took; by whether more runs are
submitted. Runs of one stream are often alike. The first question comes after `_MAX_PAUSE_S` at the latest."""

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
        self._alarm: SimpleQueue[None] = SimpleQueue()  # an item ends the thread's sleep
        self._latest = 0.0  # when the latest run came, in seconds of the performance counter
        self._lines: dict[Any, _Line] = {}  # of the thread, which alone changes it
        self._lock = new_lock()
        self._thread: threading.Thread | None = None
        self._watched = self._completed = self._passes = self._in_flight = 0

    def watch(self, run: Watched) -> None:
        """Have `run.poll()` called until it returns True."""
        self._new.put(run)
        self._latest = time.perf_counter()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    # Ctrl-C while it starts may lead to a second thread later. That is harmless: each polls the runs
                    # that it takes from the queue.
                    thread = threading.Thread(target=self._poll_for_ever, name="cuda_async-reactor", daemon=True)
                    start_thread(thread)
                    self._thread = thread
        # A run behind others of its stream need not wake the thread, which asks for the first one only. If the thread
        # removes the stream just now, it looks at `_new` afterwards, and finds the run there.
        if run.stream not in self._lines:
            self._alarm.put(None)

    def statistics(self) -> ReactorStatistics:
        """What this reactor has done so far."""
        return ReactorStatistics(self._watched, self._completed, self._passes, self._in_flight + self._new.qsize())

    def _poll_for_ever(self) -> None:
        lines: dict[Any, _Line] = {}
        self._lines = lines
        while True:
            with contextlib.suppress(Empty):
                while True:
                    self._alarm.get_nowait()  # all of them: their runs are in `_new`, and taken from there below
            with contextlib.suppress(Empty):
                while True:
                    run = self._new.get_nowait()
                    _line_up(lines, run, time.perf_counter())
                    del run  # this frame would keep it while it sleeps
                    self._watched += 1
                    self._in_flight += 1
            self._passes += 1
            now = time.perf_counter()
            completed = _poll(lines, now, now - self._latest < _BUSY_S)
            self._completed += completed
            self._in_flight -= completed
            if lines:
                pause = min(line.due for line in lines.values()) - time.perf_counter()
                with contextlib.suppress(Empty):
                    self._alarm.get(timeout=max(_MIN_PAUSE_S, pause))
            elif self._new.empty():
                self._alarm.get()  # blocks only where nothing is in flight


class _Line:
    """The runs of one stream that are watched, in the order of their submission.

    Attributes:
        runs: the runs.
        begun: when the first run became the first, in seconds of the performance counter; the run before it was done.
        last: how long the run before it took, in seconds.
        due: when to ask for the first run next, in seconds of the performance counter.
    """

    __slots__ = ("begun", "due", "last", "runs")

    def __init__(self, now: float) -> None:
        self.runs: deque[Watched] = deque()
        self.begun = self.due = now
        self.last = 0.0

    def poll(self, now: float, most: int, busy: bool) -> int:
        """Complete runs that are over, `most` of them at most, and return how many.

        Args:
            now: the time, in seconds of the performance counter.
            most: how many at most.
            busy: whether more runs are submitted at this time.
        """
        completed = 0
        while completed < most and self.runs and self.runs[0].poll():
            self.runs.popleft()
            completed += 1
        if completed:
            self.last, self.begun = (now - self.begun) / completed, now
        age = now - self.begun
        pause = max(_SHARE_OF_AGE[busy] * age, _SHARE_OF_LAST[busy] * self.last - age)
        # Where `most` runs were completed, the next one may be over as well: it is asked in the next pass.
        self.due = now + (_MIN_PAUSE_S if completed == most else min(max(_MIN_PAUSE_S, pause), _MAX_PAUSE_S))
        return completed


def _line_up(lines: dict[Any, _Line], run: Watched, now: float) -> None:
    """Insert a run among those of its stream, in the order of their submission.

    Threads may hand over runs in another order.
    """
    line = lines.get(run.stream)
    if line is None:
        line = lines[run.stream] = _Line(now)
    runs = line.runs
    runs.append(run)
    if len(runs) > 1 and runs[-2].sequence > run.sequence:
        line.runs = deque(sorted(runs, key=lambda waiting: waiting.sequence))


def _poll(lines: dict[Any, _Line], now: float, busy: bool) -> int:
    """Ask for the first runs of the streams that are due.

    Completes `_MAX_COMPLETIONS` runs at most, and returns how many. A stream without a run in flight is removed.
    """
    left = _MAX_COMPLETIONS
    for stream, line in list(lines.items()):
        if line.due > now:
            continue
        left -= line.poll(now, left, busy)
        if not line.runs:
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
