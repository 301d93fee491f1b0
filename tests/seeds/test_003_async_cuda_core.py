"""The page of async-cuda-core: a runtime thread, awaited streams and buffers; its safety warning as tests."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np

from cuda_async import Device as AnyDevice
from cuda_async.async_cuda_core import Call, Device, DeviceBuffer, HostBuffer, Stream, num_devices


def test_everything_is_awaited_and_synchronizes_where_needed(device: AnyDevice) -> None:
    async def main() -> None:
        stream = await Stream.new()
        host = await HostBuffer.from_slice(np.arange(64, dtype=np.float32))
        there = await DeviceBuffer.new(64, stream)
        await there.copy_from(host, stream)
        back = await HostBuffer.new(64)
        await back.copy_from(there, stream)
        assert (back.to_vec() == np.arange(64)).all()  # the copy has synchronized
        await stream.synchronize()
        assert await num_devices() >= 1
        assert await Device.get() == device.ordinal

    asyncio.run(main())


def test_all_calls_are_made_on_a_single_runtime_thread(device: AnyDevice) -> None:
    async def main() -> set[int]:
        return set(await asyncio.gather(*(Call("ident", threading.get_ident) for _ in range(50))))

    threads = asyncio.run(main())
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_the_caller_is_not_blocked_by_a_call(device: AnyDevice) -> None:
    go_on = threading.Event()
    order: list[str] = []

    async def blocked() -> None:
        await Call("blocked", lambda: go_on.wait(30))
        order.append("the call is over")

    async def main() -> None:
        task = asyncio.create_task(blocked())
        await asyncio.sleep(0)
        order.append("the loop goes on")
        go_on.set()
        await task

    asyncio.run(main())
    assert order == ["the loop goes on", "the call is over"]


def test_a_future_that_is_forgotten_does_no_harm(device: AnyDevice) -> None:
    forgotten: list[object] = []

    async def main() -> list[float]:
        stream = await Stream.new()
        host, there = await HostBuffer.from_slice([1.0, 2.0]), await DeviceBuffer.new(2, stream, np.float64)
        call = host.copy_to(there, stream)
        call.send(None)  # driven once, and then never again
        forgotten.append(call)
        del host
        gc.collect()
        back = await HostBuffer.new(2, np.float64)
        await back.copy_from_async(there, stream)  # ordered behind the forgotten copy
        await stream.synchronize()
        return back.to_vec().tolist()

    assert asyncio.run(main()) == [1.0, 2.0]
