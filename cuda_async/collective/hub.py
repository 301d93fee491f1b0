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
from cuda_async.collective.transport import Address, Link, MalformedError, claim_folder, listen, new_folder
from cuda_async.errors import CollectiveError
from cuda_async.locks import start_thread

__all__ = ("Hub",)

_EXIT_S = 1.0
"""Seconds that rank 0's process waits at its exit for the other ranks to leave.

A rank leaves within `_LEAVE_S` of `processes.py`, which is as long. A rank that stays longer loses its hub, and its
calls end with an error.
"""

_HANDSHAKE_POLL_S = 0.01
"""Seconds between two polls for the result of a handshake.

A result in `_greeted` does not wake the hub's thread, which waits for the listener. So a rank may join so much later.
"""

_Token = str | bytes
"""The elements of a rank in a message: the name of a file that holds them, or their bytes."""


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
        self._handshakes = 0  # handshakes that are under way
        self._refusal = ""  # why no further process may join; empty while one may
        self._shared_folder = True  # whether all ranks so far can write the folder
        self._readers: dict[Key, set[int]] = {}  # the ranks that still read the others' elements, by meeting
        self._board: Board[tuple[Key, int, _Token]] = Board(world, limit_s, self._go, self._refuse)
        self._log = CallLog(world)
        self._leaving: set[int] = set()  # ranks that have sent `leave`: the end of their connection is no failure
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
        if os.getpid() != self._process:  # a child of `fork`: the folder is its parent's
            return
        self.thread.join(_EXIT_S)
        # The thread removes it too. But the thread is a daemon, and the process may end before it does so.
        shutil.rmtree(self._folder, ignore_errors=True)

    def _gather(self) -> bool:
        """Let the ranks join; return whether all came and can work together."""
        deadline = None if self._limit_s is None else time.monotonic() + self._limit_s
        why, count = "", 0
        # The hub waits for all ranks even if they cannot work together: each is told why.
        while count < self._world:
            before, rank = why, self._next_rank(deadline)
            if rank is None:
                missing = names_of(sorted(set(range(self._world)) - self._ranks.keys()))
                why = why or f"{missing} did not join within {self._limit_s:g} s"
                count = self._world
            else:
                why, count = self._admit(*rank, why), count + 1
            if why and not before:
                self._tell_all(why)
        self._listener.close()  # before a rank goes on: its next communicator may have the same address
        self._refusal = why or f"all {self._world} ranks have joined; each process needs a rank of its own"
        self._turn_away()
        if why:
            return False
        for rank in _own_last(self._ranks):
            self._send(rank, "welcome", self._shared_folder)
        return True

    def _next_rank(self, deadline: float | None) -> tuple[Link, int, int, bool] | None:
        """The arguments of `_admit` for the next rank; None when time is up."""
        while True:
            with contextlib.suppress(queue.Empty):
                rank = self._greeted.get_nowait()
                self._handshakes -= 1
                if rank is not None:
                    return rank
                continue
            pause = None if deadline is None else deadline - time.monotonic()
            if pause is not None and pause <= 0:
                return None
            if self._handshakes:
                pause = _HANDSHAKE_POLL_S if pause is None else min(_HANDSHAKE_POLL_S, pause)
            if wait([self._listener], pause):
                peer, _ = self._listener.accept()
                self._handshakes += 1
                # On a thread: a process that is no rank may connect, and neither send nor leave.
                start_thread(threading.Thread(target=self._greet, args=(peer,), daemon=True))

    def _greet(self, peer: socket.socket) -> None:
        """Shake hands with a process; put its rank into `_greeted`, or None."""
        try:
            link = Link(peer)
            link.greet(self._key)
            link.send("hello", str(self._folder))
            greeting = link.recv()
            if not _is_greeting(greeting):
                link.send(
                    "broken",
                    "join: rank 0 expected the greeting [rank, world, can_write] with 0 <= rank < world, got "
                    f"{greeting!r:.200}; run the same version of cuda_async in all processes",
                )
                raise ValueError(greeting)
        except (AuthenticationError, EOFError, OSError, ValueError):
            # A process without the key, one that died meanwhile, or one whose greeting is malformed.
            self._greeted.put(None)
        else:
            rank, world, can_write = greeting
            self._greeted.put((link, rank, world, can_write))
            # Read behind the `put`: else it could happen that neither this thread nor the hub's turns the process away.
            if self._refusal:
                self._turn_away()

    def _turn_away(self) -> None:
        """Tell processes whose handshake ends too late that they cannot join."""
        with contextlib.suppress(queue.Empty):
            while True:
                process = self._greeted.get_nowait()
                if process is not None:
                    with contextlib.suppress(OSError):
                        process[0].send("broken", self._refusal)

    def _admit(self, link: Link, rank: int, world: int, can_write: bool, why: str) -> str:
        """Let one rank join.

        Args:
            link: the connection to it.
            rank: its number.
            world: the number of ranks, as it says.
            can_write: whether it can write the folder.
            why: the reason that the ranks before it cannot work together; empty if they can.

        Returns:
            The reason that the ranks cannot work together, this one included; empty if they can.
        """
        if not why and rank in self._ranks:
            why = f"rank {rank} has joined twice"
        if not why and world != self._world:
            why = f"rank {rank} says that there are {world} ranks, rank 0 that there are {self._world}"
        if not why:
            self._ranks[rank] = link
            self._shared_folder = self._shared_folder and can_write
        else:
            with contextlib.suppress(OSError):  # the process is gone, and needs no reason
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
                except (EOFError, OSError) as error:
                    why = str(error) if isinstance(error, MalformedError) else "its process ended"
                    del by_connection[self._ranks[rank].connection]
                    if rank not in self._leaving:
                        self._board.break_up_without(rank, why)
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
            self._tell_all(str(self._board.broken))

    def _hear(self, rank: int, kind: str, first: Any, *rest: Any) -> None:
        """Act on a rank's message. `first` and `rest` are its parts behind its kind."""
        if kind == "arrive":
            call, token, failure = rest
            self._board.arrive(first, rank, Arrival(call, time.monotonic(), (first, rank, token), failure))
        elif kind == "done":
            readers = self._readers[first]
            readers.discard(rank)
            if not readers:
                del self._readers[first]
                # A meeting of all ranks, whose key begins with `ALL`; or the sender and the receiver of a message.
                for other in self._ranks if first[0] < 0 else first[:2]:
                    self._send(other, "free", first)
        elif kind == "called":
            self._compare(rank, first, *rest)
        elif kind == "abort":
            self._board.break_up(first)
            self._tell_all(str(self._board.broken))
        else:  # "leave": the rank has ended its own calls
            self._leaving.add(rank)
            self._board.break_up_without(rank, "it closed its communicator")
            self._tell_waiting()
            for other in _own_last(self._ranks.keys() - self._leaving):
                self._send(other, "left", str(self._board.broken))

    def _compare(self, rank: int, table: Sequence[tuple[Group, Call, str]], runs: Sequence[tuple[int, int]]) -> None:
        """Compare the newest calls of a rank with the other ranks' calls.

        Args:
            rank: the rank.
            table: its different calls, with their groups and failures.
            runs: its calls in their order, at least one. Each is an index into the table, and how often in a row.
        """
        if self._board.broken is not None:
            self._send(rank, "broken", str(self._board.broken))
            return
        self._board.note_last(rank, table[runs[-1][0]][1])
        agreement = self._log.add(rank, [(*table[index], count) for index, count in runs], time.monotonic())
        for other in _own_last(self._ranks):
            # Failures before counts: a rank looks for the failure of a call as soon as the counts include the call.
            for group, number, why in agreement.failures:
                if other in self._log.members(group):
                    self._send(other, "failed", (*group, number), why)
            counts = [(*group, n) for group, n in agreement.counts.items() if other in self._log.members(group)]
            if counts:
                self._send(other, "agreed", tuple(counts))
        if agreement.dispute is not None:
            self._board.dispute(agreement.dispute)
            self._tell_all(str(self._board.broken))

    def _tell_waiting(self) -> None:
        """Tell the ranks whose calls wait for other ranks' that they wait in vain.

        The other ranks must not be told: the rank that left may be done, and their last data may be under way.
        """
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
        # Also ranks without a waiting call: the hub does not know of the calls that graphs launch.
        for rank in _own_last(self._ranks):
            self._send(rank, "broken", why)

    def _send(self, rank: int, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the rank is gone: `_serve` meets the end of its connection
            self._ranks[rank].send(*message)


def _is_greeting(message: Sequence[Any]) -> bool:
    """Whether a message is a rank, the number of ranks, and a bool."""
    if [type(part) for part in message] != [int, int, bool]:
        return False
    rank, world, _ = message
    return 0 <= rank < world


def _own_last(ranks: Iterable[int]) -> list[int]:
    """The ranks, rank 0 last.

    Its process, which has the hub, may end as soon as it has the message.
    """
    return sorted(ranks, reverse=True)
