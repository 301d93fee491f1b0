"""Threads that wait for each other in a ring: one of them goes first, wherever they change."""

from __future__ import annotations

import threading

import pytest

from cuda_async import CudaGraph, DeviceOp, ExecutionContext, Storage, spread
from cuda_async.core import order
from cuda_async.core.nesting import allow_nested
from cuda_async.unsafe import async_on
from tests.cuda_async.scenes import (
    Pieces,
    Recorded,
    Scene,
    Use,
    enqueue,
    launch,
    needs_places,
    nothing,
    try_places,
    waits,
)
from tests.support.threads import run_all


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


class Both(DeviceOp[None]):
    """Uses memory, and then the result of a shared operation."""

    def __init__(self, storage: Storage, own: Storage, shared: DeviceOp[None]) -> None:
        super().__init__()
        self._first = Pieces(storage, own, write=True, kind="work")
        self._shared = shared

    def execute(self, context: ExecutionContext) -> None:
        context.execute(self._first)
        context.execute(self._shared)


@needs_places
@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 1])
def test_a_shared_operation_amid_both(position: int) -> None:
    """Both threads stop anywhere. One holds the shared operation's lock, and the other one comes to it."""

    def uses(scene: Scene) -> tuple[Use, Use]:
        storage, own = scene.shared[0], scene.own
        shared = Pieces(storage, own[1], write=True, kind="work").shared()
        both = Both(storage, own[0], shared.clone())
        pair = (lambda: async_on(both, scene.streams[0])), (lambda: async_on(shared, scene.streams[1]))
        return pair[position], pair[1 - position]

    assert try_places("sim", position, uses, range(0, 200, 29)) > 3


@pytest.mark.parametrize("through", ["a shared operation", "a bound launch"])
def test_a_lock_taken_amid_a_submission_is_part_of_a_ring(through: str) -> None:
    """One thread waits for what another one holds, which waits for the submission of the first."""
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    held, noted = threading.Event(), threading.Event()

    class Held(DeviceOp[None]):
        """Enqueued by the other thread; holds the lock, and comes to memory that the first thread has noted."""

        def execute(self, context: ExecutionContext) -> None:
            held.set()
            assert noted.wait(60)
            storage.use(context.stream, write=True)
            enqueue(context.stream, storage, scene.own[1], write=True)

    class Outer(DeviceOp[None]):
        """Notes the memory, and comes to the lock."""

        def execute(self, context: ExecutionContext) -> None:
            storage.use(context.stream, write=True)
            enqueue(context.stream, storage, scene.own[0], write=True)
            noted.set()
            if through == "a shared operation":
                context.execute(shared.clone())
            else:
                bound()
            storage.use(context.stream, write=True)
            enqueue(context.stream, storage, scene.own[0], write=True)

    shared = Held().shared()
    with CudaGraph.scope(scene.home) as scope:
        scope.record(Recorded(scene.shared[1], scene.own[0], write=True))
    bound = scope.graph.launch().bind(second)
    holding = shared.clone() if through == "a shared operation" else Held()
    thread = threading.Thread(target=lambda: async_on(holding, second))
    thread.start()
    assert held.wait(60)
    other = threading.Thread(target=lambda: async_on(Outer(), first), daemon=True)
    other.start()
    other.join(60)
    thread.join(60)
    assert not thread.is_alive()
    assert not other.is_alive()
    assert waits() == {}
    scene.check(through)
    scene.close()


def test_a_part_of_spread_is_a_part_of_the_submission() -> None:
    """Another thread comes to the memory when its use is noted, and not enqueued."""
    scene = Scene("sim")
    (first, second), storage = scene.streams, scene.shared[0]
    noted, waited = threading.Event(), threading.Event()

    class Part(DeviceOp[None]):
        def execute(self, context: ExecutionContext) -> None:
            storage.use(context.stream, write=True)
            noted.set()
            waited.wait(0.2)  # it does not come, as the other thread waits
            enqueue(context.stream, storage, scene.own[0], write=True)

    def use_behind() -> None:
        assert noted.wait(60)
        launch(second, storage, scene.own[1], write=True)
        waited.set()

    run_all([lambda: async_on(spread([Part()], [scene.device]), first), use_behind])
    assert waits() == {}
    scene.check("spread")
    scene.close()


def test_a_graph_that_went_first_orders_its_next_launch() -> None:
    """The other thread's use was noted before the first launch, and is enqueued behind the second one."""
    scene = Scene("sim")
    (first, second), (x, y) = scene.streams, scene.shared
    with CudaGraph.scope(scene.home) as scope:
        for storage in (x, y):
            scope.record(Recorded(storage, scene.own[0], write=True))
    bound = scope.graph.launch().bind(second)
    meets, noted, followed, launched = (threading.Event() for _ in range(4))

    def launch_twice() -> None:
        with second.submission:
            second.begin_single()
            x.order(second, True)
            meets.set()
            assert noted.wait(60)
            bound()
        assert followed.wait(60)
        bound()
        launched.set()

    def use_both() -> None:
        with first.submission:
            first.begin_single()
            assert meets.wait(60)
            y.order(first, True)
            noted.set()
            x.order(first, True)
            followed.set()
            launched.wait(0.2)  # it does not come, as the other thread waits for this one
            for storage in (x, y):
                enqueue(first, storage, scene.own[1], write=True)

    threads = [threading.Thread(target=target, daemon=True) for target in (launch_twice, use_both)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert waits() == {}
    scene.check("the next launch")
    scene.close()


def test_a_wait_of_the_submission_around_leaves_its_beginning() -> None:
    """A submission inside another one orders work on the outer stream, and has to wait for a third one."""
    scene = Scene("sim")
    (first, second), other = scene.streams, scene.shared[1]
    records = order._waits  # pyright: ignore[reportPrivateUsage]
    held, waited = threading.Event(), threading.Event()

    def hold() -> None:
        with scene.last.submission:
            scene.last.begin_single()
            other.order(scene.last, True)
            held.set()
            assert waited.wait(60)
            enqueue(scene.last, other, scene.own[1], write=True)

    def proceed() -> None:
        while records.get(first.submission, (second,))[0] is second:
            pass
        waited.set()

    class Inner(DeviceOp[None]):
        def execute(self, context: ExecutionContext) -> None:
            around = records[first.submission]
            other.use(first, write=True)
            assert records[first.submission] == around

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
    records = order._waits  # pyright: ignore[reportPrivateUsage]
    with first.submission:
        storage.order(first, True)
        records[first.submission] = second, second.sequence
        thread = threading.Thread(target=launch, args=(second, storage, scene.own[1]), kwargs={"write": True})
        thread.start()
        while second.submission not in records and thread.is_alive():
            pass
        assert thread.is_alive(), "it went first"
        enqueue(first, storage, scene.own[0], write=True)
        del records[first.submission]
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
