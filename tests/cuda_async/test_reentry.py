"""Calls amid the runtime: handlers, finalizers, deep nesting; kept failures, memory that only a collection frees."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import traceback
from typing import Any

import pytest

from cuda_async import Device, DeviceOp, ReentrancyError, Storage, empty, value, zip
from cuda_async.core import lease as leases
from cuda_async.testing import SimDriver
from tests.cuda_async.work import Affine, Read, allocate, words
from tests.support.interrupts import handled


@pytest.mark.parametrize("depth", [10_000])
@pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")
def test_a_long_chain_is_drawn_discarded_and_given_up(depth: int) -> None:
    device = Device.from_driver(SimDriver())
    with device:
        storage = words(1).sync()
        for end in ("discard", "drawing", "drop", "await"):
            op: DeviceOp[Any] = Affine(storage, 2, 0)
            for _ in range(depth):
                op = op.map(lambda x: x)
            assert op.graph_node
            if end == "drawing":
                assert "map" in op.diagram()
            elif end == "await":
                assert asyncio.run(_result_of(op)) is storage
                continue
            if end != "drop":
                op.discard()
            del op
            Affine(storage, 1, 0).sync()  # nothing is lent


async def _result_of(op: DeviceOp[Any]) -> Any:
    return await op


def nested_then(depth: int) -> DeviceOp[int]:
    return value(0) if depth == 0 else value(depth).then(lambda _: nested_then(depth - 1).map(lambda n: n + 1))


def nested_empty(depth: int) -> DeviceOp[int]:
    return value(0) if depth == 0 else empty(lambda: nested_empty(depth - 1))


@pytest.mark.parametrize("depth", [500, 5000])
def test_operations_within_operations(depth: int, sim_device: Device) -> None:
    assert nested_then(depth).sync() == depth
    assert nested_empty(depth).sync() == 0
    op: DeviceOp[Any] = value(1)
    for _ in range(depth):
        op = zip(op, 0).first()
    assert op.sync() == 1


def test_an_error_deep_within_names_its_path(sim_device: Device) -> None:
    def fail(_: object) -> Any:
        raise ValueError("deep")

    op = value(1).then(lambda _: value(2).then(lambda _: value(3).map(fail)))
    with pytest.raises(ValueError, match="deep") as caught:
        op.sync()
    (note,) = caught.value.__notes__
    steps = note.removeprefix("while submitting ").split(" > ")
    assert [step.split(" ")[0] for step in steps] == ["then", "then", "map"]


def test_failed_operations_keep_no_memory(sim: SimDriver, sim_device: Device) -> None:
    def fail(_: object) -> Any:
        raise ValueError("on purpose")

    def used() -> int:
        sim_device.collect()
        sim.run_until_idle()
        return sim.memory_info().used

    value(1).sync()
    gc.collect()
    before = used()
    gc.disable()
    try:
        for _ in range(50):
            with pytest.raises(ValueError, match="on purpose"):
                allocate(1 << 20).then(fail).sync()
        assert used() <= before + (1 << 20)
        for _ in range(20):
            sim.fail("run:call", error=ValueError("on purpose"))
            storage = allocate(1 << 20).sync()
            with pytest.raises(ValueError, match="on purpose"):
                Affine(storage, 1, 1).then(lambda s: _failing(s)).sync()
            del storage
        assert used() <= before + (2 << 20)
    finally:
        gc.enable()


def _failing(storage: Storage) -> DeviceOp[Any]:
    from tests.cuda_async.work import Call

    return Call(lambda: None).map(lambda _: storage)


def test_memory_that_only_a_collection_frees_is_found(sim: SimDriver) -> None:
    driver = SimDriver(memory_bytes=4 << 20)
    device = Device.from_driver(driver)
    gc.disable()
    try:
        with device:
            for _ in range(10):
                ring: list[Any] = [allocate(2 << 20).sync()]
                ring.append(ring)
                del ring
    finally:
        gc.enable()


def test_a_future_awaited_again_raises_no_longer_traceback(sim_device: Device) -> None:
    def fail(_: object) -> Any:
        raise ValueError("on purpose")

    async def main() -> list[int]:
        future = value(1).map(fail).into_future()
        depths: list[int] = []
        for _ in range(5):
            try:
                await future
            except ValueError as error:
                depths.append(len(traceback.extract_tb(error.__traceback__)))
        return depths

    depths = asyncio.run(main())
    assert depths[1] <= depths[0]
    assert len(set(depths[1:])) == 1


def test_a_task_cancelled_before_its_first_step_gives_back(sim_device: Device) -> None:
    storage = words(1).sync()

    async def main() -> None:
        future = Affine(storage, 2, 0).into_future()
        task = asyncio.create_task(future)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await Affine(storage, 3, 0)  # although `future` and `task` live on
        assert (await future) is storage  # who awaits it all the same
        assert list(await Read(storage)) == [6]

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_handler_that_runs_an_operation_amid_a_lock() -> None:
    """The handler, or a finalizer, comes while its thread holds the lock of leases."""
    stream = Device.host().new_stream()
    storage = words(1, count=8).sync_on(stream)
    ran: list[Any] = []

    def handler(*_: object) -> None:
        reader = Read(storage)  # two that read: the lock is needed to see that they may
        ran.append((Read(storage).sync_on(stream)[0], reader.sync_on(stream)[0]))

    class Last:
        def __del__(self) -> None:
            handler()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with leases._lock:  # pyright: ignore[reportPrivateUsage]
            signal.raise_signal(signal.SIGUSR1)
            Last()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ran == [(1, 1), (1, 1)]


def test_every_lock_is_open_in_the_child_of_a_fork() -> None:
    from cuda_async.locks import new_lock, open_all

    lock, held, done = new_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        lock.acquire()
        held.set()
        done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    assert not lock.acquire(blocking=False)
    open_all()  # what the child does
    assert lock.acquire(blocking=False)
    done.set()
    thread.join()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where a collection may come")
def test_a_finalizer_waits_for_the_stream_that_it_comes_amid() -> None:
    """A collection may come at any call: under a queue's lock, which a worker then waits for, the wait never ended."""
    device = Device.host()
    stream = device.new_stream()
    number, place = 0, "the beginning"
    ended: list[bool] = []

    def finalizer() -> None:
        event = device.new_event()
        stream.call(lambda: None)
        event.record(stream)
        ended.append(event.driver.wait(3.0))

    def action() -> None:
        stream.call(lambda: None)
        stream.synchronize()

    while place is not None:
        place = handled(action, number, finalizer)
        assert all(ended), place
        number += 1
    assert number > 15


@pytest.mark.parametrize("how", ["stream", "event", "operation"])
def test_a_wait_on_a_worker_is_refused(how: str) -> None:
    """It would wait for the work that it is a part of."""
    device = Device.host()
    stream = device.new_stream()
    event, storage = device.new_event(), words(1).sync_on(stream)
    recorded = threading.Event()

    def wait() -> None:
        assert recorded.wait(30)
        if how == "stream":
            stream.synchronize()
        elif how == "event":
            event.synchronize()
        else:
            Affine(storage, 1, 1).sync_on(stream)

    stream.driver.begin_run()
    stream.call(wait)
    event.record(stream)
    recorded.set()
    with pytest.raises(ReentrancyError, match="a worker of the CPU was to wait"):
        stream.synchronize()
    assert value(1).sync_on(stream) == 1  # the worker goes on
