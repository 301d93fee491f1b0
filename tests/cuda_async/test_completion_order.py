"""Completion under odd schedules: data are there after an await, dropped waiters harm nobody, wakers do not mix."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from cuda_async import (
    Device,
    DeviceOp,
    DriverError,
    FutureState,
    Stream,
    global_policy,
    value,
    zip,
)
from cuda_async.core.run import Run
from cuda_async.driver.sim.virtual import SimEvent
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, Read, words


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
