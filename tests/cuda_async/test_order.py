"""Two threads use the same memory at once: one's work is ordered behind the other's, wherever the threads change.

A driver looks at the memory that each call of it touches when it is enqueued, and not at what the runtime has noted.
Uses hold no leases here, or are such as leases let pass: bound launches, graphs and their updates, host functions.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import pytest

from cuda_async import CudaGraph, Device, DeviceOp, ExecutionContext, Storage, Stream
from cuda_async.core import order
from cuda_async.core.nesting import allow_nested
from cuda_async.driver.checked import CheckedGraph, CheckedStream, Ledger
from cuda_async.driver.interface import DriverGraph, DriverStream
from cuda_async.foreign import end_export
from cuda_async.testing import CheckedDriver, SimDriver
from cuda_async.unsafe import async_on
from tests.support.interrupts import crossed

NBYTES = 64
TURN_S = 0.004  # a turn of a thread takes some tens of microseconds where it does not wait

NEVER = 1 << 30  # the number of a place that no thread comes to

Use = Callable[[], object]


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


KINDS = ("launch", "graph", "work", "call")
WRITES = pytest.mark.parametrize("writes", [(True, True), (True, False), (False, True)], ids=["ww", "wr", "rw"])
STRIDE = 7  # every so manieth place is tried; each combination begins at another one
needs_places = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change"
)


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


@needs_places
@pytest.mark.slow
@pytest.mark.parametrize("device", ["sim", "host"])
@WRITES
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_one_thread_stops_anywhere(first: str, second: str, writes: tuple[bool, bool], device: str) -> None:
    """The other one uses the memory there, or waits until the first one has enqueued."""

    def uses(scene: Scene) -> tuple[Use, Use]:
        this = use_of(scene, first, 0, [0], write=writes[0])
        return this, use_of(scene, second, 1, [0], write=writes[1])

    begin = (KINDS.index(first) + 4 * KINDS.index(second) + writes[0] + 2 * writes[1]) % STRIDE
    assert try_places(device, begin, uses, [NEVER]) > 3


@needs_places
@pytest.mark.slow
@WRITES
def test_both_threads_stop_anywhere(writes: tuple[bool, bool]) -> None:
    """Both amid their uses of two pieces of memory, which they come to in opposite orders: neither waits for ever."""

    def uses(scene: Scene) -> tuple[Use, Use]:
        this = use_of(scene, "launch", 0, [0, 1], write=writes[0])
        return this, use_of(scene, "launch", 1, [1, 0], write=writes[1])

    assert try_places("sim", 2, uses, range(0, 80, 9)) > 3


@needs_places
@pytest.mark.slow
def test_an_update_amid_launches() -> None:
    """A graph is updated by one thread and launched by another, on the graph's stream and on another one."""
    for position in (0, 1):

        def uses(scene: Scene, position: int = position) -> tuple[Use, Use]:
            storage, own = scene.shared[0], scene.own[0]
            with CudaGraph.scope(scene.streams[0]) as scope:
                scope.record(Recorded(storage, scene.own[1], write=False))
            bound = scope.graph.launch().bind(scene.streams[1])
            for _ in range(2):
                bound()
            op = Pieces(storage, own, write=True, kind="work")
            pair = (lambda: scope.graph.update(op)), bound
            return pair[position], pair[1 - position]

        assert try_places("sim", position, uses, [NEVER]) > 3


def test_a_thread_that_does_not_wait_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def over(*_: object) -> bool:
        return True

    monkeypatch.setattr("cuda_async.core.stream.settle", over)
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    with first.submission:
        storage.order(first, True)
        thread = threading.Thread(target=launch, args=(second, storage, scene.own[1]), kwargs={"write": True})
        thread.start()
        thread.join(60)
        enqueue(first, storage, scene.own[0], write=True)
    assert scene.driver.races
    scene.close()


class Stuck(Exception):
    """In place of a driver's error."""


