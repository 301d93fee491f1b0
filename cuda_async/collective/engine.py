"""`Engine`: brings the calls of a communicator's ranks together, moves their data."""

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
        rank: whose part.
        call: what it calls.
        op: the reduction, where the call reduces.
        root: the rank that has the original, gets the sum, or sends; else 0.
        dtype: of the elements.
        source: address of the elements that the rank brings.
        count: their number.
        target: address for the elements of its result.
        room: the number of these.
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
        """The elements that the rank brings."""
        return elements_at(self.source, self.count, self.dtype)

    def takes(self, result: np.ndarray[Any, np.dtype[Any]] | None) -> None:
        """Write the rank's result; None leaves its memory as it is."""
        if result is not None and self.room:
            elements_at(self.target, self.room, self.dtype)[:] = result


def elements_at(address: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Host memory as an array of one axis, without owning it."""
    if not count:
        return np.empty(0, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, np.uint8).view(dtype)


class Engine(ABC):
    """Moves the data between ranks. One for each communicator and process."""

    world: int
    """The number of ranks."""

    def check(self, dtype: np.dtype[Any], op: str) -> None:  # noqa: B027 - most take every element
        """Refuse elements that the engine cannot reduce by `op`.

        An empty `op` stands for moving alone. Raises ValueError.
        """

    @abstractmethod
    def enqueue(
        self, stream: Stream, parts: Callable[[], list[tuple[Key, Seat]]], failure: BaseException | None
    ) -> None:
        """Enqueue a call of one or more local ranks.

        Args:
            stream: the caller's.
            parts: the part of each local rank with the key of its meeting; called when the call is enqueued.
            failure: why the operands hold nothing useful, where that is known. The stream's run fails with it already.

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
    """An engine whose data this process moves, and not the device.

    A stream waits in its place, occupying no thread, until all ranks have come.
    """

    def enqueue(
        self, stream: Stream, parts: Callable[[], list[tuple[Key, Seat]]], failure: BaseException | None
    ) -> None:
        stream.meet(self.meeting(parts))  # brings the failure along, as that of the stream

    @abstractmethod
    def meeting(self, parts: Callable[[], list[tuple[Key, Seat]]]) -> Callable[[], Meet]:
        """What a stream enqueues for a call: see `DriverStream.meet`, and `enqueue`."""


class Party:
    """The local ranks of one call.

    The call ends for the stream when it has ended for each of its ranks.
    """

    __slots__ = ("_error", "_finish", "_left", "_time")

    def __init__(self, count: int, finish: Finish) -> None:
        self._left = count
        self._finish = finish
        self._error: BaseException | None = None
        self._time: float | None = None

    def end(self, error: BaseException | None, time: float | None) -> Callable[[], None] | None:
        """End one rank's part.

        Returns, for the last one, a function that ends the call. Call it without holding a lock.
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
