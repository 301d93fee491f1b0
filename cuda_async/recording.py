"""A capture in progress, on a stream of its own, and its driver graph."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cuda_async.core.stream import Stream
from cuda_async.driver.interface import DriverGraph
from cuda_async.errors import DeviceError
from cuda_async.recorder import Recorder

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("Handle", "Recording")


class Handle:
    """A driver's graph, closed when no `CudaGraph` and no launch in flight holds it."""

    __slots__ = ("_device", "driver")

    def __init__(self, device: Device, graph: DriverGraph) -> None:
        self._device = device
        self.driver = graph

    def __del__(self) -> None:
        driver = getattr(self, "driver", None)  # absent where Ctrl-C ended __init__
        if driver is not None:
            self._device.defer(driver.close)


class Recording:
    """A capture on a stream of its own.

    Whatever fails, `abort` ends the capture and returns its graph to the driver.
    """

    def __init__(self, home: Stream, *, may_allocate: bool) -> None:
        self.recorder = Recorder(home, may_allocate=may_allocate)
        self.stream = Stream(home.device, home.device.driver.create_stream(), self.recorder, sm_margin=home.sm_margin)
        self._begun = self._capturing = False

    def begin(self) -> None:
        """Start recording."""
        self.stream.device.collect()  # first, since the driver unloads modules then, which graphs among it may use
        self.stream.driver.begin_run()
        self._begun = self._capturing = True  # before the call: Ctrl-C may come when the driver captures already
        self.stream.driver.begin_capture()

    def end(self, failure: BaseException | None) -> Handle:
        """Stop recording, and return the graph, ready for launches.

        Args:
            failure: the operation's error, which is raised; it goes before an error of the capture that it led to.

        Raises:
            DriverError: the capture failed.
        """
        driver = self.stream.driver
        try:
            try:
                handle = Handle(self.stream.device, driver.end_capture())
                self._capturing = False
            except Exception:
                if failure is None:
                    raise
                raise failure from None
            if failure is not None:
                raise failure
            handle.driver.instantiate()
            handle.driver.upload(self.recorder.home.driver)
        finally:
            failure = None  # its frames hold this one
            self.abort()
        return handle

    def abort(self) -> None:
        """End the capture and the driver's run, if they have not ended."""
        driver = self.stream.driver
        try:
            if self._capturing:
                self._capturing = False
                with suppress(DeviceError):  # the driver's capture had not begun, or had failed
                    Handle(self.stream.device, driver.end_capture())
        finally:  # also where Ctrl-C comes
            if self._begun:
                self._begun = False
                driver.end_run()
