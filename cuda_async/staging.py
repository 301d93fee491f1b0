"""Copies between ordinary host memory and a device that never block the caller.

The driver copies ordinary (pageable) memory by blocking the caller until the stream has drained. So
these copies go through page-locked memory. A small upload is a snapshot of its source at submission.
A large copy is cut into chunks, which workers move to or from page-locked memory in stream order,
while the device copies another chunk: the caller, which may be an event loop, moves nothing. On the
CPU uploads and downloads are plain copies in stream order.

    upload(context, storage, source_address, nbytes, keep=array)
    download(context, storage, destination_address, nbytes, keep=array)
    fetch(context, storage, destination_address, nbytes, keep=array)

They are called in the `execute` of an operation. `keep` owns the host memory, and is held until the
run completes. Until then an upload's source must not change, and a download's destination must not be
used. `fetch` waits for the bytes: it is for operations that compute with them on the host while they
are submitted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cuda_async.core.capture import is_traced, refuse_in_capture
from cuda_async.core.context import ExecutionContext
from cuda_async.core.storage import Storage
from cuda_async.driver.interface import DriverEvent
from cuda_async.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("CHUNK_BYTES", "Staging", "download", "fetch", "upload")

CHUNK_BYTES = 4 << 20
"""Bytes of a chunk. Up to this size the caller moves the bytes itself, in about a millisecond or less."""

_SLOTS = 3  # a worker moves one, the device copies another, the third waits for either


class Staging:
    """Page-locked host memory, which returns to the driver when this is dropped.

    Args:
        device: the device that copies from or to it.
        nbytes: its size in bytes.

    Raises:
        OutOfMemoryError: there is no page-locked memory left.
    """

    __slots__ = ("_device", "address", "nbytes")

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self.nbytes = nbytes
        self.address = device.driver.pin(nbytes)

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None:
            driver, nbytes = self._device.driver, self.nbytes
            # A finalizer may run amid any call of this thread, which may hold a lock: `defer` takes none.
            self._device.defer(lambda: driver.unpin(address, nbytes))


def upload(
    context: ExecutionContext, storage: Storage, source: int, nbytes: int, *, offset: int = 0, keep: object
) -> None:
    """Copy `nbytes` at host address `source` to byte `offset` of `storage`.

    In a graph the bytes are a constant: those at the time of the capture.

    Args:
        context: the context of the running operation.
        storage: written.
        source: address on the host.
        nbytes: number of bytes.
        offset: the first byte of `storage` that is written.
        keep: the owner of the host memory, held until the run completes.

    Raises:
        ArgumentError: there are no bytes, or they do not fit into the storage.
        OutOfMemoryError: there is no page-locked memory left.

    Example:
        >>> import numpy as np
        >>> from cuda_async import Device, upload, value, with_context
        >>> numbers = np.arange(4, dtype=np.int32)
        >>> def put(context):
        ...     storage = context.allocate(numbers.nbytes)
        ...     upload(context, storage, numbers.ctypes.data, numbers.nbytes, keep=numbers)
        ...     return value(storage)
        >>> with_context(put).sync_on(Device.host().new_stream()).nbytes
        16
    """
    _check(storage, nbytes, offset)
    storage.use(context.stream, write=True)
    if is_traced(context.stream):  # nothing will run, so that nothing needs to be held
        return
    context.keep(keep)
    target = storage.address + offset
    # A graph repeats a snapshot of the bytes, on the host too: all of them are copied now, however many they are.
    if context.device.kind == "host" and context.stream.recorder is None:
        context.stream.copy(target, source, nbytes)
    elif nbytes > CHUNK_BYTES and context.stream.recorder is None:
        _Pipe(context).upload(target, source, nbytes)
    else:
        staging = Staging(context.device, nbytes)
        ctypes.memmove(staging.address, source, nbytes)
        context.keep(staging)
        context.stream.copy(target, staging.address, nbytes)


def download(
    context: ExecutionContext, storage: Storage, destination: int, nbytes: int, *, offset: int = 0, keep: object
) -> None:
    """Copy `nbytes` at byte `offset` of `storage` to host address `destination`.

    The bytes have arrived when the run is done. `keep` owns the memory there, and is held until then.

    Raises:
        ArgumentError: the range has no bytes, or lies outside the storage.
        LaunchError: the stream records a graph.

    Example:
        >>> import numpy as np
        >>> from cuda_async import Device, download, value, with_context
        >>> def five(context):
        ...     storage, array = context.allocate(4), np.empty(4, np.uint8)
        ...     storage.use(context.stream, write=True)
        ...     context.stream.fill(storage.address, 4, bytes([5]))
        ...     download(context, storage, array.ctypes.data, array.nbytes, keep=array)
        ...     return value(array)
        >>> with_context(five).sync_on(Device.host().new_stream())
        array([5, 5, 5, 5], dtype=uint8)
    """
    _check(storage, nbytes, offset)
    traced = is_traced(context.stream)
    if not traced:
        refuse_in_capture(context.stream.recorder, "a copy to the host")
    storage.use(context.stream, write=False)
    if traced:  # nothing will run
        return
    context.keep(keep)
    source = storage.address + offset
    if context.device.kind == "host":
        context.stream.copy(destination, source, nbytes)
    elif nbytes > CHUNK_BYTES:
        _Pipe(context).download(destination, source, nbytes)
    else:
        staging = Staging(context.device, nbytes)
        context.keep(staging)
        context.stream.copy(staging.address, source, nbytes)
        context.on_complete(lambda: _move(destination, staging.address, nbytes))


def fetch(
    context: ExecutionContext, storage: Storage, destination: int, nbytes: int, *, offset: int = 0, keep: object
) -> None:
    """Copy `nbytes` at byte `offset` of `storage` to host address `destination`.

    Waits for the stream: the bytes have arrived when this returns. By `download` they arrive at the end of the run, too
    late for an operation that computes with them. `keep` owns the memory there, and is held until the run completes:
    Ctrl-C may end the wait while workers still write.

    Raises:
        ArgumentError: the range has no bytes, or lies outside the storage.
        LaunchError: the stream records a graph.
        NotReadyError: the stream traces: no work is done.
        DeviceError: earlier work of the stream failed.
    """
    _check(storage, nbytes, offset)
    # A trace is refused as well: the operation computes with the bytes, and there are none.
    refuse_in_capture(context.stream.recorder, "a copy to the host")
    stream = context.stream
    storage.use(stream, write=False)
    context.keep(keep)
    source = storage.address + offset
    if context.device.kind == "host":
        stream.synchronize()
        _move(destination, source, nbytes)
    elif nbytes > CHUNK_BYTES:
        _Pipe(context).download(destination, source, nbytes)
        stream.synchronize()  # which follows the workers' last move
    else:
        staging = Staging(context.device, nbytes)
        context.keep(staging)  # until the run completes, for the same reason as `keep`
        stream.copy(staging.address, source, nbytes)
        stream.synchronize()
        _move(destination, staging.address, nbytes)


def _check(storage: Storage, nbytes: int, offset: int) -> None:
    if nbytes < 1 or offset < 0 or offset + nbytes > storage.nbytes:
        raise ArgumentError(
            f"expected a part of the storage's {storage.nbytes} bytes, got {nbytes} bytes at offset {offset}"
        )


def _move(destination: int, source: int, nbytes: int) -> None:
    ctypes.memmove(destination, source, nbytes)


class _Pipe:
    """A few page-locked slots between the host and the device.

    Moves on the host have a stream of their own; the device's copies are on the run's stream.
    """

    def __init__(self, context: ExecutionContext) -> None:
        device = context.device
        self._device_side = context.stream
        self._host_side = device.staging_stream()
        self._slots = [Staging(device, CHUNK_BYTES) for _ in range(_SLOTS)]
        for slot in self._slots:
            context.keep(slot)
        self._filled: list[DriverEvent] = []
        self._emptied: list[DriverEvent] = []

    def upload(self, target: int, source: int, nbytes: int) -> None:
        """Copy to the device: workers fill slots, the device empties them."""
        host, device = self._host_side, self._device_side
        with self._submitting():
            for chunk, start in enumerate(range(0, nbytes, CHUNK_BYTES)):
                slot = chunk % _SLOTS
                address = self._slots[slot].address
                length = min(CHUNK_BYTES, nbytes - start)
                if chunk >= _SLOTS:  # the device must have copied the chunk that is in the slot
                    host.driver.wait_event(self._emptied[slot])
                host.call(lambda address=address, start=start, length=length: _move(address, source + start, length))
                host.driver.record(self._filled[slot])
                device.driver.wait_event(self._filled[slot])
                device.copy(target + start, address, length)
                device.driver.record(self._emptied[slot])

    def download(self, destination: int, source: int, nbytes: int) -> None:
        """Copy to the host: the device fills slots, workers empty them.

        The run's stream waits for the last moves.
        """
        host, device = self._host_side, self._device_side
        with self._submitting():
            for chunk, start in enumerate(range(0, nbytes, CHUNK_BYTES)):
                slot = chunk % _SLOTS
                address = self._slots[slot].address
                length = min(CHUNK_BYTES, nbytes - start)
                if chunk >= _SLOTS:  # a worker must have moved the chunk that is in the slot
                    device.driver.wait_event(self._emptied[slot])
                device.copy(address, source + start, length)
                device.driver.record(self._filled[slot])
                host.driver.wait_event(self._filled[slot])
                host.call(
                    lambda address=address, start=start, length=length: _move(destination + start, address, length)
                )
                host.driver.record(self._emptied[slot])
            # A copy of two chunks does not record the third event, which may still stand for another copy's failure.
            for event in self._emptied[: -(-nbytes // CHUNK_BYTES)]:
                device.driver.wait_event(event)

    @contextmanager
    def _submitting(self) -> Generator[None]:
        """A block that submits to the stream of the host side, with events from the pool.

        Where the block fails, the run's stream waits for the moves that workers have begun: the memory that they touch
        is held only until the run ends.
        """
        host, device = self._host_side, self._device_side
        events: list[DriverEvent] = []
        try:  # around all borrowing: Ctrl-C between two events loses none
            for _ in range(2 * _SLOTS):
                events.append(device.device.borrow_event())
            self._filled, self._emptied = events[:_SLOTS], events[_SLOTS:]
            with host.submission:
                host.driver.begin_run()
                host.driver.followed()  # by the run's stream, which waits for the moves and gets their failure
                try:
                    yield
                except BaseException:
                    with suppress(DeviceError):  # a device that refuses this has failed as a whole
                        # Waits that were enqueued for the event's earlier record stay valid.
                        host.driver.record(events[0])
                        device.driver.wait_event(events[0])
                    raise
                finally:
                    host.driver.end_run()
        finally:
            for event in events:  # enqueued waits stay valid when an event is recorded again
                device.device.return_event(event)