@pytest.mark.parametrize("error", [Stuck, KeyboardInterrupt])
def test_what_fails_between_note_and_enqueue_holds_up_nobody(error: type[BaseException]) -> None:
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    noted, proceed = threading.Event(), threading.Event()

    def fail() -> None:
        with suppress(error), first.submission:
            storage.order(first, True)
            noted.set()
            proceed.wait(60)
            raise error

    failing = threading.Thread(target=fail)
    failing.start()
    assert noted.wait(60)
    waiting = threading.Thread(target=launch, args=(second, storage, scene.own[1]), kwargs={"write": True})
    waiting.start()
    while not waits():  # it has come to the note
        assert waiting.is_alive()
    proceed.set()
    waiting.join(60)
    assert not waiting.is_alive()
    failing.join(60)
    scene.check(error)
    launch(first, storage, scene.own[0], write=True)
    scene.check(error)
    assert waits() == {}
    scene.close()


def test_ctrl_c_ends_a_wait_for_another_thread() -> None:
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    noted, proceed = threading.Event(), threading.Event()

    def hold() -> None:
        with first.submission:
            storage.order(first, True)
            noted.set()
            proceed.wait(60)
            enqueue(first, storage, scene.own[0], write=True)

    holding = threading.Thread(target=hold)
    holding.start()
    assert noted.wait(60)
    interrupter = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        launch(second, storage, scene.own[1], write=True)
    assert waits() == {}
    proceed.set()
    holding.join(60)
    interrupter.join(60)
    launch(second, storage, scene.own[1], write=True)
    scene.check("an interrupt")
    scene.close()


def test_a_submission_inside_another_is_part_of_a_ring() -> None:
    """One thread submits on a stream that another one holds, which waits for the submission around."""
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    held, noted = threading.Event(), threading.Event()

    class Inner(DeviceOp[None]):
        def execute(self, context: ExecutionContext) -> None:
            context.stream.call(nothing)

    class Outer(DeviceOp[None]):
        def execute(self, context: ExecutionContext) -> None:
            storage.use(context.stream, write=True)
            noted.set()
            with allow_nested():
                async_on(Inner(), second)
            enqueue(context.stream, storage, scene.own[0], write=True)

    def other() -> None:
        with second.submission:
            held.set()
            assert noted.wait(60)
            storage.order(second, True)
            enqueue(second, storage, scene.own[1], write=True)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(60)
    async_on(Outer(), first)
    thread.join(60)
    assert not thread.is_alive()
    assert waits() == {}


def test_a_wait_of_the_submission_around_leaves_its_beginning() -> None:
    """A submission inside another one orders work on the outer stream, and has to wait for a third one."""
    scene = Scene("sim")
    (first, second), other = scene.streams, scene.shared[1]
    records: dict[Stream, tuple[Stream, int]] = order._waits  # pyright: ignore[reportPrivateUsage]
    held, waited = threading.Event(), threading.Event()

    def hold() -> None:
        with scene.last.submission:
            scene.last.begin_single()
            other.order(scene.last, True)
            held.set()
            assert waited.wait(60)
            enqueue(scene.last, other, scene.own[1], write=True)

    def proceed() -> None:
        while records.get(first, (second,))[0] is second:
            pass
        waited.set()

    class Inner(DeviceOp[None]):
        def execute(self, context: ExecutionContext) -> None:
            around = records[first]
            other.use(first, write=True)
            assert records[first] == around

    class Outer(DeviceOp[None]):
        def execute(self, context: ExecutionContext) -> None:
            begun = first.begun
            scene.shared[0].use(first, write=True)
            enqueue(first, scene.shared[0], scene.own[0], write=True)
            with allow_nested():
                async_on(Inner(), second)
            assert first.begun == begun

    threads = [threading.Thread(target=target) for target in (hold, proceed)]
    threads[0].start()
    assert held.wait(60)
    threads[1].start()
    async_on(Outer(), first)
    for thread in threads:
        thread.join(60)
    assert waits() == {}
    scene.close()


def test_a_wait_for_an_earlier_submission_is_no_ring() -> None:
    """The thread of the first stream has waited for a launch on the second one, and has yet to say that it is over."""
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    records: dict[Stream, tuple[Stream, int]] = order._waits  # pyright: ignore[reportPrivateUsage]
    with first.submission:
        storage.order(first, True)
        records[first] = second, second.sequence
        thread = threading.Thread(target=launch, args=(second, storage, scene.own[1]), kwargs={"write": True})
        thread.start()
        while second not in records and thread.is_alive():
            pass
        assert thread.is_alive(), "it went first"
        enqueue(first, storage, scene.own[0], write=True)
        del records[first]
    thread.join(60)
    assert waits() == {}
    scene.check("an earlier submission")
    scene.close()


