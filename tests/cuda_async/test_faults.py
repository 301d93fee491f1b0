"""Every driver call fails in turn, on the simulator: nothing leaks, the error arrives, the next operation works."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

from cuda_async import (
    DependencyError,
    Device,
    DeviceError,
    DeviceLostError,
    DriverError,
    OutOfMemoryError,
    Storage,
    Stream,
    UnrunOperationWarning,
    value,
    zip,
)
from cuda_async.testing import SimDriver, wait_all_idle
from cuda_async.unsafe import async_on
from tests.cuda_async.faults import tried
from tests.cuda_async.work import Affine, Call, CopyTo, Read, words

pytestmark = pytest.mark.filterwarnings(f"ignore::{UnrunOperationWarning.__module__}.UnrunOperationWarning")


MODES = ["sync", "await", "graph", "unfollowed"]
WORK = ["run:launch", "run:copy", "run:fill", "run:call"]


def pipeline(a: Storage, b: Storage) -> Any:
    """Allocations, uploads, copies, kernels, host functions, sharing, downloads: each call may fail."""
    fresh = words(5, count=64).shared()
    left, right = zip(Affine(a, 3, 1), fresh.clone()).unzip()
    return zip(
        left.then(Read),
        right.then(lambda s: CopyTo(b, s)).map(lambda pair: pair[0]).then(Read),
        Call(lambda: None),
        fresh.then(Read),
    )


def replayed(device: Device, a: Storage) -> list[int]:
    """A capture, an update of its operand, and two launches, one on another stream."""
    home, other = device.new_stream(), device.new_stream()
    with Affine(a, 3, 1).then(lambda s: Affine(s, 1, 1)).graph_on(home) as graph:
        graph.update(Affine(a, 2, 0))
        graph.launch().sync_on(home)
        graph.launch().sync_on(other)
    return Read(a).sync_on(other).tolist()


def unfollowed(device: Device, a: Storage, b: Storage) -> None:
    """Operations that nobody waits for, by the fast path and by runs with and without work at their end."""
    stream = device.new_stream()
    async_on(Affine(a, 3, 0), stream)
    async_on(Affine(a, 1, 1).map(lambda storage: storage.nbytes), stream)
    async_on(CopyTo(b, a).then(lambda pair: Affine(pair[0], 1, 1).then(Read)), stream)
    stream.synchronize()


def settle(device: Device, driver: SimDriver) -> None:
    """Wait until the reactor and the finalizers have nothing left to do."""
    wait_all_idle(device)
    deadline = time.monotonic() + 500
    while (driver.memory_info().used or driver.pinned_bytes) and time.monotonic() < deadline:
        wait_all_idle(device)


def marks(device: Device) -> int:
    """Events that streams keep for others to wait for."""
    streams = [each for each in gc.get_objects() if isinstance(each, Stream) and each.device is device]
    return sum(stream._mark is not None for stream in streams)  # pyright: ignore[reportPrivateUsage]


def is_lent(*storages: Storage | None) -> bool:
    """Whether an operation still holds one of the storages."""
    return any(lease.active for storage in storages if storage is not None for lease in storage.leases)


def count_calls(mode: str) -> int:
    driver = SimDriver(seed=3)
    attempt(driver, mode, again=False)
    return sum(count for name, count in driver.calls.items() if not name.startswith("run:"))


def attempt(driver: SimDriver, mode: str, *, again: bool = True) -> BaseException | None:
    """Run the pipeline and return its error. Afterwards all must be free, and work again."""
    device, before = Device.from_driver(driver), driver.events
    failure: BaseException | None = None
    a: Storage | None = None
    b: Storage | None = None
    try:
        with device:
            a = words(1, count=64).sync()
            b = words(2, count=64).sync()
            if mode == "graph":
                results = (replayed(device, a), Read(b).sync(), None, Read(b).sync())
                assert results[0][0] == 3 * 8 + 2
                results = ([4], [5], None, [5])
            elif mode == "unfollowed":
                unfollowed(device, a, b)
                results = (Read(a).sync(), Read(b).sync(), None, Read(b).sync())
            elif mode == "sync":
                results = pipeline(a, b).sync()
            else:

                async def main(op: Any) -> Any:
                    return await op

                results = asyncio.run(main(pipeline(a, b)))
            assert [int(r[0]) for r in results if r is not None] == [4, 5, 5]
            del results
    except (DeviceError, RuntimeError) as error:
        failure = error.with_traceback(None)
    if failure is not None:
        for error in (failure, failure.__cause__, failure.__context__):
            if error is not None:
                error.__traceback__ = None
    deadline = time.monotonic() + 500  # an update, say, is not waited for: the reactor ends its leases
    while mode in ("graph", "unfollowed") and time.monotonic() < deadline and is_lent(a, b):
        driver.run_until_idle()
    assert not is_lent(a, b)
    del a, b
    if driver.lost is None and again:
        with device:
            fresh = words(6, count=64).sync()
            assert set(Affine(fresh, 2, 1).then(Read).sync().tolist()) == {13}
            del fresh
        gc.collect()
        settle(device, driver)
        assert driver.memory_info().used == 0, "memory leaked"
        assert driver.pinned_bytes == 0, "page-locked memory leaked"
        assert driver.graphs == 0, "a graph leaked"
        assert driver.events - before == len(device.idle_events) + marks(device), "an event of the pool was lost"
    return failure


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_call_fails_in_turn(mode: str) -> None:
    total = tried.note(f"every call fails in turn, {mode}", count_calls(mode))
    assert total > 30
    for number in range(1, total + 1):
        driver = SimDriver(seed=3)
        error = DriverError(1, "SIM_FAULT", f"call {number}")
        driver.fail("*", at=number, error=error)
        failure = attempt(driver, mode)
        assert failure is not None, f"the failure of call {number} was lost"
        assert failure is error or failure.__cause__ is error or isinstance(failure, DependencyError)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", WORK)
def test_all_work_fails_in_turn(mode: str, kind: str) -> None:
    driver = SimDriver(seed=3)
    attempt(driver, mode, again=False)
    assert driver.calls[kind] or kind == "run:fill" or mode in ("graph", "unfollowed")
    tried.note(f"all work fails in turn, {mode}", driver.calls[kind])
    for number in range(1, driver.calls[kind] + 1):
        driver = SimDriver(seed=3)
        driver.fail(kind, at=number, error=RuntimeError(f"{kind} {number}"))
        failure = attempt(driver, mode)
        assert failure is not None, f"the failure of {kind} {number} was lost"
        assert str(number) in str(failure)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_device_is_lost_at_every_call(mode: str) -> None:
    total = tried.note(f"the device is lost at every call, {mode}", count_calls(mode))
    other = SimDriver(seed=4, ordinal=1)
    for number in range(1, total + 1):
        driver = SimDriver(seed=3)
        error = DeviceLostError(719, "SIM_LOST", f"lost at call {number}")
        driver.fail("*", at=number, error=error)
        failure = attempt(driver, mode)
        assert isinstance(failure, DeviceLostError), f"lost at {number}: {failure!r}"
        device = Device.from_driver(driver)
        with pytest.raises(DeviceLostError):
            device.new_stream()
        assert attempt(other, mode) is None  # other devices go on


def test_out_of_memory_is_an_error_and_not_the_end() -> None:
    stream = Device.from_driver(SimDriver(memory_bytes=1 << 16)).new_stream()
    with pytest.raises(OutOfMemoryError, match="65540 bytes asked for") as caught:
        words(1, count=(1 << 14) + 1).sync_on(stream)
    assert isinstance(caught.value, MemoryError)
    assert words(1, count=64).then(Read).sync_on(stream)[0] == 1


def test_a_lost_device_fails_what_is_pending_and_what_comes(sim_device: Device, sim: SimDriver) -> None:
    storage = words(1, count=64).sync()
    sim.automatic = False

    async def main() -> None:
        pending = [
            asyncio.ensure_future(Affine(storage, 2, 0).into_future()),
            asyncio.ensure_future(words(1, count=8).into_future()),
        ]
        await asyncio.sleep(0)
        sim.lose()
        sim.automatic = True
        for failure in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(failure, DeviceLostError)
        with pytest.raises(DeviceLostError):
            await value(1)

    asyncio.run(main())
    with pytest.raises(DeviceLostError):
        value(1).sync()
