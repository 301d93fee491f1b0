"""The engine of ranks in processes of one machine.

Files mapped into memory for the data, sockets for the rest.

Rank 0's process has the hub, a thread with the board. Each rank has a thread of its own that talks to it:

    rank -> hub    arrive key call pages failure     what it brings lies in a file of its own
    hub -> rank    go key {rank: pages}              all have come: each computes what it takes away
    rank -> hub    done key
    hub -> rank    free key                          all have read: the file may be used again
    hub -> rank    broken why                        no call can succeed any more

A process that dies closes its socket, and the others learn of it at once. Only who knows the unique id can connect: it
holds the key of the handshake, and the folder is this user's alone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from cuda_async.collective.board import Key
from cuda_async.collective.engine import HostEngine, Party, Seat
from cuda_async.collective.hub import ADDRESS, Hub
from cuda_async.collective.pages import Pages
from cuda_async.collective.semantics import is_read, outcome
from cuda_async.driver.interface import Finish, Meet
from cuda_async.errors import ArgumentError, CollectiveError, LaunchError
from cuda_async.locks import new_lock
from cuda_async.threads import start_thread

__all__ = ("ProcessEngine", "fresh_id")

_RETRY_S = 0.02
"""Seconds between two attempts to reach a hub that is not there yet."""

_GRACE_S = 2.0
"""Seconds that a rank waits beyond its limit for the hub to say who is late; then the hub itself is."""

_engines: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    for engine in list(_engines):
        engine.close()


def _end(hub: Hub) -> None:
    _leave()  # this process's ranks first: the hub waits for all
    hub.end()


def fresh_id() -> str:
    """A folder for the files and the socket, and the key of the handshake, as text."""
    # A file system in memory where there is one: files elsewhere are written to a disk sooner or later.
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return f"{tempfile.mkdtemp(prefix='cuda-async-', dir=parent)}:{secrets.token_hex(16)}"


def _split(unique_id: str) -> tuple[Path, bytes]:
    folder, _, key = unique_id.rpartition(":")
    if not folder or len(key) != 32:
        raise ArgumentError(f"unique_id: expected what Communicator.unique_id() returned, got {unique_id!r}")
    return Path(folder), bytes.fromhex(key)


@dataclass(slots=True)
class _Waiting:
    """A call whose answer has not come."""

    seat: Seat
    party: Party
    pages: str
    since: float = field(default_factory=time.monotonic)


class ProcessEngine(HostEngine):
    """One rank of a communicator of processes.

    Args:
        rank: which.
        world: the number of ranks.
        unique_id: where they meet.
        limit_s: how long to wait for the others, in seconds; None for ever.

    Raises:
        CollectiveError: the others did not come in time, or somebody has joined as this rank.
    """

    def __init__(self, rank: int, world: int, unique_id: str, limit_s: float | None) -> None:
        self.world = world
        self._rank = rank
        self._limit_s = limit_s
        self._folder, key = _split(unique_id)
        self._lock = new_lock()
        self._waiting: dict[Key, _Waiting] = {}
        self._used: dict[Key, str] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._pages = Pages(self._folder, rank)
        self._broken = ""
        self._closed = False
        self._process = os.getpid()
        if not hasattr(socket, "AF_UNIX"):
            raise LaunchError("join: processes find one another by Unix sockets, which this system does not have")
        if rank == 0:
            hub = Hub(self._folder, key, world, limit_s)
            start_thread(hub.thread)
            atexit.register(_end, hub)
        self._hub = self._connect(key)
        _engines.add(self)
        self._thread = threading.Thread(target=self._run, name=f"cuda_async-collective-{rank}", daemon=True)
        start_thread(self._thread)

    def _connect(self, key: bytes) -> Connection[Any, Any]:
        end = None if self._limit_s is None else time.monotonic() + self._limit_s
        while True:
            try:
                connection: Connection[Any, Any] = Client(str(self._folder / ADDRESS), family="AF_UNIX", authkey=key)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if end is not None and time.monotonic() > end:
                    raise CollectiveError(f"rank 0 did not join within {self._limit_s:g} s") from None
                time.sleep(_RETRY_S)
        connection.send((self._rank, self.world))
        try:
            what, why = connection.recv()
        except (EOFError, OSError):
            what, why = "broken", "rank 0 ended before all ranks had joined"
        if what != "welcome":
            raise CollectiveError(str(why))
        return connection

    # -- calls --------------------------------------------------------------------------------

    def meeting(self, parts: Callable[[], list[tuple[Key, Seat]]]) -> Callable[[], Meet]:
        def make() -> Meet:
            ((key, seat),) = parts()

            def meet(finish: Finish, failure: BaseException | None, at: float) -> None:
                text = "" if failure is None else f"{type(failure).__name__}: {failure}"
                self.arrive(key, seat, Party(1, finish), text)

            return meet

        return make

    def on_break(self, tell: Callable[[str], None]) -> None:
        """Call `tell(why)` when no call can succeed any more.

        On any thread; at once if that is so already.
        """
        with self._lock:
            self._listeners.append(tell)
            why = self._broken
        if why:
            tell(why)

    def arrive(self, key: Key, seat: Seat, party: Party, failure: str) -> None:
        """This rank has come to a meeting.

        Args:
            key: the meeting's.
            seat: what the rank brings and takes away.
            party: who is told that it is over.
            failure: why what it brings holds nothing useful; empty if it does.
        """
        pages = ""
        try:
            if os.getpid() != self._process:
                raise CollectiveError("this process was forked from the one that joined; join anew, with a new id")
            with self._lock:
                if self._broken:
                    raise CollectiveError(self._broken)
                if not failure and seat.count and is_read(seat.call.kind, seat.rank, seat.root):
                    pages = self._pages.take(seat.brings())
                self._waiting[key] = _Waiting(seat, party, pages)
                self._used[key] = pages
                self._hub.send(("arrive", key, seat.call, pages, failure))
        except (OSError, CollectiveError) as error:
            with self._lock:
                self._waiting.pop(key, None)
            why = error if isinstance(error, CollectiveError) else CollectiveError(f"rank 0 is gone ({error})")
            _tell(party.end(why, None))

    def _run(self) -> None:
        while True:
            try:
                if not self._hub.poll(self._patience()):
                    self._give_up()
                    continue
                message = self._hub.recv()
            except (EOFError, OSError, TypeError):  # TypeError: closed on another thread amid the call
                if not self._closed:
                    shutil.rmtree(self._folder, ignore_errors=True)  # nobody else does it now
                    self._break("rank 0 is gone (its process ended)")
                return
            what, key, *rest = message
            if what == "go":
                self._take(key, *rest)
            elif what == "free":
                with self._lock:
                    self._pages.give_back(self._used.pop(key))
            elif what == "refused":
                with self._lock:
                    self._pages.give_back(self._used.pop(key))
                    waiting = self._waiting.pop(key)
                _tell(waiting.party.end(CollectiveError(rest[0]), None))
            else:
                self._break(key)

    def _take(self, key: Key, pages: dict[int, str]) -> None:
        with self._lock:
            waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        seat, error = waiting.seat, None
        try:
            parts = {rank: self._pages.read(name, seat) for rank, name in pages.items()}
            seat.takes(outcome(seat.call.kind, parts, seat.rank, seat.op, seat.root))
            self._hub.send(("done", key))
        except (OSError, MemoryError) as reason:
            error = CollectiveError(f"{seat.call.words}: the data of the other ranks could not be read ({reason})")
        _tell(waiting.party.end(error, None))

    def _patience(self) -> float | None:
        """Seconds until a call has waited for so long that the hub must be stuck."""
        with self._lock:
            if self._limit_s is None or not self._waiting:
                return None if self._limit_s is None else self._limit_s + _GRACE_S
            first = min(waiting.since for waiting in self._waiting.values())
        return max(0.0, first + self._limit_s + _GRACE_S - time.monotonic())

    def _give_up(self) -> None:
        with self._lock:
            limit = None if self._limit_s is None else self._limit_s + _GRACE_S
            late = limit is not None and any(time.monotonic() - each.since >= limit for each in self._waiting.values())
        if late:
            self._break(f"rank 0 has not answered within {limit:g} s")

    def _break(self, why: str) -> None:
        with self._lock:
            self._broken = self._broken or why
            waiting, self._waiting = list(self._waiting.values()), {}
            listeners, self._listeners = self._listeners, []
        for tell in listeners:
            tell(self._broken)
        for each in waiting:
            _tell(each.party.end(CollectiveError(self._broken), None))

    def abort(self, why: str) -> None:
        with contextlib.suppress(OSError):
            self._hub.send(("abort", f"{why} on rank {self._rank}"))

    def close(self) -> None:
        with self._lock:
            if self._closed or os.getpid() != self._process:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                self._hub.send(("leave", None))
        self._break("this communicator was closed")
        self._hub.close()
        self._pages.close()


def _tell(finish: Callable[[], None] | None) -> None:
    if finish is not None:
        finish()