def test_a_thread_does_not_wait_for_itself() -> None:
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    with first.submission:
        storage.order(first, True)
        launch(second, storage, scene.own[1], write=True)
        storage.order(first, True)
        enqueue(first, storage, scene.own[0], write=True)
    scene.check("one thread")
    scene.close()


def test_records_stay_short_and_the_fast_path_comes_back() -> None:
    """However many streams have used the memory at once."""
    scene = Scene("sim")
    storage = scene.shared[0]
    streams = [scene.plain_stream() for _ in range(40)]
    for _ in range(3):
        for stream in streams:
            launch(stream, storage, scene.own[0], write=True)
    record = storage._allocation  # pyright: ignore[reportPrivateUsage]
    assert record.writer is streams[-1]
    assert record.readers == {}
    for stream in streams:
        launch(stream, storage, scene.own[0], write=False)
    launch(scene.last, storage, storage, write=True)
    assert record.writer is scene.last
    assert record.readers == {}
    scene.close()


def test_a_synchronization_amid_a_submission_covers_no_part_of_it() -> None:
    """The first piece is done, under whose number the memory notes both."""
    scene = Scene("sim")
    assert scene.sim is not None
    (first, second), storage = scene.streams, scene.shared[0]
    halfway, proceed = threading.Event(), threading.Event()

    def write_twice() -> None:
        with first.submission:
            first.begin_single()
            storage.order(first, True)
            enqueue(first, storage, scene.own[0], write=True)
            halfway.set()
            assert proceed.wait(60)
            enqueue(first, storage, scene.own[0], write=True)

    writing = threading.Thread(target=write_twice)
    writing.start()
    assert halfway.wait(60)
    scene.sim.automatic = True
    first.synchronize()
    scene.sim.automatic = False
    following = threading.Thread(target=launch, args=(second, storage, scene.own[1]), kwargs={"write": True})
    following.start()
    while not waits() and following.is_alive():
        pass
    assert following.is_alive(), "it took the second piece for done"
    proceed.set()
    writing.join(60)
    following.join(60)
    scene.check("a synchronization")
    scene.close()


def test_a_write_of_another_library_can_be_done() -> None:
    """Its number is that of a piece which the stream counts."""
    scene = Scene("sim")
    assert scene.sim is not None
    storage, stream = scene.shared[0], scene.last
    stream.follow(scene.streams[1], scene.streams[1].sequence)
    end_export(storage, stream)
    assert storage.last_writer() is stream
    scene.sim.automatic = True
    stream.synchronize()
    assert storage.last_writer() is None
    scene.close()


def test_a_mark_tells_of_each_of_several_writers() -> None:
    """Two other libraries' streams have written, of which neither follows the other."""
    scene = Scene("sim")
    storage = scene.shared[0]
    for stream in scene.streams:
        end_export(storage, stream)
    for stream in scene.streams:
        mark = storage.write_mark()
        assert storage.write_mark() == mark
        end_export(storage, stream)
        assert storage.write_mark() != mark
    scene.close()


def test_a_write_noted_amid_the_forgetting_of_others_stays() -> None:
    """Finalizers of exports run between two steps of `Order._forget_writes`."""
    scene = Scene("sim")
    storage, record = scene.shared[0], scene.shared[0]._allocation  # pyright: ignore[reportPrivateUsage]
    first, second = scene.streams
    for stream in (first, second):
        end_export(storage, stream)
    followed = record.writers()
    finalizers = [scene.last, scene.home]
    scene.last.follow(first, first.sequence)
    scene.last.follow(second, second.sequence)

    class Interrupted(dict[Stream, int]):
        def __len__(self) -> int:
            if finalizers:
                streams, finalizers[:] = [*finalizers], []
                for stream in streams:
                    end_export(storage, stream)
            return super().__len__()

    assert record.writer is not None
    assert not isinstance(record.writer, Stream)
    record.writer.last = Interrupted(record.writer.last)
    record._forget_writes(followed)  # pyright: ignore[reportPrivateUsage]
    assert not finalizers
    assert {stream for stream, _ in record.writers()} >= {scene.last, scene.home}
    scene.close()
