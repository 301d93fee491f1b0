"""The engine of ranks on GPUs. NCCL moves the data, in the order of their streams.

A call is only enqueued: no thread waits, and graphs record it. The ranks of one process call together. Each GPU has its
part on a stream of its own, between a fork from the caller's stream and a join to it. A process with one rank enqueues
on the caller's stream, and tells the hub of `processes.py` of each call. The hub names a rank that makes another call,
comes late or dies. Then all ranks abort NCCL's communicators, so that none hangs.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from cuda_async.collective.board import UNUSABLE, Call, Group, Key
from cuda_async.collective.engine import Engine, Party, Seat
from cuda_async.collective.nccl import Command, Nccl, element_type, open_on, open_together
from cuda_async.collective.processes import ProcessEngine
from cuda_async.core.event import WAIT_SLICE_S
from cuda_async.core.storage import Storage
from cuda_async.driver.checked import CheckedDriver
from cuda_async.driver.interface import DriverStream
from cuda_async.errors import ArgumentError, CollectiveError, ContextError, LaunchError, without_traceback
from cuda_async.locks import Gate, new_lock, start_thread
from cuda_async.spread import order_behind

if TYPE_CHECKING:
    from cuda_async.core.device import Device
    from cuda_async.core.stream import Stream

__all__ = ("NcclEngine",)

_ID_KEY: Key = (-1, -1, -1)
"""The meeting in which rank 0 sends NCCL's id to the others. Its number is -1: calls are counted from 0."""

_ID_BYTES = 128
"""Bytes of NCCL's id (`NCCL_UNIQUE_ID_BYTES` in nccl.h)."""

_BYTE_CALL = Call("all_reduce", "barrier", "barrier()")
"""The call that stands for a barrier: the sum of a byte of each rank."""

_MAX_ANSWER_S = 2.0
"""Seconds that a finished result waits for the hub's answer: far longer than a message takes.

After that the result counts as right. The hub's own limit (`limit_s`) still reports a rank that never calls.
"""

_GATHER_S = 10e-3
"""Seconds that calls are gathered before the hub is told of them, unless a result waits for its answer.

Each message costs several threads some 0.1 ms, in which this process does nothing else. A call takes half of that.
"""

_CALLS_PER_QUERY = 64
"""Pending calls for which the device is asked once whether the first of them is over.

A question takes the interpreter's lock from the thread that enqueues. The number is chosen, not measured.
"""


@dataclass(slots=True)
class _Pending:
    """A call that is enqueued and not known to be over.

    Attributes:
        stream: the stream on which it was enqueued.
        sequence: its number among the stream's work.
        group: the ranks whose calls are counted together.
        number: its number among the group's calls, from 0.
        recorded: whether a graph has recorded it, and launches it at any time.
        since: when its work was first found done while the hub's answer was missing, in seconds; None before that.
        error: why its results are wrong or missing.
    """

    stream: Stream
    sequence: int
    group: Group
    number: int
    recorded: bool
    since: float | None = None
    error: BaseException | None = None

    def ask_done(self) -> bool:
        """Whether it is known to be over, by asking the device whether its stream is idle."""
        return self.is_known_done() or self.stream.driver.query()

    def is_known_done(self) -> bool:
        """Whether it is known to be over, without a question to the device."""
        return self.sequence <= self.stream.completed


class _GraphMark:
    """A mark of a recorded call, which the graph keeps."""

    __slots__ = ("__weakref__",)


_Message = tuple[Group, Call, str]
"""A call for the hub: its group, the call, the failure of the work that makes its operands."""


@dataclass(slots=True)
class _Registration:
    """What `_register` has done for an enqueued call, to go on after Ctrl-C.

    Attributes:
        stream: the caller's stream.
        streams: by rank, the stream of its part.
        group: the ranks whose calls are counted together.
        message: the call for the hub.
        in_sequence: whether the stream's `sequence` counts the call.
        in_num_calls: whether the engine's `_num_calls` counts the call.
        pending: the call among those that are not known to be over; None before it has its number.
    """

    stream: Stream
    streams: dict[int, Stream]
    group: Group
    message: _Message
    in_sequence: bool = False
    in_num_calls: bool = False
    pending: _Pending | None = None

    @classmethod
    def of(
        cls, stream: Stream, streams: dict[int, Stream], group: Group, call: Call, failure: BaseException | None
    ) -> _Registration:
        why = "" if failure is None else f"{type(failure).__name__}: {failure}"
        return cls(stream, streams, group, (group, call, why))


