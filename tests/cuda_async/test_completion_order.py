"""Completion under odd schedules: data are there after an await, dropped waiters harm nobody, wakers do not mix."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cuda_async import (
    CudaGraph,
    Device,
    DeviceOp,
    DriverError,
    ExecutionContext,
    FutureState,
    Instrument,
    ObservedOperation,
    OwnershipError,
    ReentrancyError,
    Storage,
    Stream,
    Use,
    global_policy,
    instrumented,
    value,
    zip,
)
from cuda_async.async_cuda_core import stream as awaited
from cuda_async.core.run import Run
from cuda_async.driver.sim.virtual import SimEvent
from cuda_async.testing import SimDriver, wait_all_idle
from cuda_async.unsafe import async_on
from tests.cuda_async.work import Affine, Read, words
from tests.support.interrupts import interleaved


def test_data_are_there_after_each_await(device: Device) -> None:
    async def main() -> None:
        storage = await words(0, count=1 << 12)
        for turn in range(1, 20):
            await Affine(storage, 1, 1)
            assert set((await Read(storage)).tolist()) == {turn}

    asyncio.run(main())


def test_a_waiter_that_is_dropped_in_flight_harms_nobody(device: Device) -> None:
    async def main() -> None:
        storage = await words(1, count=1 << 12)
        for _ in range(32):
            task = asyncio.create_task(Affine(storage, 1, 1).into_future())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            await asyncio.to_thread(wait_all_idle, device)
        total = (await Read(storage)).tolist()
        assert set(total) == {33}

    asyncio.run(main())
    gc.collect()


def test_ping_pong_between_two_tasks(device: Device) -> None:
    async def main() -> int:
        storage = await words(0)
        turns = asyncio.Queue[int]()
        back = asyncio.Queue[int]()

        async def player(take: asyncio.Queue[int], give: asyncio.Queue[int]) -> None:
            for _ in range(100):
                turn = await take.get()
                await Affine(storage, 1, 1)
                await give.put(turn + 1)

        async with asyncio.TaskGroup() as group:
            group.create_task(player(turns, back))
            group.create_task(player(back, turns))
            await turns.put(0)
        return int((await Read(storage))[0])

    assert asyncio.run(main()) == 200


def test_the_waiter_that_came_last_is_woken_too(device: Device) -> None:
    async def main() -> None:
        storage = await words(2, count=1 << 14)
        future = Affine(storage, 2, 0).then(lambda s: Read(s)).into_future()
        early = asyncio.create_task(asyncio.wait_for(future, 30))
        late = [asyncio.create_task(asyncio.wait_for(future, 30)) for _ in range(5)]
        for result in await asyncio.gather(early, *late):
            assert set(result.tolist()) == {4}
        assert future.state is FutureState.COMPLETE

    asyncio.run(main())


def test_eight_threads_with_forty_operations_each(device: Device) -> None:
    results: list[int] = []

    def work() -> None:
        async def main() -> int:
            with device:
                storage = await words(0)
                for _ in range(40):
                    await Affine(storage, 1, 1)
                return int((await Read(storage))[0])

        results.append(asyncio.run(main()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [40] * 8


def test_the_stream_is_fixed_when_it_is_scheduled(device: Device) -> None:
    policy = global_policy(device)
    first = value(0).schedule(policy)
    with device.new_stream():
        second = value(0).schedule(policy)
    assert first.stream is not second.stream
    assert first.sync() == second.sync() == 0


def test_a_failed_future_raises_at_its_first_await_and_at_every_other(sim: SimDriver, sim_device: Device) -> None:
    async def main() -> None:
        storage = await words(1)
        sim.fail("run:launch")
        future = Affine(storage, 1, 1).into_future()
        for _ in range(3):
            with pytest.raises(DriverError, match="injected fault"):
                await future
        assert future.state is FutureState.FAILED

    asyncio.run(main())


def test_a_diamond_of_shared_results(device: Device, stream: Stream) -> None:
    runs: list[int] = []

    def double(storage: Any) -> DeviceOp[Any]:
        return Read(storage).map(lambda x: x)

    root = words(5, 6).inspect(lambda _: runs.append(1)).shared()
    left, right = root.clone().then(double), root.clone().then(double)
    a, b = zip(left, right).sync_on(stream)
    assert (a.tolist(), b.tolist(), runs) == ([5, 6], [5, 6], [1])
    wait_all_idle(device, stream)


@pytest.mark.parametrize("question", ["wait", "query"])
def test_an_event_that_another_thread_returned_to_the_pool_is_asked_no_more(
    sim: SimDriver, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """The other thread completes the run amid the question, and the event is recorded behind work that does not end."""
    stream = Device.from_driver(sim).new_stream()
    run = Run(Affine(words(1, count=4).sync_on(stream), 2, 1), stream)
    run.submit()
    questions: list[object] = []

    def recorded_anew(event: SimEvent, *arguments: object) -> bool:
        questions.append(event)
        assert len(questions) == 1
        run.complete()
        return False

    sim.run_until_idle()
    monkeypatch.setattr(SimEvent, question, recorded_anew)
    assert run.wait() if question == "wait" else run.settle()
    assert questions


class Filled(DeviceOp[Storage]):
    """Fills a storage, which is its result; its run has something to do at the end."""

    def __init__(self, storage: Storage, at_end: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._storage, self._at_end = storage, at_end
        self.lend(Use("x", storage, write=True))

    def execute(self, context: ExecutionContext) -> Storage:
        self._storage.use(context.stream, write=True)
        context.stream.fill(self._storage.address, self._storage.nbytes, b"1")
        context.keep(object())
        context.on_complete(self._at_end)
        return self._storage


def unfollowed(op: DeviceOp[Storage], stream: Stream, graph: CudaGraph[Any]) -> Any:
    return async_on(op, stream)


def updated(op: DeviceOp[Storage], stream: Stream, graph: CudaGraph[Any]) -> Any:
    return graph.update(op)


def enqueued_by_a_call(op: DeviceOp[Storage], stream: Stream, graph: CudaGraph[Any]) -> Any:
    call = awaited.enqueue("fill", awaited.Stream(stream), lambda: op, wait=False)
    return call._function()  # pyright: ignore  # on this thread, in place of the runtime thread


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change")
@pytest.mark.parametrize(
    ("way", "observed"), [(unfollowed, False), (unfollowed, True), (updated, False), (enqueued_by_a_call, False)]
)
def test_handles_are_those_of_the_submission(way: Callable[..., Any], observed: bool) -> None:
    """Another thread may complete the run wherever threads change, and its work may have failed."""
    stages: list[str] = []

    class Stages(Instrument):
        def after_enqueue(self, operation: ObservedOperation, error: BaseException | None) -> None:
            stages.append(f"enqueued: {error}")

    number, place = 0, "the beginning"
    while place is not None:
        sim = SimDriver(seed=1)
        stream = Device.from_driver(sim).new_stream()
        storage = words(1, count=4).sync_on(stream)
        graph = Affine(words(1).sync_on(stream), 1, 0).graph_on(stream)
        op = Filled(storage).map(lambda filled: filled)
        handles: list[Any] = []

        def complete(storage: Storage = storage, sim: SimDriver = sim) -> None:
            sim.run_until_idle()
            with contextlib.suppress(OwnershipError):  # the run is not at its end
                Read(storage).discard()  # lending the memory completes the run

        action = partial(_append, handles, partial(way, op, stream, graph))
        with instrumented(Stages()) if observed else contextlib.nullcontext():
            sim.fail("run:fill", error=ValueError("of the device"))
            place = interleaved(action, number, complete)
        assert handles == [storage], place
        with contextlib.suppress(ValueError):
            stream.synchronize()
        wait_all_idle(stream.device, stream)
        number += 1
    assert number > 50
    assert set(stages) == ({"enqueued: None"} if observed else set())


def _append(results: list[Any], function: Callable[[], Any]) -> None:
    results.append(function())


def test_a_question_that_fails_does_not_fail_a_run_that_another_thread_completed(
    sim: SimDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Device.from_driver(sim).new_stream()
    run = Run(Affine(words(1, count=4).sync_on(stream), 2, 1), stream)
    run.submit()
    sim.run_until_idle()

    def completed_meanwhile(event: SimEvent) -> bool:
        run.complete()
        raise DriverError(1, "SIM_FAULT", "the event is another run's")

    monkeypatch.setattr(SimEvent, "query", completed_meanwhile)
    assert run.poll()
    assert not run.failed


def test_a_question_that_fails_ends_the_run_and_not_the_operation_that_asked(
    sim: SimDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Device.from_driver(sim).new_stream()
    storage = words(1, count=4).sync_on(stream)
    run = Run(Affine(storage, 2, 1), stream)
    run.submit()

    def fail(event: SimEvent) -> bool:
        raise DriverError(1, "SIM_FAULT", "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(SimEvent, "query", fail)
        Read(storage).discard()
    with pytest.raises(DriverError, match="no answer"):
        run.wait()


@pytest.mark.parametrize("how", ["lends", "waits"])
def test_a_callback_that_asks_for_its_own_run(device: Device, how: str) -> None:
    """The run waits for the callback: the callback gets an error, and is called once."""
    stream = device.new_stream()
    storage = words(1, count=4).sync_on(stream)
    errors: list[Exception] = []

    def at_end() -> None:
        try:
            Affine(storage, 2, 1).discard() if how == "lends" else future.sync()
        except (OwnershipError, ReentrancyError) as error:
            errors.append(error)

    future = Filled(storage, at_end).schedule(Fixed(stream))
    ended: list[Storage] = []
    thread = threading.Thread(target=lambda: ended.append(future.sync()), daemon=True)
    thread.start()
    thread.join(20)
    assert ended == [storage]
    (error,) = errors
    assert ("the operation made at" if how == "lends" else "was to wait for its own operation") in str(error)
    Affine(storage, 2, 1).sync_on(stream)  # nothing is lent any more


class Fixed:
    """A policy of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.device = stream, stream.device

    def next_stream(self) -> Stream:
        return self.stream
