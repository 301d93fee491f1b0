"""Many threads, streams and tasks at once: right results, no abort, no deadlock, nothing leaked."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async import Device, DeviceOp, Storage, value, zip
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, CopyTo, Read, words

ROUNDS = 1000


def in_threads(count: int, target: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            target(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow
def test_two_threads_on_several_streams_for_a_thousand_rounds(device: Device) -> None:
    def work(number: int) -> None:
        generator = random.Random(number)
        streams = [device.new_stream() for _ in range(3)]
        a = words(number, count=300).sync_on(streams[0])
        b = words(0, count=300).sync_on(streams[1])
        x, y = number, 0
        for step in range(ROUNDS // 2):
            Affine(a, 3, step).sync_on(streams[generator.randrange(3)])
            x = (3 * x + step) % 2**32
            op: DeviceOp[Any] = CopyTo(b, a).then(lambda pair: Affine(pair[0], 5, 1))
            op.sync_on(streams[generator.randrange(3)])
            y = (5 * x + 1) % 2**32
        assert set(Read(a).sync_on(streams[0]).tolist()) == {x}
        assert set(Read(b).sync_on(streams[2]).tolist()) == {y}

    in_threads(2, work)


@pytest.mark.slow
def test_two_threads_with_loops_of_their_own(device: Device) -> None:
    def work(number: int) -> None:
        async def chain(start: int) -> list[int]:
            storage = await words(start, count=50)
            for step in range(20):
                await Affine(storage, 3, step)
            return (await Read(storage)).tolist()

        async def main() -> list[list[int]]:
            with device:
                return await asyncio.gather(*(chain(100 * number + n) for n in range(25)))

        for n, result in enumerate(asyncio.run(main())):
            expected = 100 * number + n
            for step in range(20):
                expected = (3 * expected + step) % 2**32
            assert set(result) == {expected}

    in_threads(2, work)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), max_size=25),
)
def test_random_programs_equal_the_sequential_run(seed: int, steps: list[tuple[int, int, int, int]]) -> None:
    """Operations on four storages over four streams, all in flight at once, in any order the device likes."""
    driver = SimDriver(seed)
    device = Device.from_driver(driver)
    streams = [device.new_stream() for _ in range(4)]
    storages = [words(n, count=64).sync_on(streams[0]) for n in range(4)]
    expected = [0, 1, 2, 3]
    for target, source, stream, number in steps:
        if target == source:
            storages[target].use(streams[stream], write=True)
            from tests.cuda_async.work import launch_affine

            launch_affine(streams[stream], storages[target].address, 64, 3, number, grain=16)
            expected[target] = (3 * expected[target] + number) % 2**32
        else:
            storages[target].use(streams[stream], write=True)
            storages[source].use(streams[stream], write=False)
            streams[stream].copy(storages[target].address, storages[source].address, 256)
            expected[target] = expected[source]
    assert [set(Read(s).sync_on(streams[3]).tolist()) for s in storages] == [{n} for n in expected]
    del storages
    wait_all_idle(device)
    assert driver.memory_info().used == driver.pinned_bytes == 0


def test_memory_does_not_grow(device: Device) -> None:
    """Storage made, used on other streams and dropped, over and over."""
    streams = [device.new_stream() for _ in range(3)]

    def round_trip(n: int) -> None:
        storage: Storage = words(n, count=20_000).sync_on(streams[n % 3])
        assert Affine(storage, 2, 0).then(Read).sync_on(streams[(n + 1) % 3])[-1] == 2 * n

    for n in range(30):
        round_trip(n)
    wait_all_idle(device, *streams)
    used = device.memory_info().used
    for n in range(100):
        round_trip(n)
    wait_all_idle(device, *streams)
    assert device.memory_info().used <= used


def test_many_values_at_once(device: Device) -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*(zip(value(n), value(1)).map(sum).into_future() for n in range(1000)))

    assert asyncio.run(main()) == list(range(1, 1001))
