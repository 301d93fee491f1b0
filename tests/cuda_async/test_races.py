"""The happens-before checker finds what is not ordered, and the runtime leaves nothing unordered."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async import (
    Device,
    DeviceFuture,
    DeviceOp,
    ExecutionContext,
    OwnershipError,
    SingleStream,
    Storage,
    Stream,
    Use,
    value,
    zip,
)
from cuda_async.config import config
from cuda_async.driver.checked import CheckedStream
from cuda_async.testing import CheckedDriver, SimDriver, wait_all_idle
from cuda_async.unsafe import async_on
from tests.cuda_async.work import Affine, CopyTo, Read, launch_affine, words
from tests.support.interrupts import interleaved


def checked(kind: str = "sim", seed: int = 1) -> tuple[CheckedDriver, Device]:
    driver = CheckedDriver(SimDriver(seed) if kind == "sim" else Device.host().driver)
    return driver, Device.from_driver(driver)


def test_it_finds_what_is_not_ordered() -> None:
    driver, device = checked()
    a, b = device.new_stream(), device.new_stream()
    first, second = a.driver, b.driver
    assert isinstance(first, CheckedStream)
    assert isinstance(second, CheckedStream)
    first.use(4096, write=True)
    second.use(4096, write=False)
    (race,) = driver.races
    assert "test_races.py" in str(race)
    assert "the read on stream 2" in str(race)
    assert "not ordered behind the write on stream 1" in str(race)
    driver.races.clear()
    event = driver.create_event()
    first.use(8192, write=False)
    first.record(event)
    first.use(8192, write=False)  # after the record: the wait does not cover it
    second.wait_event(event)
    second.use(8192, write=True)
    assert len(driver.races) == 1


def test_waits_of_a_stream_and_of_the_host_order() -> None:
    driver, device = checked()
    streams = [device.new_stream().driver for _ in range(3)]
    for number, stream in enumerate(streams):
        assert isinstance(stream, CheckedStream)
        stream.use(4096, write=True)
        event = driver.create_event()
        stream.record(event)
        if number == 0:
            streams[1].wait_event(event)
        elif number == 1:
            event.wait(10)  # the host: whatever it enqueues later, wherever, comes after
    assert driver.races == []


@pytest.mark.parametrize("kind", ["sim", "host"])
def test_ordinary_programs_have_no_race(kind: str) -> None:
    driver, device = checked(kind)

    async def main() -> None:
        with device:
            x, y = await zip(words(1, count=100), words(2, count=100))
            for step in range(10):
                await Affine(x, 3, step)
                await CopyTo(y, x).then(lambda pair: Affine(pair[0], 2, 1))
            top = Affine(x, 1, 1).shared()
            await asyncio.gather(*(top.clone().then(Read).into_future() for _ in range(5)))
            with Affine(y, 2, 0).then(lambda s: Affine(s, 1, 1)).graph() as graph:
                for _ in range(5):
                    graph.update(Affine(y, 1, 2))
                    await graph.launch()
            await asyncio.gather(*(words(n, count=50).then(Read).into_future() for n in range(20)))

    asyncio.run(main())
    gc.collect()
    wait_all_idle(device)
    assert driver.uses > 100
    assert driver.races == []


class Part(DeviceOp[None]):
    """Uses words [start, stop) of a storage in two pieces of work."""

    def __init__(self, storage: Storage, start: int, stop: int, *, write: bool) -> None:
        super().__init__()
        self._storage, self._start, self._count, self._write = storage, start, stop - start, write
        self.lend(Use("x", storage, write, 4 * start, 4 * stop))

    def execute(self, context: ExecutionContext) -> None:
        storage, stream = self._storage, context.stream
        storage.use(stream, write=self._write)
        for _ in range(2):
            if self._write:
                stream.fill(storage.address + 4 * self._start, 4 * self._count, b"1")
            else:
                stream.call(lambda: None)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change")
@pytest.mark.parametrize("left_writes", [True, False])
@pytest.mark.parametrize("other", ["writes", "reads", "elsewhere"])
def test_threads_that_use_parts_of_a_storage_at_once(left_writes: bool, other: str) -> None:
    """Later work waits for both, wherever the threads change (tried: each third place).

    Where the other thread works elsewhere, it waits for this one's stream, amid the operation of two pieces.
    """
    number, place = 0, "the beginning"
    while place is not None:
        driver, device = checked("sim")
        assert isinstance(driver.inner, SimDriver)
        home, left, right, last = (device.new_stream() for _ in range(4))
        storage, elsewhere = words(1, count=64).sync_on(home), words(1, count=64).sync_on(left)
        driver.inner.automatic = False  # nothing completes, so that streams alone order the work
        for stream, memory in ((home, storage), (left, elsewhere)):
            with stream.submission:
                memory.use(stream, write=True)
                stream.fill(memory.address, 256, b"0")
        this = Part(storage, 0, 32, write=left_writes).schedule(Fixed(left))
        memory = elsewhere if other == "elsewhere" else storage
        that = Part(memory, 32, 64, write=other == "writes").schedule(Fixed(right))
        place = interleaved(this.start, number, that.start)
        if place is None:
            that.start()
        with last.submission:
            storage.use(last, write=True)
        assert isinstance(last.driver, CheckedStream)
        for stream in (left, right):
            assert isinstance(stream.driver, CheckedStream)
            step = stream.driver.clock[stream.driver.number]
            if stream is left or other != "elsewhere":
                assert last.driver.clock.get(stream.driver.number, 0) >= step, f"{number}: {place}"
        driver.inner.automatic = True
        this.sync()
        that.sync()
        number += 3
    assert number > 50


class HoldsAhead(DeviceOp[bool]):
    """Holds code, then enqueues work of it; yields whether the code is held.

    Args:
        between: called in between.
    """

    has_effects = True

    def __init__(self, between: Callable[[Stream], None]) -> None:
        super().__init__()
        self._between = between

    def execute(self, context: ExecutionContext) -> bool:
        code, stream = object(), context.stream
        context.hold_code(code)
        self._between(stream)
        stream.call(lambda: None)
        return id(code) in stream.held


def in_another_thread(stream: Stream) -> None:
    thread = threading.Thread(target=stream.synchronize)
    thread.start()
    thread.join()


@pytest.mark.parametrize("between", [in_another_thread, Stream.synchronize])
def test_a_wait_amid_a_submission_drops_nothing_that_is_held(between: Callable[[Stream], None]) -> None:
    _, device = checked("host")
    stream = device.new_stream()
    assert HoldsAhead(between).sync_on(stream)
    assert stream.held
    stream.synchronize()
    assert not stream.held, "an idle stream keeps what it held"


class Fixed:
    """A policy of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def next_stream(self) -> Stream:
        return self._stream


