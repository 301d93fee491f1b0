"""Memory that another library lends, ordered with that library's streams.

Before each use, our stream waits for the stream that the library uses at that moment. After the submission, the
library's stream waits for ours. So both sides may go on writing and reading in the order of their code. The memory's
owner is held until our work on it is done.

A storage here stands for all the memory of a device that others own: its address is 0, and offsets in it are addresses.
All such storages of a device share one list of leases, so that uses of the same bytes conflict, whichever storages they
name. `cutile.host.foreign` knows the tensors of other libraries.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from cuda_async.core.event import wait_event
from cuda_async.core.lease import Lease, current_holder
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream, borrow_stream
from cuda_async.errors import ContextError, NotReadyError, without_traceback
from cuda_async.locks import new_lock

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("ForeignStorage", "consumer_stream", "end_export", "import_stream", "wait_for_writer")

LEGACY_STREAM = 1
"""The handle of a CUDA device's legacy default stream. 0 may mean it, too, or the default stream of a thread."""

_WHOLE_MEMORY = 1 << 64  # bytes of an address space


class _PerDevice:
    """The leases and streams that all foreign memory of one device shares."""

    def __init__(self, device: Device) -> None:
        self.leases: list[Lease] = []
        self.imports = device.new_stream()
        self.releases = device.new_stream()
        self.streams: dict[int, Stream] = {}
        self.lock = new_lock()


_devices: weakref.WeakKeyDictionary[Device, _PerDevice] = weakref.WeakKeyDictionary()
_lock = new_lock()


def _shared(device: Device) -> _PerDevice:
    shared = _devices.get(device)
    if shared is None:
        with _lock:
            shared = _devices.get(device)  # another thread may have made it meanwhile
            if shared is None:
                shared = _devices[device] = _PerDevice(device)
    return shared


def import_stream(device: Device) -> Stream:
    """The stream that is given to `__dlpack__(stream=...)`; nothing else runs on it.

    The lender makes it wait for the data.
    """
    return _shared(device).imports


def consumer_stream(device: Device, raw: int) -> Stream:
    """Another library's stream as a `Stream`: the same object for the same handle."""
    shared = _shared(device)
    with shared.lock:
        stream = shared.streams.get(raw)
        if stream is None:
            stream = shared.streams[raw] = borrow_stream(device, raw)
        return stream


class ForeignStorage(Storage):
    """Memory that another library owns.

    Args:
        device: the memory's device.
        owner: the object that keeps the memory alive; held until our work on it is done.
        lender: returns the handle of the stream that the library uses at this moment. None for a library whose work
            is done when its functions return (on the CPU), or whose stream is unknown.
        read_only: whether the memory must not be written.
        imported: whether the lender has just made `import_stream` wait for the data.
    """

    __slots__ = ("_lender", "read_only")

    def __init__(
        self,
        device: Device,
        owner: object,
        lender: Callable[[], int | None] | None = None,
        *,
        read_only: bool = False,
        imported: bool = False,
    ) -> None:
        shared = _shared(device)
        super().__init__(shared.releases, 0, _WHOLE_MEMORY, owned=False, keep=owner)
        self.leases = shared.leases
        self.read_only = read_only
        self._lender = lender
        if imported:
            stream = shared.imports
            with stream.submission:
                stream.sequence += 1
                self._allocation.writer, self._allocation.written = stream, stream.sequence

    @property
    def owner(self) -> object:
        """The object that keeps the memory alive."""
        return self._allocation.keep

    def use(self, stream: Stream, *, write: bool, peer: bool = False, failed: bool = False) -> None:
        """Order work on `stream` behind our uses and the lender's stream.

        The arguments are those of `Storage.use`.

        Raises:
            ContextError: `stream` belongs to another device, or the memory is read-only and would be written.
            DeviceError: the operation that was to write this storage failed.
        """
        if write and self.read_only:
            raise ContextError(self.device.ordinal, "memory that was imported as read-only would be written")
        super().use(stream, write=write, peer=peer, failed=failed)
        lender = self._lender
        if lender is None or stream.recorder is not None:
            return
        raw = lender()
        if raw is None:
            return
        theirs = consumer_stream(self.device, raw or LEGACY_STREAM).driver
        if theirs.raw != stream.driver.raw:  # else the work is on the lender's own stream
            stream.follow_lender(theirs, self.device)

    def order(self, stream: Stream, write: bool) -> None:
        """`use`, without a shortcut: the lender may have enqueued work at any time."""
        self.use(stream, write=write)

    def __del__(self) -> None:
        allocation = getattr(self, "_allocation", None)  # absent where __init__ failed
        # The import stream's write is the lender's, and does not need the owner.
        if allocation is not None and allocation.in_use(but=_shared(self.device).imports):
            self.device.defer(allocation.forget)

    def __repr__(self) -> str:
        return f"<ForeignStorage of {type(self.owner).__name__} on {self.device}>"


# -- the other way: our memory, lent to others ------------------------------------------------


def end_export(storage: Storage, stream: Stream) -> None:
    """Have the next use of `storage` wait for another library's `stream`; a free, too.

    Called when an export ends, since the library may have written. For finalizers: no lock, no call of the driver.
    """
    allocation = storage._allocation  # pyright: ignore[reportPrivateUsage]
    stream.sequence += 1
    allocation.writer, allocation.written = stream, stream.sequence


def wait_for_writer(storage: Storage, *, readers: bool = False, submitting: bool = False) -> None:
    """Wait on this thread until `storage` is written, for a reader without a stream.

    Such readers are libraries on the CPU.

    Args:
        storage: the memory.
        readers: whether to wait for its readers as well, since the caller will write it.
        submitting: whether the caller means to wait inside a submission, for work that is no part of it.

    Raises:
        NotReadyError: called inside a submission, where waiting would wait for work that is not enqueued yet.
        DeviceError: the operation that was to write the storage failed.
    """
    if storage.error is not None:
        raise without_traceback(storage.error)
    allocation = storage._allocation  # pyright: ignore[reportPrivateUsage]
    users = list(allocation.readers.items()) if readers else []
    if allocation.writer is not None:
        users.append((allocation.writer, allocation.written))
    for stream, sequence in users:
        if sequence <= stream.completed:
            continue
        if current_holder() is not None and not submitting:
            raise NotReadyError(
                "a tensor was handed to another library inside a function given to then(), map() or inspect(): it is "
                "called at submission, before the device has computed the values. Do it after sync() or await."
            )
        event, covered = stream.mark(sequence)
        if stream is allocation.writer:
            wait_event(event)
        else:
            wait_event(event.without_failure())
        stream.completed = max(stream.completed, covered)
