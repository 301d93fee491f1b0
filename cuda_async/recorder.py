"""Captures: the stream that records, and the storages that the recorded work uses.

A stream with a recorder captures instead of running. While it records, nothing runs, and nothing is
ordered: each launch of the graph is ordered behind the other users of its storages.

Uses are ordered by whole storages, but the graph's lease is on the bytes that were lent to each
operation. An operation may use a part of a storage, and for memory of other libraries one storage
stands for all the memory of a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cuda_async.core.capture import Span
from cuda_async.core.lease import Use
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream
from cuda_async.core.workspace import workspace_of_graph
from cuda_async.driver.interface import DriverGraph
from cuda_async.errors import DeviceError, LaunchError
from cuda_async.site import Site

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.device import Device
    from cuda_async.core.operation import Operation

__all__ = ("Handle", "Recorder", "Recording", "Step")

T = TypeVar("T")


@dataclass(slots=True)
class Step:
    """A recorded operation, for drawings.

    Attributes:
        label: its name.
        site: the line that made it.
        uses: the storages that it uses, by `id`; True for a storage that it writes.
    """

    label: str
    site: Site
    uses: dict[int, bool] = field(default_factory=dict[int, bool])


class Recorder:
    """The record of one capture.

    Args:
        home: the stream that the graph belongs to; memory of the capture is allocated there.
        may_allocate: whether operations that allocate may be recorded.
    """

    traces = False
    since = 0

    __slots__ = (
        "_may_allocate", "_operands", "_running", "_uses", "_workspace", "allocated", "home", "meets", "remade",
        "steps",
    )  # fmt: skip

    def __init__(self, home: Stream, *, may_allocate: bool) -> None:
        self.home = home
        self._may_allocate = may_allocate
        self._uses: dict[int, tuple[Storage, bool]] = {}
        self._operands: dict[tuple[int, int, int | None], Use] = {}
        self.allocated: list[Storage] = []
        self.remade: list[Storage] = []
        self._workspace: Storage | None = None
        self._running: list[tuple[Operation[Any], Step | None]] = []
        self.meets: list[object] = []
        self.steps: list[Step] = []
        """The operations that use memory, in the order of their first uses."""

    def execute(self, op: Operation[T], context: ExecutionContext) -> T:
        """Execute an operation, and record the memory that it uses as a step of its own."""
        self.enter(op)
        try:
            return op.execute(context)
        finally:
            self.leave()

    def enter(self, op: Operation[Any]) -> None:
        """Begin an operation: uses noted from here on are a step of its own."""
        self._running.append((op, None))

    def leave(self) -> None:
        """End the operation that was entered last."""
        self._running.pop()

    def note(self, storage: Storage, *, write: bool, lent: Sequence[Span] = ()) -> None:
        """Note that the recorded work uses bytes of this storage; see `Capture`."""
        use = self._uses.get(id(storage))
        self._uses[id(storage)] = (storage, write or (use is not None and use[1]))
        for start, stop in lent or self._lent(storage):
            # Leased to be read, even if the graph writes: others may read its operands between launches.
            self._operands[id(storage), start, stop] = Use("an operand of the graph", storage, False, start, stop)
        if self._running:
            op, step = self._running[-1]
            if step is None:
                step = Step(op.label(), op.site)
                self._running[-1] = (op, step)
                self.steps.append(step)
            step.uses[id(storage)] = write or step.uses.get(id(storage), False)

    def _lent(self, storage: Storage) -> list[Span]:
        """The byte ranges of a storage that were lent to the running operations.

        The whole storage if nothing of it was lent to them.
        """
        uses = [use for op, _ in self._running for lease in op.leases for use in lease.uses]
        return [(start, stop) for _, lent, _, start, stop in uses if lent is storage] or [(0, None)]

    def workspace(self, nbytes: int) -> Storage:
        """Memory of the graph's own for the launch that is being recorded.

        Zeros before the graph's first launch.
        """
        workspace = self._workspace
        if workspace is None or workspace.nbytes < nbytes:
            # `_uses` keeps the smaller one, which launches that were recorded before use.
            workspace = self._workspace = workspace_of_graph(self.home, nbytes)
        self.note(workspace, write=True)
        return workspace

    def uses(self) -> list[tuple[Storage, bool]]:
        """Each storage used, and whether it is written."""
        return list(self._uses.values())

    def operands(self) -> list[Use]:
        """The bytes that launches of the graph use, which others must not write."""
        return list(self._operands.values())

    def allocate(self, nbytes: int) -> Storage:
        """Memory from the ordinary pool, which lives as long as the graph uses it.

        Raises:
            LaunchError: this capture is a scope.
            OutOfMemoryError: it does not fit.
        """
        if not self._may_allocate:
            raise LaunchError(
                "an operation that allocates cannot be recorded in a graph scope: its memory would be gone at "
                "replay. Allocate before the scope and pass the buffer in, or capture the whole with op.graph_on()."
            )
        storage = Storage.allocate(self.home, nbytes)
        self.allocated.append(storage)
        return storage


class Handle:
    """A driver's graph, closed when no `CudaGraph` and no launch in flight holds it.

    Attributes:
        driver: the graph.
        meets: objects that communicators made for its collectives. They end behind `__del__`. So a communicator with
            none of them left knows that `Device.collect` closes all graphs with its collectives.
    """

    __slots__ = ("_device", "driver", "meets")

    def __init__(self, device: Device, graph: DriverGraph, meets: list[object]) -> None:
        self.meets = meets
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
        # First: `begin_run` lets the driver unload modules, which graphs that are to be closed here may use.
        self.stream.device.collect()
        self.stream.driver.begin_run()
        self._begun = self._capturing = True  # before the call: when Ctrl-C comes, the driver may capture already
        self.stream.driver.begin_capture()

    def end(self, failure: BaseException | None) -> Handle:
        """Stop recording, and return the graph, ready for launches.

        Args:
            failure: the operation's error, which is raised. It may have led to an error of the capture, which is not.

        Raises:
            DriverError: the capture failed.
        """
        driver = self.stream.driver
        try:
            try:
                handle = Handle(self.stream.device, driver.end_capture(), self.recorder.meets)
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
            failure = None  # its traceback holds this frame: a cycle
            self.abort()
        return handle

    def abort(self) -> None:
        """End the capture and the driver's run, if they have not ended."""
        driver = self.stream.driver
        try:
            if self._capturing:
                self._capturing = False
                with suppress(DeviceError):  # the driver's capture had not begun, or had failed
                    Handle(self.stream.device, driver.end_capture(), self.recorder.meets)
        finally:  # also where Ctrl-C comes
            if self._begun:
                self._begun = False
                driver.end_run()
