"""`Board` and `CallLog`: check that all ranks call the same collectives, in time.

`Board`: each rank counts its collectives. The calls with the same number are a meeting, which is carried out when all
ranks have called. A message, a `send` and its `recv`, is a meeting of two ranks. It is counted by pair and direction.
The board holds no data and no lock, so that tests drive it without threads. Its owner, a hub or a `LocalEngine`, tells
it which rank arrives, which one is gone, and the time. The owner carries out complete meetings.

`CallLog`: calls of NCCL do not wait for the hub, and NCCL does not compare the calls of its ranks. So each rank tells
the hub of many calls at once, and the log compares its n-th call of a group with every other rank's n-th.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cuda_async.errors import CollectiveError

__all__ = (
    "ALL",
    "UNUSABLE",
    "Agreement",
    "Arrival",
    "Board",
    "Call",
    "CallLog",
    "Group",
    "Key",
    "Meeting",
    "Run",
    "names_of",
    "words_by_rank",
)

Key = tuple[int, int, int]
"""The key of a meeting: (-1, -1, number) if it is of all ranks, (sender, receiver, number) if it is a message."""

Group = tuple[int, int]
"""The ranks whose calls are counted together: `ALL`, or (sender, receiver) for messages."""

ALL: Group = (-1, -1)  # no rank has this number

UNUSABLE = "This communicator cannot be used any more: make a new one"
"""The end of each error after which no call can succeed."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a collective on one rank.

    Attributes:
        kind: the collective's name. A `send` and its `recv` are both a `message`.
        form: the kind, element type, count, reduction and root, as text. All ranks of a meeting must have the same.
        words: the call in error texts: the method, its arguments and the line of the user's program.
    """

    kind: str
    form: str
    words: str


@dataclass(slots=True)
class Arrival(Generic[P]):
    """The call with which a rank takes part in a meeting.

    Attributes:
        call: the call.
        at: the time of the call, in seconds of the owner's clock.
        payload: data by which the owner of the board carries the meeting out.
        failure: the error of the work that makes the rank's operands, as text; empty if it did not fail.
    """

    call: Call
    at: float
    payload: P
    failure: str = ""


@dataclass(slots=True)
class Meeting(Generic[P]):
    """The calls of one collective or message, by the ranks that have called so far."""

    key: Key
    ranks: frozenset[int]
    arrivals: dict[int, Arrival[P]] = field(default_factory=dict[int, "Arrival[P]"])

    @property
    def begun(self) -> float:
        """When the first rank called, in seconds of the owner's clock."""
        return min(arrival.at for arrival in self.arrivals.values())

    def absent(self) -> list[int]:
        """The ranks that have not called yet, in order."""
        return sorted(self.ranks - self.arrivals.keys())


