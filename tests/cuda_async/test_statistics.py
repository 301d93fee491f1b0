"""The counts that the runtime keeps of its work."""

from __future__ import annotations

import asyncio

from cuda_async import Device, StreamPoolRoundRobin, completion_statistics, set_global_policy
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, Read, words


def test_streams_and_policies(sim_device: Device) -> None:
    policy = StreamPoolRoundRobin(sim_device, 2)
    set_global_policy(sim_device, policy)
    x = words(1, count=8).sync()  # an allocation and a copy
    Affine(x, 2, 0).sync()  # on the other stream, which waits for nothing: sync() saw the first complete
    first, second = policy.statistics()
    assert (first.submitted, first.completed, first.events_recorded, first.waits) == (2, 2, 0, 0)
    assert (second.submitted, second.completed, second.events_recorded, second.waits) == (1, 1, 0, 0)
    futures = [Affine(x, 2, 0).into_future() for _ in range(1)]
    futures[0].start()
    x.use(policy.streams[1], write=False)
    assert policy.streams[0].statistics().events_recorded == 1
    assert policy.streams[1].statistics().waits == 1
    futures[0].sync()


def test_a_device(sim_device: Device) -> None:
    x = words(1, count=1024).sync()
    used = sim_device.statistics().memory.used
    assert used >= 4096
    deferred = sim_device.statistics().deferred
    del x
    assert sim_device.statistics().deferred == deferred + 1
    wait_all_idle(sim_device)
    assert sim_device.statistics().memory.used == 0
    assert sim_device.statistics().idle_events > 0
    assert sim_device.default_mem_pool().statistics().used_high >= 4096


def test_the_completion_path(sim: SimDriver) -> None:
    before = completion_statistics().reactor

    async def main() -> None:
        with Device.from_driver(sim):
            for _ in range(5):
                assert await words(3).then(Read) == [3]

    asyncio.run(main())
    after = completion_statistics().reactor
    assert 0 < after.watched - before.watched <= 5  # what the loop saw complete itself is not watched
    words(1).sync_on(Device.host().new_stream())
    assert completion_statistics().workers.threads >= 1
