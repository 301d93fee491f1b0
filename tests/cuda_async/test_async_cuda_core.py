"""The awaited interface: one runtime thread, in order; what is not awaited does nothing; nothing in use is freed."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import pytest

from cuda_async import Device as AnyDevice
from cuda_async import DriverError, NotReadyError, OutOfMemoryError, OwnershipError
from cuda_async.async_cuda_core import (
    Call,
    CudaError,
    Device,
    DeviceBuffer,
    DeviceBuffer2D,
    Error,
    HostBuffer,
    MemoryInfo,
    Stream,
    num_devices,
)
from cuda_async.testing import SimDriver, wait_all_idle

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def read(buffer: DeviceBuffer, stream: Stream) -> list[Any]:
    host = await HostBuffer.new(buffer.num_elements, buffer.dtype)
    await host.copy_from(buffer, stream)
    return host.to_vec().tolist()


def test_there_and_back(device: AnyDevice) -> None:
    async def main() -> None:
        stream = await Stream.new()
        assert stream.inner.device is device
        host = await HostBuffer.from_slice([1.0, 2.0, 3.0], np.float32)
        there = await DeviceBuffer.new(3, stream)
        await there.copy_from(host, stream)
        other = await DeviceBuffer.new(3, stream)
        await there.copy_to(other, stream)
        back = await HostBuffer.new(3)
        await other.copy_to(back, stream)
        assert back.to_vec().tolist() == [1, 2, 3]
        assert back.to_array_with_shape((3, 1)).shape == (3, 1)
        back.copy_from_slice([4, 5, 6])
        await back.copy_to(there, stream)
        assert await read(there, stream) == [4, 5, 6]
        back.copy_from_array(np.zeros((1, 3)))
        assert back.to_vec().tolist() == [0, 0, 0]

    run(main())


def test_without_synchronizing(device: AnyDevice) -> None:
    async def main() -> None:
        stream = await Stream.new()
        host, back = await HostBuffer.from_array(np.arange(6, dtype=np.int64)), await HostBuffer.new(6, np.int64)
        there = await DeviceBuffer.new(6, stream, np.int64)
        await host.copy_to_async(there, stream)
        await there.copy_to_async(back, stream)
        await stream.synchronize()
        assert back.to_vec().tolist() == [0, 1, 2, 3, 4, 5]
        second = await Stream.new()
        await back.copy_from_async(there, second)
        await there.copy_from_async(host, stream)  # another stream: ordered behind it all the same
        await stream.synchronize()
        await second.synchronize()
        back.copy_from_slice(np.zeros(6))

    run(main())


def test_images(device: AnyDevice) -> None:
    async def main() -> None:
        stream = Stream.null(device)
        assert Stream.null(device) is stream
        pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
        image = await DeviceBuffer2D.from_array(pixels, stream)
        assert (image.width, image.height, image.num_channels, image.num_elements, image.pitch) == (4, 2, 3, 24, 12)
        other = await DeviceBuffer2D.new(4, 2, 3, stream, np.uint8)
        await other.copy_from(image, stream)
        host = await HostBuffer.new(24, np.uint8)
        await other.copy_to(host, stream)
        assert (host.to_array_with_shape((2, 4, 3)) == pixels).all()
        await image.fill_with_byte(7, stream)
        await image.copy_to_async(other, stream)
        await other.copy_from_async(image, stream)
        await host.copy_from(other, stream)
        assert set(host.to_vec().tolist()) == {7}

    run(main())


def test_filled_with_a_byte(device: AnyDevice) -> None:
    async def main() -> None:
        stream = await Stream.new()
        buffer = await DeviceBuffer.from_array(np.ones((2, 2), np.uint16), stream)
        await buffer.fill_with_byte(0x12, stream)
        assert await read(buffer, stream) == [0x1212] * 4

    run(main())


def test_a_device_by_numpys_number() -> None:
    async def main() -> None:
        number: Any = np.int64(0)
        await Device.set(number)
        assert await Device.get() == 0
        await Device.set(None)

    with AnyDevice.host():
        run(main())


def test_the_device(device: AnyDevice) -> None:
    async def main() -> None:
        assert await Device.get() == device.ordinal
        assert await num_devices() >= 1
        info = await Device.memory_info()
        assert isinstance(info, MemoryInfo)
        assert 0 < info.free <= info.total
        await Device.synchronize()
        other = AnyDevice.from_driver(SimDriver(seed=9, ordinal=3))
        await Device.set(other)
        try:
            assert await Device.get() == 3
            assert (await Stream.new()).inner.device is other
        finally:
            await Device.set(None)
        assert await Device.get() == device.ordinal

    run(main())


def test_what_is_not_awaited_does_nothing(sim: SimDriver, sim_device: AnyDevice) -> None:
    async def main() -> None:
        stream = await Stream.new()
        host, there = await HostBuffer.from_slice([1]), await DeviceBuffer.from_slice([2], stream)
        before = len(sim.log)
        for call in (there.copy_from(host, stream), there.fill_with_byte(0, stream), stream.synchronize()):
            assert "new" in repr(call)
            del call
        HostBuffer.new(1 << 20)
        gc.collect()
        await Device.get()  # behind whatever they would have sent
        assert sim.log[before:] == []
        assert await read(there, stream) == [2]

    run(main())


def test_calls_are_made_on_one_thread_in_the_order_awaited() -> None:
    seen: list[tuple[int, int]] = []

    async def one(number: int) -> None:
        await Call("test", lambda: seen.append((number, threading.get_ident())))

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(200)))

    run(main())
    assert [number for number, _ in seen] == list(range(200))
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] != threading.get_ident()


def test_a_call_is_awaited_once_and_is_a_coroutine() -> None:
    async def main() -> None:
        call = Call("a call", lambda: 42)
        assert await asyncio.create_task(call) == 42
        with pytest.raises(RuntimeError, match="a call: this call was awaited before"):
            await call
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(Call("another", lambda n=n: n)) for n in range(3)]
        assert [task.result() for task in tasks] == [0, 1, 2]

    run(main())


def test_cancelling_withdraws_what_has_not_begun_and_waits_for_what_runs() -> None:
    began, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        began.set()
        go_on.wait(30)
        order.append("the running call returned")

    async def waiter() -> None:
        try:
            await Call("slow", slow)
        except asyncio.CancelledError:
            order.append("its task was cancelled")
            raise

    async def main() -> None:
        running = asyncio.create_task(waiter())
        queued = asyncio.create_task(Call("queued", lambda: order.append("never")))
        await asyncio.to_thread(began.wait)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        await Call("behind", lambda: None)

    run(main())
    assert order == ["the running call returned", "its task was cancelled"]


@pytest.mark.parametrize("finish", ["close", "cancelled twice"])
def test_closing_blocks_until_the_running_call_has_returned(finish: str) -> None:
    began, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        began.set()
        go_on.wait(30)
        order.append("returned")

    async def main() -> None:
        call = Call("slow", slow)
        call.send(None)
        await asyncio.to_thread(began.wait)
        asyncio.get_running_loop().run_in_executor(None, go_on.set)
        if finish == "close":
            call.close()
        else:
            call.throw(asyncio.CancelledError())
            with pytest.raises(asyncio.CancelledError):
                call.throw(asyncio.CancelledError())
        order.append("given up")

    run(main())
    assert order == ["returned", "given up"]


def test_dropped_buffers_live_until_the_device_is_done() -> None:
    driver = SimDriver(seed=3)
    device = AnyDevice.from_driver(driver)

    async def main() -> None:
        stream = await Stream.new()
        back = await HostBuffer.new(4, np.int32)
        host, there = await HostBuffer.from_slice(np.arange(4, dtype=np.int32)), None
        there = await DeviceBuffer.new(4, stream, np.int32)
        driver.automatic = False
        await host.copy_to_async(there, stream)
        await there.copy_to_async(back, stream)
        del host, there
        gc.collect()
        await Device.get()
        device.collect()
        with pytest.raises(NotReadyError, match=r"await stream\.synchronize"):
            back.to_vec()
        driver.automatic = True
        await stream.synchronize()
        assert back.to_vec().tolist() == [0, 1, 2, 3]

    with device:
        run(main())
        wait_all_idle(device)
    assert driver.memory_info().used == driver.pinned_bytes == 0


def test_cancelled_copies_finish_and_keep_what_they_use() -> None:
    driver = SimDriver(seed=8)
    device = AnyDevice.from_driver(driver)

    async def main() -> None:
        stream = await Stream.new()
        host = await HostBuffer.from_slice(np.full(1000, 7, np.int32))
        there = await DeviceBuffer.new(1000, stream, np.int32)
        driver.automatic = False
        task = asyncio.create_task(there.copy_from(host, stream))
        while driver.calls["copy"] == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OwnershipError, match="copy_from_slice"):
            host.copy_from_slice(np.zeros(1000))
        driver.automatic = True
        await stream.synchronize()
        assert set(await read(there, stream)) == {7}
        host.copy_from_slice(np.zeros(1000))

    with device:
        run(main())
        wait_all_idle(device)
    assert driver.memory_info().used == driver.pinned_bytes == 0


def test_conflicting_copies_at_once_are_refused_with_the_users_line() -> None:
    driver = SimDriver(seed=2)
    device = AnyDevice.from_driver(driver)

    async def main() -> None:
        stream, second = await Stream.new(), await Stream.new()
        host, there = await HostBuffer.new(8), await DeviceBuffer.new(8, stream)
        driver.automatic = False
        first = asyncio.create_task(there.copy_from(host, stream))
        while driver.calls["copy"] == 0:
            await asyncio.sleep(0)
        with pytest.raises(OwnershipError, match=r"'destination' would be written.*test_async_cuda_core\.py"):
            await there.copy_from(await HostBuffer.new(8), second)
        driver.automatic = True
        await first
        await there.copy_from(host, second)

    with device:
        run(main())


def test_errors_reach_who_waits(sim: SimDriver, sim_device: AnyDevice) -> None:
    assert issubclass(CudaError, Error)
    assert CudaError is DriverError

    async def main() -> None:
        stream = await Stream.new()
        host, there = await HostBuffer.from_slice([1, 2]), await DeviceBuffer.from_slice([3, 4], stream)
        sim.fail("copy")
        with pytest.raises(CudaError, match="injected fault"):
            await there.copy_from(host, stream)
        sim.fail("run:copy")
        with pytest.raises(CudaError, match="injected fault"):
            await host.copy_from(there, stream)
        sim.fail("run:copy")
        await host.copy_from_async(there, stream)
        with pytest.raises(CudaError, match="injected fault"):
            await stream.synchronize()
        await stream.synchronize()  # told once
        await host.copy_from(there, stream)
        assert host.to_vec().tolist() == [3, 4]
        with pytest.raises(OutOfMemoryError):
            await DeviceBuffer.new(1 << 40, stream)
        sim.fail("pin")
        with pytest.raises(OutOfMemoryError):
            await HostBuffer.new(4)

    run(main())


Refused = tuple[Callable[[], Any], type[Exception], str]


def test_a_handled_error_keeps_nothing() -> None:
    class Holder:
        """An object that a frame of the error refers to."""

    async def attempt() -> weakref.ref[Holder]:
        holder = Holder()

        def fail() -> None:
            raise ValueError(type(holder).__name__)

        with suppress(ValueError):
            await Call("fail", fail)
        return weakref.ref(holder)

    async def main() -> None:
        gc.collect()
        gc.disable()
        try:
            assert (await attempt())() is None
        finally:
            gc.enable()

    run(main())


def test_what_makes_no_sense_is_refused_when_the_call_is_made() -> None:
    async def main() -> None:
        stream = await Stream.new()
        host, there = await HostBuffer.new(2), await DeviceBuffer.new(3, stream)
        cases: list[Refused] = [
            (lambda: there.copy_from(host, stream), ValueError, "the destination has 3 elements, the source 2"),
            (lambda: host.copy_to_async(there, stream), ValueError, "the destination has 3 elements, the source 2"),
            (lambda: HostBuffer.new(0), ValueError, "at least one element"),
            (lambda: HostBuffer.from_slice([]), ValueError, "at least one element"),
            (lambda: DeviceBuffer.new(-1, stream), ValueError, "at least one element"),
            (lambda: DeviceBuffer2D.new(4, 0, 1, stream), ValueError, "4 x 0 x 1"),
            (lambda: DeviceBuffer2D.from_array(np.zeros((2, 2)), stream), ValueError, "height, width, channels"),
            (lambda: DeviceBuffer.new(2, stream, object), TypeError, "plain numbers"),
            (lambda: HostBuffer.new(8, ("f4", (4,))), TypeError, "plain numbers"),
            (lambda: HostBuffer.new(8, "V4"), TypeError, "plain numbers"),
            (lambda: HostBuffer.new(8, ">f4"), TypeError, "machine's order"),
            (lambda: DeviceBuffer.new(np.float32(2.5), stream), ValueError, "at least one element, got 2.5"),  # type: ignore[arg-type]
            (lambda: there.fill_with_byte(256, stream), ValueError, "0 to 255"),
            (lambda: there.fill_with_byte(1.5, stream), ValueError, "0 to 255, got 1.5"),  # type: ignore[arg-type]
            (lambda: Device.set("cpu"), TypeError, "expected a device, its number or None, got str"),  # type: ignore[arg-type]
            (lambda: Device.set(1.5), TypeError, "expected a device, its number or None, got float"),  # type: ignore[arg-type]
            (lambda: host.copy_from_slice([1, 2, 3]), ValueError, "has 2 elements, got 3"),
        ]
        for make, error, message in cases:
            with pytest.raises(error, match=message):
                make()
        other = await DeviceBuffer.new(2, stream, np.int32)
        with pytest.raises(TypeError, match="elements of int32, the source of float32"):
            other.copy_from(host, stream)

    with AnyDevice.host():
        run(main())


def test_on_trio() -> None:
    trio: Any = pytest.importorskip("trio")

    async def main() -> None:
        stream = await Stream.new()
        there = await DeviceBuffer.from_slice([5, 6], stream)
        assert await read(there, stream) == [5, 6]
        began, go_on = threading.Event(), threading.Event()
        order: list[str] = []

        def slow() -> None:
            began.set()
            go_on.wait(30)
            order.append("returned")

        async def waiter() -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await Call("slow", slow)
            order.append("cancelled")

        scopes: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter)
            await trio.to_thread.run_sync(began.wait)
            scopes[0].cancel()
            threading.Thread(target=go_on.set).start()
        assert order == ["returned", "cancelled"]

    with AnyDevice.host():
        trio.run(main)
