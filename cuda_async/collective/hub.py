"""The hub of ranks in processes.

The board, in rank 0's process, and the socket that all ranks are connected to.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cuda_async.collective.board import Arrival, Board, Call, CallLog, Group, Key, Meeting, names_of
from cuda_async.collective.transport import Address, Link, claim_folder, listen, new_folder
from cuda_async.errors import CollectiveError
from cuda_async.threads import start_thread

__all__ = ("Hub",)

_EXIT_S = 1.0
"""Seconds that rank 0's process waits at its exit for the other ranks to leave."""

_GREETING_S = 0.01
"""Seconds between two looks at handshakes that are under way."""

_Token = str | bytes


class Hub:
    """The board of all ranks, in rank 0's process.

    Args:
        address: where it listens.
        world: the number of ranks.
        limit_s: how long to wait for ranks, in seconds; None for ever.

    Raises:
        CollectiveError: another hub was there.
    """

    def __init__(self, address: Address, world: int, limit_s: float | None) -> None:
        self._listener = listen(address)
        self._key = address.key
        self._world = world
        self._limit_s = limit_s
        self._folder = Path(new_folder()) if address.folder is None else address.folder
        self._claim = claim_folder(self._folder)
        self._ranks: dict[int, Link] = {}
        self._greeted: queue.SimpleQueue[tuple[Link, int, int, bool] | None] = queue.SimpleQueue()
        self._greeting = 0
        self._all_see = True
        self._readers: dict[Key, set[int]] = {}  # who has not said that it is done
        self._board: Board[tuple[Key, int, _Token]] = Board(world, limit_s, self._go, self._refuse)
        self._log = CallLog(world)
        self._leaving: set[int] = set()
        self._process = os.getpid()
        self.thread = threading.Thread(target=self._run, name="cuda_async-collective-hub", daemon=True)

    def _run(self) -> None:
        try:
            if self._gather():
                self._serve()
        finally:
            self._listener.close()
            for link in self._ranks.values():
                link.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._claim is not None:
                self._claim.close()

    def end(self) -> None:
        """At exit: wait a moment for the others to leave; the last removes the folder."""
        if os.getpid() != self._process:  # a fork of the process, which has no part in it
            return
        self.thread.join(_EXIT_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _gather(self) -> bool:
        """Let the ranks join. Whether all came."""
        end = None if self._limit_s is None else time.monotonic() + self._limit_s
        why, seen = "", 0
        # A rank that comes when it is clear already that they cannot work together is told so, too.
        while seen < self._world:
            before, rank = why, self._next(end)
            if rank is None:
                missing = names_of(sorted(set(range(self._world)) - self._ranks.keys()))
                why = why or f"{missing} did not join within {self._limit_s:g} s"
                seen = self._world
            else:
                why, seen = self._admit(*rank, why), seen + 1
            if why and not before:
                self._tell_all(why)
        self._listener.close()  # before anybody may go on: the next communicator may have the same address
        if why:
            return False
        for link in self._ranks.values():
            link.send("welcome", self._all_see)
        return True

    def _next(self, end: float | None) -> tuple[Link, int, int, bool] | None:
        """The next rank that has said who it is; None when time is up."""
        while True:
            with contextlib.suppress(queue.Empty):
                rank = self._greeted.get_nowait()
                self._greeting -= 1
                if rank is not None:
                    return rank
                continue
            pause = None if end is None else end - time.monotonic()
            if pause is not None and pause <= 0:
                return None
            if self._greeting:
                pause = _GREETING_S if pause is None else min(_GREETING_S, pause)
            if wait([self._listener], pause):
                peer, _ = self._listener.accept()
                self._greeting += 1
                # On a thread: somebody else may connect, say nothing and stay.
                start_thread(threading.Thread(target=self._greet, args=(peer,), daemon=True))

    def _greet(self, peer: socket.socket) -> None:
        try:
            link = Link(peer)
            link.greet(self._key)
            link.send("hello", str(self._folder))
            rank, world, sees = link.recv()
        except (AuthenticationError, EOFError, OSError, ValueError):
            self._greeted.put(None)  # somebody else, or a process that died meanwhile
        else:
            self._greeted.put((link, rank, world, sees))

    def _admit(self, link: Link, rank: int, world: int, sees: bool, why: str) -> str:
        """Let one rank join.

        Returns:
            Why the ranks cannot work together: what was known before, or this one's reason; empty if they can.
        """
        if not why and rank in self._ranks:
            why = f"rank {rank} has joined twice"
        if not why and world != self._world:
            why = f"rank {rank} says that there are {world} ranks, rank 0 that there are {self._world}"
        if not why:
            self._ranks[rank] = link
            self._all_see = self._all_see and sees
        else:
            link.send("broken", why)
        return why

    def _serve(self) -> None:
        by_connection: dict[Connection[Any, Any], int] = {link.connection: rank for rank, link in self._ranks.items()}
        while by_connection:
            deadline = self._deadline()
            pause = None if deadline is None else max(0.0, deadline - time.monotonic())
            for ready in wait(list(by_connection), pause):
                rank = by_connection[ready]  # pyright: ignore[reportArgumentType]
                try:
                    message = self._ranks[rank].recv()
                except (EOFError, OSError):
                    del by_connection[self._ranks[rank].connection]
                    if rank not in self._leaving:
                        self._board.break_up_without(rank, "its process ended")
                        # All are told, also those that wait for nobody here: their GPUs may wait for its data.
                        self._tell_all(str(self._board.broken))
                    continue
                self._hear(rank, *message)
            self._expire(time.monotonic())

    def _deadline(self) -> float | None:
        """When `_expire` has something to end, in seconds."""
        deadlines = [self._board.deadline()]
        if self._limit_s is not None and self._board.broken is None and (oldest := self._log.oldest()) is not None:
            deadlines.append(oldest[0] + self._limit_s)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _expire(self, now: float) -> None:
        """End what has waited for too long."""
        self._board.expire(now)
        oldest = None if self._limit_s is None or self._board.broken is not None else self._log.oldest()
        if oldest is not None and self._limit_s is not None and now - oldest[0] >= self._limit_s:
            self._board.time_out(oldest[1])
            self._tell_waiting()

    def _hear(self, rank: int, what: str, key: Any, *rest: Any) -> None:
        if what == "arrive":
            call, token, failure = rest
            self._board.arrive(key, rank, Arrival(call, time.monotonic(), (key, rank, token), failure))
        elif what == "done":
            left = self._readers[key]
            left.discard(rank)
            if not left:
                del self._readers[key]
                for other in self._ranks if key[0] < 0 else key[:2]:
                    self._send(other, "free", key)
        elif what == "called":
            self._compare(rank, key, *rest)
        elif what == "abort":
            self._board.break_up(key)
            self._tell_waiting()
        else:  # it leaves, and nothing of its own is waiting
            self._leaving.add(rank)
            self._board.break_up_without(rank, "it closed its communicator")
            self._tell_waiting()

    def _compare(self, rank: int, table: Sequence[tuple[Group, Call, str]], places: Sequence[int]) -> None:
        """A rank tells of its calls, in their order; it does not wait for the others here.

        Args:
            rank: which.
            table: its different calls, with their groups and failures.
            places: of each call, where it stands in the table.
        """
        if self._board.broken is not None:
            self._send(rank, "broken", str(self._board.broken))
            return
        calls = [table[place] for place in places]
        self._board.note_last(rank, calls[-1][1])
        agreement = self._log.add(rank, calls, time.monotonic())
        for other in _own_last(self._ranks):
            for group, number, why in agreement.failures:  # ahead of the counts, after which nobody asks any more
                if other in self._log.members(group):
                    self._send(other, "failed", (*group, number), why)
            counts = [(*group, n) for group, n in agreement.counts.items() if other in self._log.members(group)]
            if counts:
                self._send(other, "agreed", tuple(counts))
        if agreement.dispute is not None:
            self._board.dispute(agreement.dispute)
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Tell the ranks whose calls the others have not made that these will not come."""
        for rank in _own_last(self._log.waiting()):
            self._send(rank, "broken", str(self._board.broken))

    def _go(self, meeting: Meeting[tuple[Key, int, _Token]]) -> None:
        self._readers[meeting.key] = set(meeting.ranks)
        tokens = {rank: arrival.payload[2] for rank, arrival in meeting.arrivals.items()}
        for rank in _own_last(meeting.ranks):  # each has its own parts
            self._send(rank, "go", meeting.key, {other: token for other, token in tokens.items() if other != rank})

    def _refuse(self, payload: tuple[Key, int, _Token], error: CollectiveError) -> None:
        key, rank, _ = payload
        broken = self._board.broken
        if broken is None:
            self._send(rank, "refused", key, str(error))
        else:
            self._tell_all(str(broken))

    def _tell_all(self, why: str) -> None:
        for rank in _own_last(self._ranks):
            self._send(rank, "broken", why)

    def _send(self, rank: int, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone, which the loop hears of
            self._ranks[rank].send(*message)


def _own_last(ranks: Iterable[int]) -> list[int]:
    """Rank 0 behind the others.

    Its process may end as soon as it has heard, and the hub with it.
    """
    return sorted(ranks, reverse=True)