Step = tuple[int, int, int, int]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), max_size=20),
)
def test_random_dags_of_operations_in_flight(seed: int, steps: list[Step]) -> None:
    """Chains, sharing and frees over four streams, nothing waited for in between: sequential result, no race."""
    driver, device = checked("sim", seed)
    streams = [device.new_stream() for _ in range(4)]
    storages = [words(n, count=32).sync_on(streams[0]) for n in range(4)]
    expected = [0, 1, 2, 3]
    for target, source, number, kind in steps:
        stream = streams[number]
        with stream.submission:
            if kind == 0:  # a new storage in the place of the old one, which is freed while in use
                storages[target].use(stream, write=False)
                storages[target] = Storage.allocate(stream, 128)
                storages[target].use(stream, write=True)
                stream.fill(storages[target].address, 128, bytes([target, 0, 0, 0]))
                expected[target] = target
                device.collect()
            elif target == source:
                storages[target].use(stream, write=True)
                launch_affine(stream, storages[target].address, 32, 3, kind, grain=8)
                expected[target] = (3 * expected[target] + kind) % 2**32
            else:
                storages[target].use(stream, write=True)
                storages[source].use(stream, write=False)
                stream.copy(storages[target].address, storages[source].address, 128)
                expected[target] = expected[source]
    ops: list[DeviceOp[Any]] = [Read(storage) for storage in storages]
    results = [set(op.sync_on(streams[number]).tolist()) for number, op in enumerate(ops)]
    assert results == [{n} for n in expected]
    assert value(1).sync_on(streams[0]) == 1
    del storages, ops
    wait_all_idle(device)
    assert driver.races == []
    assert driver.memory_info().used == 0


def awaited(future: DeviceFuture[Storage]) -> Storage:
    async def main() -> Storage:
        return await future

    return asyncio.run(main())


def synchronized(future: DeviceFuture[Storage]) -> Storage:
    return future.sync()


def started(future: DeviceFuture[Storage]) -> Storage:
    future.start()
    return future.sync()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change")
