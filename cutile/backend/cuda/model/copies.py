"""A model of `cp.async` stages: what is there, and who may touch it.

Threads run alike, and each may be anywhere between two barriers. So what one thread touches that another has written,
or writes where another reads, needs a barrier in between; and what a thread has copied, it sees once it has waited for
the group of copies.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cutile.backend.cuda.model.protocol import ProtocolError

Array = np.ndarray[Any, Any]


@dataclass
class _Stage:
    """A stage: bytes of shared memory.

    Attributes:
        begin, end: where it is.
        elements: what is there.
        since: how often threads had met when it was written, or waited for.
        read: how often they had when another thread last read it.
        under_way: whether a copy is.
    """

    begin: int
    end: int
    elements: Array
    since: int = -1
    read: int = -1
    under_way: bool = False


class Copies:
    """The stages of one thread block, in the order of its program."""

    def __init__(self) -> None:
        self._met = 0
        self._groups: list[list[_Stage]] = []
        self._begun: list[_Stage] = []
        self._stages: dict[int, _Stage] = {}

    def _written(self, begin: int, elements: Array) -> _Stage:
        """A stage that is written now.

        Raises:
            ProtocolError: another thread may still read there, or a copy is under way.
        """
        stage = _Stage(begin, begin + elements.nbytes, elements, self._met)
        for other in [each for each in self._stages.values() if each.begin < stage.end and begin < each.end]:
            if other.under_way:
                raise ProtocolError(f"bytes {begin} and following are written while a copy to them is under way")
            if other.read == self._met:
                raise ProtocolError(f"bytes {begin} and following are written while other threads may still read them")
            del self._stages[other.begin]
        self._stages[begin] = stage
        return stage

    def copy(self, begin: int, elements: Array) -> None:
        """Begin to copy elements to a place, in bytes."""
        stage = self._written(begin, elements)
        stage.under_way = True
        self._begun.append(stage)

    def put(self, begin: int, elements: Array) -> None:
        """Write elements to a place from registers."""
        self._written(begin, elements)

    def commit(self) -> None:
        """The copies begun since the last commit are a group."""
        self._groups.append(self._begun)
        self._begun = []

    def wait(self, pending: int) -> None:
        """Wait for all groups but the last `pending`."""
        finished = max(0, len(self._groups) - pending)
        for group in self._groups[:finished]:
            for stage in group:
                stage.under_way, stage.since = False, self._met
        del self._groups[:finished]

    def meet(self) -> None:
        """All threads meet."""
        self._met += 1

    def read(self, begin: int, *, own: bool = False) -> Array:
        """What is at a place; `own`: each thread reads what it copied itself.

        Raises:
            ProtocolError: it has not arrived, or other threads' part of it may not have.
        """
        stage = self._stages.get(begin)
        if stage is None:
            raise ProtocolError(f"nothing was copied to byte {begin}")
        if stage.under_way:
            raise ProtocolError(f"byte {begin} is read while the copy to it is under way")
        if not own:
            if stage.since == self._met:
                raise ProtocolError(f"byte {begin} is read before the threads that wrote there have met")
            stage.read = self._met
        return stage.elements

    def end(self) -> None:
        """The kernel ends.

        Raises:
            ProtocolError: copies are under way.
        """
        if self._begun or any(stage.under_way for group in self._groups for stage in group):
            raise ProtocolError("copies are under way when the kernel ends")
