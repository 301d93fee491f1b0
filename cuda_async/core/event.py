"""`Event`: a point in a stream, to wait for or to measure from.

It owns a driver's event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cuda_async.driver.interface import DriverEvent, DriverStream
from cuda_async.errors import ArgumentError

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.stream import Stream

__all__ = ("WAIT_SLICE_S", "Event", "StreamIdle", "wait_done", "wait_event")

WAIT_SLICE_S = 0.05
"""Seconds that one call of a driver's wait takes at most. Ctrl-C is raised between two calls, which is early
enough."""


def wait_done(event: DriverEvent) -> None:
    """Wait for a driver's event in slices, so that Ctrl-C ends the wait.

    The loop has a function of its own: where a `while` jumps back, CPython 3.13 raises Ctrl-C outside of a `try` or
    `with` around the loop, so that neither `except` nor `finally` sees it.
    """
    while not event.wait(WAIT_SLICE_S):
        pass


def wait_event(event: DriverEvent) -> None:
    """Wait for a driver's event in slices, so that Ctrl-C ends the wait.

    Raises:
        BaseException: the failure of the work that the event covers.
    """
    wait_done(event)
    failure = event.failure()
    if failure is not None:
        raise failure


class Event:
    """A point in a stream.

    Example:
        >>> from cuda_async import Device
        >>> device = Device.host()
        >>> stream = device.new_stream()
        >>> start, end = device.new_event(timing=True), device.new_event(timing=True)
        >>> start.record(stream)
        >>> stream.call(lambda: None)
        >>> end.record(stream)
        >>> end.synchronize()
        >>> start.elapsed_time(end) >= 0
        True
    """

    __slots__ = ("_driver", "device", "timing")

    def __init__(self, device: Device, *, timing: bool = False) -> None:
        self.device = device
        self.timing = timing
        self._driver = device.driver.create_event(timing=timing)

    @property
    def driver(self) -> DriverEvent:
        """The driver's event."""
        return self._driver

    def record(self, stream: Stream) -> None:
        """Make the event complete when everything enqueued on `stream` so far has.

        Raises:
            ValueError: `stream` belongs to another device.
        """
        if stream.device is not self.device:
            raise ArgumentError(f"stream: expected a stream of {self.device}, the event's device; got {stream}")
        stream.driver.record(self._driver)

    def query(self) -> bool:
        """Whether the latest record has completed, well or not (never recorded: complete).

        Does not wait.
        """
        return self._driver.query()

    def synchronize(self) -> None:
        """Wait for the latest record. Ctrl-C ends the wait.

        Raises:
            DeviceError: the device failed; a host function's exception passes as it is.
        """
        wait_event(self._driver)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`.

        Raises:
            ValueError: one of the two was made without `timing=True`, or their devices are of different kinds.
            ValueError, DriverError: one of the two was never recorded, or has not completed.
        """
        if not (self.timing and end.timing):
            raise ArgumentError("elapsed_time: both events must be made with timing=True")
        if end.device.kind != self.device.kind:
            raise ArgumentError(f"end: expected an event of a device like {self.device}, got one of {end.device}")
        return self._driver.elapsed_ms(end.driver)

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)  # absent where __init__ failed
        if driver is not None:
            self.device.defer(driver.close)

    def __repr__(self) -> str:
        return f"<Event on {self.device}>"


class StreamIdle(DriverEvent):
    """The end of a run whose event could not be recorded: the stream is idle."""

    __slots__ = ("_stream",)

    def __init__(self, stream: DriverStream) -> None:
        self._stream = stream

    def query(self) -> bool:
        return self._stream.query()

    def wait(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not self.query():
            if time.monotonic() > end:
                return False
            time.sleep(0.0005)  # between two questions: there is no event to sleep on
        return True

    def failure(self) -> BaseException | None:
        return None

    def elapsed_ms(self, end: DriverEvent) -> float:
        raise NotImplementedError

    def notify(self, callback: Callable[[], None]) -> bool:
        return False

    def close(self) -> None:
        pass