class Board(Generic[P]):
    """The meetings of one communicator.

    Not safe for several threads at once: its owner has the lock.

    Args:
        world: the number of ranks.
        limit_s: how long the first rank of a meeting waits for the last one, in seconds; None for ever.
        perform: carries out a meeting to which all ranks have come.
        refuse: ends one rank's call with an error.

    Attributes:
        broken: the error of all further calls; None while they can succeed.
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
        self._last: dict[int, Call] = {}  # each rank's last call, for error texts
        self._enqueued: dict[int, deque[Call]] = {}  # each rank's calls that its stream has not come to yet
        self.broken: CollectiveError | None = None

    def arrive(self, key: Key, rank: int, arrival: Arrival[P]) -> None:
        """Add a rank's call to its meeting.

        When the last rank has called, the meeting is carried out. A call of another form ends the communicator.
        """
        self._last[rank] = arrival.call
        self.leave_stream(rank)
        if self.broken is not None:
            self._refuse(arrival.payload, self.broken)
            return
        meeting = self._meetings.get(key)
        if meeting is None:
            ranks = frozenset(range(self.world) if key[0] < 0 else key[:2])  # of `ALL`, or sender and receiver
            meeting = self._meetings[key] = Meeting(key, ranks)
        meeting.arrivals[rank] = arrival
        forms = {other.call.form for other in meeting.arrivals.values()}
        if len(forms) > 1:
            self.dispute(meeting)
        elif not meeting.absent():
            del self._meetings[key]  # first: then it waits no longer, even if `_complete` raises
            self._complete(meeting)

    def _complete(self, meeting: Meeting[P]) -> None:
        """Carry out a meeting to which all have come; refuse it if operands failed."""
        failed = sorted(rank for rank, arrival in meeting.arrivals.items() if arrival.failure)
        if not failed:
            self._perform(meeting)
            return
        # All ranks have called, and all get the error. So no rank is ahead, and the communicator stays usable. The text
        # names the lowest rank that failed, and so is the same on all ranks.
        arrival = meeting.arrivals[failed[0]]
        why = _words_of_failure(failed[0], arrival.call, arrival.failure)
        for other in meeting.arrivals.values():
            self._refuse(other.payload, CollectiveError(why))

    def note_enqueued(self, rank: int, call: Call) -> None:
        """Remember, for error texts, a call that a rank has enqueued: it arrives later."""
        self._enqueued.setdefault(rank, deque()).append(call)

    def leave_stream(self, rank: int) -> None:
        """Forget the first call that a rank has enqueued: its stream has come to it."""
        if calls := self._enqueued.get(rank):
            calls.popleft()

    def note_last(self, rank: int, call: Call) -> None:
        """Remember, for error texts, a rank's last call of those that the log compares."""
        self._last[rank] = call

    def dispute(self, meeting: Meeting[Any]) -> None:
        """Break up: the ranks of a meeting made different calls.

        Their further calls would not match either.
        """
        self.break_up(f"the ranks called different things, {_calls_by_rank(meeting)}")

    def time_out(self, meeting: Meeting[Any]) -> None:
        """Break up: a meeting has waited for `limit_s`."""
        missing = "; ".join(self._whereabouts(rank) for rank in meeting.absent())
        self.break_up(f"{_calls_by_rank(meeting)} waited {self.limit_s:g} s: {missing}")

    def break_up(self, why: str) -> None:
        """End every call that is waiting, and every later one, with an error."""
        if self.broken is None:  # the first reason stays: later ones follow from it
            self.broken = CollectiveError(f"{why}. {UNUSABLE}")
        waiting, self._meetings = self._meetings, {}  # emptied: a second break-up ends no call again
        for meeting in waiting.values():
            for arrival in meeting.arrivals.values():
                self._refuse(arrival.payload, self.broken)

    def break_up_without(self, rank: int, why: str) -> None:
        """Break up: a rank is gone and calls nothing any more."""
        self.break_up(f"rank {rank} is gone ({why}){self._after(rank)}")

    def expire(self, now: float) -> bool:
        """Break up if a meeting has waited for `limit_s`; return whether there was one."""
        for meeting in self._meetings.values():
            if self.limit_s is not None and now - meeting.begun >= self.limit_s:
                self.time_out(meeting)
                return True
        return False

    def latest(self) -> float | None:
        """The time of the latest waiting call, in seconds; None if nothing waits."""
        arrivals = (arrival for meeting in self._meetings.values() for arrival in meeting.arrivals.values())
        return max((arrival.at for arrival in arrivals), default=None)

    def deadline(self) -> float | None:
        """The time from which `expire` ends a meeting, in seconds.

        None where nothing waits, or calls wait for ever.
        """
        if self.limit_s is None or not self._meetings:
            return None
        return min(meeting.begun for meeting in self._meetings.values()) + self.limit_s

    def _whereabouts(self, rank: int) -> str:
        if calls := self._enqueued.get(rank):
            return (
                f"rank {rank} has called {calls[0].words}, which waits on its stream behind other work (ranks need a "
                "stream each)"
            )
        return f"rank {rank} has not come{self._after(rank)}"

    def _after(self, rank: int) -> str:
        last = self._last.get(rank)
        return " and has called nothing yet" if last is None else f"; its last call was {last.words}"


Run = tuple[Group, Call, str, int]
"""A call that a rank made once or more in a row: its group, the call, its failure (see `Arrival`), how often."""


@dataclass(slots=True)
class _LoggedCall:
    """A call of which a rank has told the hub.

    Attributes:
        call: the call.
        failure: as of an `Arrival`.
        count: how often it was made in a row, less the calls that are agreed.
        at: when the hub heard of it, in seconds.
    """

    call: Call
    failure: str
    count: int
    at: float


@dataclass(slots=True)
class _Calls:
    """The calls of one group.

    Attributes:
        waiting: by rank, its calls that another rank of the group has not made yet; none has a count of 0.
        agreed: the number of calls that all ranks of the group have made.
    """

    waiting: dict[int, deque[_LoggedCall]]
    agreed: int = 0

    def first(self) -> dict[int, _LoggedCall]:
        """The next call to compare, of each rank that has made it."""
        return {rank: calls[0] for rank, calls in self.waiting.items() if calls}


