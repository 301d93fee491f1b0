"""A scene of two threads that use the same memory, with a driver that sees the order of what is enqueued.

The driver looks at the memory that each call touches when it is enqueued, and not at what the runtime has noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from cuda_async import CudaGraph, Device, DeviceOp, ExecutionContext, Storage, Stream
from cuda_async.core import order
from cuda_async.driver.checked import CheckedGraph, CheckedStream, Ledger
from cuda_async.driver.interface import DriverGraph, DriverStream
from cuda_async.testing import CheckedDriver, SimDriver
from cuda_async.unsafe import async_on
from tests.support.interrupts import crossed

__all__ = (
    "NEVER", "NBYTES", "STRIDE", "EnqueuedStream", "Pieces", "Recorded", "Scene", "Use", "enqueue", "launch",
    "needs_places", "nothing", "try_places", "use_of", "waits",
)  # fmt: skip

NBYTES = 64
TURN_S = 0.004  # a turn of a thread takes some tens of microseconds where it does not wait

NEVER = 1 << 30  # the number of a place that no thread comes to

Use = Callable[[], object]

needs_places = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change"
)


class EnqueuedDriver(CheckedDriver):
    """Checks the order of what is enqueued, and not of what is declared."""

    def create_stream(self) -> DriverStream:
        return EnqueuedStream(self.ledger, self.inner.create_stream())


class EnqueuedGraph(CheckedGraph):
    """A recording, with the memory that it touches."""

    __slots__ = ("touched",)

    def __init__(self, inner: DriverGraph, touched: list[tuple[int, bool]]) -> None:
        super().__init__(inner)
        self.touched = touched


class EnqueuedStream(CheckedStream):
    """A stream that takes calls for the memory that they touch, and declared uses for nothing."""

    __slots__ = ("_recorded",)

    def __init__(self, ledger: Ledger, inner: DriverStream) -> None:
        super().__init__(ledger, inner)
        self._recorded: list[tuple[int, bool]] | None = None

    def use(self, address: int, *, write: bool) -> None:
        """Nothing."""

    def touch(self, address: int, *, write: bool) -> None:
        """What is enqueued next touches the memory."""
        self._touch(address, "work", write=write)

    def _touch(self, address: int, what: str, *, write: bool) -> None:
        if self._recorded is None:
            base = self._ledger.base(address)
            if base is not None:
                self._ledger.use(self, base, what, write=write)
        else:
            self._recorded.append((address, write))

    def begin_capture(self) -> None:
        super().begin_capture()
        self._recorded = []

    def end_capture(self) -> DriverGraph:
        touched, self._recorded = self._recorded or [], None
        return EnqueuedGraph(self.inner.end_capture(), touched)

    def launch_graph(self, graph: DriverGraph) -> None:
        for address, write in cast("EnqueuedGraph", graph).touched:
            self._touch(address, "graph", write=write)
        super().launch_graph(graph)


class Scene:
    """A device of two threads, each with a stream and memory of its own, and memory that they share.

    Args:
        kind: `sim` or `host`.
    """

    def __init__(self, kind: str) -> None:
        self.sim = SimDriver(1) if kind == "sim" else None
        self.driver = EnqueuedDriver(self.sim or Device.host().driver)
        self.device = Device.from_driver(self.driver)
        self.home, self.last, *self.streams = (self.plain_stream() for _ in range(4))
        self.shared = [self.memory() for _ in range(2)]
        self.own = [self.memory() for _ in range(2)]
        for stream in self.streams:  # which have used the memory before: launches of these take the fast path
            for storage in self.shared:
                launch(stream, storage, self.own[0], write=True)
        if self.sim is not None:
            self.sim.automatic = False  # nothing completes, so that streams alone order the work

    def plain_stream(self) -> Stream:
        """A stream whose uses of memory nobody is told of, as outside of tests."""
        stream = self.device.new_stream()
        stream.checked, stream.plain = None, True
        return stream

    def memory(self) -> Storage:
        """Memory that was written on the home stream."""
        storage = Storage.allocate(self.home, NBYTES)
        self.home.fill(storage.address, NBYTES, b"0")
        return storage

    def check(self, where: object) -> None:
        """All is ordered, and later work is behind all of it."""
        for storage in (*self.shared, *self.own):
            launch(self.last, storage, storage, write=True)
        assert self.driver.races == [], f"{where}: {self.driver.races[0]}"

    def close(self) -> None:
        """Have all work done."""
        if self.sim is not None:
            self.sim.automatic = True
        for stream in (self.home, self.last, *self.streams):
            stream.synchronize()


def nothing() -> None:
    """A host function."""


def enqueue(stream: Stream, storage: Storage, own: Storage, *, write: bool) -> None:
    """Enqueue a fill of `storage`, or a copy of it into `own`."""
    if write:
        stream.fill(storage.address, NBYTES, b"1")
    else:
        stream.copy(own.address, storage.address, NBYTES)


def launch(stream: Stream, storage: Storage, own: Storage, *, write: bool) -> None:
    """As a bound launch: it holds no lease."""
    with stream.submission:
        stream.begin_single()
        storage.order(stream, write)
        if not write:
            own.order(stream, True)
        enqueue(stream, storage, own, write=write)


class Pieces(DeviceOp[None]):
    """Uses memory in two pieces of work; `kind` says of what."""

    def __init__(self, storage: Storage, own: Storage, *, write: bool, kind: str) -> None:
        super().__init__()
        self._storage, self._own, self._write, self._kind = storage, own, write, kind

    def execute(self, context: ExecutionContext) -> None:
        storage, stream = self._storage, context.stream
        storage.use(stream, write=self._write)
        if self._kind != "call":
            self._own.use(stream, write=True)
        for _ in range(2):
            if self._kind == "call":
                cast("EnqueuedStream", stream.driver).touch(storage.address, write=self._write)
                stream.call(nothing)
            else:
                enqueue(stream, storage, self._own, write=self._write)


def use_of(scene: Scene, kind: str, number: int, cells: list[int], *, write: bool) -> Use:
    """What a thread does with the shared memory of these numbers, on its stream."""
    stream, own = scene.streams[number], scene.own[number]
    storages = [scene.shared[cell] for cell in cells]
    if kind == "launch":

        def launch_all() -> None:
            with stream.submission:
                stream.begin_single()
                for storage in storages:
                    storage.order(stream, write)
                if not write:
                    own.order(stream, True)
                for storage in storages:
                    enqueue(stream, storage, own, write=write)

        return launch_all
    if kind == "graph":
        with CudaGraph.scope(scene.home) as scope:
            for storage in storages:
                scope.record(Recorded(storage, own, write=write))
        bound = scope.graph.launch().bind(stream)
        for _ in range(2):  # so that the next launch skips the order of each operand
            bound()
        return bound
    storage = storages[0]
    return lambda: async_on(Pieces(storage, own, write=write, kind=kind), stream)


class Recorded(Pieces):
    """As `Pieces`, in a graph."""

    graph_node = True

    def __init__(self, storage: Storage, own: Storage, *, write: bool) -> None:
        super().__init__(storage, own, write=write, kind="work")


STRIDE = 7  # every so manieth place is tried; each combination begins at another one


def try_places(kind: str, begin: int, uses: Callable[[Scene], tuple[Use, Use]], other_numbers: Sequence[int]) -> int:
    """Run two uses with all pairs of places, and return how many places of the first were tried."""
    number, tried, place = begin, 0, "the beginning"
    while place is not None:
        for other_number in other_numbers:
            scene = Scene(kind)
            this, that = uses(scene)
            place, other_place = crossed(this, number, that, other_number, turn_s=TURN_S)
            if place is None:
                that()
            scene.check((number, place, other_number, other_place))
            scene.close()
        number += STRIDE
        tried += 1
    assert waits() == {}
    return tried


def waits() -> object:
    return order._waits  # pyright: ignore[reportPrivateUsage]
