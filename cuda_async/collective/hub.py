"""The hub of ranks in processes.

The board, in rank 0's process, and the socket that all ranks are connected to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

from cuda_async.collective.board import Arrival, Board, Key, Meeting, names_of
from cuda_async.errors import CollectiveError
from cuda_async.threads import start_thread

__all__ = ("ADDRESS", "Hub")

ADDRESS = "hub"
"""The socket's name in the folder of the ranks."""

_EXIT_S = 1.0
"""Seconds that rank 0's process waits at its exit for the other ranks to leave."""

_CLOCK = -1
"""What the hub's own clock says in place of a rank's number."""


class Hub:
    """The board of all ranks, in rank 0's process.

    Args:
        folder: where the socket is, and the files with the data.
        key: of the handshake.
        world: the number of ranks.
        limit_s: how long to wait for ranks, in seconds; None for ever.

    Raises:
        CollectiveError: another hub was there.
    """

    def __init__(self, folder: Path, key: bytes, world: int, limit_s: float | None) -> None:
        self._listener = _listen(folder, key)
        self._key = key
        self._world = world
        self._limit_s = limit_s
        self._folder = folder
        self._ranks: dict[int, Connection[Any, Any]] = {}
        self._readers: dict[Key, set[int]] = {}  # who has not said that it is done
        self._board: Board[tuple[Key, int, str]] = Board(world, limit_s, self._go, self._refuse)
        self._leaving: set[int] = set()
        self._too_late = False
        self._process = os.getpid()
        self.thread = threading.Thread(target=self._run, name="cuda_async-collective-hub", daemon=True)

    def _run(self) -> None:
        try:
            if self._gather():
                self._serve()
        finally:
            self._listener.close()
            for connection in self._ranks.values():
                connection.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """At exit: wait a moment for the others to leave; the last removes the folder."""
        if os.getpid() != self._process:  # a fork of the process, which has no part in it
            return
        self.thread.join(_EXIT_S)
        self._listener.close()  # else an exit handler of `multiprocessing` looks for the socket
        shutil.rmtree(self._folder, ignore_errors=True)

    def _gather(self) -> bool:
        """Let the ranks join. Whether all came."""
        watch = threading.Timer(self._limit_s or 0.0, self._end_gathering)
        watch.daemon = True
        if self._limit_s is not None:
            start_thread(watch)
        why, seen = "", 0
        try:
            # A rank that comes when it is clear already that they cannot work together is told so, too.
            while seen < self._world and not self._too_late:
                known, why, seen = why, self._admit(why), seen + 1
                if why and not known:
                    self._tell_all(why)
        finally:
            watch.cancel()
        if why:
            return False
        for connection in self._ranks.values():
            connection.send(("welcome", None))
        return True

    def _admit(self, why: str) -> str:
        """Let one rank join.

        Returns:
            Why the ranks cannot work together: what was known before, or this one's reason; empty if they can.
        """
        while True:
            try:
                connection = self._listener.accept()
                rank, world = connection.recv()
                break
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # somebody else, or a process that died meanwhile
        if rank == _CLOCK:
            self._too_late = True
            missing = names_of(sorted(set(range(self._world)) - self._ranks.keys()))
            return why or f"{missing} did not join within {world:g} s"
        if not why and rank in self._ranks:
            why = f"rank {rank} has joined twice"
        if not why and world != self._world:
            why = f"rank {rank} says that there are {world} ranks, rank 0 that there are {self._world}"
        if not why:
            self._ranks[rank] = connection
        else:
            connection.send(("broken", why))
        return why

    def _end_gathering(self) -> None:
        """Time is up. `accept` has no limit: it is told by a connection like any other."""
        with contextlib.suppress(OSError):
            Client(self._listener.address, authkey=self._key).send((_CLOCK, self._limit_s))

    def _serve(self) -> None:
        by_connection = {connection: rank for rank, connection in self._ranks.items()}
        while by_connection:
            deadline = self._board.deadline()
            pause = None if deadline is None else max(0.0, deadline - time.monotonic())
            for ready in wait(list(by_connection), pause):
                rank = by_connection[ready]  # pyright: ignore[reportArgumentType]
                try:
                    message = self._ranks[rank].recv()
                except (EOFError, OSError):
                    del by_connection[self._ranks[rank]]
                    if rank not in self._leaving:
                        self._board.lose(rank, "its process ended")
                    continue
                self._hear(rank, *message)
            self._board.expire(time.monotonic())

    def _hear(self, rank: int, what: str, key: Any, *rest: Any) -> None:
        if what == "arrive":
            call, pages, failure = rest
            self._board.arrive(key, rank, Arrival(call, time.monotonic(), (key, rank, pages), failure))
        elif what == "done":
            left = self._readers[key]
            left.discard(rank)
            if not left:
                del self._readers[key]
                for other in self._ranks if key[0] < 0 else key[:2]:
                    self._send(other, "free", key)
        elif what == "abort":
            self._board.break_up(key)
        else:  # it leaves, and nothing of its own is waiting
            self._leaving.add(rank)
            self._board.lose(rank, "it closed its communicator")

    def _go(self, meeting: Meeting[tuple[Key, int, str]]) -> None:
        self._readers[meeting.key] = set(meeting.ranks)
        pages = {rank: arrival.payload[2] for rank, arrival in meeting.arrivals.items()}
        for rank in meeting.ranks:
            self._send(rank, "go", meeting.key, pages)

    def _refuse(self, payload: tuple[Key, int, str], error: CollectiveError) -> None:
        key, rank, _ = payload
        broken = self._board.broken
        if broken is None:
            self._send(rank, "refused", key, str(error))
        else:
            self._tell_all(str(broken))

    def _tell_all(self, why: str) -> None:
        for rank in self._ranks:
            self._send(rank, "broken", why)

    def _send(self, rank: int, *message: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone, which the loop hears of
            self._ranks[rank].send(message)


def _listen(folder: Path, key: bytes) -> Listener:
    try:
        return Listener(str(folder / ADDRESS), family="AF_UNIX", backlog=64, authkey=key)
    except OSError as error:
        raise CollectiveError(f"rank 0 cannot listen in {folder} ({error}); was this unique id used before?") from error
