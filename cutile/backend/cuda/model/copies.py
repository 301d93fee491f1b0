"""A model of `cp.async` stages: their elements, and which accesses may race.

All threads run the same program, and each may be anywhere between two barriers. So a barrier must lie between a
thread's write and another thread's read or write of the same bytes. A thread sees its own copies after it has waited
for their group (PTX ISA, "cp.async.wait_group").
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
        begin, end: its offsets in shared memory.
        elements: its contents.
        written_at: barriers passed when it was written, or when its copy arrived.
        read_at: barriers passed when another thread last read it; -1 for never.
        copied: whether a copy wrote it. Each thread copies to the same bytes of a stage each time, so a new copy needs
            no barrier after the old one.
        under_way: whether a copy to it is under way.
    """

    begin: int
    end: int
    elements: Array
    written_at: int = -1
    read_at: int = -1
    copied: bool = False
    under_way: bool = False


class Copies:
    """The stages of one thread block, in the order of its program."""

    def __init__(self) -> None:
        self._barriers = 0
        self._groups: list[list[_Stage]] = []
        self._begun: list[_Stage] = []
        self._stages: dict[int, _Stage] = {}

    def _write(self, begin: int, elements: Array) -> _Stage:
        """Write a stage, in place of all stages that overlap it.

        Stages are read as a whole, so nobody reads the rest of an overlapped one.

        Raises:
            ProtocolError: another thread may still read or write there, or a copy is under way.
        """
        stage = _Stage(begin, begin + elements.nbytes, elements, self._barriers)
        for other in [each for each in self._stages.values() if each.begin < stage.end and begin < each.end]:
            if other.under_way:
                raise ProtocolError(f"bytes {begin} and following are written while a copy to them is under way")
            if other.written_at == self._barriers and not other.copied:  # no barrier since
                raise ProtocolError(f"bytes {begin} and following are written while other threads may still write them")
            if other.read_at == self._barriers:
                raise ProtocolError(f"bytes {begin} and following are written while other threads may still read them")
            del self._stages[other.begin]
        self._stages[begin] = stage
        return stage

    def copy(self, begin: int, elements: Array) -> None:
        """Begin to copy elements to byte `begin`."""
        stage = self._write(begin, elements)
        stage.under_way = stage.copied = True
        self._begun.append(stage)

    def put(self, begin: int, elements: Array) -> None:
        """Write elements from registers to byte `begin`."""
        self._write(begin, elements)

    def commit(self) -> None:
        """Make a group of the copies begun since the last commit.

        It may be empty (PTX ISA, "cp.async.commit_group").
        """
        self._groups.append(self._begun)
        self._begun = []

    def wait(self, pending: int) -> None:
        """Wait for all groups but the last `pending`."""
        finished = max(0, len(self._groups) - pending)
        for group in self._groups[:finished]:
            for stage in group:
                stage.under_way, stage.written_at = False, self._barriers
        del self._groups[:finished]

    def meet(self) -> None:
        """All threads pass a barrier."""
        self._barriers += 1

    def read(self, begin: int, *, own: bool = False) -> Array:
        """Read the stage that begins at a byte.

        Args:
            begin: the byte. Stages are read as a whole.
            own: whether each thread reads only bytes that it copied itself. It needs no barrier for that, nor one
                before it copies there again.

        Raises:
            ProtocolError: the copy is not complete, or no barrier has followed it.
        """
        stage = self._stages.get(begin)
        if stage is None:
            raise ProtocolError(f"nothing was copied to byte {begin}")
        if stage.under_way:
            raise ProtocolError(f"byte {begin} is read while the copy to it is under way")
        if not own:
            if stage.written_at == self._barriers:
                raise ProtocolError(f"byte {begin} is read before the threads that wrote there have met")
            stage.read_at = self._barriers
        return stage.elements

    def end(self) -> None:
        """The kernel ends.

        Raises:
            ProtocolError: copies are under way.
        """
        if self._begun or any(stage.under_way for group in self._groups for stage in group):
            raise ProtocolError("copies are under way when the kernel ends")
