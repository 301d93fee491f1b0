"""`Capture`: the recorder of a stream that records instead of running.

The recorder of a graph is in `recorder.py`; that of a trace, which is never replayed, in `trace.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cuda_async.errors import LaunchError, NotReadyError

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.operation import Operation
    from cuda_async.core.storage import Storage
    from cuda_async.core.stream import Stream

__all__ = ("Capture", "Span", "is_traced", "refuse_in_capture", "refuse_in_trace")

T = TypeVar("T")

Span = tuple[int, "int | None"]
"""Bytes [start, stop) of a storage; None for its end."""


class Capture(Protocol):
    """The recorder that a capturing stream reports to.

    Attributes:
        home: the stream that the recorded work belongs to; memory of the capture is allocated there.
        allocated: memory that recorded operations allocated, and that holds no data yet.
        remade: memory of recorded graphs that holds data, or failed to get them, and that each launch makes anew.
        traces: whether this is a trace: nothing of it will run.
        since: of a trace: the number that a shared operation made when the trace began would have.
        meets: the objects that communicators made for the recorded collectives (`Engine.recorded`), which the graph
            keeps. A graph with collectives is launched even if its operands hold nothing useful, since other ranks
            launch theirs.
    """

    home: Stream
    allocated: list[Storage]
    remade: list[Storage]
    traces: bool
    since: int
    meets: list[object]

    def execute(self, op: Operation[T], context: ExecutionContext) -> T:
        """Execute an operation, and record the memory that it uses as a step of its own."""
        ...

    def enter(self, op: Operation[Any]) -> None:
        """Begin an operation: uses noted from here on are a step of its own."""
        ...

    def leave(self) -> None:
        """End the operation that was entered last."""
        ...

    def note(self, storage: Storage, *, write: bool, lent: Sequence[Span] = ()) -> None:
        """Note that the recorded work reads, or writes, this storage.

        `lent` has the bytes; without any they are what was lent to the running operations.
        """
        ...

    def workspace(self, nbytes: int) -> Storage:
        """Memory for the blocks of the launch that is being recorded.

        It holds zeros when the launch first runs.
        """
        ...

    def allocate(self, nbytes: int) -> Storage:
        """Memory of the recorded work.

        Raises LaunchError where this capture allocates none.
        """
        ...


def refuse_in_capture(capture: Capture | None, what: str) -> None:
    """Refuse work that a graph cannot hold.

    Raises:
        LaunchError: the stream records a graph.
        NotReadyError: the stream traces.
    """
    refuse_in_trace(capture, what)
    if capture is not None:
        raise LaunchError(
            f"{what} cannot be part of a graph. Do it before the capture, between launches with graph.update(), "
            "or after launch()."
        )


def is_traced(stream: Stream) -> bool:
    """Whether a stream traces: work enqueued on it is noted, and never runs."""
    return stream.recorder is not None and stream.recorder.traces


def refuse_in_trace(capture: Capture | None, what: str) -> None:
    """Refuse work that a trace cannot see without running it.

    Its results decide which work follows, or other streams do it.

    Raises:
        NotReadyError: the stream traces.
    """
    if capture is not None and capture.traces:
        raise NotReadyError(
            f"{what} cannot be traced: nothing runs while the kernels of an operation are looked for, so what is "
            "launched behind it is unknown. Look for the kernels of what comes before it and behind it, one by one"
        )
