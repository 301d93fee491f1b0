"""One result, several consumers: executed once, ordered across streams, failing for everybody."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cuda_async import (
    DependencyError,
    Device,
    DeviceOp,
    ReentrancyError,
    SharedDeviceOp,
    shared,
    value,
    zip,
)
from cuda_async.testing import SimDriver
from tests.cuda_async.work import Affine, Read, words


def counted(result: Any, calls: list[int]) -> DeviceOp[Any]:
    return value(result).inspect(lambda _: calls.append(1))


def test_shared_executes_once_and_yields_one_object(device: Device) -> None:
    calls: list[int] = []
    thing = object()
    op = counted(thing, calls).shared()
    clones = [op.clone() for _ in range(5)]
    assert all(clone.sync() is thing for clone in clones)
    assert op.sync() is thing
    assert calls == [1]


def test_shared_may_be_used_any_number_of_times(device: Device) -> None:
    calls: list[int] = []
    op = counted(10, calls).shared()
    assert zip(op, op, op.map(lambda x: x + 1)).sync() == (10, 10, 11)
    assert op.sync() == 10
    assert calls == [1]


def test_shared_of_a_value() -> None:
    thing = object()
    assert shared(thing).sync() is thing


def test_a_diamond(device: Device) -> None:
    calls: list[int] = []
    top = counted(10, calls).shared()
    assert zip(top.clone().map(lambda x: x + 1), top.map(lambda x: x + 12)).sync() == (11, 22)
    assert calls == [1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_unzip_in_any_order(device: Device, order: tuple[int, ...]) -> None:
    calls: list[int] = []
    branches = zip(counted(1, calls), value(2), value(3)).unzip()
    assert [branches[index].sync() for index in order] == [index + 1 for index in order]
    assert calls == [1]


def test_unzip_and_zip_again(device: Device) -> None:
    calls: list[int] = []
    a, b = zip(counted(1, calls), value(2)).unzip(2)
    assert zip(b, a).sync() == (2, 1)
    assert calls == [1]


def test_unzip_needs_to_know_how_many() -> None:
    with pytest.raises(ValueError, match=r"say unzip\(n\)"):
        value((1, 2)).unzip()
    with pytest.raises(ValueError, match="yields 2 elements"):
        zip(1, 2).unzip(3)
    a, b, c = value((1, 2)).unzip(3)
    with pytest.raises(ValueError, match="yielded a tuple of 2"):
        a.sync()
    with pytest.raises(ValueError, match="yielded a tuple of 2"):
        b.sync()
    c.discard()


def test_a_failure_reaches_every_branch_with_its_cause(device: Device) -> None:
    error = KeyError("parent")

    def fail(_: object) -> Any:
        raise error

    op = value(1).map(fail).shared()
    with pytest.raises(KeyError):
        op.clone().sync()
    for _ in range(2):
        with pytest.raises(DependencyError, match=r"made at .*test_shared\.py:\d+.*failed") as caught:
            op.sync()
        assert repr(caught.value.__cause__) == repr(error)  # a copy: the frames of the first hold what it held


@pytest.mark.parametrize("seed", range(10))
def test_branches_on_other_streams_wait_for_the_parent(seed: int) -> None:
    device = Device.from_driver(SimDriver(seed))
    streams = [device.new_stream() for _ in range(3)]
    storage = words(1, count=256).sync_on(streams[0])
    top = Affine(storage, 3, 2).shared()
    for stream in streams:
        assert set(top.clone().then(Read).sync_on(stream).tolist()) == {5}


def test_branches_in_flight_at_once(sim_device: Device, sim: SimDriver) -> None:
    """All branches are submitted before the device has done anything."""
    import asyncio

    storage = words(1, count=256).sync()
    sim.automatic = False

    async def main() -> list[Any]:
        top = Affine(storage, 3, 2).shared()
        tasks = [asyncio.ensure_future(top.clone().then(Read).into_future()) for _ in range(4)]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[0].cancel()  # the one that executed the parent
        sim.automatic = True
        return await asyncio.gather(*tasks[1:])

    for result in asyncio.run(main()):
        assert set(result.tolist()) == {5}


def test_results_of_shared_operations_within_one_another_are_lent_to_all_consumers(
    sim_device: Device, sim: SimDriver
) -> None:
    """The first to run is the outer one; then consumers of the inner one alone, and of both through the outer one."""
    import asyncio

    first, second = words(1, count=256).sync(), words(10, count=256).sync()
    sim.automatic = False

    async def main() -> list[Any]:
        inner = Affine(first, 3, 2).shared()
        outer = zip(inner, Affine(second, 2, 0)).shared()
        tasks = [
            asyncio.ensure_future(op.into_future())
            for op in (outer, inner.then(Read), outer.then(lambda both: zip(Read(both[0]), Read(both[1]))))
        ]
        await asyncio.sleep(0)
        sim.automatic = True
        return await asyncio.gather(*tasks)

    _, alone, both = asyncio.run(main())
    assert [set(result.tolist()) for result in (alone, *both)] == [{5}, {5}, {20}]


def test_device_failure_of_the_parent_reaches_branches_on_every_stream(sim_device: Device, sim: SimDriver) -> None:
    import asyncio

    storage = words(1, count=256).sync()
    other = words(4).sync()
    sim.automatic = False
    error = RuntimeError("the kernel failed")
    sim.fail("run:launch", error=error)

    async def main() -> list[Any]:
        top = Affine(storage, 3, 2).shared()
        tasks = [asyncio.ensure_future(top.clone().map(lambda _: 1).into_future()) for _ in range(4)]
        tasks.append(asyncio.ensure_future(Read(other).into_future()))
        for _ in range(3):
            await asyncio.sleep(0)
        sim.automatic = True
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others, unrelated = asyncio.run(main())
    assert first is error
    for failure in others:
        assert isinstance(failure, DependencyError)
        assert failure.__cause__ is error
    assert unrelated.tolist() == [4]


def test_pending_values_reach_every_branch(device: Device) -> None:
    storage = words(3, 4).sync()
    top = Read(storage).shared()
    a, b = zip(top.clone(), top.clone()).sync()
    assert a is b
    assert a.tolist() == top.sync().tolist() == [3, 4]


def test_many_threads_share_one_execution(device: Device) -> None:
    calls: list[int] = []
    for _ in range(20):
        calls.clear()
        top = counted(7, calls).shared()
        start = threading.Barrier(6)
        results: list[int] = []

        def consume(
            top: SharedDeviceOp[int] = top, start: threading.Barrier = start, results: list[int] = results
        ) -> None:
            start.wait()
            results.append(top.clone().sync_on(device.new_stream()))

        threads = [threading.Thread(target=consume) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [7] * 6
        assert calls == [1]


def test_a_shared_operation_that_uses_itself() -> None:
    holder: list[SharedDeviceOp[int]] = []
    holder.append(value(1).then(lambda _: holder[0].clone()).shared())
    with pytest.raises(ReentrancyError, match="uses its own result"):
        holder[0].sync()
