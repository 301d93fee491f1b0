"""Memory that another library lends, ordered with that library's streams.

Before each use, our stream waits for the stream that the library uses at that moment. After the submission, the
library's stream waits for ours. So both sides may go on writing and reading in the order of their code. The memory's
owner is held until our work on it is done.

A storage here stands for all the memory of a device that others own: its address is 0, and offsets in it are addresses.
Storages of overlapping bytes share their leases, or know each other's, so that uses of the same bytes conflict,
whichever storages they name (`Spans`). `cutile.host.foreign` knows the tensors of other libraries.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cuda_async.core.event import wait_event
from cuda_async.core.lease import LeaseList, current_holder, link
from cuda_async.core.order import settle
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream, borrow_stream
from cuda_async.errors import ContextError, NotReadyError, without_traceback
from cuda_async.locks import new_lock

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("ForeignStorage", "Spans", "consumer_stream", "end_export", "import_stream", "wait_for_writer")

LEGACY_STREAM = 1
"""The handle of a CUDA device's legacy default stream. 0 may mean it, too, or the default stream of a thread."""

_WHOLE_MEMORY = 1 << 64  # bytes of an address space


Span = tuple[int, int]
"""Bytes [start, stop)."""


RECENT = 256
"""Lists that are kept after their last import has ended: a program imports the same tensors again and again."""


class Spans:
    """The lists of leases of one device's imported ranges, by address.

    Imports of one range share a list. Ranges that overlap have lists of their own, which know each other as neighbours.
    So an operation is compared with what may touch its bytes, however much else was imported.

    Ranges are grouped by the number of binary digits of their length, and sorted by start in each group. A range that
    overlaps [start, stop) begins before `stop`, and after `start` minus the greatest length of its group. So few ranges
    are looked at in vain.

    A collection may end a list at any time, and a signal handler may import while this thread does. So the end of a
    list is only noted, for a later call to forget its range, and each change leaves the ranges complete.
    """

    __slots__ = ("_count", "_ended", "_lists", "_lock", "_recent", "_starts")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._lists: dict[Span, weakref.ref[LeaseList]] = {}
        self._starts: dict[int, list[Span]] = {}
        self._ended: deque[Span] = deque()
        self._recent: deque[LeaseList] = deque(maxlen=RECENT)
        self._count = 0  # of lists that were ever made

    def leases(self, start: int, stop: int) -> LeaseList:
        """The list of leases of the bytes [start, stop).

        For an empty range it is a list without neighbours.
        """
        if stop <= start:
            return LeaseList()
        span = (start, stop)
        reference = self._lists.get(span)
        leases = None if reference is None else reference()
        if leases is not None:
            return leases
        with self._lock:
            return self._new_or_known(span)

    def _new_or_known(self, span: Span) -> LeaseList:
        """The list of a range, under the lock.

        In a function of its own: where a `while` jumps back, CPython 3.13 raises Ctrl-C outside of a `with` around it.
        """
        while True:
            self._forget()
            reference = self._lists.get(span)
            leases = None if reference is None else reference()
            if leases is None:
                leases = self._add(span, reference)
            if leases is not None:
                return leases

    def _add(self, span: Span, before: weakref.ref[LeaseList] | None) -> LeaseList | None:
        """Make the list of a range; None if a signal handler has come between.

        The handler has imported or forgotten the range meanwhile.

        Args:
            span: the range.
            before: the range's earlier list, which has ended but is not forgotten yet; None if there is none.
        """
        leases, ended, count = LeaseList(), self._ended, self._count
        # Linked before anything is entered in it, so that the neighbours miss no lease.
        neighbours = self._overlapping(span)
        for neighbour in neighbours:
            link(leases, neighbour)
        reference = weakref.ref(leases, lambda _: ended.append(span))
        spans = self._starts.setdefault((span[1] - span[0]).bit_length(), [])
        if before is None:
            insort(spans, span)
        # There is no call between the test and the entry, where a signal handler could run.
        if (self._lists[span] if span in self._lists else None) is not before:  # noqa: SIM401 - `get` is a call
            if before is None:
                spans.remove(span)
            return None
        self._lists[span] = reference
        self._recent.append(leases)
        self._count += 1
        if self._count > count + 1:  # a signal handler has imported in between
            for neighbour in self._overlapping(span):
                if neighbour is not leases and not any(neighbour is other for other in neighbours):
                    link(leases, neighbour)
        return leases

    def __len__(self) -> int:
        """How many ranges have lists."""
        return len(self._lists)

    def _overlapping(self, span: Span) -> list[LeaseList]:
        start, stop = span
        overlapping: list[LeaseList] = []
        for digits, spans in tuple(self._starts.items()):  # a copy: a signal handler may import ranges of other lengths
            first = bisect_left(spans, (start - (1 << digits) + 1, 0))
            for other in spans[first : bisect_left(spans, (stop, 0))]:
                reference = self._lists.get(other) if other[1] > start else None
                leases = None if reference is None else reference()
                if leases is not None:
                    overlapping.append(leases)
        return overlapping

    def _forget(self) -> None:
        """Forget the ranges whose lists have ended, unless they were imported again."""
        while True:
            try:
                span = self._ended.popleft()
            except IndexError:
                return
            reference = self._lists.get(span)
            if reference is None or reference() is not None:
                continue
            # A signal handler may have imported the range again since `get`. There is no call from this test to `del`.
            if span in self._lists and self._lists[span] is reference:
                del self._lists[span]
                self._starts[(span[1] - span[0]).bit_length()].remove(span)  # an empty list stays: there are 64 at most