@dataclass(slots=True)
class Agreement:
    """The result of comparing a rank's new calls with those of the other ranks.

    Attributes:
        counts: the number of calls on which a group agrees so far, for each group where it has grown.
        failures: the newly agreed calls that failed: the group, the number of the call, and the error.
        dispute: the first call in which ranks differ; None if there is none.
    """

    counts: dict[Group, int] = field(default_factory=dict[Group, int])
    failures: list[tuple[Group, int, str]] = field(default_factory=list[tuple[Group, int, str]])
    dispute: Meeting[None] | None = None


class CallLog:
    """The calls of which a communicator's ranks have told the hub.

    Not safe for several threads at once: its owner has the lock.

    Args:
        world: the number of ranks.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._groups: dict[Group, _Calls] = {}

    def add(self, rank: int, runs: Iterable[Run], now: float) -> Agreement:
        """Add the next calls of a rank, in its order, and compare them.

        To add a run takes as long as to add one call: programs repeat calls hundreds of times.

        Args:
            rank: the rank.
            runs: the calls.
            now: the time, in seconds.
        """
        new_calls: dict[Group, list[_LoggedCall]] = {}
        for group, call, failure, count in runs:
            new_calls.setdefault(group, []).append(_LoggedCall(call, failure, count, now))
        agreement = Agreement()
        for group, more in new_calls.items():
            group_calls = self._groups.get(group)
            if group_calls is None:
                group_calls = self._groups[group] = _Calls({member: deque() for member in self.members(group)})
            group_calls.waiting[rank].extend(more)
            if not self._agree(group, group_calls, agreement):
                break  # the dispute ends the communicator, and with it the other groups' calls
        return agreement

    def _agree(self, group: Group, calls: _Calls, agreement: Agreement) -> bool:
        """Compare and drop the calls that all ranks of a group have made.

        Returns whether they agree.
        """
        queues = calls.waiting.values()
        while all(queues):
            first = calls.first()
            if len({logged.call.form for logged in first.values()}) > 1:
                agreement.dispute = self._meeting(group, calls)
                return False
            count = min(logged.count for logged in first.values())
            failed = next((rank for rank, logged in sorted(first.items()) if logged.failure), None)
            if failed is not None:
                why = _words_of_failure(failed, first[failed].call, first[failed].failure)
                agreement.failures += [(group, calls.agreed + i, why) for i in range(count)]
            calls.agreed += count
            agreement.counts[group] = calls.agreed
            for queue in queues:
                queue[0].count -= count
                if not queue[0].count:
                    queue.popleft()
        return True

    def members(self, group: Group) -> Sequence[int]:
        """The ranks of a group, in order."""
        return range(self._world) if group == ALL else sorted(group)

    def waiting(self) -> set[int]:
        """The ranks with a call that another rank of the group has not made yet."""
        return {rank for calls in self._groups.values() for rank in calls.first()}

    def oldest(self) -> tuple[float, Meeting[None]] | None:
        """The longest waiting call: when it was logged, in seconds, and its meeting.

        None where nothing waits.
        """
        firsts = [(logged.at, group) for group, calls in self._groups.items() for logged in calls.first().values()]
        if not firsts:
            return None
        since, group = min(firsts)
        return since, self._meeting(group, self._groups[group])

    def _meeting(self, group: Group, calls: _Calls) -> Meeting[None]:
        arrivals = {rank: Arrival(logged.call, logged.at, None) for rank, logged in calls.first().items()}
        return Meeting((*group, calls.agreed), frozenset(self.members(group)), arrivals)


def _words_of_failure(rank: int, call: Call, failure: str) -> str:
    return f"{call.words} did not happen, since the work before it failed on rank {rank}: {failure}"


def _calls_by_rank(meeting: Meeting[Any]) -> str:
    return words_by_rank({rank: arrival.call.words for rank, arrival in meeting.arrivals.items()})


def words_by_rank(words: Mapping[int, str]) -> str:
    """Texts with the ranks that have them; equal texts come once.

    As in `all_reduce(f32[4], sum) at train.py:7 on ranks 0 and 1`.
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(words.items()):
        ranks.setdefault(text, []).append(rank)
    return ", ".join(f"{text} on {names_of(numbers)}" for text, numbers in ranks.items())


def names_of(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0, 1 and 4`."""
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
