"""Completion off the loop: large host copies, slow preparations, other event loops, many operations."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from cuda_async import (
    Device,
    DeviceOp,
    ExecutionContext,
    OwnershipError,
    Storage,
    Use,
    global_policy,
    staging,
    value,
    zip,
)
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, Call, Read, words


@pytest.mark.parametrize("nbytes", [4, 1000, 1004, 3000, 9000, 40_000])
def test_large_host_copies_go_in_chunks(device: Device, monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(staging, "CHUNK_BYTES", 1000)
    source = np.arange(nbytes // 4, dtype=np.uint32)
    storage = words(*source.tolist()).sync()
    assert np.array_equal(Read(storage).sync(), source)
    assert np.array_equal(Affine(storage, 3, 1).then(Read).sync(), 3 * source + 1)


@pytest.mark.parametrize("seed", range(10))
def test_chunks_keep_their_order_whatever_the_device_does_first(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(staging, "CHUNK_BYTES", 64)
    driver = SimDriver(seed)
    device = Device.from_driver(driver)
    a, b = device.new_stream(), device.new_stream()
    source = np.arange(500, dtype=np.uint32)
    storage = words(*source.tolist()).sync_on(a)
    assert np.array_equal(zip(Read(storage), Read(storage)).last().sync_on(b), source)
    del storage
    wait_all_idle(device)
    wait_all_idle(device)
    assert driver.memory_info().used == driver.pinned_bytes == 0


class Slow(DeviceOp[int]):
    """An operation with a preparation, as a kernel that is not compiled yet."""

    has_effects = True

    def __init__(self, storage: Storage, prepare: Callable[[], object]) -> None:
        super().__init__()
        self._prepare = prepare
        self.lend(Use("x", storage, write=True))

    def preparations(self, device: Device) -> Iterable[Callable[[], object]]:
        return (self._prepare,)

    def execute(self, context: ExecutionContext) -> int:
        return threading.get_ident()


def test_preparations_do_not_hold_the_loop(device: Device) -> None:
    storage = words(1).sync()
    gate = threading.Event()

    async def main() -> None:
        def prepare() -> None:
            assert gate.wait(30)

        future = zip(value(1), Slow(storage, prepare).map(lambda thread: thread)).schedule(global_policy())
        tasks = [asyncio.create_task(future) for _ in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        with pytest.raises(OwnershipError):
            Read(storage)
        tasks[0].cancel()  # the others go on
        await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(*tasks[1:])
        assert results[0] == results[1]
        assert results[0][1] != threading.get_ident()

    asyncio.run(main())
    assert Read(storage).sync()[0] == 1


def test_a_preparation_that_fails(device: Device) -> None:
    storage = words(1).sync()

    def prepare() -> None:
        raise SyntaxError("in the kernel")

    async def main() -> None:
        future = Slow(storage, prepare).into_future()
        for _ in range(2):
            with pytest.raises(SyntaxError, match="in the kernel"):
                await future

    asyncio.run(main())
    assert Read(storage).sync()[0] == 1  # given back


def test_sync_prepares_in_execute(device: Device) -> None:
    def prepare() -> None:
        raise AssertionError("not asked")

    assert Slow(words(1).sync(), prepare).sync() == threading.get_ident()


# -- event loops -----------------------------------------------------------------------------------


async def workload() -> list[int]:
    storage = await words(1, count=20)
    await Affine(storage, 3, 1)
    return (await Read(storage)).tolist()


def test_uvloop(device: Device) -> None:
    uvloop: Any = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(workload()) == [4] * 20


def test_trio(device: Device) -> None:
    trio: Any = pytest.importorskip("trio")
    results: list[list[int]] = []
    gate = threading.Event()

    async def one() -> None:
        results.append(await workload())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
        with trio.move_on_after(0.01) as scope:
            await Call(lambda: assert_true(gate.wait(30) or device.kind == "sim")).into_future()
        gate.set()
        assert scope.cancelled_caught or device.kind == "sim"
        assert await value(3) == 3

    trio.run(main)
    assert results == [[4] * 20] * 20


def assert_true(condition: bool) -> None:
    assert condition


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_anyio(device: Device, backend: str) -> None:
    anyio: Any = pytest.importorskip("anyio")
    pytest.importorskip(backend)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(workload)
        with anyio.fail_after(20):
            assert await workload() == [4] * 20

    anyio.run(main, backend=backend)


def test_awaiting_outside_a_loop_says_so(device: Device) -> None:
    driver = Call(lambda: None).into_future().__await__()
    with pytest.raises((RuntimeError, StopIteration)) as caught:
        next(driver)
    if isinstance(caught.value, RuntimeError):
        assert "no running event loop" in str(caught.value)


# -- many ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thousands_of_awaits_from_hundreds_of_tasks_do_not_grow_memory() -> None:
    device = Device.host()

    async def work() -> None:
        for number in range(10):
            assert await value(number) == number

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(300)))

    def traced() -> int:
        asyncio.run(main())
        wait_all_idle(device)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with device:
        tracemalloc.start()
        try:
            # Pools and the interpreter's own caches grow for some rounds, more of them on a busy machine; a leak grows
            # each time.
            sizes = [traced(), traced()]
            while sizes[-1] - sizes[-2] >= 3_000 and len(sizes) < 40:
                sizes.append(traced())
        finally:
            tracemalloc.stop()
    assert sizes[-1] - sizes[-2] < 3_000, sizes
