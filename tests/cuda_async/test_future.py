"""Awaiting: never blocks the loop, many times, by many tasks; cancellation and closed loops do no harm."""

from __future__ import annotations

import asyncio
import collections.abc
import gc
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from cuda_async import (
    Device,
    DeviceFuture,
    FutureState,
    SchedulingError,
    SingleStream,
    Storage,
    Stream,
    StreamPoolRoundRobin,
    UnrunOperationWarning,
    global_policy,
    set_global_policy,
    value,
    zip,
)
from cuda_async.core.waiting import Waitable, suspend, thrown
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from tests.cuda_async.test_op import Where
from tests.cuda_async.work import Affine, Call, Read, words
from tests.support.threads import run_all


def test_await_an_operation(device: Device) -> None:
    async def main() -> Any:
        storage = await words(1, count=100)
        await Affine(storage, 3, 1).then(lambda s: Affine(s, 2, 0))
        return await Read(storage)

    assert set(asyncio.run(main()).tolist()) == {8}


def test_a_future_may_be_awaited_many_times_by_many_tasks(device: Device) -> None:
    calls: list[int] = []

    async def main() -> list[int]:
        future = value(42).inspect(calls.append).schedule(global_policy())

        async def consume() -> int:
            return await future

        assert await future == 42
        return await asyncio.gather(*(consume() for _ in range(10)), future, future)

    assert asyncio.run(main()) == [42] * 12
    assert calls == [42]


def test_it_is_a_coroutine_that_tasks_and_groups_take(device: Device) -> None:
    async def main() -> None:
        future = value(1).schedule(global_policy())
        assert isinstance(future, collections.abc.Coroutine)
        assert asyncio.iscoroutine(future)
        assert inspect.isawaitable(future)
        assert await asyncio.create_task(future) == 1
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(value(n).into_future()) for n in range(8)]
        assert [task.result() for task in tasks] == list(range(8))
        assert await asyncio.wait_for(value(2).into_future(), 10) == 2
        async with asyncio.timeout(500):
            assert await value(3) == 3

    asyncio.run(main())


def test_two_tasks_drive_the_same_future(sim_device: Device, sim: SimDriver) -> None:
    sim.automatic = False

    async def main() -> tuple[int, int]:
        future = Call(lambda: None).map(lambda _: 9).schedule(global_policy())
        tasks = [asyncio.create_task(future) for _ in range(3)]
        await asyncio.sleep(0)
        assert future.state is FutureState.EXECUTING
        tasks[1].cancel()
        await asyncio.sleep(0)
        sim.automatic = True
        return await asyncio.gather(tasks[0], tasks[2])

    assert tuple(asyncio.run(main())) == (9, 9)


def test_states(device: Device) -> None:
    def fail() -> None:
        raise KeyError

    async def main() -> None:
        good = value(1).schedule(global_policy())
        bad = Call(fail).schedule(global_policy())
        assert good.state is bad.state is FutureState.IDLE
        await good
        assert good.state is FutureState.COMPLETE
        for _ in range(2):
            with pytest.raises(KeyError):
                await bad
        assert bad.state is FutureState.FAILED

    asyncio.run(main())


def test_the_stream_is_chosen_at_schedule(device: Device) -> None:
    policy = StreamPoolRoundRobin(device, 4)
    futures = [Where().schedule(policy) for _ in range(5)]
    streams = [future.stream for future in futures]
    assert streams == [*policy.streams, policy.streams[0]]

    async def main() -> list[Stream]:
        return [await future for future in reversed(futures)]

    assert asyncio.run(main()) == streams[::-1]


def test_nothing_is_enqueued_before_the_first_await(device: Device) -> None:
    ran: list[int] = []
    future = value(1).map(ran.append).schedule(global_policy())
    assert ran == []
    future.start()
    assert ran == [1]
    future.sync()
    assert future.sync() is None  # again, and without a loop
    assert ran == [1]


def test_a_future_never_awaited_gives_its_leases_back_and_warns(device: Device) -> None:
    storage = words(1).sync()
    with pytest.warns(UnrunOperationWarning, match="scheduled but never run") as caught:
        Affine(storage, 2, 0).schedule(global_policy())
    assert caught[0].filename == __file__
    assert Read(storage).sync().tolist() == [1]


