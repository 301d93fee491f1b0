"""Launches of a graph: the operation, and the bound form that is repeated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from cuda_async.core.context import ExecutionContext
from cuda_async.core.lease import current_holder
from cuda_async.core.order import Nested
from cuda_async.core.run import Run
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream, expect_stream
from cuda_async.op import DeviceOp
from cuda_async.recorder import Handle
from cuda_async.site import site_of

__all__ = ("BoundGraphLaunch", "GraphLaunch", "Held", "Replayable", "Spoilt", "Update")

T = TypeVar("T")


class Held(NamedTuple):
    """Objects that a launch needs until it is done, even if the graph is closed.

    Attributes:
        handle: the driver's graph; None once the graph is closed.
        uses: the storages of its operands. The flag is True where the graph writes the storage.
        kept: everything else.
    """

    handle: Handle | None
    uses: list[tuple[Storage, bool]]
    kept: list[object]


class Replayable(Protocol):
    """A graph."""

    def check_device(self, stream: Stream) -> None:
        """Refuse a stream of another device."""
        ...

    def enqueue(self, stream: Stream) -> Held:
        """Enqueue the graph on a stream; the result must live until the device is done."""
        ...


Spoilt = dict[Storage, tuple[BaseException | None, int, int]]
"""Memory that updates have failed to write: the error there, and the bytes [start, stop)."""


class Update(Run[T]):
    """The run of a graph's update, which may make good an earlier one's failure.

    Args:
        op: the update.
        stream: the graph's stream.
        outputs: the graph's outputs by `id`, which launches make anew.
        spoilt: the memory that the graph's updates have failed to write.
    """

    __slots__ = ("_healed", "_outputs", "_spoilt")

    def __init__(self, op: DeviceOp[T], stream: Stream, outputs: Mapping[int, Storage], spoilt: Spoilt) -> None:
        self._outputs = outputs
        self._spoilt = spoilt
        self._healed: list[tuple[Storage, BaseException]] = []
        super().__init__(op, stream)

    def heal(self, storage: Storage, start: int, stop: int) -> None:
        """Forget a failure to write bytes that are all written next.

        For `ExecutionContext.overwrite`.
        """
        error, whole = storage.error, (0, storage.nbytes)
        if error is None or id(storage) in self._outputs:
            return
        failure, *span = self._spoilt.get(storage, (None, *whole))
        first, last = span if failure is error else whole  # another failure may have left any bytes unwritten
        if start <= first and last <= stop:
            self._healed.append((storage, error))  # ahead of the next line: Ctrl-C may come between
            storage.fail(None)
            if (start, stop) == whole:
                storage.renew(self.stream)

    def restore(self) -> None:
        """Put the failures back: the update was not enqueued."""
        for storage, error in self._healed:
            if storage.error is None:
                storage.fail(error)

    def _spoil(self, failure: BaseException) -> None:
        storages = [use[1] for lease in self.leases for use in lease.uses]
        before = {storage: storage.error for storage in storages if isinstance(storage, Storage)}
        super()._spoil(failure)
        for lease in self.leases:
            for _, storage, write, start, stop in lease.uses:
                if not write or not isinstance(storage, Storage):
                    continue
                earlier, first, last = self._spoilt.get(storage, (None, start, start))
                if before[storage] is not earlier:  # of a launch, say, after which more bytes may be unwritten
                    first, last = 0, storage.nbytes
                stop = storage.nbytes if stop is None else stop
                self._spoilt[storage] = storage.error, min(first, start), max(last, stop)


class GraphLaunch(DeviceOp[None]):
    """Replays a graph."""

    __slots__ = ("_graph", "_held")

    has_effects = True

    def __init__(self, graph: Replayable) -> None:
        self._graph = graph
        self._held: Held | None = None
        # The frames: this one, `CudaGraph.launch`, the user's.
        super().__init__(site_of(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]

    def label(self) -> str:
        return "graph launch"

    def execute(self, context: ExecutionContext) -> None:
        self._enqueue(context.stream)
        context.keep(self._held)  # until the device is done: the graph may be closed before that
        context.run.written += self.written()

    def fast_path(self, *, waited: bool) -> Callable[[Stream], None] | None:
        # Without a run, this object alone keeps `_held`. It lives until the device is done only if a caller waits.
        return self._enqueue if waited else None

    def _enqueue(self, stream: Stream) -> None:
        self._held = self._graph.enqueue(stream)

    def written(self) -> Iterable[Storage]:
        return [storage for storage, write in self._held.uses if write] if self._held else []

    def bind(self, stream: Stream) -> BoundGraphLaunch:
        """A launch on `stream` that can be repeated: each costs about a driver call.

        This operation cannot be run any more.

        Raises:
            OwnershipError: the operation was used before.
            ContextError: the stream is another device's.
        """
        expect_stream(stream)
        self._graph.check_device(stream)
        self.mark_bound()
        return BoundGraphLaunch(self._graph, stream)


class BoundGraphLaunch:
    """A graph's launch on a stream, to be repeated.

    Made by `graph.launch().bind(stream)`.

    Example:
        >>> from cuda_async import Device, value
        >>> stream = Device.host().new_stream()
        >>> with value("output").graph_on(stream) as graph:
        ...     replay = graph.launch().bind(stream)
        ...     replay()
        ...     replay()
        ...     stream.synchronize()
    """

    __slots__ = ("_graph", "_stream")

    def __init__(self, graph: Replayable, stream: Stream) -> None:
        self._graph = graph
        self._stream = stream

    @property
    def stream(self) -> Stream:
        """The stream of its launches."""
        return self._stream

    def __call__(self) -> None:
        """Enqueue the graph; does not wait.

        Raises:
            ContextError: the graph was closed.
            DeviceError: the device was lost, or an operand has no values: the operation that writes it has failed.
        """
        stream = self._stream
        submission = stream.submission
        try:  # as `with submission:`, in a third of the time
            if not submission.acquire(False):  # `blocking`; the keyword would cost more
                with Nested(current_holder(), stream):
                    submission.acquire()
            stream.begin_single()  # a run of this launch alone, which does not have the failures of earlier runs
            stream.hold(self._graph.enqueue(stream))
            stream.lead_lenders()  # streams of other libraries that lend memory wait for the launch
        finally:
            try:  # noqa: SIM105 - `suppress` costs more than the lock
                submission.release()
            except RuntimeError:  # Ctrl-C ended `acquire`, so that the lock is not held
                pass

    def __repr__(self) -> str:
        return f"<bound launch of {self._graph!r} on {self._stream}>"
