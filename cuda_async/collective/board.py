"""`Board`: where calls of a communicator meet, and the end of those that do not.

Each rank counts its collectives, and what has the same number on all ranks is one meeting. A message is a meeting of
two, counted for each pair and direction. The board knows no memory and no thread: its owner says who arrives,
who is gone and what time it is, and carries out the meetings that are complete.

`CallLog` compares calls that do not meet here. NCCL moves data and does not look whether its ranks call the same. So
each rank tells of its calls, many at a time, and its n-th call of a group has to agree with every other rank's n-th.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cuda_async.errors import CollectiveError

__all__ = ("ALL", "Agreement", "Arrival", "Board", "Call", "CallLog", "Group", "Key", "Meeting", "names_of")

Key = tuple[int, int, int]
"""Of a meeting: (-1, -1, number), or (sender, receiver, number) of a message."""

Group = tuple[int, int]
"""The ranks whose calls are counted together: `ALL`, or (sender, receiver) for messages."""

ALL: Group = (-1, -1)

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
            self.dispute(meeting)
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

    def note(self, rank: int, call: Call) -> None:
        """A rank's last call, for errors, of one that does not meet the others here."""
        self._last[rank] = call

    def dispute(self, meeting: Meeting[Any]) -> None:
        """The ranks of a meeting called different things: nothing can succeed any more."""
        self.break_up(f"the ranks called different things, {_in_order(meeting)}")

    def time_out(self, meeting: Meeting[Any]) -> None:
        """A meeting has waited for `limit_s`: nothing can succeed any more."""
        missing = "; ".join(f"rank {rank} has not come{self._after(rank)}" for rank in meeting.absent())
        self.break_up(f"{_in_order(meeting)} waited {self.limit_s:g} s: {missing}")

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
                self.time_out(meeting)
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


@dataclass(slots=True)
class _Calls:
    """The calls of one group.

    Attributes:
        waiting: for each rank, its calls that not all ranks have made, with the seconds at which they were told.
        agreed: the number of calls that all ranks have made.
    """

    waiting: dict[int, deque[tuple[Call, float]]]
    agreed: int = 0

    def first(self) -> dict[int, tuple[Call, float]]:
        """Each rank's first call that not all have made, where it has told of one."""
        return {rank: calls[0] for rank, calls in self.waiting.items() if calls}


@dataclass(slots=True)
class Agreement:
    """What is known since a rank told of its calls.

    Attributes:
        counts: the number of calls that agree, of each group where it has grown.
        dispute: the first call in which ranks differ; None where there is none.
    """

    counts: dict[Group, int] = field(default_factory=dict[Group, int])
    dispute: Meeting[None] | None = None


class CallLog:
    """The calls of a communicator's ranks.

    Not safe for several threads at once: its owner has the lock.

    Args:
        world: the number of ranks.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._groups: dict[Group, _Calls] = {}

    def add(self, rank: int, calls: Iterable[tuple[Group, Call]], now: float) -> Agreement:
        """A rank tells of its next calls, in its order.

        Args:
            rank: which.
            calls: the group and the call of each.
            now: the time, in seconds.
        """
        told: dict[Group, list[tuple[Call, float]]] = {}
        for group, call in calls:
            told.setdefault(group, []).append((call, now))
        agreement = Agreement()
        for group, more in told.items():
            of_group = self._groups.get(group)
            if of_group is None:
                of_group = self._groups[group] = _Calls({member: deque() for member in self.members(group)})
            of_group.waiting[rank].extend(more)
            if not self._agree(group, of_group, agreement):
                break
        return agreement

    def _agree(self, group: Group, calls: _Calls, agreement: Agreement) -> bool:
        """Take away what all ranks of a group have called. Whether they called the same."""
        waiting = list(calls.waiting.values())
        for _ in range(min(map(len, waiting))):
            form = waiting[0][0][0].form
            if any(others[0][0].form != form for others in waiting):
                agreement.dispute = self._meeting(group, calls)
                return False
            for rank_calls in waiting:
                rank_calls.popleft()
            calls.agreed += 1
            agreement.counts[group] = calls.agreed
        return True

    def members(self, group: Group) -> Sequence[int]:
        """The ranks of a group, in order."""
        return range(self._world) if group == ALL else sorted(group)

    def waiting(self) -> set[int]:
        """The ranks that wait for another one's call."""
        return {rank for calls in self._groups.values() for rank in calls.first()}

    def oldest(self) -> tuple[float, Meeting[None]] | None:
        """Since when the call waits that waits longest, in seconds, and the call.

        None where nothing waits.
        """
        oldest: tuple[float, Group, _Calls] | None = None
        for group, calls in self._groups.items():
            for _, since in calls.first().values():
                if oldest is None or since < oldest[0]:
                    oldest = since, group, calls
        if oldest is None:
            return None
        since, group, calls = oldest
        return since, self._meeting(group, calls)

    def _meeting(self, group: Group, calls: _Calls) -> Meeting[None]:
        arrivals = {rank: Arrival(call, since, None) for rank, (call, since) in calls.first().items()}
        return Meeting((*group, calls.agreed), frozenset(self.members(group)), arrivals)


def _in_order(meeting: Meeting[Any]) -> str:
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
