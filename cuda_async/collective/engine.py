"""`Engine`: brings the calls of ranks together, and moves their data."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cuda_async.collective.board import Call, Key
from cuda_async.driver.interface import Finish, Meet

if TYPE_CHECKING:
    from cuda_async.core.stream import Stream

__all__ = ("Engine", "HostEngine", "Party", "Seat", "elements_at")


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank's part of a call: its memory, by addresses of this process.

    Attributes:
        rank: the rank.
        call: its call.
        op: the reduction; empty if the call reduces nothing.
        root: the rank that has the original of a broadcast, gets the sum of a reduction to one rank, or sends the
            message; 0 for other calls.
        dtype: the dtype of the elements.
        source: the address of the rank's operand.
        count: the number of elements there.
        target: the address of the rank's result.
        room: the number of elements there.
        peer: the other rank of a message; None where all ranks take part.
    """

    rank: int
    call: Call
    op: str
    root: int
    dtype: np.dtype[Any]
    source: int
    count: int
    target: int
    room: int
    peer: int | None = None

    def brings(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The elements of the rank's operand."""
        return elements_at(self.source, self.count, self.dtype)

    def takes(self, result: np.ndarray[Any, np.dtype[Any]] | None) -> None:
        """Write the rank's result; None leaves its memory as it is."""
        if result is not None and self.room:
            elements_at(self.target, self.room, self.dtype)[:] = result


def elements_at(address: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Host memory as an array of one axis, without owning it."""
    if not count:  # the address may be 0 then, and NumPy takes no empty buffer
        return np.empty(0, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


class Engine(ABC):
    """Moves the data between ranks. One for each communicator and process."""

    world: int
    """The number of ranks."""

    def check(self, dtype: np.dtype[Any], op: str) -> None:  # noqa: B027 - most take every element
        """Refuse elements that the engine cannot reduce by `op`, or move if `op` is empty.

        Raises ValueError.
        """

    def recorded(self) -> object:
        """A new object for a graph that records a call. The graph keeps it."""
        return self

    @abstractmethod
    def enqueue(
        self, stream: Stream, parts: Callable[[], list[tuple[Key, Seat]]], failure: BaseException | None
    ) -> None:
        """Enqueue a call of one or more local ranks.

        Args:
            stream: the caller's stream.
            parts: returns the part of each local rank with the key of its meeting. It is called when the call is
                enqueued, since keys number the calls in that order.
            failure: the error of the work that makes the operands, if that is known to have failed. The other ranks
                are told of it. The stream's own run fails with it in any case.

        Raises:
            CollectiveError: the communicator is broken.
        """

    @abstractmethod
    def abort(self, why: str) -> None:
        """End every waiting call, on all ranks, and every later one, with an error."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the engine holds. Calls that wait end with an error."""


class HostEngine(Engine):
    """An engine that moves the data itself, by code of this process.

    A stream waits until all ranks have come, and occupies no thread meanwhile.
    """

    def enqueue(
        self, stream: Stream, parts: Callable[[], list[tuple[Key, Seat]]], failure: BaseException | None
    ) -> None:
        # Without `failure`: it is the error of the stream's run, which the stream itself passes to the meeting.
        stream.meet(self.meeting(parts))

    @abstractmethod
    def meeting(self, parts: Callable[[], list[tuple[Key, Seat]]]) -> Callable[[], Meet]:
        """The work of a call on a stream; see `DriverStream.meet`, and `enqueue`."""


class Party:
    """The local ranks of one call.

    The call ends for the stream when it has ended for each of its ranks.

    Args:
        count: the number of these ranks.
        finish: ends the call for the stream.
    """

    __slots__ = ("_error", "_finish", "_left", "_time")

    def __init__(self, count: int, finish: Finish) -> None:
        self._left = count  # ranks for which the call has not ended
        self._finish = finish
        self._error: BaseException | None = None
        self._time: float | None = None

    def end(self, error: BaseException | None, time: float | None) -> Callable[[], None] | None:
        """End one rank's part.

        Where the party has several ranks, the caller holds the lock of its engine.

        Args:
            error: its error if it failed. The call has the first one.
            time: when it ended, in seconds of virtual time; None if time is real. The call has the latest.

        Returns:
            For the last rank a function that ends the call, else None. Call it without holding a lock: in it the
            stream may run its next work.
        """
        self._left -= 1
        if self._error is None:
            self._error = error
        if time is not None:
            self._time = time if self._time is None else max(self._time, time)
        if self._left:
            return None
        finish, error, time = self._finish, self._error, self._time
        return lambda: finish(error, time)
