"""Who is timed on a device.

An operation, run over and over, by the device's own clock.

On a GPU the clock is a pair of events around the work. Ahead of them a large fill empties the L2 cache, and keeps the
device busy while Python submits, so that the time is the device's alone. On the CPU it is the wall clock, around the
run of an operation that was built before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from cuda_async import CudaGraph, DeviceOp, ExecutionContext, Storage, Stream, default_device, value
from cutile.errors import ArgumentTypeError

Subject = Callable[[], object] | DeviceOp[Any] | CudaGraph[Any]
"""What may be timed: a function that makes an operation, anew for each run; an operation, or a graph."""

FLUSH_BYTES = 1 << 30
"""Bytes written ahead of a run: 0.25 ms on a fast GPU, longer than Python takes to submit."""

_WRITE_BYTES = 1 << 27  # bytes of one write


class DeviceArm:
    """An operation on a stream, as one who is timed; see `Arm`.

    Args:
        subject: a function that makes an operation, anew for each run; an operation, which runs once, so that it is
            recorded as a graph and replayed; or a graph. On the CPU, also a function that makes none: it is timed
            itself.
        stream: where it runs; a new stream of the default device by default.
        clear_l2: whether each run finds the caches cold. By default a GPU's L2 is cleared and the CPU's caches are not.
            With False, what is timed are replays of a graph without a pause, on the CPU too, so that launches do not
            count; so are an operation or a graph on the CPU by default.
        name: for tables.

    Raises:
        LaunchError: the operation is to be recorded, and a graph cannot hold it.

    Example:
        >>> from cuda_async import Device, value
        >>> with DeviceArm(lambda: value(1), Device.host().new_stream()) as arm:
        ...     arm.run(3) > 0
        True
    """

    def __init__(
        self, subject: Subject, stream: Stream | None = None, *, clear_l2: bool | None = None, name: str = ""
    ) -> None:
        self.name = name
        self.stream = default_device().new_stream() if stream is None else stream
        device = self.stream.device
        self._gpu = device.driver.works_alone
        self._clear = self._gpu if clear_l2 is None else clear_l2
        self._start, self._end = device.new_event(timing=True), device.new_event(timing=True)
        self._flush: Storage | None = None
        self._own: CudaGraph[Any] | None = None  # to be closed
        self._graph: CudaGraph[Any] | None = subject if isinstance(subject, CudaGraph) else None
        if isinstance(subject, DeviceOp):
            self._graph = self._own = self._record(cast("DeviceOp[Any]", subject))
        self._make = cast("Callable[[], object]", subject) if self._graph is None else self._graph.launch
        self._replays = clear_l2 is False or (self._graph is not None and not self._clear)
        self._ready = False
        self._works_itself = False  # a function that does work of the CPU, and makes no operation

    @property
    def batches(self) -> bool:
        """Whether a run of several computations is one measurement, without a pause."""
        return self._replays

    def _record(self, op: DeviceOp[Any]) -> CudaGraph[Any]:
        for prepare in op.preparations(self.stream.device):
            prepare()
        return op.graph_on(self.stream)

    def _operation(self, result: Any) -> DeviceOp[Any]:
        if isinstance(result, DeviceOp):
            return cast("DeviceOp[Any]", result)
        raise ArgumentTypeError(
            f"what is timed on {self.stream.device} is an operation; expected a function that returns a DeviceOp, got "
            f"one that returns {type(result).__name__}. Work that another library does on a GPU is measured by its "
            "events"
        )

    # -- running ------------------------------------------------------------------------------

    def run(self, repeats: int) -> float:
        """Compute `repeats` times; return the seconds of the device."""
        if self._replays:
            return self._replay(repeats)
        once = self._between_events if self._gpu else self._by_the_wall
        return sum(once() for _ in range(repeats))

    def _replay(self, repeats: int) -> float:
        """Replay a graph.

        One of its own is recorded for each turn, so that between turns nobody's tensors are held.
        """
        if self._graph is not None:
            return self._between_marks(self._graph, repeats)
        if not self._ready:
            self._run_once()  # compiled and loaded outside of the recording
            self._ready = True
        if self._works_itself:
            return sum(self._by_the_wall() for _ in range(repeats))
        with self._record(self._operation(self._make())) as graph:
            return self._between_marks(graph, repeats)

    def _run_once(self) -> None:
        result: Any = self._make()
        self._works_itself = not isinstance(result, DeviceOp) and not self._gpu
        if not self._works_itself:
            self._operation(result).sync_on(self.stream)

    def _between_marks(self, graph: CudaGraph[Any], repeats: int) -> float:
        _Replays(graph, repeats, self.mark).sync_on(self.stream)
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3

    def mark(self, *, end: bool) -> None:
        """Record where a batch begins or ends."""
        (self._end if end else self._start).record(self.stream)

    def _between_events(self) -> float:
        op = self._operation(self._make())
        self._empty_caches()
        # The closures run while the chain is submitted, so the events stand right before and behind the work.
        before = value(None).map(lambda _: self.mark(end=False))
        before.then(lambda _: op).map(lambda _: self.mark(end=True)).sync_on(self.stream)
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3

    def _by_the_wall(self) -> float:
        if self._clear:
            self._empty_caches()
            self.stream.synchronize()
        start = time.perf_counter()
        made = self._make()
        if isinstance(made, DeviceOp):
            op = cast("DeviceOp[Any]", made)
            start = time.perf_counter()  # it has been built before
            op.sync_on(self.stream)
        return time.perf_counter() - start

    def _empty_caches(self) -> None:
        device = self.stream.device
        size = max(_WRITE_BYTES, 2 * device.l2_cache_bytes)
        if self._flush is None:
            self._flush = Storage.allocate(self.stream, size)
        for _ in range(-(-FLUSH_BYTES // size) if self._gpu else 1):
            self.stream.fill(self._flush.address, size, b"\0\0\0\0")

    # -- end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of what was recorded, and of the memory that clears the caches."""
        if self._own is not None:
            self._own.close()
            self._own = None
        self._flush = None

    def __enter__(self) -> DeviceArm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Replays(DeviceOp[None]):
    """Launches of a graph without a pause, between two marks."""

    __slots__ = ("_graph", "_mark", "_repeats")

    has_effects = True

    def __init__(self, graph: CudaGraph[Any], repeats: int, mark: Callable[..., None]) -> None:
        self._graph, self._repeats, self._mark = graph, repeats, mark
        super().__init__()

    def execute(self, context: ExecutionContext) -> None:
        self._mark(end=False)
        for _ in range(self._repeats):
            context.keep(self._graph.enqueue(context.stream))
        self._mark(end=True)
