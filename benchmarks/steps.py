"""How long each step of the runtime holds an event loop: measured inside the steps, on the loop's thread.

A step is the code that runs between two suspensions of an `await`: building the run, enqueueing it, taking its outcome.
The callback by which a finished run wakes its task is a step, too. `Timed` and `TimedLoop` time all of these steps, and
no other code.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

if sys.platform != "win32":
    import resource

__all__ = ("Steps", "Timed", "TimedLoop")

T = TypeVar("T")

_thread: int | None = getattr(resource, "RUSAGE_THREAD", None) if sys.platform != "win32" else None


class Steps:
    """The lengths of steps, in nanoseconds of wall time, and whether the system ran another thread meanwhile.

    On a busy machine another process's time slice sometimes falls into a step. Such steps are counted apart, if the
    system reports them (`getrusage`, by thread).

    Args:
        capacity: steps to have room for from the start, so that recording them allocates no memory.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.count = 0
        self._lengths = array("q", bytes(8 * capacity))
        self._disturbed = bytearray(capacity)
        self._switches = _switches()

    def add(self, begun_ns: int) -> None:
        """Record a step that began at `begun_ns` (of `time.perf_counter_ns`) and ends now."""
        length, switches = time.perf_counter_ns() - begun_ns, _switches()
        disturbed, self._switches = switches != self._switches, switches
        if self.count < len(self._lengths):
            self._lengths[self.count], self._disturbed[self.count] = length, disturbed
        else:
            self._lengths.append(length)
            self._disturbed.append(disturbed)
        self.count += 1

    def lengths(self, *, undisturbed: bool = False) -> list[int]:
        """The sorted lengths; with `undisturbed`, without the steps in which the system ran another thread."""
        noted = zip(self._lengths[: self.count], self._disturbed, strict=False)
        return sorted(length for length, disturbed in noted if not (undisturbed and disturbed))

    def quantiles_us(self, *fractions: float, undisturbed: bool = False) -> list[float]:
        """The lengths in microseconds below which these fractions of the steps are."""
        ordered = self.lengths(undisturbed=undisturbed) or [0]
        return [ordered[min(len(ordered) - 1, int(len(ordered) * each))] / 1e3 for each in fractions]


def _switches() -> int:
    """How often the system has preempted this thread; 0 if it does not report that."""
    if sys.platform == "win32" or _thread is None:
        return 0
    return resource.getrusage(_thread).ru_nivcsw


class Timed(Generic[T]):
    """An awaitable whose steps are timed."""

    def __init__(self, awaitable: Awaitable[T], steps: Steps) -> None:
        self._awaitable = awaitable
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._steps
        begun = time.perf_counter_ns()
        inner = self._awaitable.__await__()
        advance: Callable[[Any], Any] = inner.send
        sent: Any = None
        while True:
            try:
                yielded = advance(sent)
            except StopIteration as stop:
                return stop.value
            finally:
                steps.add(begun)
            try:
                sent, advance = (yield yielded), inner.send
            except BaseException as error:
                sent, advance = error, inner.throw
            begun = time.perf_counter_ns()


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that times the callbacks which other threads schedule on it."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As the loop's own, with the callback timed."""

        def call() -> None:
            begun = time.perf_counter_ns()
            try:
                callback(*args)
            finally:
                self._steps.add(begun)

        return super().call_soon_threadsafe(call, context=context)
