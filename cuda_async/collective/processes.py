"""The engine of ranks in processes, of one machine or of several.

Rank 0's process has the hub, a thread with the board. Each rank has a thread that receives the hub's messages. These
are all messages, in the order in which a communicator and a call need them:

    hub -> rank    hello folder                      the folder for files, on rank 0's machine
    rank -> hub    rank world can_write              its number, the number of ranks, whether it can write the folder
    hub -> rank    welcome shared_folder             all ranks have joined; whether all can write the folder
    rank -> hub    arrive key call token failure     its elements: the name of a file, or the bytes themselves
    hub -> rank    go key {rank: token}              all ranks have arrived: each computes its own result
    hub -> rank    refused key why                   this call failed on all ranks; later ones may succeed
    rank -> hub    done key                          it has read the other ranks' elements
    hub -> rank    free key                          all ranks have read: its file may be used again
    rank -> hub    called table runs                 its calls, whose data NCCL moves: each once, and their order
    hub -> rank    failed (*group, number) why       the work before this call failed on some rank
    hub -> rank    agreed ((*group, count), ...)     so many calls of these groups are the same on all ranks
    rank -> hub    abort why                         end every call, on all ranks
    hub -> rank    broken why                        no call can succeed any more
    rank -> hub    leave None                        it closes its communicator
    hub -> rank    left why                          a rank has left: work that still waits for it will not end

A process that dies closes its socket, and the hub tells the other ranks at once. The unique id holds the key of the
handshake, so that only processes that know the id can connect. The folder is readable for its user alone.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from cuda_async.collective.board import UNUSABLE, Call, Group, Key
from cuda_async.collective.engine import HostEngine, Party, Seat
from cuda_async.collective.hub import Hub
from cuda_async.collective.semantics import is_read, outcome
from cuda_async.collective.transport import Address, Inline, Link, Pages, Way, connect
from cuda_async.driver.interface import Finish, Meet
from cuda_async.errors import CollectiveError, LaunchError
from cuda_async.locks import new_lock, start_thread

__all__ = ("ProcessEngine",)

_RETRY_S = 0.02
"""Seconds between two attempts to reach a hub that does not listen yet."""

_MIN_ANSWER_S = 0.1
"""The least seconds that a listening process has for its first answer, however late it is found."""

_GRACE_S = 2.0
"""Seconds beyond the limit that a rank waits for the hub's message.

