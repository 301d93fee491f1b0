"""What stands for NCCL's bindings on the CPU: calls of nccl4py's names, carried out among host streams.

It keeps NCCL's rules: what is in a group is enqueued at its end, and not at all where a function in it failed, whose
error `group_end` returns once more. A rank's `comm_init_rank` waits for those of the other ranks. An abort ends the
calls of its rank alone, and without an error. Nothing tells one rank what another calls, and `comm_abort` returns when
all graphs that recorded calls are gone.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from cuda_async.collective.board import Call, Key
from cuda_async.collective.engine import Seat
from cuda_async.collective.local import LocalEngine
from cuda_async.driver.interface import DriverStream
from cuda_async.errors import CollectiveError

DTYPES = [np.dtype(each) for each in (
    np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
)]  # fmt: skip
OPS = ("sum", "prod", "max", "min", "avg")


class NCCLError(Exception):
    """As the bindings have it."""


class _Ring(LocalEngine):
    """Ranks of one id. What is aborted ends without an error, as on a GPU."""

    def __init__(self, world: int) -> None:
        super().__init__(world, None)
        self._aborted: set[int] = set()
        self.num_open = 0
        self.is_open = threading.Event()

    def abort_rank(self, rank: int) -> None:
        """End the calls of a rank, and later ones as soon as they are made. Who calls with it waits for ever."""
        with self._lock:
            self._aborted.add(rank)
            for meeting in self._board._meetings.values():  # pyright: ignore[reportPrivateUsage]
                arrival = meeting.arrivals.pop(rank, None)
                if arrival is not None:
                    self._end(arrival.payload.party, None, None)
        self._finish_ended()

    def _arrive(self, key: Key, seat: Seat, party: Any, failure: BaseException | None, at: float) -> None:
        if seat.rank in self._aborted:
            self._end(party, None, None)
        else:
            super()._arrive(key, seat, party, failure, at)

    def _refuse(self, part: Any, error: CollectiveError) -> None:
        self._end(part.party, None, None)


class Counters(dict[tuple[int, int], "itertools.count[int]"]):
    """How often a rank has called, for each pair of ranks; (-1, -1) for what all do."""


class _Recorded:
    """Held by the recorded work of a graph."""


@dataclass
class Comm:
    """One rank's."""

    ring: _Ring
    rank: int
    numbers: Counters = field(default_factory=Counters)
    failure: int = 0
    recorded: int = 0
    """Calls that graphs hold."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    freed: threading.Event = field(default_factory=threading.Event)

    def record(self) -> _Recorded:
        mark = _Recorded()
        with self.changed:
            self.recorded += 1
        weakref.finalize(mark, self._forget)
        return mark

    def _forget(self) -> None:
        with self.changed:
            self.recorded -= 1
            self.changed.notify_all()

    def key(self, sender: int = -1, receiver: int = -1) -> Key:
        return sender, receiver, next(self.numbers.setdefault((sender, receiver), itertools.count()))


@dataclass
class _Transfer:
    comm: Comm
    sends: bool
    address: int
    count: int
    dtype: np.dtype[Any]
    peer: int
    stream: DriverStream


class FakeConfig:
    """ncclConfig_t: its address is itself here."""

    max_ctas: int | None = None
    cga_cluster_size: int | None = None

    @property
    def ptr(self) -> FakeConfig:
        return self


@dataclass
class _Open:
    """A group that was begun: what it has to enqueue, and the error of a function in it."""

    calls: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    transfers: list[_Transfer] = field(default_factory=list[_Transfer])
    error: NCCLError | None = None


class FakeNccl:
    """The module `nccl.bindings.nccl`."""

    NCCLError = NCCLError
    Config = FakeConfig

    def __init__(self) -> None:
        self._rings: dict[bytes, _Ring] = {}
        self._lock = threading.Lock()
        self._here = threading.local()
        self.calls: list[str] = []
        """The names of what was called, in order."""
        self.configs: list[FakeConfig] = []
        """What communicators were opened with."""
        self.fails: dict[tuple[str, int], Exception] = {}
        """By function and rank: what the next call raises, as NCCL does or the bindings themselves."""
        self.aborted: list[int] = []
        """The ranks whose communicators were aborted."""

    def get_unique_id(self) -> bytes:
        self._take("get_unique_id", 0)
        return next(_ids).to_bytes(128, "little")

    def get_error_string(self, code: int) -> str:
        return {6: "remote process exited or there was a network error"}[code]

    def comm_init_rank(self, world: int, unique_id: bytearray, rank: int) -> Comm:
        assert len(unique_id) == 128
        assert any(unique_id)
        self._take("comm_init_rank", rank)
        with self._lock:
            ring = self._rings.setdefault(bytes(unique_id), _Ring(world))
            ring.num_open += 1
            if ring.num_open == world:
                ring.is_open.set()
        ring.is_open.wait()
        return Comm(ring, rank)

    def comm_init_rank_config(self, world: int, unique_id: bytearray, rank: int, config: FakeConfig) -> Comm:
        self.configs.append(config)
        return self.comm_init_rank(world, unique_id, rank)

    def comm_init_all(self, count: int, ordinals: list[int]) -> list[Comm]:
        ring = _Ring(count)
        return [Comm(ring, rank) for rank in range(count)]

    def comm_get_async_error(self, comm: Comm) -> int:
        return comm.failure

    def comm_abort(self, comm: Comm) -> None:
        self.aborted.append(comm.rank)
        comm.ring.abort_rank(comm.rank)
        with comm.changed:
            assert comm.changed.wait_for(lambda: not comm.recorded, 60)
        comm.freed.set()

    def group_start(self) -> None:
        self._here.group = _Open()

    def group_end(self) -> None:
        group: _Open = self._here.group
        self._here.group = None
        if group.error is not None:
            raise group.error
        for call in group.calls:
            call()
        for comm in {id(each.comm): each.comm for each in group.transfers}.values():
            self._exchange(comm, [each for each in group.transfers if each.comm is comm])

    def _group(self) -> _Open | None:
        """The group that this thread has begun."""
        return getattr(self._here, "group", None)

    def _take(self, name: str, rank: int) -> None:
        """Fail here, if this call is to fail."""
        error = self.fails.pop((name, rank), None)
        if error is None:
            return
        group = self._group()
        if group is not None and isinstance(error, NCCLError):  # of an error of the bindings NCCL knows nothing
            group.error = error
        raise error

    def _exchange(self, comm: Comm, transfers: list[_Transfer]) -> None:
        first = transfers[0]
        if len(transfers) == 1:
            pair = (comm.rank, first.peer) if first.sends else (first.peer, comm.rank)
            self._enqueue(comm, "message", first.address, first.count, first.address, first.count, first.dtype, pair[0],
                       first.stream, key=comm.key(*pair))  # fmt: skip
            return
        sends, recvs = [[each for each in transfers if each.sends is side] for side in (True, False)]
        world = comm.ring.world
        assert [each.peer for each in sends] == [each.peer for each in recvs] == list(range(world))
        self._enqueue(comm, "all_to_all", sends[0].address, world * first.count, recvs[0].address, world * first.count,
                   first.dtype, 0, first.stream)  # fmt: skip

    def _meet(self, comm: Comm, kind: str, *arguments: Any) -> None:
        """A collective; `_enqueue` has the arguments."""
        self._take(kind, comm.rank)
        group = self._group()
        if group is None:
            self._enqueue(comm, kind, *arguments)
        else:
            group.calls.append(partial(self._enqueue, comm, kind, *arguments))

    def _enqueue(
        self,
        comm: Comm,
        kind: str,
        source: int,
        count: int,
        target: int,
        room: int,
        dtype: np.dtype[Any],
        root: int,
        stream: DriverStream,
        op: str = "",
        key: Key | None = None,
    ) -> None:
        self.calls.append(kind)
        seat = Seat(comm.rank, Call(kind, "", kind), op, root, dtype, source, count, target, room)
        item = comm.key() if key is None else key, seat
        queue: Any = getattr(stream, "inner", stream)
        mark = comm.record() if queue._recorded is not None else None
        stream.meet(comm.ring.meeting(lambda mark=mark: [item]))

    def all_reduce(self, source: int, target: int, count: int, code: int, op: int, comm: Comm, stream: Any) -> None:
        self._meet(comm, "all_reduce", source, count, target, count, DTYPES[code], 0, stream, OPS[op])

    def reduce(
        self, source: int, target: int, count: int, code: int, op: int, root: int, comm: Comm, stream: Any
    ) -> None:
        self._meet(comm, "reduce", source, count, target, count, DTYPES[code], root, stream, OPS[op])

    def broadcast(self, source: int, target: int, count: int, code: int, root: int, comm: Comm, stream: Any) -> None:
        self._meet(comm, "broadcast", source, count, target, count, DTYPES[code], root, stream)

    def all_gather(self, source: int, target: int, count: int, code: int, comm: Comm, stream: Any) -> None:
        self._meet(comm, "all_gather", source, count, target, count * comm.ring.world, DTYPES[code], 0, stream)

    def reduce_scatter(self, source: int, target: int, room: int, code: int, op: int, comm: Comm, stream: Any) -> None:
        count = room * comm.ring.world
        self._meet(comm, "reduce_scatter", source, count, target, room, DTYPES[code], 0, stream, OPS[op])

    def send(self, source: int, count: int, code: int, peer: int, comm: Comm, stream: Any) -> None:
        self._take("send", comm.rank)
        self._here.group.transfers.append(_Transfer(comm, True, source, count, DTYPES[code], peer, stream))

    def recv(self, target: int, count: int, code: int, peer: int, comm: Comm, stream: Any) -> None:
        self._take("recv", comm.rank)
        self._here.group.transfers.append(_Transfer(comm, False, target, count, DTYPES[code], peer, stream))


_ids = itertools.count(1)
