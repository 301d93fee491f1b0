"""Two threads use the same memory at once: one's work is ordered behind the other's, wherever the threads change.

A driver looks at the memory that each call of it touches when it is enqueued, and not at what the runtime has noted.
Uses hold no leases here, or are such as leases let pass: bound launches, graphs and their updates, host functions.
"""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from cuda_async import CudaGraph, Stream
from cuda_async.foreign import end_export
from tests.cuda_async.scenes import (
    NEVER,
    STRIDE,
    Pieces,
    Recorded,
    Scene,
    Use,
    enqueue,
    launch,
    needs_places,
    try_places,
    use_of,
    waits,
)

KINDS = ("launch", "graph", "work", "call")
WRITES = pytest.mark.parametrize("writes", [(True, True), (True, False), (False, True)], ids=["ww", "wr", "rw"])


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
