"""A capture in progress, on a stream of its own, and the driver's graph that comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_async.driver.interface import DriverGraph
from cuda_async.recorder import Recorder
from cuda_async.stream import Stream

if TYPE_CHECKING:
    from cuda_async.device import Device

__all__ = ("Handle", "Recording")


class Handle:
    """A driver's graph, closed when nobody refers to it: neither its owner nor a launch in flight."""

    __slots__ = ("_device", "driver")

    def __init__(self, device: Device, graph: DriverGraph) -> None:
        self._device = device
        self.driver = graph

    def __del__(self) -> None:
        self._device.defer(self.driver.close)


class Recording:
    """A capture on a stream of its own. Whatever fails, the capture is ended and the graph given back."""

    def __init__(self, home: Stream, *, may_allocate: bool) -> None:
        self.recorder = Recorder(home, may_allocate=may_allocate)
        self.stream = Stream(home.device, home.device.driver.create_stream(), self.recorder)

    def begin(self) -> None:
        """Start recording."""
        self.stream.driver.begin_run()
        try:
            self.stream.driver.begin_capture()
        except BaseException:
            self.stream.driver.end_run()
            raise

    def end(self, failure: BaseException | None) -> Handle:
        """Stop recording; the failure of the operation, if any, goes before that of the capture."""
        driver = self.stream.driver
        try:
            try:
                handle = Handle(self.stream.device, driver.end_capture())
            except Exception:
                if failure is None:
                    raise
                raise failure from None
            if failure is not None:
                raise failure
            handle.driver.instantiate()
            handle.driver.upload(self.recorder.home.driver)
        finally:
            driver.end_run()
        return handle
