"""The engine of ranks within one process, on the CPU or on simulated devices.

The last rank that comes to a meeting carries it out, on the thread of its stream. The streams of the others wait, and
occupy no thread. On simulated devices a meeting takes the virtual time that a `Network` says.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_async.collective.board import Arrival, Board, Key, Meeting
from cuda_async.collective.engine import HostEngine, Party, Seat
from cuda_async.collective.network import Network
from cuda_async.collective.semantics import outcome
from cuda_async.driver.interface import Finish, Meet
from cuda_async.errors import CollectiveError, without_traceback
from cuda_async.locks import Gate, new_lock, start_thread

if TYPE_CHECKING:
    from cuda_async.driver.sim.virtual import SimExecutor

__all__ = ("LocalEngine",)


@dataclass(slots=True)
class _Part:
    """The payload of one rank's arrival.

    Attributes:
        seat: the rank's part.
        party: the local ranks of its call.
    """

    seat: Seat
    party: Party


class LocalEngine(HostEngine):
    """Ranks of one process.

    Args:
        world: the number of ranks.
        limit_s: how long the first rank of a meeting waits for the last, in seconds of the devices' clock; None for
            ever.
        network: how long meetings take, and which ranks are lost or late; None if time is real.
        executor: runs the simulated devices; None for the CPU.
    """

    def __init__(
        self, world: int, limit_s: float | None, network: Network | None = None, executor: SimExecutor | None = None
    ) -> None:
        self.world = world
        self._network = network
        self._executor = executor
        self._lock = new_lock()
        self._lost: list[_Part] = []  # parts of ranks that the network loses; the next refusal ends them
        self._ended: deque[Callable[[], None]] = deque()  # functions that end calls, to be called without the lock
        self._board: Board[_Part] = Board(world, limit_s, self._perform, self._refuse)
        self._watch: threading.Thread | None = None
        self._closed = Gate()
        if executor is not None:
            executor.when_idle.append(self._idle)

    def meeting(self, parts: Callable[[], list[tuple[Key, Seat]]]) -> Callable[[], Meet]:
        def make() -> Meet:
            seats = parts()  # with their keys
            with self._lock:
                for _, seat in seats:
                    self._board.note_enqueued(seat.rank, seat.call)

            def meet(finish: Finish, failure: BaseException | None, at: float) -> None:
                party = Party(len(seats), finish)
                with self._lock:
                    for key, seat in seats:
                        self._arrive(key, seat, party, failure, at)
                self._finish_ended()
                if self._executor is None:
                    self._start_watch()

            return meet

        return make

    def _arrive(self, key: Key, seat: Seat, party: Party, failure: BaseException | None, at: float) -> None:
        network = self._network
        if network is not None:
            if seat.rank in network.lost:
                self._board.leave_stream(seat.rank)
                self._lost.append(_Part(seat, party))  # it never arrives; its call ends with those of other ranks
                return
            at += network.late.get(seat.rank, 0.0)
        text = "" if failure is None else f"{type(failure).__name__}: {failure}"
        self._board.arrive(key, seat.rank, Arrival(seat.call, at, _Part(seat, party), text))

    def _perform(self, meeting: Meeting[_Part]) -> None:
        parts = {rank: arrival.payload for rank, arrival in meeting.arrivals.items()}
        first = next(iter(parts.values())).seat
        try:
            inputs = {rank: part.seat.brings() for rank, part in parts.items()}
            results = {rank: outcome(first.call.kind, inputs, rank, first.op, first.root) for rank in parts}
            for rank, part in parts.items():  # once all results are computed: a result may overwrite an operand
                part.seat.takes(results[rank])
        except Exception as error:  # whatever it is, no rank may be left waiting
            for part in parts.values():
                self._refuse(part, CollectiveError(f"{part.seat.call.words}: {type(error).__name__}: {error}"))
            return
        end: float | None = None  # in seconds of virtual time
        if self._network is not None:
            nbytes = max(part.seat.count * part.seat.dtype.itemsize for part in parts.values())
            start = max(arrival.at for arrival in meeting.arrivals.values())
            end = start + self._network.seconds(first.call.kind, nbytes, parts)
        for part in parts.values():
            self._end(part.party, None, end)

    def _refuse(self, part: _Part, error: CollectiveError) -> None:
        lost, self._lost = self._lost, []
        for ended in (*lost, part):
            self._end(ended.party, without_traceback(error), None)  # a copy: raising an error adds frames to it

    def _end(self, party: Party, error: BaseException | None, at: float | None) -> None:
        finish = party.end(error, at)
        if finish is not None:
            self._ended.append(finish)

    def _finish_ended(self) -> None:
        """Let the streams of ended calls go on.

        Without the lock: their next work runs within these functions, and may come here again.
        """
        while self._ended:
            try:
                finish = self._ended.popleft()
            except IndexError:  # another thread took the last one
                return
            finish()

    # -- time ---------------------------------------------------------------------------------

    def _idle(self, seconds: float) -> bool:
        """The simulated devices have nothing to do: end meetings that time out.

        Args:
            seconds: the virtual time for which there is nothing to do.

        Returns:
            Whether a meeting ended.
        """
        with self._lock:
            latest = self._board.latest()
            ended = latest is not None and self._board.expire(latest + seconds)
        self._finish_ended()
        return ended

    def _start_watch(self) -> None:
        # One thread for as long as meetings wait. Later meetings end later, so the thread need not be told of them.
        with self._lock:
            if self._board.deadline() is None or (self._watch is not None and self._watch.is_alive()):
                return
            self._watch = threading.Thread(target=self._watch_meetings, name="cuda_async-collective-watch", daemon=True)
            start_thread(self._watch)

    def _watch_meetings(self) -> None:
        """End meetings that time out, until none waits."""
        while True:
            with self._lock:
                self._board.expire(time.perf_counter())
                deadline = self._board.deadline()
                if deadline is None:
                    self._watch = None  # under the lock: the next rank that comes starts another thread
            self._finish_ended()
            if deadline is None:
                return
            self._closed.wait(max(0.0, deadline - time.perf_counter()))

    def abort(self, why: str) -> None:
        with self._lock:
            self._board.break_up(why)
        self._finish_ended()

    def close(self) -> None:
        self.abort("the communicator was closed")
        self._closed.open()
        if self._executor is not None and self._idle in self._executor.when_idle:
            self._executor.when_idle.remove(self._idle)
