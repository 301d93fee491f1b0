"""`Stream`: an ordered queue of work on one device, and order among streams.

The seam that a backend sees (as a protocol, without importing this package):

    stream.load_function(image: bytes, entry: str, shared_bytes: int) -> object      # a GPU
    stream.launch_function(function, grid, block, shared_bytes: int, parameters: int) -> None
    stream.parallel_for(body: Callable[[int, int], None], count: int, grain: int) -> None   # CPU

Each enqueues and returns. `sequence` counts the enqueued pieces of work. `follow(source, sequence)` makes this stream
wait for the first `sequence` pieces of another stream. Only then does the other stream record an event, and not if an
earlier wait covers those pieces.

`policy.py` chooses streams for operations; `storage.py` knows which memory they use.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from cuda_async.core.capture import Capture, is_traced, refuse_in_capture
from cuda_async.core.defaults import current_stream, enter, leave
from cuda_async.core.event import wait_event
from cuda_async.core.lease import Lease, check_guards
from cuda_async.core.order import holds, settle
from cuda_async.core.report import Report
from cuda_async.core.storage import Storage
from cuda_async.core.workspace import Workspace
from cuda_async.driver.checked import CheckedStream
from cuda_async.driver.interface import DriverEvent, DriverStream, Early, Launcher, Meet
from cuda_async.errors import ArgumentTypeError, ContextError, as_text
from cuda_async.locks import new_lock

if TYPE_CHECKING:
    from types import TracebackType

    from cuda_async.core.device import Device

__all__ = ("BorrowedStream", "Stream", "StreamStatistics", "borrow_stream", "expect_stream")

_numbers = itertools.count(1)  # needs no lock: `next` is atomic


def expect_stream(stream: object) -> None:
    """Refuse an object that is no stream.

    Raises:
        TypeError: it is none; the message says how a stream is made.
    """
    if not isinstance(stream, Stream):
        raise ArgumentTypeError(
            f"expected a stream, such as Device.best().new_stream(), got {type(stream).__name__}: {as_text(stream)}; "
            "sync() and `await` choose one by themselves"
        )


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """Counts of a stream's work.

    Attributes:
        submitted: pieces of work enqueued.
        completed: pieces known to have completed.
        events_recorded: events recorded for other streams to wait on.
        waits: enqueued waits for other streams.
    """

    submitted: int
    completed: int
    events_recorded: int
    waits: int


class Stream:
    """An ordered queue of work on one device; `device.new_stream()` makes it.

    As a context manager it is the default stream inside the block.

    Example:
        >>> from cuda_async import Device, value
        >>> stream = Device.host().new_stream()
        >>> value(6).map(lambda x: x * 7).sync_on(stream)
        42
    """

    __slots__ = (
        "__weakref__", "_events", "_mark", "_mark_lock", "_marked", "_ordered", "_seen", "_waits", "_workspace",
        "begun", "checked", "completed", "device", "driver", "held", "lenders", "number", "plain", "recorder",
        "sequence", "sm_margin", "submission",
    )  # fmt: skip

    def __init__(
        self, device: Device, driver: DriverStream, recorder: Capture | None = None, *, sm_margin: int = 0
    ) -> None:
        self.device = device
        self.number = next(_numbers)
        """Counted in this process; messages name a stream by it."""
        self.driver = driver
        """The driver's stream."""
        self.sequence = 0
        """Pieces of work enqueued."""
        self.begun = 0
        """Pieces enqueued before the submission under way. It may be an older, smaller number: launches without a run
        need not set it until they have to wait for another thread (`settle` of `order.py`)."""
        self.completed = 0
        """Pieces known to have completed."""
        self.submission = new_lock()
        """Held while an operation is being submitted, so that two threads' work does not interleave."""
        self.checked = driver if isinstance(driver, CheckedStream) else None
        """The driver's stream in debug mode, which checks each use of memory; else None."""
        self.recorder = recorder
        """The recorder of a stream that captures work instead of running it; else None."""
        self.sm_margin = sm_margin
        """Multiprocessors that kernels with a persistent grid leave free; see `Device.new_stream`."""
        self.plain = self.checked is None and recorder is None
        """Whether neither a checker nor a recorder has to be told of uses of memory."""
        self._mark: DriverEvent | None = None  # the event that other streams wait for; `mark` records it anew
        self._mark_lock = new_lock()
        self._marked = 0  # pieces of whole operations that `_mark` covers
        # How many pieces of each other stream this one follows: for their results, and (`_ordered`) only in order.
        # Weak, since this stream must not keep the others.
        self._seen: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()
        self._ordered: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()
        self._events = 0
        self._waits = 0
        self.lenders: dict[DriverStream, int] = {}
        """Other libraries' streams that have to wait for this submission; of each, `sequence` when it was noted."""
        self.held: dict[int, object] = {}
        """Objects kept until the stream is next seen idle, by `id`; see `hold`."""
        self._workspace: Workspace | None = None

    @classmethod
    def borrow_raw(cls, device: Device, raw: object, *, owner: object = None) -> Stream:
        """Wrap a stream that another library made, and destroys.

        Work of both sides runs in the order in which it is enqueued.

        Args:
            device: the stream's device.
            raw: the handle (`CUstream`) as a number, or an object with `__cuda_stream__`, such as CuPy's.
            owner: held as long as this lives; by default `raw`, if it is an object.

        Raises:
            TypeError: `raw` is neither.
            LaunchError: streams of this device have no handles.
        """
        return borrow_stream(device, raw, owner)

    def cu_stream(self) -> int:
        """The driver's handle, as a number. Raises LaunchError where there is none."""
        return self.driver.raw

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of this protocol, and the handle: for libraries that take a stream."""
        return 0, self.cu_stream()

    # -- ordering -----------------------------------------------------------------------------

    def mark(self, sequence: int) -> tuple[DriverEvent, int]:
        """An event that covers the first `sequence` pieces or more, and their number.

        While an operation is being submitted here, only the pieces before that submission are counted. The event may be
        recorded between two pieces of the operation. The record of a memory has the number of the first piece alone. So
        a later caller with that number must not take the event for one that covers the operation.
        """
        with self._mark_lock:
            if self._mark is None:
                self._mark = self.device.driver.create_event()
            elif self._marked >= sequence:
                return self._mark, self._marked
            self._marked = self._record(self._mark)
            self._events += 1
            return self._mark, self._marked

    def _record(self, event: DriverEvent) -> int:
        """Record an event, and return how many pieces of whole operations it covers."""
        # Read before recording: what another thread enqueues meanwhile may not be covered.
        before, covered, settled = self.begun, self.sequence, not holds(self)
        try:
            # It does not wait for the lock, whose holder may wait for `_mark_lock`.
            settled = self.submission.acquire(blocking=False) and settled
            self.driver.record(event)
        finally:
            try:  # noqa: SIM105 - not `if settled`: Ctrl-C may come between `acquire` and the assignment
                self.submission.release()
            except RuntimeError:  # another thread has it
                pass
        return covered if settled else before

    def follows(self, source: Stream, sequence: int) -> bool:
        """Whether later work here is known to follow `sequence` pieces of `source`."""
        return source is self or sequence <= source.completed or self._seen.get(source, 0) >= sequence

    def follow(self, source: Stream, sequence: int, *, depend: bool = True, wait: bool = True) -> bool:
        """Make later work here wait for the first `sequence` pieces of `source`.

        If another thread is submitting these pieces at this moment, this waits until it has enqueued them.

        Args:
            source: the stream to wait for.
            sequence: how many of its pieces.
            depend: whether later work here fails if that work failed, since it needs the results. If not, it is only
                ordered behind it, as it overwrites or frees memory that the work used.
            wait: whether to wait for that other thread.

        Returns:
            Whether later work here follows the whole submission that has these pieces. If not, it follows what that
            submission has enqueued so far, as that submission waits for this thread (`order.py`).

        Raises:
            ContextError: the two streams belong to devices of different kinds.
        """
        if source is self or sequence <= source.completed or self._seen.get(source, 0) >= sequence:
            return True
        if not depend and self._ordered.get(source, 0) >= sequence:
            return True
        if source.device.kind != self.device.kind:
            raise ContextError(
                self.device.ordinal, f"{self} cannot wait for {source}: their devices are of different kinds"
            )
        settled = settle(self, source, sequence) if wait else True
        event, covered = source.mark(sequence)
        self.driver.wait_event(event if depend else event.without_failure())
        self._waits += 1
        followed = self._seen if depend else self._ordered
        if covered > followed.get(source, 0):  # `mark` may return a smaller number than it did before
            followed[source] = covered
        return settled

    def follow_lender(self, lender: DriverStream, device: Device) -> None:
        """Make later work here wait for `lender`, and `lender` for this submission.

        For memory that another library lends. `lender` is the stream that the library uses at this moment, on `device`.
        """
        if self.lenders.get(lender) == self.sequence:
            return  # nothing was enqueued since then: the same launch uses several tensors of the library
        event = device.borrow_event()
        try:
            lender.record(event)
            self.driver.wait_event(event)
        finally:
            device.return_event(event)  # an enqueued wait stays as it is when the event is recorded anew
        self.lenders[lender] = self.sequence

    def lead_lenders(self, end: DriverEvent | None = None) -> None:
        """Make the lenders wait for this submission: up to `end`, or up to now.

        The thread that submits calls it, once all is enqueued.
        """
        if not self.lenders:
            return
        lenders, self.lenders = self.lenders, {}
        event = self.device.borrow_event() if end is None else end
        try:
            if end is None:
                self.driver.record(event)
            for lender in lenders:  # only in order: a failure here does not fail the other library's work
                lender.wait_event(event.without_failure())
        finally:
            if end is None:
                self.device.return_event(event)

    # -- work ---------------------------------------------------------------------------------

    def begin_single(self, leases: Sequence[Lease] = ()) -> None:
        """Prepare for one operation that is enqueued next without a `Run`.

        The caller holds the submission lock.

        Raises:
            OwnershipError: a lease is on what a graph uses at each launch.
        """
        self.begun = self.sequence
        if self.device.garbage:
            self.device.collect()
        for lease in leases:  # in line: few leases are guarded, and this spares each launch a call
            if lease.guarded:
                check_guards(leases, None)
        return self.driver.begin_single()  # `return` spares each launch an instruction

    def continue_run(self) -> None:
        """Prepare for more work of the preceding run; see `DriverStream.continue_run`.

        The caller holds the submission lock.
        """
        if self.device.garbage:
            self.device.collect()
        self.driver.continue_run()

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: Early = "never") -> object:
        """Load machine code and return its function `entry`. The caller keeps it.

        Args:
            image: the code.
            entry: the function's name in it.
            shared_bytes: dynamic shared memory that its launches may use.
            early: see `Driver.load_function`.
        """
        return self.device.driver.load_function(image, entry, shared_bytes, early=early)

    def launch_function(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> None:
        """Enqueue a GPU launch.

        `parameters` is the address of a `void*` array, read before this returns.
        """
        self.driver.launch_function(function, grid, block, shared_bytes, parameters)
        self.sequence += 1

    def launcher(self, function: object, block: tuple[int, int, int], shared_bytes: int) -> Launcher:
        """A function that launches a kernel on any stream of this device.

        It is called as `launch(stream.driver, blocks, parameters)`, for kernels that are launched often. The caller
        does the rest of `launch_function` and `hold`: it adds 1 to `stream.sequence`, and puts the function into
        `stream.held`.
        """
        return self.driver.launcher(function, block, shared_bytes)

    def prepare_launch(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> Callable[[], None]:
        """A function that enqueues a GPU launch; each call reads `parameters` anew."""
        launch = self.driver.prepare_launch(function, grid, block, shared_bytes, parameters)

        def enqueue() -> None:
            launch()
            self.sequence += 1

        return enqueue

    def expect_output(self) -> None:
        """Note that kernels launched from here on may print.

        Their output is written when they are seen to have completed.
        """
        self.driver.expect_output()

    def encode_tensor_map(
        self,
        element: str,
        address: int,
        extents: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
        step: int = 1,
    ) -> bytes:
        """Encode a tensor map; see `Driver.encode_tensor_map`. Enqueues nothing."""
        return self.device.driver.encode_tensor_map(element, address, extents, strides, box, swizzle, step)

    def resident_blocks(self, function: object, threads: int, shared_bytes: int, cluster: int) -> int:
        """How many blocks of a function run at once on the SMs that this stream may use.

        It is a multiple of `cluster`: one cluster at least, unless the device holds none.
        """
        blocks = self.device.driver.resident_blocks(function, threads, shared_bytes, cluster)
        if not self.sm_margin:
            return blocks
        sms = self.device.multiprocessor_count
        clusters = blocks * (sms - self.sm_margin) // sms // cluster
        return min(blocks, max(1, clusters) * cluster)

    def workspace(self, nbytes: int) -> Workspace | Storage:
        """Memory of `nbytes` or more, through which blocks of a launch exchange results.

        All launches of the stream use the same memory, one after the other. Each finds zeros in its first 4096 bytes,
        and must leave zeros there. A stream that captures returns a workspace of the graph.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        if self.recorder is not None:
            return self.recorder.workspace(nbytes)
        workspace = self._workspace
        if workspace is None or workspace.nbytes < nbytes:
            workspace = self._workspace = Workspace(self, nbytes)  # a smaller one before it is freed in stream order
        return workspace

    def report(self, read: Callable[[bytes], BaseException], *, lasting: bool = False) -> Report:
        """64 bytes into which a GPU launch of this stream writes a failure.

        The launch takes the report's address. If the first word is 2 once the launch is over, the wait for it fails
        with `read(memory)`; the device stays usable. Call the report's `expect()` when the launch is enqueued.

        Args:
            read: makes the exception from the 64 bytes. It must not use the device.
            lasting: whether the report is for a launch that is repeated, as every launch in a capture is.

        Raises:
            OutOfMemoryError: there is no page-locked memory left.
        """
        lasting = lasting or self.recorder is not None
        return Report(self.device.reports, self.driver, read, lasting=lasting)

    @property
    def threads(self) -> int:
        """Threads that host code of one launch may use, the worker's own included."""
        return self.driver.threads

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        """Enqueue `body(start, stop)` over the range [0, count), on the CPU's workers.

        The range is cut into pieces of `grain` indices or fewer. `body` runs on several threads at once, with the GIL
        released if it is a `ctypes` function.
        """
        self.driver.parallel_for(body, count, grain)
        self.sequence += 1

    def call(self, function: Callable[[], None]) -> None:
        """Enqueue a call of `function`, which must not use the device, on a host thread.

        Raises:
            LaunchError: this stream records a graph.
        """
        if not is_traced(self):  # a trace may have host functions, since nothing of it runs
            refuse_in_capture(self.recorder, "a host function")
        self.driver.call(function)
        self.sequence += 1

    def meet(self, make: Callable[[], Meet]) -> None:
        """Enqueue a meeting with other streams, maybe of other processes.

        See `DriverStream.meet`.
        """
        self.driver.meet(make)
        self.sequence += 1

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Enqueue a copy between addresses of the device, or of page-locked memory."""
        self.driver.copy(destination, source, nbytes)
        self.sequence += 1

    def fill(self, destination: int, nbytes: int, pattern: bytes) -> None:
        """Fill `nbytes` bytes at `destination` with a pattern of 1, 2 or 4 bytes."""
        self.driver.fill(destination, nbytes, pattern)
        self.sequence += 1

    # -- waiting ------------------------------------------------------------------------------

    def query(self) -> bool:
        """Whether everything enqueued has completed, well or not. Does not wait."""
        return self.driver.query()

    def synchronize(self) -> None:
        """Wait for everything enqueued so far. Ctrl-C ends the wait.

        Raises:
            DriverError: work of the last submitted operation failed, or earlier work that nobody waited for.
        """
        covered = self.sequence
        event = self.device.borrow_event()
        try:
            whole = self._record(event)
            self.driver.awaited()  # this thread has nothing else to do
            try:
                wait_event(event)
            except Exception:
                if covered == self.sequence:
                    self.driver.followed()  # the failure is raised here, so the next wait need not raise it
                raise
        finally:
            self.device.return_event(event)
        self.completed = max(self.completed, whole)
        if self.held and not holds(self):
            self._drop_held(covered)

    def _drop_held(self, covered: int) -> None:
        """Drop the held objects if all pieces of the stream are done.

        The first `covered` are. An operation may hold its code before it is enqueued. So nothing is dropped while an
        operation is being submitted. This method looks for another thread that does so, and `synchronize` has looked
        whether this thread does.
        """
        try:
            # It does not wait for the lock, whose holder may take long.
            if self.submission.acquire(blocking=False) and covered == self.sequence:
                self.held.clear()
        finally:
            try:  # noqa: SIM105 - as in `_record`
                self.submission.release()
            except RuntimeError:  # another thread has it
                pass

    def hold(self, item: object) -> None:
        """Keep `item` (loaded code, say) until `synchronize` next finds the stream idle.

        Holding the same item again costs next to nothing.
        """
        self.held[id(item)] = item

    def statistics(self) -> StreamStatistics:
        """Counts of this stream's work so far."""
        return StreamStatistics(self.sequence, self.completed, self._events, self._waits)

    # -- defaults -----------------------------------------------------------------------------

    def __enter__(self) -> Stream:
        enter(current_stream, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(current_stream)

    def __del__(self) -> None:
        driver = getattr(self, "driver", None)
        if driver is not None:
            self.device.defer(driver.close)  # not called here: a collection may come amid the driver's own code
            mark = getattr(self, "_mark", None)  # absent where Ctrl-C ended __init__
            if mark is not None:
                self.device.defer(mark.close)

    def __repr__(self) -> str:
        return f"<Stream {self.number} of {self.device}>"


class BorrowedStream(Stream):
    """Another library's stream. It is not destroyed here.

    Attributes:
        owner: the object that keeps it alive; held as long as this lives.
    """

    __slots__ = ("owner",)

    def __init__(self, device: Device, raw: int, owner: object) -> None:
        super().__init__(device, device.driver.borrow_stream(raw))
        self.owner = owner


def borrow_stream(device: Device, raw: object, owner: object = None) -> BorrowedStream:
    """Wrap a stream; see `Stream.borrow_raw`.

    Raises:
        TypeError: `raw` is neither a handle nor an object with `__cuda_stream__`.
        LaunchError: streams of this device have no handles.
    """
    protocol: Any = getattr(raw, "__cuda_stream__", None)
    if protocol is not None:
        handle = protocol()[1]
        return BorrowedStream(device, operator.index(handle), raw if owner is None else owner)
    try:
        number = operator.index(cast("Any", raw))
    except TypeError:
        raise ArgumentTypeError(
            f"raw: expected a stream handle as a number, or an object with __cuda_stream__, got {type(raw).__name__}"
        ) from None
    return BorrowedStream(device, number, owner)
