"""The engine of ranks in processes, of one machine or of several.

Rank 0's process has the hub, a thread with the board. Each rank has a thread of its own that talks to it:

    hub -> rank    hello folder                      where files of this machine would lie
    rank -> hub    rank world sees                   who it is, and whether it sees that folder
    hub -> rank    welcome all_see                   all have come
    rank -> hub    arrive key call token failure     what it brings: the name of a file, or the bytes themselves
    hub -> rank    go key {rank: token}              all have come: each computes what it takes away
    rank -> hub    done key
    hub -> rank    free key                          all have read: the file may be used again
    hub -> rank    broken why                        no call can succeed any more

A process that dies closes its socket, and the others learn of it at once. Only who knows the unique id can connect: it
holds the key of the handshake. A folder is this user's alone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import shutil
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cuda_async.collective.board import Key
from cuda_async.collective.engine import HostEngine, Party, Seat
from cuda_async.collective.hub import Hub
from cuda_async.collective.semantics import is_read, outcome
from cuda_async.collective.transport import Address, Inline, Link, Pages, Way, connect
from cuda_async.driver.interface import Finish, Meet
from cuda_async.errors import CollectiveError, LaunchError
from cuda_async.locks import new_lock
from cuda_async.threads import start_thread

__all__ = ("ProcessEngine",)

_RETRY_S = 0.02
"""Seconds between two attempts to reach a hub that is not there yet."""

_GRACE_S = 2.0
"""Seconds that a rank waits beyond its limit for the hub to say who is late; then the hub itself is."""

_LEAVE_S = 1.0
"""Seconds that a rank that leaves waits for its last messages to be sent."""

_engines: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    for engine in list(_engines):
        engine.close()


def _end(hub: Hub) -> None:
    _leave()  # this process's ranks first: the hub waits for all
    hub.end()


@dataclass(slots=True)
class _Waiting:
    """A call whose answer has not come."""

    seat: Seat
    party: Party
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
        address = Address.parse(unique_id)
        self._lock = new_lock()
        self._waiting: dict[Key, _Waiting] = {}
        self._used: dict[Key, str] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._broken = ""
        self._closed = False
        self._process = os.getpid()
        if address.folder is not None and not hasattr(socket, "AF_UNIX"):
            raise LaunchError("join: this system has no Unix sockets; use Communicator.unique_id(host)")
        if rank == 0:
            hub = Hub(address, world, limit_s)
            start_thread(hub.thread)
            atexit.register(_end, hub)
        self._folder = Path()
        self._hub, self._way = self._connect(address)
        # Large messages wait until the hub reads; the hub may be writing one to this rank just then.
        self._outbox: queue.SimpleQueue[tuple[object, ...] | None] | None = None
        if isinstance(self._way, Inline):
            self._outbox = queue.SimpleQueue()
            self._sender = threading.Thread(
                target=self._send_all, name=f"cuda_async-collective-out-{rank}", daemon=True
            )
            start_thread(self._sender)
        _engines.add(self)
        self._thread = threading.Thread(target=self._run, name=f"cuda_async-collective-{rank}", daemon=True)
        start_thread(self._thread)

    def _connect(self, address: Address) -> tuple[Link, Way]:
        end = None if self._limit_s is None else time.monotonic() + self._limit_s
        while True:
            try:
                link = connect(address)
                break
            except (FileNotFoundError, ConnectionError, EOFError):  # the hub is not there yet, or no more
                if end is not None and time.monotonic() > end:
                    raise CollectiveError(f"rank 0 did not join at {address} within {self._limit_s:g} s") from None
                time.sleep(_RETRY_S)
            except OSError as error:
                raise CollectiveError(f"rank 0 cannot be reached at {address} ({error})") from error
        sees = False
        try:
            _, folder = link.recv()
            self._folder = Path(folder)
            sees = os.access(self._folder, os.W_OK)
            link.send(self._rank, self.world, sees)
            what, why = link.recv()
        except (EOFError, OSError):
            what, why = "broken", "rank 0 ended before all ranks had joined"
        if what != "welcome":
            link.close()
            raise CollectiveError(str(why))
        all_see = bool(why)
        return link, Pages(self._folder, self._rank) if all_see else Inline()

    def _send(self, *message: object) -> None:
        """Send a message to the hub. Under the lock."""
        if self._outbox is None:
            self._hub.send(*message)
        else:
            self._outbox.put(message)

    def _send_all(self) -> None:
        assert self._outbox is not None
        with contextlib.suppress(OSError, TypeError):  # the hub is gone, which the other thread hears of
            while (message := self._outbox.get()) is not None:
                self._hub.send(*message)

    def _remove_folder(self) -> None:
        """Where the hub is gone, nobody else does."""
        if isinstance(self._way, Pages):
            shutil.rmtree(self._folder, ignore_errors=True)

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
        token: str | bytes = ""
        try:
            if os.getpid() != self._process:
                raise CollectiveError("this process was forked from the one that joined; join anew, with a new id")
            with self._lock:
                if self._broken:
                    raise CollectiveError(self._broken)
                if not failure and seat.count and is_read(seat.call.kind, seat.rank, seat.root):
                    token = self._way.take(seat.brings())
                self._waiting[key] = _Waiting(seat, party)
                self._used[key] = token if isinstance(token, str) else ""
                self._send("arrive", key, seat.call, token, failure)
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
                    self._remove_folder()
                    self._break("rank 0 is gone (its process ended)")
                return
            what, key, *rest = message
            if what == "go":
                self._take(key, *rest)
            elif what == "free":
                with self._lock:
                    self._way.give_back(self._used.pop(key))
            elif what == "refused":
                with self._lock:
                    self._way.give_back(self._used.pop(key))
                    waiting = self._waiting.pop(key)
                _tell(waiting.party.end(CollectiveError(rest[0]), None))
            else:
                self._break(key)

    def _take(self, key: Key, tokens: dict[int, str | bytes]) -> None:
        with self._lock:
            waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        seat, error = waiting.seat, None
        try:
            parts = {rank: self._way.read(token, seat) for rank, token in tokens.items()}
            parts[seat.rank] = seat.brings()
            seat.takes(outcome(seat.call.kind, parts, seat.rank, seat.op, seat.root))
        except (OSError, MemoryError) as reason:
            error = CollectiveError(f"{seat.call.words}: the data of the other ranks could not be read ({reason})")
        else:
            with self._lock, contextlib.suppress(OSError):  # the hub is gone: what it had sent is right all the same
                self._send("done", key)
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
        with contextlib.suppress(OSError), self._lock:
            self._send("abort", f"{why} on rank {self._rank}")

    def close(self) -> None:
        with self._lock:
            if self._closed or os.getpid() != self._process:
                return
            self._closed = True
            try:
                self._send("leave", None)
            except OSError:  # the hub is gone, and the other thread may not come to see it any more
                self._remove_folder()
        if self._outbox is not None:
            self._outbox.put(None)
            self._sender.join(_LEAVE_S)
        self._break("this communicator was closed")
        self._hub.close()
        self._way.close()


def _tell(finish: Callable[[], None] | None) -> None:
    if finish is not None:
        finish()
