"""What a capture notes: which storage the recorded work reads and writes, and what must stay alive.

A stream with a recorder captures instead of running. Nothing is ordered while recording (nothing
runs); each launch of the graph orders itself behind the other users of the same storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_async.errors import LaunchError

if TYPE_CHECKING:
    from cuda_async.storage import Storage
    from cuda_async.stream import Stream

__all__ = ("Recorder", "refuse_in_capture")


class Recorder:
    """The books of one capture.

    Args:
        home: the stream that the graph belongs to; memory of the capture is allocated there.
        may_allocate: whether operations that allocate may be recorded.
    """

    __slots__ = ("_may_allocate", "_uses", "allocated", "home")

    def __init__(self, home: Stream, *, may_allocate: bool) -> None:
        self.home = home
        self._may_allocate = may_allocate
        self._uses: dict[int, tuple[Storage, bool]] = {}
        self.allocated: list[Storage] = []

    def note(self, storage: Storage, *, write: bool) -> None:
        """The recorded work reads, or writes, this storage."""
        known = self._uses.get(id(storage))
        self._uses[id(storage)] = (storage, write or (known is not None and known[1]))

    def uses(self) -> list[tuple[Storage, bool]]:
        """Each storage used, and whether it is written."""
        return list(self._uses.values())

    def check_allocation(self) -> None:
        """Refuse an allocation in a scope.

        Raises:
            LaunchError: this capture is a scope.
        """
        if not self._may_allocate:
            raise LaunchError(
                "an operation that allocates cannot be recorded in a graph scope: its memory would be gone at "
                "replay. Allocate before the scope and pass the buffer in, or capture the whole with op.graph_on()."
            )


def refuse_in_capture(recorder: Recorder | None, what: str) -> None:
    """Refuse work that a graph cannot hold.

    Raises:
        LaunchError: the stream is recording.
    """
    if recorder is not None:
        raise LaunchError(
            f"{what} cannot be part of a graph. Do it before the capture, between launches with graph.update(), "
            "or after launch()."
        )