def test_the_loop_is_not_blocked_while_the_device_works() -> None:
    device = Device.host()
    gate = threading.Event()

    def block() -> None:
        assert gate.wait(30)

    async def main() -> int:
        with device:
            task = asyncio.ensure_future(Call(block).into_future())
        ticks = 0
        for _ in range(50):
            await asyncio.sleep(0)
            ticks += 1
        assert not task.done()
        gate.set()
        await task
        return ticks

    assert asyncio.run(main()) == 50


def test_a_stream_is_told_of_a_wait_when_no_other_task_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that begin one behind the other may call more: what a wait asks of other processes is asked once."""
    gate, told = threading.Event(), list[int]()
    begun: list[int] = []

    def block() -> None:
        assert gate.wait(30)  # opened when the stream is told

    async def main() -> None:
        with Device.host():
            futures = [Call(block).schedule(global_policy()) for _ in range(8)]
        awaited = type(futures[0].stream.driver).awaited

        def counting(stream: Any) -> None:
            told.append(len(begun))
            awaited(stream)
            gate.set()

        monkeypatch.setattr(type(futures[0].stream.driver), "awaited", counting)

        async def wait(number: int) -> None:
            begun.append(number)
            await futures[number]

        await asyncio.gather(*(wait(number) for number in range(8)))
        assert told == [8]

    asyncio.run(main())


def test_cancelling_keeps_memory_until_the_device_is_done(sim_device: Device, sim: SimDriver) -> None:
    storage = words(1, count=64).sync()
    sim.automatic = False

    async def main() -> None:
        async def work() -> Storage:
            return await words(5, count=64).then(lambda s: Affine(s, 2, 0))

        tasks = [asyncio.create_task(work()) for _ in range(8)]
        await asyncio.sleep(0)
        used = sim.memory_info().used
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del tasks
        gc.collect()
        sim_device.collect()
        assert sim.memory_info().used == used  # still in use by the device

    asyncio.run(main())
    sim.automatic = True
    deadline = time.monotonic() + 500
    while sim.memory_info().used > 256 and time.monotonic() < deadline:
        assert value(1).sync() == 1
        gc.collect()
    assert sim.memory_info().used == 256  # `storage` alone
    assert Read(storage).sync()[0] == 1


def test_a_closed_loop_is_dropped_silently() -> None:
    device = Device.host()
    gate = threading.Event()
    finished: list[int] = []
    with device:
        future = Call(lambda: finished.append(gate.wait(30))).into_future()

    async def main() -> None:
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())  # the loop is closed while the work is in flight
    gate.set()
    future.sync()
    assert finished == [1]


@pytest.mark.parametrize("woken", [True, False], ids=["before it is closed", "after that"])
def test_a_closed_loop_is_not_kept_by_those_who_waited_on_it(woken: bool) -> None:
    """Nor by those whose wake-up it did not come to handle: the next loop that waits has them forgotten."""
    waiters: list[Callable[[], None]] = []

    class Work:
        def when_done(self, waiter: Callable[[], None]) -> None:
            waiters.append(waiter)

    async def wait() -> None:
        await Suspended(Work())

    async def main() -> None:
        tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    def wake_all() -> None:
        while waiters:
            waiters.pop()()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    if woken:
        wake_all()
    loop.close()
    wake_all()
    seen = weakref.ref(loop)
    del loop
    asyncio.run(waited_once(wait, wake_all))
    gc.collect()
    assert seen() is None


async def waited_once(wait: Callable[[], Coroutine[Any, Any, None]], wake_all: Callable[[], None]) -> None:
    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    wake_all()
    await task


class Suspended:
    """Awaits work as runs are awaited."""

    def __init__(self, work: Waitable) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        return suspend(self._work)


def test_throw_takes_all_forms_of_an_exception() -> None:
    error = ValueError("given")
    assert thrown(error, None, None) is error
    assert thrown(ValueError, error, None) is error
    for arguments, value_ in (((), None), (("text",), "text"), ((1, 2), (1, 2))):
        made = thrown(ValueError, value_, None)
        assert type(made) is ValueError
        assert made.args == arguments


def test_futures_of_several_threads_and_loops(device: Device) -> None:
    results: list[list[int]] = []

    def loop() -> None:
        async def main() -> list[int]:
            with device:
                return await asyncio.gather(*(value(n).into_future() for n in range(40)))

        results.append(asyncio.run(main()))

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(40))] * 4


def test_one_future_awaited_on_two_loops(device: Device) -> None:
    future = Call(lambda: None).map(lambda _: "done").schedule(global_policy(device))

    async def consume() -> str:
        return await future

    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(consume()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["done", "done"]


def test_a_thousand_operations_in_flight(device: Device) -> None:
    async def main() -> list[Any]:
        storages = await zip(*(words(n, count=8) for n in range(200)))
        await asyncio.gather(*(Affine(s, 3, 1).into_future() for s in storages))
        return await asyncio.gather(*(Read(s).into_future() for s in storages for _ in range(4)))

    results = asyncio.run(main())
    assert [int(result[0]) for result in results] == [3 * n + 1 for n in range(200) for _ in range(4)]


# -- policies --------------------------------------------------------------------------------------


def test_round_robin_is_the_default_with_four_streams(device: Device) -> None:
    set_global_policy(device, None)
    used = [Where().sync() for _ in range(8)]
    assert used[:4] == used[4:]
    assert len(set(used)) == 4
    assert used[0].device is device


def test_single_stream_and_default_streams(device: Device) -> None:
    policy = SingleStream(device)
    assert {Where().schedule(policy).sync() for _ in range(5)} == {policy.stream}
    mine = device.new_stream()
    with mine:
        assert Where().sync() is mine
    assert Where().sync() is not mine


def test_a_policy_of_ones_own(device: Device) -> None:
    stream = device.new_stream()

    class Mine:
        def next_stream(self) -> Stream:
            return stream

    class Broken:
        def next_stream(self) -> Stream:
            raise KeyError("no stream")

    class Wrong:
        def next_stream(self) -> Any:
            return 3

    set_global_policy(device, Mine())
    try:
        assert Where().sync() is stream
    finally:
        set_global_policy(device, None)
    with pytest.raises(SchedulingError, match="KeyError") as caught:
        value(1).schedule(Broken())
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(SchedulingError, match="expected a Stream, got int"):
        value(1).schedule(Wrong())


def test_the_future_type_is_named() -> None:
    future = value(1).into_future()
    assert isinstance(future, DeviceFuture)
    assert "idle" in repr(future)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("result", "; write future.sync(), or await future"),
        ("done", "; write future.state, which is a FutureState"),
        ("cancel", "; write asyncio.create_task(future).cancel(), which ends the waiting"),
        ("exception", "; write try: future.sync(), or await future, which raises it"),
        ("add_done_callback", "; write op.then(function) before the operation is scheduled"),
        ("colour", "'colour'"),
    ],
)
def test_names_of_other_futures_are_answered(name: str, words: str, device: Device) -> None:
    """By the class that users know, whichever class of futures it is."""
    futures = (value(1).into_future(), value(1).schedule(SingleStream(device)), Where().into_future())
    for future in futures:
        with pytest.raises(AttributeError) as caught:
            getattr(future, name)
        assert str(caught.value).startswith(f"'DeviceFuture' object has no attribute {name!r}")
        assert words in str(caught.value)
        future.sync()


def test_starting_a_future_again_waits_for_nobody(sim_device: Device, sim: SimDriver) -> None:
    """A task has begun it, and waits for the submission inside of which it is started again."""
    sim.works_alone = True  # as a GPU: the task spins, and makes no run before it has enqueued the operation
    policy = SingleStream(sim_device)
    stream = policy.stream
    future = Affine(words(1, count=4).sync_on(stream), 2, 1).schedule(policy)

    async def wait() -> None:
        await future

    def amid(_: object) -> None:
        task.start()
        while future.state is FutureState.IDLE:
            time.sleep(0.001)
        future.start()

    task = threading.Thread(target=lambda: asyncio.run(wait()), daemon=True)
    run_all([lambda: async_on(value(0).inspect(amid), stream)], limit_s=20)
    task.join(60)
    assert future.state is FutureState.COMPLETE
