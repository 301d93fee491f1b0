"""`Board`: where calls of a communicator meet, and the end of those that do not.

Each rank counts its collectives, and what has the same number on all ranks is one meeting. A message is a meeting of
two, counted for each pair and direction. The board knows no memory and no thread: its owner says who arrives,
who is gone and what time it is, and carries out the meetings that are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cuda_async.errors import CollectiveError

__all__ = ("Arrival", "Board", "Call", "Key", "Meeting", "names_of")

Key = tuple[int, int, int]
"""Of a meeting: (-1, -1, number), or (sender, receiver, number) of a message."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Call:
    """What one rank calls.

    Attributes:
        kind: the collective's name; `message` for a `send` and its `recv`.
        form: what all ranks of a meeting must agree about, as text: element type, count, reduction, root.
        words: how an error tells of it: the method, its arguments and the line of the user's program.
    """

    kind: str
    form: str
    words: str


@dataclass(slots=True)
class Arrival(Generic[P]):
    """A rank that has come to a meeting.

    Attributes:
        call: what it calls.
        at: when, in seconds.
        payload: what the owner of the board needs to carry the meeting out.
        failure: why its operands hold nothing useful; empty if they do.
    """

    call: Call
    at: float
    payload: P
    failure: str = ""


@dataclass(slots=True)
class Meeting(Generic[P]):
    """The ranks that have come to one meeting so far."""

    key: Key
    ranks: frozenset[int]
    arrivals: dict[int, Arrival[P]] = field(default_factory=dict[int, "Arrival[P]"])

    @property
    def begun(self) -> float:
        """When the first rank came, in seconds."""
        return min(arrival.at for arrival in self.arrivals.values())

    def absent(self) -> list[int]:
        """The ranks that have not come, in order."""
        return sorted(self.ranks - self.arrivals.keys())


class Board(Generic[P]):
    """The meetings of one communicator.

    Not safe for several threads at once: its owner has the lock.

    Args:
        world: the number of ranks.
        limit_s: how long the first rank of a meeting waits for the last one, in seconds; None for ever.
        perform: carries out a meeting to which all have come.
        refuse: ends one rank's call with an error.
    """

    def __init__(
        self,
        world: int,
        limit_s: float | None,
        perform: Callable[[Meeting[P]], None],
        refuse: Callable[[P, CollectiveError], None],
    ) -> None:
        self.world = world
        self.limit_s = limit_s
        self._perform = perform
        self._refuse = refuse
        self._meetings: dict[Key, Meeting[P]] = {}
        self._last: dict[int, Call] = {}
        self.broken: CollectiveError | None = None
        """Why no call can succeed any more."""

    def arrive(self, key: Key, rank: int, arrival: Arrival[P]) -> None:
        """A rank has come to a meeting. It is carried out, or refused, if that decides it."""
        self._last[rank] = arrival.call
        if self.broken is not None:
            self._refuse(arrival.payload, self.broken)
            return
        meeting = self._meetings.get(key)
        if meeting is None:
            ranks = frozenset(range(self.world) if key[0] < 0 else key[:2])
            meeting = self._meetings[key] = Meeting(key, ranks)
        meeting.arrivals[rank] = arrival
        forms = {each.call.form for each in meeting.arrivals.values()}
        if len(forms) > 1:
            self.break_up(f"the ranks called different things, {_in_order(meeting)}")
        elif not meeting.absent():
            del self._meetings[key]
            self._decide(meeting)

    def _decide(self, meeting: Meeting[P]) -> None:
        failed = sorted(rank for rank, arrival in meeting.arrivals.items() if arrival.failure)
        if not failed:
            self._perform(meeting)
            return
        # All ranks learn of it, in the same meeting: the communicator is as usable as before.
        rank = failed[0]
        arrival = meeting.arrivals[rank]
        message = f"{arrival.call.words} did not happen, since the work before it failed on rank {rank}: "
        for other in meeting.arrivals.values():
            self._refuse(other.payload, CollectiveError(message + arrival.failure))

    def break_up(self, why: str) -> None:
        """End every call that is waiting, and every later one, with an error."""
        if self.broken is None:
            self.broken = CollectiveError(f"{why}. This communicator cannot be used any more: make a new one")
        waiting, self._meetings = self._meetings, {}
        for meeting in waiting.values():
            for arrival in meeting.arrivals.values():
                self._refuse(arrival.payload, self.broken)

    def lose(self, rank: int, why: str) -> None:
        """A rank is gone and will never come."""
        self.break_up(f"rank {rank} is gone ({why}){self._after(rank)}")

    def expire(self, now: float) -> bool:
        """End what has waited for too long. Whether there was any."""
        for meeting in self._meetings.values():
            if self.limit_s is not None and now - meeting.begun >= self.limit_s:
                absent = meeting.absent()
                missing = "; ".join(f"rank {rank} has not come{self._after(rank)}" for rank in absent)
                self.break_up(f"{_in_order(meeting)} waited {self.limit_s:g} s: {missing}")
                return True
        return False

    def latest(self) -> float | None:
        """When the last rank came of those that wait, in seconds.

        None where nothing waits.
        """
        return max((one.at for each in self._meetings.values() for one in each.arrivals.values()), default=None)

    def deadline(self) -> float | None:
        """When `expire` has something to end, in seconds.

        None where nothing waits, or waits for ever.
        """
        if self.limit_s is None or not self._meetings:
            return None
        return min(meeting.begun for meeting in self._meetings.values()) + self.limit_s

    def _after(self, rank: int) -> str:
        last = self._last.get(rank)
        return " and has called nothing yet" if last is None else f"; its last call was {last.words}"


def _in_order(meeting: Meeting[P]) -> str:
    """Who called what: `all_reduce(f32[4], sum) at train.py:7 on ranks 0 and 1`."""
    callers: dict[str, list[int]] = {}
    for rank in sorted(meeting.arrivals):
        callers.setdefault(meeting.arrivals[rank].call.words, []).append(rank)
    return ", ".join(f"{words} on {names_of(ranks)}" for words, ranks in callers.items())


def names_of(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0, 1 and 4`."""
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
