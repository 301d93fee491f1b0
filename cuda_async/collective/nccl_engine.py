"""The engine of ranks on GPUs.

NCCL moves the data, in the order of the GPUs' streams.

A call is enqueued and that is all: no thread waits, and graphs record it. The ranks of one process call together, and
each GPU has its part on a stream of its own between a fork and a join of the caller's stream. A process that has one
rank enqueues on the caller's stream. There the hub of `processes.py` is told of each call, beside the data's way: who
calls something else, comes late or dies is named, and then all ranks give NCCL's communicator up, so that none hangs.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cuda_async.collective.board import Call, Group, Key
from cuda_async.collective.engine import Engine, Party, Seat
from cuda_async.collective.nccl import Nccl, element_type
from cuda_async.collective.processes import ProcessEngine
from cuda_async.core.storage import Storage
from cuda_async.driver.checked import CheckedDriver
from cuda_async.driver.interface import DriverStream
from cuda_async.errors import ArgumentError, CollectiveError, LaunchError, without_traceback
from cuda_async.locks import Gate, new_lock
from cuda_async.spread import order_behind
from cuda_async.threads import start_thread

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.stream import Stream

__all__ = ("NcclEngine",)

_ID_KEY: Key = (-1, -1, -1)
"""The meeting in which rank 0 gives the others NCCL's id; calls are counted from 0."""

_BYTE_CALL = Call("all_reduce", "barrier", "barrier()")

_VERDICT_S = 2.0
"""Seconds that a result that is there waits for the hub's word: far longer than a message takes."""

_GATHER_S = 10e-3
"""Seconds that calls are gathered before the hub is told of them, unless somebody waits for its word.

Each message costs several threads some 0.1 ms, in which this process does nothing else: a call takes half of that.
"""

_MOST_PENDING = 64
"""Calls from which on the stream is asked whether the first of them is over: the query costs a microsecond."""


@dataclass(slots=True)
class _Pending:
    """A call that is enqueued and not known to be over.

    Attributes:
        stream: where it was enqueued.
        sequence: the number of the stream's work that it is.
        group: the ranks whose calls are counted together.
        number: which of the group's calls it is, from 0.
        recorded: whether a graph has it, which launches it at any time.
        since: the seconds at which it was over on the device, and the hub had not spoken; None before that.
        error: why its results hold nothing useful.
    """

    stream: Stream
    sequence: int
    group: Group
    number: int
    recorded: bool
    since: float | None = None
    error: BaseException | None = None

    def is_over(self) -> bool:
        """Whether it is known to be. A stream that is busy with later work does not know."""
        return self.is_done() or self.stream.driver.query()

    def is_done(self) -> bool:
        """Whether it is known to be, without a question to the device."""
        return self.sequence <= self.stream.completed


