"""What a capture notes.

Which storage the recorded work reads and writes, and what must stay alive.

A stream with a recorder captures instead of running. Nothing is ordered while recording (nothing
runs); each launch of the graph orders itself behind the other users of the same storage.

Order is a storage's, but what belongs to the graph is what was lent: the bytes of each argument.
The storage of memory that another library lends is all the memory of a device, and of our own an
operation may use a part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cuda_async.core.lease import Use
from cuda_async.core.storage import Storage
from cuda_async.core.workspace import workspace_of_graph
from cuda_async.errors import LaunchError
from cuda_async.site import Site

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.operation import Operation
    from cuda_async.core.stream import Stream

__all__ = ("Recorder", "Step")

T = TypeVar("T")


@dataclass(slots=True)
class Step:
    """An operation that was recorded, for drawings.

    Its name and line, and which storages it writes or only reads.
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

    __slots__ = ("_may_allocate", "_operands", "_running", "_uses", "_workspace", "allocated", "home", "meets", "steps")

    def __init__(self, home: Stream, *, may_allocate: bool) -> None:
        self.home = home
        self._may_allocate = may_allocate
        self._uses: dict[int, tuple[Storage, bool]] = {}
        self._operands: dict[tuple[int, int, int | None], Use] = {}
        self.allocated: list[Storage] = []
        self._workspace: Storage | None = None
        self._running: list[tuple[Operation[Any], Step | None]] = []
        self.meets = False
        self.steps: list[Step] = []
        """The operations that touched memory, in the order in which each first did."""

    def execute(self, op: Operation[T], context: ExecutionContext) -> T:
        """Execute an operation and write down what it uses as a step of its own."""
        self.enter(op)
        try:
            return op.execute(context)
        finally:
            self.leave()

    def enter(self, op: Operation[Any]) -> None:
        """What is noted from here on is a step of this operation's."""
        self._running.append((op, None))

    def leave(self) -> None:
        """The operation that was entered last is over."""
        self._running.pop()

    def note(self, storage: Storage, *, write: bool) -> None:
        """The recorded work reads, or writes, this storage."""
        known = self._uses.get(id(storage))
        self._uses[id(storage)] = (storage, write or (known is not None and known[1]))
        for start, stop in self._lent(storage):
            self._operands[id(storage), start, stop] = Use("an operand of the graph", storage, False, start, stop)
        if self._running:
            op, step = self._running[-1]
            if step is None:
                step = Step(op.label(), op.site)
                self._running[-1] = (op, step)
                self.steps.append(step)
            step.uses[id(storage)] = write or step.uses.get(id(storage), False)

    def _lent(self, storage: Storage) -> list[tuple[int, int | None]]:
        """Which bytes of a storage the operations that run hold.

        All, of memory that nobody lent to them.
        """
        uses = [use for op, _ in self._running for lease in op.leases for use in lease.uses]
        return [(start, stop) for _, lent, _, start, stop in uses if lent is storage] or [(0, None)]

    def workspace(self, nbytes: int) -> Storage:
        """Memory of the graph's own for the launch that is being recorded.

        Zeros before the graph's first launch.
        """
        found = self._workspace
        if found is None or found.nbytes < nbytes:
            found = self._workspace = workspace_of_graph(self.home, nbytes)
        self.note(found, write=True)
        return found

    def uses(self) -> list[tuple[Storage, bool]]:
        """Each storage used, and whether it is written."""
        return list(self._uses.values())

    def operands(self) -> list[Use]:
        """The bytes that each launch of the graph uses.

        Nobody else is to write them as long as the graph lives.
        """
        return list(self._operands.values())

    def allocate(self, nbytes: int) -> Storage:
        """Memory from the ordinary pool, which belongs to the graph.

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