class NcclEngine(Engine):
    """Ranks on GPUs.

    Args:
        nccl: the library.
        ranks: the local ranks.
        devices: the device of each.
        comms: NCCL's communicator of each.
        world: the number of ranks.
        hub: the connection to the other processes; None where all ranks are local.
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
        self._to_abort: deque[Any] = deque()  # communicators that are to be aborted
        self._hub = hub
        self._lock = new_lock()  # NCCL takes calls of a communicator from one thread at a time
        self._free_lock = new_lock()  # held while a communicator is freed
        self._abort_lock = new_lock()  # held while NCCL is asked about a communicator: it must not be aborted meanwhile
        self._side_streams: dict[int, Stream] = {}  # by rank, the stream of a part on another GPU than the caller's
        self._bytes = {rank: _byte_on(device) for rank, device in self._devices.items()}
        self._pending: deque[_Pending] = deque()  # in the order of calls
        self._broken: CollectiveError | None = None  # the error of all further calls
        self._numbers: dict[Group, int] = {}  # by group, the number of calls made here
        self._agreed: dict[Group, int] = {}  # by group, the number of calls that all ranks have made
        self._failed: dict[tuple[Group, int], str] = {}  # by group and number, why a call failed on some rank
        self._outbox: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()  # for `_tell_hub`; None ends its thread
        self._send_now: queue.SimpleQueue[None] = queue.SimpleQueue()  # an item: tell the hub at once
        self._graphs: WeakSet[_GraphMark] = WeakSet()  # one for each call that a graph has recorded
        self._has_recorded = False  # whether a graph has ever recorded a call
        self._num_calls = 0  # calls that the hub is to be told of
        self._num_told = 0  # calls that it was told of
        if hub is not None:
            hub.on_agreement(self._agree, self._fail)
            hub.on_break(self._break)
            start_thread(threading.Thread(target=self._tell_hub, name="cuda_async-collective-calls", daemon=True))

    @classmethod
    def of(cls, devices: Sequence[Device], nccl: Nccl, max_ctas: int | None = None) -> NcclEngine:
        """Make all ranks in this process.

        Raises:
            ValueError: a GPU is given twice.
            CollectiveError: NCCL cannot connect the GPUs.
        """
        ordinals = [device.ordinal for device in devices]
        if len(set(ordinals)) != len(ordinals):
            raise ArgumentError(f"devices: a GPU has one rank, got {', '.join(map(str, devices))}")
        drivers = [_inner(device) for device in devices]
        for driver in drivers:  # NCCL's copies within a process reach into the other GPU's memory
            for other in drivers:
                driver.connect(other)
        with _as_collective_error("NCCL did not start"):
            if max_ctas is None:
                comms = nccl.open_all(ordinals)
            else:  # NCCL takes a configuration for one rank at a time; that call waits for those of the other ranks
                world, unique_id = len(devices), nccl.new_id()
                opens = [
                    partial(open_on, device, nccl, world, unique_id, rank, max_ctas)
                    for rank, device in enumerate(devices)
                ]
                comms = open_together(nccl, opens)
        try:
            engine = cls(nccl, range(len(devices)), devices, comms, len(devices))
        except BaseException:
            nccl.free(comms)
            raise
        return engine._connected()

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
        """Make one rank in this process.

        Raises:
            CollectiveError: the other ranks did not join, or NCCL cannot connect to them.
        """
        hub = ProcessEngine(rank, world, unique_id, limit_s)
        comms: list[Any] = []
        try:
            shared = _share_id(hub, rank, nccl.new_id() if rank == 0 else bytes(_ID_BYTES))
            with _as_collective_error(f"NCCL did not start on rank {rank}"):
                open_own = partial(open_on, device, nccl, world, shared, rank, max_ctas)
                comms = open_together(nccl, [open_own], hub.on_break)
            engine = cls(nccl, (rank,), (device,), comms, world, hub)
        except BaseException as error:
            nccl.free(comms)
            hub.abort(f"join failed ({type(error).__name__}: {error})")  # the other ranks wait for this one, in NCCL
            hub.close()
            raise
        return engine._connected()

    # -- calls --------------------------------------------------------------------------------

    def enqueue(
        self, stream: Stream, parts: Callable[[], list[tuple[Key, Seat]]], failure: BaseException | None
    ) -> None:
        with self._lock:
            if self._hub is None:  # with a hub `_tell_hub` checks them, on its own thread
                self._check_comms()
            self._refuse_broken()
            calls = parts()
            if len(calls) > 1 and stream.recorder is not None:
                # On two H200s with NCCL 2.28.9 a launch of such a graph did not end.
                raise LaunchError(
                    f"{calls[0][1].call.words}: a graph takes the collectives of one GPU; for a graph in each of "
                    "several GPUs start a process for each (Communicator.join)"
                )
            if len(calls) != len(self._comms):
                raise LaunchError(
                    f"{calls[0][1].call.words}: GPUs of one process call together: pass a list with an operand for "
                    f"each of the {len(self._comms)} ranks; for programs of one rank start a process for each "
                    "(Communicator.join)"
                )
            streams = self._fork(stream, [seat.rank for _, seat in calls])
            sender, receiver, _ = calls[0][0]
            registration = _Registration.of(stream, streams, (sender, receiver), calls[0][1].call, failure)
            # The stream's GPU is the thread's current one, for which NCCL asks: by `begin_run`, or `BoundCollective`.
            commands, results = self._commands([seat for _, seat in calls], streams), list[Any]()
            try:
                self._nccl.issue(commands, results)
                self._register(registration)
            except BaseException as error:
                # Ctrl-C came behind NCCL's call, or amid the registration. The other ranks wait for this call all the
                # same, and without its registration the hub would take this rank's next call for it.
                if len(results) == len(commands):
                    self._register(registration)
                elif len(results) > 1 and not isinstance(error, CollectiveError):
                    # Not refused by NCCL: the commands ahead of the failed one are enqueued, and wait for its data.
                    self._abort_all(f"{calls[0][1].call.words} was enqueued in part ({type(error).__name__}: {error})")
                raise

    def recorded(self) -> object:
        mark = _GraphMark()
        self._graphs.add(mark)
        self._has_recorded = True
        return mark

    def check(self, dtype: np.dtype[Any], op: str) -> None:
        element_type(dtype, bool(op))

    def _commands(self, seats: Sequence[Seat], streams: dict[int, Stream]) -> list[Command]:
        parts: list[tuple[Any, Seat, DriverStream]] = []
        for seat in seats:
            part = self._sum_of_a_byte(seat.rank) if seat.call.kind == "barrier" else seat
            parts.append((self._comms[seat.rank], part, streams[seat.rank].driver))
        return self._nccl.commands(parts, self.world)

    def _sum_of_a_byte(self, rank: int) -> Seat:
        """A barrier by NCCL, which has none: a sum is complete when all ranks have come."""
        byte = self._bytes[rank].address
        return Seat(rank, _BYTE_CALL, "sum", 0, np.dtype(np.uint8), byte, 1, byte, 1)

    def _connected(self) -> NcclEngine:
        """This engine, after a first call, in which NCCL connects the ranks.

        That takes milliseconds, allocates memory, and must not happen in a capture.
        """
        streams = {rank: device.new_stream() for rank, device in self._devices.items()}
        first = next(iter(streams.values())).driver
        try:
            self._refuse_broken()
            first.enter()  # NCCL asks for the thread's current GPU
            try:
                self._nccl.issue(self._commands([self._sum_of_a_byte(rank) for rank in streams], streams), [])
            finally:
                first.leave()
            for stream in streams.values():
                stream.synchronize()
            self._refuse_broken()  # another rank has failed: the abort ended the call, without an error
        except BaseException as error:
            self.abort(f"the first call failed ({type(error).__name__}: {error})")  # else the other ranks wait for it
            self.close()
            raise
        return self

    def _refuse_broken(self) -> None:
        if self._broken is not None:
            raise without_traceback(self._broken)

    def _fork(self, stream: Stream, ranks: Sequence[int]) -> dict[int, Stream]:
        """A stream for each rank's part, ordered behind the caller's stream."""
        # The usual case, of a process with one rank.
        if len(ranks) == 1 and self._devices[ranks[0]] is stream.device:
            return {ranks[0]: stream}
        home = next((rank for rank in ranks if self._devices[rank] is stream.device), None)
        streams: dict[int, Stream] = {}
        for rank in ranks:
            if rank == home:
                streams[rank] = stream
                continue
            side = self._side_streams.get(rank)
            if side is None:
                side = self._side_streams[rank] = self._devices[rank].new_stream()
            streams[rank] = side
            order_behind(side, stream)
        return streams

    def _register(self, registration: _Registration) -> None:
        """Register an enqueued call.

        Later work is ordered behind it, its waiters get its error, and the hub is told of it.

        This is called again if Ctrl-C interrupted it. A step that must not be done twice has a flag, or a record, in
        the registration, which is set with no call in between.

        A call moves its operands even if the work that makes them failed: NCCL's calls on the other ranks wait for it.
        """
        stream = registration.stream
        for side in registration.streams.values():
            if side is not stream:
                order_behind(stream, side)
        if not registration.in_sequence:
            stream.sequence += 1
            registration.in_sequence = True
        while self._pending and self._pending[0].is_known_done():
            self._pending.popleft()
        if len(self._pending) % _CALLS_PER_QUERY == _CALLS_PER_QUERY - 1:
            while self._pending and self._pending[0].ask_done():
                self._pending.popleft()
        if registration.pending is None:
            number = self._numbers.get(registration.group, 0)
            pending = _Pending(stream, stream.sequence, registration.group, number, stream.recorder is not None)
            self._numbers[registration.group] = number + 1
            registration.pending = pending
        pending = registration.pending
        if not pending.recorded and pending is not (self._pending[-1] if self._pending else None):
            self._pending.append(pending)
            # `_give_up` does not take `_lock`. It sets `_broken`, and then looks at the pending calls. Here the call
            # becomes pending, and then `_broken` is read. So one of the two threads sees the other.
            pending.error = self._broken
        stream.driver.check_behind(partial(self._check, pending), expect=self._expect)
        if self._hub is not None:
            if not registration.in_num_calls:
                self._num_calls += 1
                registration.in_num_calls = True
            self._outbox.put(registration.message)

    def _check(self, pending: _Pending) -> bool:
        """Raise the error of a call that is over on the device.

        Returns whether its waiters may go on: its outcome is known, or the hub's answer is too late. The data may come
        before the answer, and are wrong if it is that another rank made another call.
        """
        # All launches of a graph share one `pending`. So a launch fails if the communicator is broken by its end. Early
        # launches wait for the hub's answer about the recorded call, which other ranks may not have recorded.
        error = self._broken if pending.recorded else pending.error
        if error is None and not self._is_agreed(pending):
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
        """Tell the hub at once: a caller waits, and calls nothing more.

        The hub then answers while the data are under way.
        """
        if self._num_told < self._num_calls and self._send_now.empty():
            self._send_now.put(None)

    def _has_waited(self, pending: _Pending) -> bool:
        """Whether a call has waited long enough for the hub's answer."""
        self._expect()
        if pending.since is None:
            pending.since = time.monotonic()
        return time.monotonic() - pending.since > _MAX_ANSWER_S

    def _is_agreed(self, pending: _Pending) -> bool:
        return self._hub is None or pending.number < self._agreed.get(pending.group, 0)

    def _agree(self, group: Group, count: int) -> None:
        """Note the number of calls of a group that all ranks have made."""
        self._agreed[group] = count

    def _fail(self, group: Group, number: int, why: str) -> None:
        """Note that a call of a group failed on some rank, which spoils its results."""
        # Never removed: there are few, one for each call whose operands failed.
        self._failed[group, number] = why

    def _check_comms(self) -> None:
        """Abort if NCCL reports an error of earlier calls."""
        for rank in self._comms:
            with self._abort_lock:
                comm = self._comms[rank]  # None once it was aborted
                failure = "" if comm is None else self._nccl.failure(comm)
            if failure:
                self._abort_all(f"NCCL on rank {rank} says: {failure}")

    def _abort_all(self, why: str) -> None:
        """Abort here at once, and on all other ranks: they would wait in NCCL."""
        self._give_up(CollectiveError(f"{why}. {UNUSABLE}"))
        if self._hub is not None:
            self._hub.abort(why)

    def _tell_hub(self) -> None:
        """Tell the hub of calls, in their order, many at a time.

        It runs on a thread of its own, so that callers do not wait for the socket.
        """
        assert self._hub is not None
        last: _Message | None = None
        while (call := self._outbox.get()) is not None:
            if call is last:  # Ctrl-C came behind its `put`, and `_register` put it again
                continue
            with contextlib.suppress(queue.Empty):
                self._send_now.get(timeout=_GATHER_S)
            self._check_comms()
            calls = [call]
            while not self._outbox.empty() and (call := self._outbox.get()) is not None:
                if call is not calls[-1]:
                    calls.append(call)
            last = calls[-1]
            self._hub.tell(calls)
            self._num_told += len(calls)
            if call is None:
                return
            # A waiter calls `_expect` when it begins to wait, and in each check, which often comes behind this message.
            # The item of that check would send the next call by itself, and is dropped. A waiter for a later call puts
            # in another one.
            with contextlib.suppress(queue.Empty):
                self._send_now.get_nowait()

    # -- its end ------------------------------------------------------------------------------

    def _break(self, why: str) -> None:
        """Abort: the ranks cannot go on. It may be called on any thread, and again."""
        self._give_up(CollectiveError(why))

    def _give_up(self, error: CollectiveError, *, waits: bool = False) -> None:
        """End pending and later calls with an error, and abort NCCL's communicators.

        Args:
            error: the error of these calls.
            waits: whether to wait until NCCL has freed the communicators, even if graphs have recorded calls.
        """
        # Without `_lock`: a collective may hold it while it waits, in NCCL, for the rank that is gone. If Ctrl-C
        # interrupts this function, its next call takes the remaining steps.
        if self._broken is None:
            self._broken = error
        for pending in list(self._pending):
            if pending.error is None and not pending.ask_done():
                pending.error = self._broken
        with self._abort_lock:  # `filter`: in CPython 3.13 Ctrl-C behind a false `if` would come outside of the `with`
            for rank, comm in filter(lambda entry: entry[1] is not None, self._comms.items()):
                # Ctrl-C comes behind a call, and so not between these lines: the communicator is in one place.
                self._comms[rank] = None
                self._to_abort.append(comm)
        # On a thread, to which no Ctrl-C comes; also if none is left, as `_abort` waits for other threads. NCCL's call
        # ends the waits on the device at once. But it returns only when all graphs with calls of the communicator are
        # destroyed (`commDestroySync` in NCCL's src/init.cc). The user and launches in flight may keep such graphs, and
        # the hub's thread must go on.
        aborting = threading.Thread(target=self._abort, name="cuda_async-collective-abort", daemon=True)
        try:
            start_thread(aborting)
        except ContextError:  # the interpreter exits, and starts no thread; the end of the process destroys the graphs
            if not self._has_recorded:
                self._abort()
            return
        if waits or not self._has_recorded:
            aborting.join()

    def _abort(self) -> None:
        while True:
            with self._free_lock:
                try:
                    comm = self._to_abort.popleft()
                except IndexError:  # another thread may have taken the last one, and has freed it
                    return
                self._nccl.free([comm])

    def abort(self, why: str) -> None:
        if self._hub is not None:
            self._hub.abort(why)
        else:
            self._break(f"{why}. {UNUSABLE}")

    def close(self) -> None:
        self._outbox.put(None)
        self._send_now.put(None)  # the thread may be gathering calls
        graphs_are_gone = not self._graphs  # asked first: if so, `collect` below closes the last of these graphs
        for device in self._devices.values():
            device.collect()
        self._give_up(CollectiveError("this communicator was closed"), waits=graphs_are_gone)
        if self._hub is not None:
            self._hub.close()


def _byte_on(device: Device) -> Storage:
    stream = device.new_stream()
    storage = Storage.allocate(stream, 1)
    stream.synchronize()  # behind it any stream may use the memory, in a capture too
    return storage


def _share_id(hub: ProcessEngine, rank: int, unique_id: bytes) -> bytes:
    """Send rank 0's id to all ranks. Waits for them.

    Raises:
        CollectiveError: the other ranks did not come.
    """
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
    while not over.wait(WAIT_SLICE_S):  # in slices: Ctrl-C is raised between two of them
        pass
    if errors:
        raise errors[0]
    return memory.tobytes()


def _inner(device: Device) -> Any:
    """The driver of a device, without a `CheckedDriver` around it."""
    driver = device.driver
    return driver.inner if isinstance(driver, CheckedDriver) else driver


@contextlib.contextmanager
def _as_collective_error(what: str) -> Any:
    """Turn any error but those of arguments into a `CollectiveError`."""
    try:
        yield
    except (ArgumentError, CollectiveError):
        raise
    except Exception as error:
        raise CollectiveError(f"{what}: {error}") from error
