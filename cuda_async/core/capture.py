"""Streams that record instead of running.

What the core does there, and what it asks of who records (`recorder.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cuda_async.errors import LaunchError

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.operation import Operation
    from cuda_async.core.storage import Storage
    from cuda_async.core.stream import Stream

__all__ = ("Capture", "refuse_in_capture")

T = TypeVar("T")


class Capture(Protocol):
    """What a capturing stream reports to.

    Attributes:
        home: the stream that the recorded work belongs to; memory of the capture is allocated there.
        allocated: memory that recorded operations allocated.
    """

    home: Stream
    allocated: list[Storage]

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

    def check_allocation(self) -> None:
        """Refuse an allocation where this capture has none. Raises LaunchError."""
        ...


def refuse_in_capture(capture: Capture | None, what: str) -> None:
    """Refuse work that a graph cannot hold.

    Raises:
        LaunchError: the stream is recording.
    """
    if capture is not None:
        raise LaunchError(
            f"{what} cannot be part of a graph. Do it before the capture, between launches with graph.update(), "
            "or after launch()."
        )