@pytest.mark.parametrize("kind", ["host", "spinning"])
@pytest.mark.parametrize("wait", [awaited, synchronized, started])
def test_two_threads_begin_a_future_at_once(
    wait: Callable[[DeviceFuture[Storage]], Storage], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs once, and both get its result."""
    device = Device.host()
    if kind == "spinning":  # as a GPU, at which an `await` may spin until the work is done
        monkeypatch.setattr(device.driver, "works_alone", True)
        patient = dataclasses.replace(config(), spin_budget_us=10e6)
        monkeypatch.setattr("cuda_async.core.future.config", lambda: patient)
    stream = device.new_stream()
    storage = words(1, count=8).sync_on(stream)
    number, place = 0, "the beginning"
    while place is not None and number < 60:  # places that come later are behind the submission
        Affine(storage, 0, 1).sync_on(stream)
        future = Affine(storage, 2, 1).schedule(SingleStream(device))
        results: list[object] = []

        def use(future: DeviceFuture[Storage] = future, results: list[object] = results) -> None:
            try:
                results.append(wait(future))
            except BaseException as error:
                results.append(error)

        place = interleaved(use, number, use)
        assert results == [storage] * (1 if place is None else 2), f"place {number}: {place}"
        assert set(Read(storage).sync_on(stream).tolist()) == {3}, f"place {number}: {place}"
        number += 1
    assert number > 20


def run_fast(op: DeviceOp[Storage], stream: Stream) -> None:
    op.sync_on(stream)


def run_by_a_run(op: DeviceOp[Storage], stream: Stream) -> None:
    op.inspect(id).sync_on(stream)


def run_unfollowed(op: DeviceOp[Storage], stream: Stream) -> None:
    async_on(op, stream)


def run_scheduled(op: DeviceOp[Storage], stream: Stream) -> None:
    op.schedule(SingleStream(stream.device)).sync()


def run_recorded(op: DeviceOp[Storage], stream: Stream) -> None:
    with op.graph_on(stream) as graph:
        graph.launch().sync_on(stream)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change")
@pytest.mark.parametrize("use", [run_fast, run_by_a_run, run_unfollowed, run_scheduled, run_recorded])
@pytest.mark.parametrize("is_step", [False, True], ids=["operation", "step"])
def test_two_threads_use_an_operation_at_once(use: Callable[[DeviceOp[Storage], Stream], None], is_step: bool) -> None:
    """One of them runs it, and the other one is refused."""
    device = Device.host()
    streams = [device.new_stream() for _ in range(3)]
    storage = words(1, count=8).sync_on(streams[0])
    number, place = 0, "the beginning"
    while place is not None and number < 60:  # places that come later are behind the submission
        Affine(storage, 0, 1).sync_on(streams[0])
        op: DeviceOp[Storage] = Affine(storage, 2, 1)
        op = op.inspect(id) if is_step else op
        refused: list[OwnershipError] = []

        def run(stream: Stream, op: DeviceOp[Storage] = op, refused: list[OwnershipError] = refused) -> None:
            try:
                use(op, stream)
            except OwnershipError as error:
                refused.append(error)

        place = interleaved(partial(run, streams[1]), number, partial(run, streams[2]))
        device.synchronize()
        assert set(Read(storage).sync_on(streams[0]).tolist()) == {3}, f"place {number}: {place}"
        assert len(refused) == (place is not None), f"place {number}: {place}"
        number += 1
    assert number > 20


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change")
@pytest.mark.parametrize("other", ["binds", "runs"])
def test_two_threads_bind_a_launch_at_once(other: str) -> None:
    device = Device.host()
    stream, second = device.new_stream(), device.new_stream()
    storage = words(1, count=8).sync_on(stream)
    number, place = 0, "the beginning"
    with Affine(storage, 1, 1).graph_on(stream) as graph:
        while place is not None:
            launch, refused = graph.launch(), list[OwnershipError]()

            def use(action: Callable[[Stream], object], on: Stream, refused: list[OwnershipError] = refused) -> None:
                try:
                    action(on)
                except OwnershipError as error:
                    refused.append(error)

            act = launch.bind if other == "binds" else launch.sync_on
            place = interleaved(partial(use, launch.bind, stream), number, partial(use, act, second))
            assert len(refused) == (place is not None), f"place {number}: {place}"
            number += 1
    assert number > 5
