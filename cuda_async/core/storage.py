"""`Storage`: memory of a device, which orders its uses on several streams.

A stream numbers the pieces of work that are enqueued on it: `sequence` is the number of the last one, and `completed`
that of the last one known to be done. So `sequence + 1` is the piece that is enqueued next.

Each storage knows its last writer and the readers since then, each as (stream, sequence); see `order.py`.
`use(stream, write=...)` is called before each enqueue that touches the memory. It makes the stream wait for the last
writer; before a write it makes the stream wait for the readers as well. The memory is freed on the stream that
allocated it, which waits for all of them first. Launches record no events: one is recorded only when another stream has
to wait.

    storage = context.allocate(nbytes)          # in an operation's execute()
    storage.use(stream, write=True)             # the work is enqueued after this, by the same thread
    storage.address, storage.nbytes, storage.device

A storage has no shape and no dtype. `lease.py` checks that two operations do not conflict.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cuda_async.core.event import WAIT_SLICE_S
from cuda_async.core.lease import Lease
from cuda_async.core.memory import checked_bytes
from cuda_async.core.order import Order, settle
from cuda_async.errors import ArgumentError, ContextError, OutOfMemoryError, without_traceback

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.order import Replay
    from cuda_async.core.stream import Stream
    from cuda_async.driver.interface import DriverEvent

__all__ = ("Storage",)

_MEETING_LIMIT_S = 1.0
"""Seconds that an allocation for which there is no memory waits for frees behind collectives of the CPU. Such a
collective may need a later call of the same thread. Ranks that are merely late seldom come later than this."""


class _Allocation(Order):
    """The part of a storage that outlives it: its address, and its users.

    Attributes:
        address: the first byte, as a number.
        stream: the stream that allocated the memory, and frees it. Of borrowed memory: a stream of its device.
        keep: the object that keeps borrowed memory alive, if any; None for allocated memory.
        allocated_at: the sequence number of the allocation on `stream`; -1 for borrowed memory.
    """

    __slots__ = ("address", "allocated_at", "keep", "stream")

    def __init__(self, address: int, stream: Stream, keep: object | None) -> None:  # pyright: ignore[reportMissingSuperCall]
        # The body of `Order.__init__`, without the call: launches make an allocation for each new output.
        self.writer = None
        self.written = 0
        self.readers = {}
        self.replays = ()
        self.address = address
        self.stream = stream
        self.keep = keep
        self.allocated_at = -1

    def follow_users(self) -> None:
        """Order later work of the allocation's stream behind all uses of the memory.

        Only in order (`depend=False`): the memory is given back even if work that used it failed. Other threads are not
        waited for (`wait=False`): nobody has the storage any more, so each noted use is enqueued, or never will be.
        """
        for user, sequence in (*self.writers(), *self.reads()):
            self.stream.follow(user, sequence, depend=False, wait=False)

    def release(self) -> None:
        """Free the memory on its stream, behind all uses."""
        stream = self.stream
        if self.writer is not stream or self.readers:
            self.follow_users()
        stream.driver.free(self.address)
        # Not counted in `sequence`: this thread need not hold the stream's lock. Another one may have noted a use there
        # with the next number, and would take it for enqueued (`settle` in `order.py`). Nothing follows a free.

    def forget(self) -> None:
        """Drop `keep` of borrowed memory, on its stream, behind all streams that used it.

        `ForeignStorage` calls it (`foreign.py`). Other borrowed memory drops `keep` with its storage.
        """
        self.follow_users()
        self.stream.driver.call(self._drop_keep)
        self.stream.sequence += 1

    def _drop_keep(self) -> None:
        self.keep = None


def _wait_for_frees(stream: Stream) -> None:
    """Free memory whose storages are gone, and wait until it is free.

    The caller may hold the submission lock of `stream`. The device's work takes no such lock, so the wait ends. The
    exception is a collective of the CPU. It may need other threads, which may wait for that lock, or a later call of
    this thread. So the wait for collectives has a limit.
    """
    from cuda_async.core.policy import policy_streams

    stream.device.collect()
    deadline = time.monotonic() + _MEETING_LIMIT_S
    # Only the streams of the policy are known here. Their order does not matter, since all are waited for.
    streams = {stream, *policy_streams(stream.device)}
    for user in streams:
        event = stream.device.record_event(user.driver)
        try:
            if not _wait_unless_parked(event, deadline, streams):
                return
        finally:  # also where Ctrl-C ends the wait
            stream.device.return_event(event)


def _wait_unless_parked(event: DriverEvent, deadline: float, streams: set[Stream]) -> bool:
    """Wait for an event, beyond the deadline only if no collective may be ahead of it.

    Args:
        event: the event.
        deadline: in seconds of `time.monotonic`.
        streams: the streams whose collectives may be ahead of the event.

    Returns:
        Whether the event has come. False if the deadline is over and one of the streams is parked at a collective.
    """
    while not event.wait(WAIT_SLICE_S):
        if time.monotonic() > deadline and any(user.driver.parked for user in streams):
            return False
    return True


class Storage:
    """Memory of a device, freed in stream order when nothing refers to it any more.

    Attributes:
        device: where it is.
        address: its first byte, as a number.
        nbytes: its size in bytes.
        leases: the leases on it; those that have ended may still be in the list (see `lease.py`).
        error: the failure of the operation that was to write it; raised at each later use.

    Example:
        >>> from cuda_async import Device, Storage
        >>> storage = Storage.allocate(Device.host().new_stream(), 256)
        >>> storage.nbytes, storage.device, storage.address % 64
        (256, cpu, 0)
    """

    __slots__ = ("__weakref__", "_allocation", "_owned", "address", "device", "error", "leases", "nbytes")

    read_only: bool = False
    """Whether it must not be written: memory that another library lends may be so."""

    lender: Callable[[], int | None] | None = None
    """Of memory that another library lends: the function that returns the stream which the library uses now."""

    without_memory: bool = False
    """Whether it only stands for memory, and does not have any: work that uses it cannot run."""

    def __init__(self, stream: Stream, address: int, nbytes: int, *, owned: bool, keep: object | None = None) -> None:
        self.device: Device = stream.device
        self.address = address
        self.nbytes = nbytes
        self.leases: list[Lease] = []
        self.error: BaseException | None = None
        self._owned = owned
        self._allocation = _Allocation(address, stream, keep)

    @classmethod
    def allocate(cls, stream: Stream, nbytes: int) -> Storage:
        """Allocate `nbytes` on `stream`, aligned to 64 bytes at least.

        Raises:
            ValueError: `nbytes` is not positive.
            TypeError: it is no whole number.
            OutOfMemoryError: it does not fit.
        """
        nbytes = checked_bytes("nbytes", nbytes)
        if not nbytes:
            raise ArgumentError("nbytes: expected a positive number of bytes, got 0")
        if stream.recorder is not None:
            return stream.recorder.allocate(nbytes)
        try:
            address = stream.driver.allocate(nbytes)
        except OutOfMemoryError:
            # A collection may free enough. It comes after this handler, whose exception keeps frames, and with them
            # memory.
            address = None
        if address is None:
            gc.collect()
            _wait_for_frees(stream)
            address = stream.driver.allocate(nbytes)
        storage = cls(stream, address, nbytes, owned=True)
        stream.sequence += 1
        # The memory exists in stream order: the first use on another stream waits for that.
        storage._allocation.writer = stream
        storage._allocation.written = storage._allocation.allocated_at = stream.sequence
        return storage

    @classmethod
    def borrow(cls, stream: Stream, address: int, nbytes: int, *, keep: object | None = None) -> Storage:
        """Wrap memory that somebody else owns; never freed.

        `keep` is held as long as the storage lives. An operation to which the storage is lent holds it until its work
        is done.

        Raises:
            ValueError: `nbytes` is negative.
            TypeError: it is no whole number.
        """
        return cls(stream, address, checked_bytes("nbytes", nbytes), owned=False, keep=keep)

    def use(self, stream: Stream, *, write: bool, peer: bool = False, failed: bool = False) -> None:
        """Order work on `stream` behind uses of this storage on other streams.

        Args:
            stream: where the work is enqueued.
            write: whether it writes.
            peer: whether `stream` may belong to another device of the same kind (for copies across).
            failed: whether to order the work even if the operation that was to write this storage failed. The caller
                then reads `error` itself.

        Raises:
            ContextError: `stream` belongs to another device.
            DeviceError: the operation that was to write this storage failed, unless `failed`.
        """
        if stream.recorder is not None:
            stream.recorder.note(self, write=write)  # each launch of the graph orders itself
            return
        if self.error is not None and not failed:
            raise without_traceback(self.error)
        device = stream.device
        if device is not self.device and not (peer and device.kind == self.device.kind):
            raise ContextError(
                device.ordinal, f"memory of {self.device} was passed to work on {device}; copy it there first"
            )
        if write:
            self._allocation.write(stream)
        else:
            self._allocation.read(stream)
        if stream.checked is not None:
            stream.checked.use(self.address, write=write)

    def order(self, stream: Stream, write: bool) -> None:
        """`use`, for launches: quicker where the last writer is `stream` itself."""
        allocation = self._allocation
        # `plain`: no recorder and no checker has to be told. `writer is stream`: it is a stream of the right device.
        if allocation.writer is stream and stream.plain and self.error is None:
            if not write:
                allocation.readers[stream] = stream.sequence + 1
                return
            if not allocation.readers:
                allocation.written = stream.sequence + 1
                return
        self.use(stream, write=write)

    def renew(self, stream: Stream) -> None:
        """Order work on `stream` behind all uses; the work writes all bytes.

        So no earlier failure matters to it. The caller has checked that `stream` belongs to the storage's device.
        """
        self._allocation.write(stream, depend=False)
        if stream.checked is not None:
            stream.checked.use(self.address, write=True)

    def join(self, stream: Stream) -> None:
        """Order work on `stream` behind the library that lends the memory.

        Does nothing here, since no library lends it; `ForeignStorage` overrides this.
        """

    def replay(self, replay: Replay, write: bool) -> None:
        """Let later launches of a graph on a stream skip `order` while `replay` is valid.

        The caller holds the lock of the stream, and calls `order` after this.
        """
        self._allocation.replay(replay, write)

    def fail(self, error: BaseException | None) -> None:
        """Note the failure of the operation that was to write the memory.

        None: another operation has written it since.
        """
        self.error = error
        if error is not None:
            self._allocation.end_replays()

    def check_memory(self) -> None:
        """Do nothing, since there is memory.

        Raises:
            NotReadyError: (subclasses) the storage has no memory.
        """

    def write_mark(self) -> tuple[object, int] | None:
        """A mark of the last write.

        A caller compares it with a later one: the two are equal if nothing has written the memory in between. None for
        memory that was allocated here and that nothing has written.
        """
        allocation = self._allocation
        # An allocation counts as a write of its stream, so that other streams wait for it.
        untouched = allocation.writer is allocation.stream and allocation.written == allocation.allocated_at
        return None if untouched else (tuple(allocation.writers()), allocation.written)

    def last_writer(self) -> Stream | None:
        """The stream of the last write; None if that is known to be done.

        If several streams have written last, it is one of them, which is made to wait for the others.
        """
        users = [user for user in self._allocation.writers() if user[1] > user[0].completed]
        if not users:
            return None
        (writer, written), *others = users
        settle(None, writer, written)
        for other, sequence in others:
            writer.follow(other, sequence)
        return writer

    def __del__(self) -> None:
        # Absent where __init__ failed.
        allocation = getattr(self, "_allocation", None)
        if allocation is not None and self._owned:
            self.device.defer(allocation.release)

    def __repr__(self) -> str:
        return f"<Storage of {self.nbytes} bytes at {self.address:#x} on {self.device}>"