class NcclEngine(Engine):
    """Ranks on GPUs.

    Args:
        nccl: the library.
        ranks: the local ones.
        devices: theirs.
        comms: NCCL's communicator of each.
        world: the number of ranks.
        hub: the way to the other processes; None where all ranks are local.
    """

    def __init__(
        self,
        nccl: Nccl,
        ranks: Sequence[int],
        devices: Sequence[Device],
        comms: Sequence[Any],
        world: int,
        hub: ProcessEngine | None = None,
    ) -> None:
        self.world = world
        self._nccl = nccl
        self._devices = dict(zip(ranks, devices, strict=True))
        self._comms = dict(zip(ranks, comms, strict=True))
        self._hub = hub
        self._lock = new_lock()  # NCCL takes calls of a communicator from one thread at a time
        self._links = new_lock()  # held where NCCL is asked about a communicator, which must not be aborted meanwhile
        self._sides: dict[int, Stream] = {}
        self._bytes = {rank: _byte_on(device) for rank, device in self._devices.items()}
        self._pending: deque[_Pending] = deque()
        self._broken: CollectiveError | None = None
        self._numbers: dict[Group, int] = {}  # of each group, how many calls were made here
        self._agreed: dict[Group, int] = {}  # how many of these all ranks have made
        self._failed: dict[tuple[Group, int], str] = {}  # calls that failed on some rank, and why
        self._untold: queue.SimpleQueue[tuple[Group, Call, str] | None] = queue.SimpleQueue()
        self._hurry: queue.SimpleQueue[None] = queue.SimpleQueue()
        if hub is not None:
            hub.on_agreement(self._agree, self._fail)
            hub.on_break(self._break)
            start_thread(threading.Thread(target=self._tell_hub, name="cuda_async-collective-calls", daemon=True))

    @classmethod
    def of(cls, devices: Sequence[Device], nccl: Nccl, max_ctas: int | None = None) -> NcclEngine:
        """All ranks in this process.

        Raises:
            ValueError: a GPU is given twice.
            CollectiveError: NCCL does not come to work on them.
        """
        ordinals = [device.ordinal for device in devices]
        if len(set(ordinals)) != len(ordinals):
            raise ArgumentError(f"devices: a GPU has one rank, got {', '.join(map(str, devices))}")
        drivers = [_inner(device) for device in devices]
        for driver in drivers:  # NCCL's copies within a process reach into the other GPU's memory
            for other in drivers:
                driver.connect(other)
        with _named("NCCL does not come to work"):
            if max_ctas is None:
                comms = nccl.open_all(ordinals)
            else:  # NCCL's call for all of them takes no configuration, and that for one waits for the others
                world, shared = len(devices), nccl.new_id()
                with ThreadPoolExecutor(world) as pool:
                    opened = [
                        pool.submit(_open_on, device, nccl, world, shared, rank, max_ctas)
                        for rank, device in enumerate(devices)
                    ]
                    comms = [each.result() for each in opened]
        return cls(nccl, range(len(devices)), devices, comms, len(devices))._connected()

    @classmethod
    def join(
        cls,
        rank: int,
        world: int,
        unique_id: str,
        device: Device,
        limit_s: float | None,
        nccl: Nccl,
        max_ctas: int | None = None,
    ) -> NcclEngine:
        """One rank in this process.

        Raises:
            CollectiveError: the others did not come, or NCCL does not come to work with them.
        """
        hub = ProcessEngine(rank, world, unique_id, limit_s)
        try:
            shared = _share_id(hub, rank, nccl.new_id() if rank == 0 else bytes(128))
            with _named(f"NCCL does not come to work on rank {rank}"):
                comm = _open_on(device, nccl, world, shared, rank, max_ctas)
        except BaseException:
            hub.close()
            raise
        return cls(nccl, (rank,), (device,), (comm,), world, hub)._connected()

    # -- calls --------------------------------------------------------------------------------

    def enqueue(
        self, stream: Stream, parts: Callable[[], list[tuple[Key, Seat]]], failure: BaseException | None
    ) -> None:
        with self._lock:
            if self._hub is None:  # elsewhere the thread that tells the hub looks at them
                self._check_links()
            if self._broken is not None:
                raise without_traceback(self._broken)
            drawn = parts()
            if len(drawn) > 1 and stream.recorder is not None:
                # On two H200s with NCCL 2.28.9 a launch of such a graph did not end.
                raise LaunchError(
                    f"{drawn[0][1].call.words}: a graph takes the collectives of one GPU; for a graph in each of "
                    "several GPUs start a process for each (Communicator.join)"
                )
            if len(drawn) != len(self._comms):
                raise LaunchError(
                    f"{drawn[0][1].call.words}: GPUs of one process call together: pass a list with an operand for "
                    f"each of the {len(self._comms)} ranks; for programs of one rank start a process for each "
                    "(Communicator.join)"
                )
            places = self._fork(stream, [seat.rank for _, seat in drawn])
            self._issue([seat for _, seat in drawn], places)
            self._join(stream, places)
            sender, receiver, _ = drawn[0][0]
            self._note(stream, (sender, receiver), drawn[0][1].call, failure)

    def check(self, dtype: np.dtype[Any], op: str) -> None:
        element_type(dtype, bool(op))

    def _issue(self, seats: Sequence[Seat], places: dict[int, Stream]) -> None:
        parts: list[tuple[Any, Seat, DriverStream]] = []
        for seat in seats:
            part = self._sum_of_a_byte(seat.rank) if seat.call.kind == "barrier" else seat
            parts.append((self._comms[seat.rank], part, places[seat.rank].driver))
        self._nccl.issue(parts, self.world)

    def _sum_of_a_byte(self, rank: int) -> Seat:
        """A barrier as NCCL has it: the sum is not there before all ranks have come."""
        byte = self._bytes[rank].address
        return Seat(rank, _BYTE_CALL, "sum", 0, np.dtype(np.uint8), byte, 1, byte, 1)

    def _connected(self) -> NcclEngine:
        """This engine, once NCCL has found the ways between the ranks.

        It leaves that to the first call. It takes milliseconds, allocates, and must not come amid a capture.
        """
        streams = {rank: device.new_stream() for rank, device in self._devices.items()}
        first = next(iter(streams.values())).driver
        try:
            first.enter()  # NCCL asks for the thread's current GPU
            try:
                self._issue([self._sum_of_a_byte(rank) for rank in streams], streams)
            finally:
                first.leave()
            for stream in streams.values():
                stream.synchronize()
        except BaseException:
            self.close()
            raise
        return self

    def _fork(self, stream: Stream, ranks: Sequence[int]) -> dict[int, Stream]:
        """A stream for each rank's part, behind the work of the caller's."""
        if len(ranks) == 1 and self._devices[ranks[0]] is stream.device:
            return {ranks[0]: stream}
        home = next((rank for rank in ranks if self._devices[rank] is stream.device), None)
        places: dict[int, Stream] = {}
        for rank in ranks:
            if rank == home:
                places[rank] = stream
                continue
            side = self._sides.get(rank)
            if side is None:
                side = self._sides[rank] = self._devices[rank].new_stream()
            places[rank] = side
            order_behind(side, stream)
        return places

    def _join(self, stream: Stream, places: dict[int, Stream]) -> None:
        for place in places.values():
            if place is not stream:
                order_behind(stream, place)
        stream.sequence += 1

    def _note(self, stream: Stream, group: Group, call: Call, failure: BaseException | None) -> None:
        """Have the waiters of a call told if it fails, and the hub told of the call.

        A call whose operands hold nothing useful moves them all the same: NCCL's calls of the other ranks wait for it.
        """
        while self._pending and self._pending[0].is_done():
            self._pending.popleft()
        while len(self._pending) > _MOST_PENDING and self._pending[0].is_over():
            self._pending.popleft()
        number = self._numbers.get(group, 0)
        self._numbers[group] = number + 1
        pending = _Pending(stream, stream.sequence, group, number, stream.recorder is not None)
        if not pending.recorded:
            self._pending.append(pending)
        stream.driver.check_behind(partial(self._check, pending), expect=self._expect)
        if self._hub is not None:
            self._untold.put((group, call, "" if failure is None else f"{type(failure).__name__}: {failure}"))

    def _check(self, pending: _Pending) -> bool:
        """How a call went that is over on the device; False while that is not known.

        The data may have come before the word that another rank called something else, and so be no use.
        """
        # A launch of a graph has no entry of its own: it fails if the communicator is broken when it is over.
        error = self._broken if pending.recorded else pending.error
        if error is None and not pending.recorded and not self._is_agreed(pending):
            error = self._broken
            if error is None and not self._has_waited(pending):
                return False
        why = None if pending.recorded else self._failed.get((pending.group, pending.number))
        if error is None and why is not None:
            error = CollectiveError(why)
        if error is not None:
            raise without_traceback(error)
        return True

    def _expect(self) -> None:
        """Somebody begins to wait: have the hub told now.

        So its word is here when the data are.
        """
        self._hurry.put(None)

    def _has_waited(self, pending: _Pending) -> bool:
        """Whether a call has waited long enough for the hub's word."""
        if pending.since is None:
            pending.since = time.monotonic()
            self._hurry.put(None)
        return time.monotonic() - pending.since > _VERDICT_S

    def _is_agreed(self, pending: _Pending) -> bool:
        return self._hub is None or pending.number < self._agreed.get(pending.group, 0)

    def _agree(self, group: Group, count: int) -> None:
        """All ranks have made so many calls of a group, the same ones."""
        self._agreed[group] = count

    def _fail(self, group: Group, number: int, why: str) -> None:
        """A call of a group failed on some rank: its results are nobody's use."""
        self._failed[group, number] = why

    def _check_links(self) -> None:
        """Give up where NCCL says that something went wrong behind its calls."""
        for rank in self._comms:
            with self._links:
                comm = self._comms[rank]
                failure = "" if comm is None else self._nccl.failure(comm)
            if failure:
                why = f"NCCL on rank {rank} says: {failure}. This communicator cannot be used any more: make a new one"
                self._give_up(CollectiveError(why))

    def _tell_hub(self) -> None:
        """Tell the hub of calls, in their order, many at a time.

        On a thread of its own: the caller waits neither for a socket nor for that thread.
        """
        assert self._hub is not None
        while (call := self._untold.get()) is not None:
            with contextlib.suppress(queue.Empty):
                self._hurry.get(timeout=_GATHER_S)
                while True:  # whoever else is in a hurry has these calls told now, too
                    self._hurry.get_nowait()
            self._check_links()
            calls = [call]
            while not self._untold.empty() and (call := self._untold.get()) is not None:
                calls.append(call)
            self._hub.tell(calls)
            if call is None:
                return

    # -- its end ------------------------------------------------------------------------------

    def _break(self, why: str) -> None:
        """The ranks cannot go on. On any thread, once or more."""
        self._give_up(CollectiveError(why))

    def _give_up(self, error: CollectiveError) -> None:
        # Without the lock of calls: a call may hold it because it waits, in NCCL, for the rank that is gone.
        if self._broken is not None:
            return
        self._broken = error
        for pending in list(self._pending):
            if not pending.is_over():
                pending.error = error
        with self._links:
            comms, self._comms = self._comms, dict.fromkeys(self._comms)
        for comm in comms.values():
            with contextlib.suppress(Exception):  # it may be half made, or gone with its GPU
                self._nccl.abort(comm)

    def abort(self, why: str) -> None:
        if self._hub is not None:
            self._hub.abort(why)
        else:
            self._break(f"{why}. This communicator cannot be used any more: make a new one")

    def close(self) -> None:
        self._untold.put(None)
        self._hurry.put(None)
        self._give_up(CollectiveError("this communicator was closed"))
        if self._hub is not None:
            self._hub.close()


