"""The hub of ranks in processes: a thread of rank 0's process, with the board.

All ranks are connected to its socket. The messages are listed in `processes.py`.
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
"""A rank's elements, as a message has them: the name of a file, or the bytes themselves."""


class Hub:
    """The board of all ranks, in rank 0's process.

    Args:
        address: the address at which it listens.
        world: the number of ranks.
        limit_s: how long to wait for ranks, in seconds; None for ever.

    Raises:
        CollectiveError: the address is taken, or nothing can listen there.
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
        self._greeting = 0  # handshakes that are under way
        self._all_see = True  # whether all ranks so far can write the folder
        self._readers: dict[Key, set[int]] = {}  # of each meeting, the ranks that still read the others' elements
        self._board: Board[tuple[Key, int, _Token]] = Board(world, limit_s, self._go, self._refuse)
        self._log = CallLog(world)
        self._leaving: set[int] = set()  # ranks that have said so before their connection ends
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
        """At exit: wait a moment for the other ranks to leave, and remove the folder."""
        if os.getpid() != self._process:  # a child of `fork`, which must not remove it
            return
        self.thread.join(_EXIT_S)
        shutil.rmtree(self._folder, ignore_errors=True)  # again: the thread, a daemon, may not have come to it

    def _gather(self) -> bool:
        """Let the ranks join; return whether all came and can work together."""
        end = None if self._limit_s is None else time.monotonic() + self._limit_s
        why, seen = "", 0
        # All are waited for, even if the ranks cannot work together: each is told why.
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
        self._listener.close()  # before a rank goes on: its next communicator may have the same address
        if why:
            return False
        for link in self._ranks.values():
            link.send("welcome", self._all_see)
        return True

    def _next(self, end: float | None) -> tuple[Link, int, int, bool] | None:
        """The next rank that has told its number; None when time is up."""
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
                # On a thread: a process that is no rank may connect, and neither send nor leave.
                start_thread(threading.Thread(target=self._greet, args=(peer,), daemon=True))

    def _greet(self, peer: socket.socket) -> None:
        """Shake hands with a process; put its rank into `_greeted`, or None."""
        try:
            link = Link(peer)
            link.greet(self._key)
            link.send("hello", str(self._folder))
            rank, world, sees = link.recv()
        except (AuthenticationError, EOFError, OSError, ValueError):
            self._greeted.put(None)  # a process without the key, or one that died meanwhile
        else:
            self._greeted.put((link, rank, world, sees))

    def _admit(self, link: Link, rank: int, world: int, sees: bool, why: str) -> str:
        """Let one rank join.

        Args:
            link: the connection to it.
            rank: its number.
            world: the number of ranks, as it says.
            sees: whether it can write the folder.
            why: why the ranks cannot work together, as known before; else empty.

        Returns:
            Why the ranks cannot work together, with this rank; else empty.
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
        """Receive the messages of all ranks, until the last one has left."""
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
                        # Ranks without a waiting call are told, too: their GPUs may wait for the lost rank's data.
                        self._tell_all(str(self._board.broken))
                    continue
                self._hear(rank, *message)
            self._expire(time.monotonic())

    def _deadline(self) -> float | None:
        """The time from which `_expire` ends a call, in seconds; None if there is none."""
        deadlines = [self._board.deadline()]
        if self._limit_s is not None and self._board.broken is None and (oldest := self._log.oldest()) is not None:
            deadlines.append(oldest[0] + self._limit_s)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _expire(self, now: float) -> None:
        """End calls that have waited for `limit_s`."""
        self._board.expire(now)
        oldest = None if self._limit_s is None or self._board.broken is not None else self._log.oldest()
        if oldest is not None and self._limit_s is not None and now - oldest[0] >= self._limit_s:
            self._board.time_out(oldest[1])
            self._tell_waiting()

    def _hear(self, rank: int, what: str, key: Any, *rest: Any) -> None:
        """Act on a rank's message; `key` is its first part, which is not always a key."""
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
        else:  # "leave": it has ended its own calls
            self._leaving.add(rank)
            self._board.break_up_without(rank, "it closed its communicator")
            self._tell_waiting()

    def _compare(self, rank: int, table: Sequence[tuple[Group, Call, str]], places: Sequence[int]) -> None:
        """Compare a rank's calls, of which it tells in their order, with the other ranks'.

        Args:
            rank: the rank.
            table: its different calls, with their groups and failures.
            places: the index of each call in the table.
        """
        if self._board.broken is not None:
            self._send(rank, "broken", str(self._board.broken))
            return
        calls = [table[place] for place in places]
        self._board.note_last(rank, calls[-1][1])
        agreement = self._log.add(rank, calls, time.monotonic())
        for other in _own_last(self._ranks):
            for group, number, why in agreement.failures:  # first: once a call is agreed, its rank reads the failure
                if other in self._log.members(group):
                    self._send(other, "failed", (*group, number), why)
            counts = [(*group, n) for group, n in agreement.counts.items() if other in self._log.members(group)]
            if counts:
                self._send(other, "agreed", tuple(counts))
        if agreement.dispute is not None:
            self._board.dispute(agreement.dispute)
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Tell ranks with calls that others have not made that these will not come."""
        for rank in _own_last(self._log.waiting()):
            self._send(rank, "broken", str(self._board.broken))

    def _go(self, meeting: Meeting[tuple[Key, int, _Token]]) -> None:
        """Send each rank of a complete meeting the other ranks' elements."""
        self._readers[meeting.key] = set(meeting.ranks)
        tokens = {rank: arrival.payload[2] for rank, arrival in meeting.arrivals.items()}
        for rank in _own_last(meeting.ranks):
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
        with contextlib.suppress(OSError):  # the rank is gone, which `_serve` finds out
            self._ranks[rank].send(*message)


def _own_last(ranks: Iterable[int]) -> list[int]:
    """The ranks, rank 0 last.

    Its process, which has the hub, may end as soon as it has the message.
    """
    return sorted(ranks, reverse=True)
