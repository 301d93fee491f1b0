"""Several devices: copies across, ordered on both sides; each device with its own streams and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cuda_async import (
    ContextError,
    Device,
    DeviceOp,
    ExecutionContext,
    Storage,
    Stream,
    Use,
    copy_storage,
    global_policy,
    value,
)
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, Read, launch_affine, words
from tests.support.kinds import SIMULATED, two_of_kind


class Move(DeviceOp[Storage]):
    """destination = source, on any two devices."""

    has_effects = True

    def __init__(self, destination: Storage, source: Storage) -> None:
        super().__init__()
        self._destination, self._source = destination, source
        self.lend(Use("destination", destination, write=True), Use("source", source, write=False))

    def execute(self, context: ExecutionContext) -> Storage:
        copy_storage(context, self._destination, self._source)
        return self._destination


@pytest.fixture(params=SIMULATED)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Device, Device]]:
    yield from two_of_kind(request.param)


def test_a_copy_across_is_ordered_on_both_devices(pair: tuple[Device, Device]) -> None:
    a, b = pair
    here, there = a.new_stream(), b.new_stream()
    x, y = words(1, count=5000).sync_on(here), words(0, count=5000).sync_on(there)
    expected = 1
    for step in range(20):
        x.use(here, write=True)
        launch_affine(here, x.address, 5000, 3, step)
        expected = (3 * expected + step) % 2**32
        # Not waited for: the copy on the other device's stream has to wait for the kernel itself,
        # the kernel there for the copy, and the next kernel here for the copy to have read.
        context = Move(y, x).schedule(Only(there if step % 2 else here))
        context.start()
        y.use(there, write=True)
        launch_affine(there, y.address, 5000, 1, 7)
        context.sync()
    assert set(Read(y).sync_on(there).tolist()) == {(expected + 7) % 2**32}
    assert set(Read(x).sync_on(here).tolist()) == {expected}


class Only:
    """A policy of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def next_stream(self) -> Stream:
        return self._stream


def test_pipelines_on_both_devices_at_once(pair: tuple[Device, Device]) -> None:
    async def pipeline(device: Device, start: int) -> int:
        with device:
            storage = await words(start, count=100)
            for step in range(10):
                await Affine(storage, 3, step)
            return int((await Read(storage))[0])

    async def main() -> list[int]:
        return await asyncio.gather(*(pipeline(device, n) for n, device in enumerate(pair)))

    expected = [0, 1]
    for step in range(10):
        expected = [(3 * n + step) % 2**32 for n in expected]
    assert asyncio.run(main()) == expected


def test_each_device_has_its_policy(pair: tuple[Device, Device]) -> None:
    a, b = (global_policy(device) for device in pair)
    assert a is not b
    assert a.next_stream().device is pair[0]
    assert b.next_stream().device is pair[1]
    assert value(1).schedule(b).stream.device is pair[1]


def test_copies_that_make_no_sense(pair: tuple[Device, Device]) -> None:
    a, b = pair
    x, y = words(1, 2).sync_on(a.new_stream()), words(1).sync_on(b.new_stream())
    with pytest.raises(ValueError, match="destination: expected a part of its 4 bytes, got 8"):
        Move(y, x).sync_on(a.new_stream())
    with Device.host():
        h = words(1).sync()
    with pytest.raises(ContextError, match="goes through the host"):
        Move(y, h).sync_on(b.new_stream())
    third = Device.from_driver(SimDriver(ordinal=9))
    with pytest.raises(ContextError, match="one of the two"):
        Move(y, Storage.borrow(a.new_stream(), x.address, 4)).sync_on(third.new_stream())


def test_memory_used_by_two_devices_is_freed_behind_both() -> None:
    for seed in range(10):
        first = SimDriver(seed)
        a, b = Device.from_driver(first), Device.from_driver(SimDriver(ordinal=1, beside=first))
        here, there = a.new_stream(), b.new_stream()
        x, y = words(6, count=64).sync_on(here), words(0, count=64).sync_on(there)
        future = Move(y, x).schedule(Only(there))
        future.start()
        del x
        a.collect()
        future.sync()
        assert set(Read(y).sync_on(there).tolist()) == {6}
        del y, future
        for device in (a, b, a):
            wait_all_idle(device)
        assert first.memory_info().used == first.pinned_bytes == 0
