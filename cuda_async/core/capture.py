"""Streams that record instead of running.

What the core does there, and what it asks of who records: a graph (`recorder.py`), or a trace (`trace.py`), which
keeps nothing to be replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cuda_async.errors import LaunchError, NotReadyError

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.operation import Operation
    from cuda_async.core.storage import Storage
    from cuda_async.core.stream import Stream

__all__ = ("Capture", "is_traced", "refuse_in_capture", "refuse_in_trace")

T = TypeVar("T")


class Capture(Protocol):
    """What a capturing stream reports to.

    Attributes:
        home: the stream that the recorded work belongs to; memory of the capture is allocated there.
        allocated: memory that recorded operations allocated.
        traces: whether nothing of it will run, so that any operation may be part of it.
        since: of a trace, when it began: shared operations are numbered as they are made.
        meets: whether it has collectives, which a launch must not leave out.
    """

    home: Stream
    allocated: list[Storage]
    traces: bool
    since: int
    meets: bool

    def execute(self, op: Operation[T], context: ExecutionContext) -> T:
        """Execute an operation; what it uses is a step of its own."""
        ...

    def enter(self, op: Operation[Any]) -> None:
        """What is noted from here on is a step of this operation's."""
        ...

    def leave(self) -> None:
        """The operation that was entered last is over."""
        ...

    def note(self, storage: Storage, *, write: bool) -> None:
        """The recorded work reads, or writes, this storage."""
        ...

    def workspace(self, nbytes: int) -> Storage:
        """Memory for the blocks of the launch that is being recorded.

        Zeros before it first runs.
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
        LaunchError: the stream is recording.
        NotReadyError: it traces.
    """
    refuse_in_trace(capture, what)
    if capture is not None:
        raise LaunchError(
            f"{what} cannot be part of a graph. Do it before the capture, between launches with graph.update(), "
            "or after launch()."
        )


def is_traced(stream: Stream) -> bool:
    """Whether what is enqueued on a stream is only looked at."""
    return stream.recorder is not None and stream.recorder.traces


def refuse_in_trace(capture: Capture | None, what: str) -> None:
    """Refuse work that cannot be looked at without doing it.

    Its results decide what is submitted behind it, or other streams do it.

    Raises:
        NotReadyError: the stream traces.
    """
    if capture is not None and capture.traces:
        raise NotReadyError(
            f"{what} cannot be traced: nothing runs while the kernels of an operation are looked for, so what is "
            "launched behind it is unknown. Look for the kernels of what comes before it and behind it, one by one"
        )