class _PerDevice:
    """One device's ranges of foreign memory, and the streams that all share."""

    def __init__(self, device: Device) -> None:
        self.spans = Spans()
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
        span: the addresses [start, stop) that uses stay in; all of the device's by default.
        read_only: whether the memory must not be written.
        imported: whether the lender has just made `import_stream` wait for the data.
    """

    __slots__ = ("lender", "read_only")

    def __init__(
        self,
        device: Device,
        owner: object,
        lender: Callable[[], int | None] | None = None,
        *,
        span: tuple[int, int] = (0, _WHOLE_MEMORY),
        read_only: bool = False,
        imported: bool = False,
    ) -> None:
        shared = _shared(device)
        super().__init__(shared.releases, 0, _WHOLE_MEMORY, owned=False, keep=owner)
        self.leases = shared.spans.leases(*span)
        self.read_only = read_only
        self.lender = lender
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
        if stream.recorder is None:
            self.join(stream)

    def join(self, stream: Stream) -> None:
        """Order work on `stream` behind the lender's stream, and that stream behind it.

        The lender's stream waits for the end of the submission.
        """
        raw = None if self.lender is None else self.lender()
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
    """Have the next use or free of `storage` wait for another library's `stream`.

    Called when an export ends, since the library may have written. For finalizers: it takes no lock and does not call
    the driver.
    """
    storage._allocation.write_unseen(stream)  # pyright: ignore[reportPrivateUsage]


def wait_for_writer(storage: Storage, *, readers: bool = False, submitting: bool = False) -> None:
    """Wait on this thread until `storage` is written, for a reader without a stream.

    Such readers are libraries on the CPU.

    Args:
        storage: the memory.
        readers: whether to wait for its readers as well, since the caller will write it.
        submitting: whether the wait is allowed inside a submission, since it is for work that is no part of it.

    Raises:
        NotReadyError: called inside a submission, whose work may not be enqueued yet, unless `submitting`.
        DeviceError: the operation that was to write the storage failed.
    """
    if storage.error is not None:
        raise without_traceback(storage.error)
    allocation = storage._allocation  # pyright: ignore[reportPrivateUsage]
    writers = allocation.writers()
    for stream, sequence in (*(allocation.reads() if readers else ()), *writers):
        if sequence <= stream.completed:
            continue
        if current_holder() is not None and not submitting:
            raise NotReadyError(
                "a tensor was handed to another library inside a function given to then(), map() or inspect(): it is "
                "called at submission, before the device has computed the values. Do it after sync() or await."
            )
        settle(None, stream, sequence)
        event, covered = stream.mark(sequence)
        if (stream, sequence) in writers:
            wait_event(event)
        else:
            wait_event(event.without_failure())
        stream.completed = max(stream.completed, covered)