def _byte_on(device: Device) -> Storage:
    stream = device.new_stream()
    storage = Storage.allocate(stream, 1)
    stream.synchronize()  # from here on any stream may use it, one that captures, too
    return storage


def _open_on(device: Device, nccl: Nccl, world: int, unique_id: bytes, rank: int, max_ctas: int | None) -> Any:
    """NCCL's communicator of a rank on a GPU. Waits for the other ranks."""
    stream = device.new_stream().driver
    stream.enter()
    try:
        return nccl.open_rank(world, unique_id, rank, max_ctas)
    finally:
        stream.leave()


def _share_id(hub: ProcessEngine, rank: int, unique_id: bytes) -> bytes:
    """Rank 0's id, on every rank."""
    memory = np.frombuffer(bytearray(unique_id), np.uint8)
    address, size = memory.ctypes.data, memory.size
    call = Call("broadcast", "NCCL's id", f"Communicator.join of rank {rank}")
    over = Gate()
    errors: list[BaseException] = []

    def finish(error: BaseException | None, at: float | None) -> None:
        if error is not None:
            errors.append(error)
        over.open()

    seat = Seat(rank, call, "", 0, memory.dtype, address, size, address, size)
    hub.arrive(_ID_KEY, seat, Party(1, finish), "")
    over.wait()
    if errors:
        raise errors[0]
    return memory.tobytes()


def _inner(device: Device) -> Any:
    driver = device.driver
    return driver.inner if isinstance(driver, CheckedDriver) else driver


@contextlib.contextmanager
def _named(what: str) -> Any:
    """Errors of NCCL as ours."""
    try:
        yield
    except (ArgumentError, CollectiveError):
        raise
    except Exception as error:
        raise CollectiveError(f"{what}: {error}") from error
