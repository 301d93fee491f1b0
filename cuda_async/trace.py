"""Traces: the launches that an operation would submit, found without running it.

A submission reads no data: functions given to `then` get handles. So an operation can be submitted to a stream that
enqueues nothing: it calls all these functions, and reaches every launch that a run would reach. Memory that it
allocates does not exist.

    trace = trace_of(lambda: decode(q, k, v), device)        # uses up the operation that the function makes
    trace.result                        # its result: handles without memory
    trace.launches                      # the notes that `Operation.trace` of its parts made of their launches
    trace.picture("decode").text()      # its steps, drawn

Work that waits for the device, or is on another device, cannot be traced: it raises `NotReadyError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from cuda_async.core.capture import Span
from cuda_async.core.lease import Use
from cuda_async.core.nesting import refuse_nested
from cuda_async.core.run import Run
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream
from cuda_async.driver.interface import Check, Driver, DriverEvent, DriverGraph, DriverStream
from cuda_async.errors import NotReadyError
from cuda_async.picture import Picture, picture_of_steps
from cuda_async.recorder import Recorder
from cuda_async.shared import births

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.op import DeviceOp

__all__ = ("AbsentStorage", "Trace", "trace_of")

T = TypeVar("T")


class AbsentStorage(Storage):
    """Memory that does not exist: of a traced operation, or of a tensor without data."""

    __slots__ = ()
    without_memory = True

    reason = "the memory of an operation that was traced does not exist: its kernels were looked for, and nothing ran"

    def __init__(self, stream: Stream, nbytes: int) -> None:
        super().__init__(stream, 0, nbytes, owned=False)

    def use(self, stream: Stream, *, write: bool, peer: bool = False, failed: bool = False) -> None:
        """Note the use on a stream that traces; refuse it on others.

        Raises:
            NotReadyError: the stream would run the work.
        """
        if stream.recorder is None or not stream.recorder.traces:
            self.check_memory()
        stream.recorder.note(self, write=write)

    def check_memory(self) -> NoReturn:
        """Refuse: there is no memory.

        Raises:
            NotReadyError: always.
        """
        raise NotReadyError(self.reason)


class _Tracer(Recorder):
    """The record of one trace."""

    __slots__ = ("launches", "since", "written")

    traces = True

    def __init__(self, device: Device) -> None:
        super().__init__(Stream(device, _NoDriverStream(), self), may_allocate=True)
        self.since = next(births)
        self.launches: list[Any] = []
        self.written: list[Use] = []

    def execute(self, op: Any, context: Any) -> Any:
        self.enter(op)
        try:
            return op.trace(context)
        finally:
            self.leave()

    def note(self, storage: Storage, *, write: bool, lent: Sequence[Span] = ()) -> None:
        super().note(storage, write=write, lent=lent)
        if write and not storage.without_memory:
            uses = [use for op, _ in self._running for lease in op.leases for use in lease.uses]
            written = [Use(*use) for use in uses if use[1] is storage and use[2]]
            self.written += written or [Use("memory", storage, True, *span) for span in lent or [(0, None)]]

    def allocate(self, nbytes: int) -> Storage:
        storage = AbsentStorage(self.home, nbytes)
        self.allocated.append(storage)
        return storage


class Trace(Generic[T]):
    """The record of an operation that was submitted to a stream that traces.

    Attributes:
        result: the operation's result: handles. Memory that the operation would allocate does not exist.
        launches: the notes of its launches, in the order of their submission.
        written: existing memory that it would write.
    """

    def __init__(self, tracer: _Tracer, result: T) -> None:
        self._steps = tracer.steps
        self.result = result
        self.launches: tuple[Any, ...] = tuple(tracer.launches)
        self.written: tuple[Use, ...] = tuple(tracer.written)

    def picture(self, title: str) -> Picture:
        """The steps that use memory, as data for drawings."""
        return picture_of_steps(title, self._steps)


def trace_of(make: Callable[[], DeviceOp[T]], device: Device) -> Trace[T]:
    """Make an operation and submit it, without running it. This uses it up.

    Raises:
        NotReadyError: its launches depend on results; or it uses another device, or a shared operation that was made
            before and has not run.
        ReentrancyError: this thread is submitting an operation.
        BaseException: an error of `make`, or of a function given to `then`, `map` or `inspect`.
    """
    refuse_nested("looking for the kernels of an operation")
    tracer = _Tracer(device)
    run = Run(make(), tracer.home)
    try:
        return Trace(tracer, run.record())
    finally:
        run.done = True  # as in `graph.py`: leases of a finished run conflict with no others
        run.release()


class _NoDriverStream(DriverStream):
    """A stream that drops enqueued work."""

    __slots__ = ()

    def begin_run(self) -> None:
        return None

    def end_run(self) -> None:
        return None

    def check_behind(self, check: Check, *, expect: Callable[[], None] | None = None) -> None:
        return None

    def record(self, event: DriverEvent) -> None:
        return None  # an event that was never recorded is complete

    def followed(self) -> None:
        return None

    def wait_event(self, event: DriverEvent) -> None:
        return None

    def query(self) -> bool:
        return True

    def allocate(self, nbytes: int) -> int:
        raise NotReadyError(AbsentStorage.reason)

    def free(self, address: int) -> None:
        return None

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        return None

    def copy_peer(
        self, destination: int, destination_driver: Driver, source: int, source_driver: Driver, nbytes: int
    ) -> None:
        return None

    def fill(self, destination: int, nbytes: int, pattern: bytes) -> None:
        return None

    def call(self, function: Callable[[], None]) -> None:
        return None

    def meet(self, make: Callable[[], Any]) -> None:
        return None

    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        return None

    def launch_function(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> None:
        return None

    def begin_capture(self) -> None:
        return None

    def end_capture(self) -> DriverGraph:
        raise NotReadyError("a graph cannot be captured from a stream that traces")

    def launch_graph(self, graph: DriverGraph) -> None:
        return None

    def close(self) -> None:
        return None