At the limit the hub ends the call, and names the late ranks. If no message has come by then, the hub itself is stuck.
"""

_LEAVE_S = 1.0
"""Seconds that a leaving rank waits until its last messages are sent; the others are lost."""

_engines: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    for engine in list(_engines):
        engine.close()


def _end(hub: Hub) -> None:
    # The hub waits until all ranks have left. So the ranks of this process must leave first. `atexit` itself calls
    # `_leave` only after this function, since `_leave` was registered earlier.
    _leave()
    hub.end()


@dataclass(slots=True)
class _Waiting:
    """A call that the hub has not answered.

    Attributes:
        seat: this rank's part of it.
        party: is told when the call ends.
        since: when it was sent, in seconds of the monotonic clock.
    """

    seat: Seat
    party: Party
    since: float = field(default_factory=time.monotonic)


class ProcessEngine(HostEngine):
    """One rank of a communicator of processes.

    Args:
        rank: the rank.
        world: the number of ranks.
        unique_id: the address of rank 0, as text.
        limit_s: how long to wait for the other ranks, in seconds; None for ever.

    Raises:
        CollectiveError: the other ranks did not join in time, or another process joined as this rank.
    """

    def __init__(self, rank: int, world: int, unique_id: str, limit_s: float | None) -> None:
        self.world = world
        self._rank = rank
        self._limit_s = limit_s
        address = Address.parse(unique_id)
        self._lock = new_lock()
        self._waiting: dict[Key, _Waiting] = {}
        self._files: dict[Key, str] = {}  # of each call, the file that this rank wrote, until all have read it
        self._listeners: list[Callable[[str], None]] = []
        self._agreed: Callable[[Group, int], None] | None = None
        self._failed: Callable[[Group, int, str], None] | None = None
        self._broken = ""
        self._left: tuple[float, str] | None = None  # when the first rank left, in seconds, and the words for it
        self._closed = False
        self._pid = os.getpid()  # a child of `fork` has another, and must not use the connection
        if address.folder is not None and not hasattr(socket, "AF_UNIX"):
            raise LaunchError("join: this system has no Unix sockets; use Communicator.unique_id(host)")
        if rank == 0:
            hub = Hub(address, world, limit_s)
            start_thread(hub.thread)
            atexit.register(_end, hub)
        self._hub, self._folder, self._way = self._connect(address)
        # Writing a message with elements may wait until the other side reads. If a rank and the hub wrote to each
        # other, and neither read, both would wait for ever. So one thread writes here, and another one reads.
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

    def _connect(self, address: Address) -> tuple[Link, Path, Way]:
        """Join: the link to the hub, the folder for files, the way to other ranks."""
        end = None if self._limit_s is None else time.monotonic() + self._limit_s
        while True:
            try:
                link = connect(address, None if end is None else max(_MIN_ANSWER_S, end - time.monotonic()))
                break
            except (FileNotFoundError, ConnectionError, EOFError):  # no hub listens yet, or it ended amid the handshake
                if end is not None and time.monotonic() > end:
                    raise CollectiveError(f"rank 0 did not join at {address} within {self._limit_s:g} s") from None
                time.sleep(_RETRY_S)
            except OSError as error:
                raise CollectiveError(f"rank 0 cannot be reached at {address} ({error})") from error
        folder = Path()
        try:
            _, name = link.recv()  # `hello folder`
            folder = Path(name)
            link.send(self._rank, self.world, os.access(folder, os.W_OK))
            answer, detail = link.recv()  # `welcome shared_folder`, or `broken why`
        except (EOFError, OSError):
            answer, detail = "broken", "rank 0 ended before all ranks had joined"
        if answer != "welcome":
            link.close()
            raise CollectiveError(str(detail))
        return link, folder, Pages(folder, self._rank) if detail else Inline()

    def _send(self, *message: object) -> None:
        """Send a message to the hub. The caller holds the lock: messages do not mix."""
        if self._outbox is None:
            self._hub.send(*message)
        else:
            self._outbox.put(message)

    def _send_all(self) -> None:
        assert self._outbox is not None
        # OSError: the hub is gone, which the receiving thread finds out. TypeError: `close` has set the connection's
        # handle to None amid a write.
        with contextlib.suppress(OSError, TypeError):
            while (message := self._outbox.get()) is not None:
                self._hub.send(*message)

    def _remove_folder(self) -> None:
        """Remove the folder in place of the hub, which is gone."""
        if isinstance(self._way, Pages):
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- calls --------------------------------------------------------------------------------

    def meeting(self, parts: Callable[[], list[tuple[Key, Seat]]]) -> Callable[[], Meet]:
        def make() -> Meet:
            ((key, seat),) = parts()  # a process has one rank: a call has one part, and its party one member

            def meet(finish: Finish, failure: BaseException | None, at: float) -> None:
                text = "" if failure is None else f"{type(failure).__name__}: {failure}"
                self.arrive(key, seat, Party(1, finish), text)

            return meet

        return make

    def on_break(self, tell: Callable[[str], None]) -> None:
        """Call `tell(why)` when no call can succeed any more.

        It is called on any thread, and at once if no call can succeed now.
        """
        with self._lock:
            self._listeners.append(tell)
            why = self._broken
        if why:
            tell(why)

    def on_agreement(self, agreed: Callable[[Group, int], None], failed: Callable[[Group, int, str], None]) -> None:
        """Set the functions that are called with the hub's answers to `tell`.

        They are called on the thread that receives messages. Set them before the first `tell`.

        Args:
            agreed: called with a group, and how many of its calls, from the first on, are the same on all its ranks.
            failed: called with a group, the number of a call from 0, and why it failed on some rank. It is called
                before `agreed` counts the call.
        """
        self._agreed, self._failed = agreed, failed

    def tell(self, calls: Sequence[tuple[Group, Call, str]]) -> None:
        """Tell the hub of this rank's calls, in their order. Waits for no other rank.

        Args:
            calls: the group of each call, the call, and the error of the work that makes its operands; empty for none.
        """
        table: dict[tuple[Group, Call, str], int] = {}  # a program makes few different calls, and each of them often
        runs = tuple((table.setdefault(call, len(table)), sum(1 for _ in run)) for call, run in groupby(calls))
        with contextlib.suppress(OSError), self._lock:  # the hub is gone, which the receiving thread finds out
            self._send("called", tuple(table), runs)

    def arrive(self, key: Key, seat: Seat, party: Party, failure: str) -> None:
        """Tell the hub that this rank has come to a meeting.

        Args:
            key: the meeting's key.
            seat: the rank's part.
            party: is told when the call ends.
            failure: the error of the work that makes the operand; empty for none.
        """
        token: str | bytes = ""
        try:
            if os.getpid() != self._pid:
                raise CollectiveError("this process was forked from the one that joined; join anew, with a new id")
            with self._lock:
                if self._broken:
                    raise CollectiveError(self._broken)
                if not failure and seat.count and is_read(seat.call.kind, seat.rank, seat.root):
                    token, failure = self._taken(seat)
                self._waiting[key] = _Waiting(seat, party)
                self._files[key] = token if isinstance(token, str) else ""  # only files are given back
                self._send("arrive", key, seat.call, token, failure)
        except (OSError, CollectiveError) as error:
            # The file of the call stays in `_files`: the hub, which would free it, is gone.
            with self._lock:
                self._waiting.pop(key, None)
            gone = f"rank 0 is gone ({error}). {UNUSABLE}"
            why = error if isinstance(error, CollectiveError) else CollectiveError(gone)
            _tell(party.end(why, None))

    def _taken(self, seat: Seat) -> tuple[str | bytes, str]:
        """The token of this rank's elements, and why they could not be handed over.

        The reason is empty if they could. The other ranks are told of it, as of a failure of the work before the call:
        else they would wait for this rank.
        """
        try:
            return self._way.take(seat.brings()), ""
        except Exception as error:
            return "", f"its elements could not be handed over ({type(error).__name__}: {error})"

    def _run(self) -> None:
        while True:
            try:
                if not self._hub.poll(self._patience()):
                    self._give_up()
                    continue
                message = self._hub.recv()
            except (EOFError, OSError, TypeError):  # TypeError: `close` has set the handle to None amid the read
                if not self._closed:
                    self._remove_folder()
                    self._break("rank 0 is gone (its process ended)")
                return
            what, key, *rest = message
            if what == "go":
                self._exchange(key, *rest)
            elif what == "agreed":
                assert self._agreed is not None
                for sender, receiver, count in key:  # the counts stand where other messages have the key
                    self._agreed((sender, receiver), count)
            elif what == "failed":
                assert self._failed is not None
                sender, receiver, number = key
                self._failed((sender, receiver), number, rest[0])
            elif what == "free":
                with self._lock:
                    self._way.give_back(self._files.pop(key))
            elif what == "refused":  # the work before the call failed on some rank
                with self._lock:
                    self._way.give_back(self._files.pop(key))
                    waiting = self._waiting.pop(key, None)  # None: `_break` has ended the call meanwhile
                if waiting is not None:
                    _tell(waiting.party.end(CollectiveError(rest[0]), None))
            elif what == "left":
                self._left = self._left or (time.monotonic(), key)  # the words stand where other messages have the key
            else:  # `broken why`: the reason stands where other messages have the key
                self._break(key)

    def _exchange(self, key: Key, tokens: dict[int, str | bytes]) -> None:
        """Compute this rank's result from the elements of all ranks."""
        with self._lock:
            waiting = self._waiting.pop(key, None)
        if waiting is None:  # `_break` has ended the call meanwhile
            return
        seat, error = waiting.seat, None
        try:
            parts = {rank: self._way.read(token, seat) for rank, token in tokens.items()}
            parts[seat.rank] = seat.brings()
            seat.takes(outcome(seat.call.kind, parts, seat.rank, seat.op, seat.root))
        except Exception as reason:  # whatever it is, the caller must not wait for ever, and this thread must go on
            error = CollectiveError(f"{seat.call.words}: {type(reason).__name__}: {reason}")
        # OSError: the hub is gone. The result is right all the same: all elements had been sent.
        with self._lock, contextlib.suppress(OSError):
            self._send("done", key)
        _tell(waiting.party.end(error, None))

    def _patience(self) -> float | None:
        """Seconds until `_give_up` may have something to do; None if it never has."""
        with self._lock:
            if self._limit_s is None:
                return None
            # A call that begins while the thread waits does not wake it, and is due later than all calls up to now.
            first = min((waiting.since for waiting in self._waiting.values()), default=time.monotonic())
        due = first + self._limit_s + _GRACE_S
        if self._left is not None and not self._broken:
            due = min(due, self._left[0] + self._limit_s)
        return max(0.0, due - time.monotonic())

    def _give_up(self) -> None:
        """End all calls if one is too late, or a rank left too long ago.

        A call is too late when it has waited for the limit and `_GRACE_S`. A rank left too long ago when the limit has
        passed since. GPUs may still wait for its data: the hub cannot tell, since it knows neither the launches of
        graphs nor which agreed calls are over.
        """
        if self._limit_s is None:
            return
        limit, now = self._limit_s + _GRACE_S, time.monotonic()
        with self._lock:
            late = any(now - call.since >= limit for call in self._waiting.values())
        if late:
            self._break(f"rank 0 has not answered within {limit:g} s")
        elif self._left is not None and now - self._left[0] >= self._limit_s:
            self._break(self._left[1])

    def _break(self, why: str) -> None:
        with self._lock:
            self._broken = self._broken or why
            waiting, self._waiting = list(self._waiting.values()), {}
            listeners, self._listeners = self._listeners, []
        for tell in listeners:
            tell(self._broken)
        for call in waiting:
            _tell(call.party.end(CollectiveError(self._broken), None))

    def abort(self, why: str) -> None:
        with contextlib.suppress(OSError), self._lock:
            self._send("abort", f"{why} on rank {self._rank}")

    def close(self) -> None:
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            try:
                self._send("leave", None)
            except OSError:  # the hub is gone; the receiving thread sees `_closed`, and leaves the folder to us
                self._remove_folder()
        if self._outbox is not None:
            self._outbox.put(None)
            self._sender.join(_LEAVE_S)
        self._break("this communicator was closed")  # before the link ends, so that callers read this reason
        self._hub.close()
        self._way.close()


def _tell(finish: Callable[[], None] | None) -> None:
    if finish is not None:
        finish()
