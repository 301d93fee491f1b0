"""Copies between devices: two GPUs (simulated, and real ones where there are two), the host and a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from cuda_async import ContextError, Device, OwnershipError
from cuda_async.testing import SimDriver, wait_all_idle
from cutile import api, f32, i32
from cutile.errors import ArgumentError
from tests.support.kinds import SIMULATED, of_kind, two_of_kind


@pytest.fixture(params=SIMULATED)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Device, Device]]:
    yield from two_of_kind(request.param)


@pytest.fixture(params=SIMULATED)
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = of_kind(request.param, seed=5)
    yield device
    wait_all_idle(device)


@pytest.mark.parametrize("run_on", [0, 1], ids=["source", "destination"])
def test_to_another_gpu(pair: tuple[Device, Device], run_on: int) -> None:
    a, b = pair
    x = api.arange(5000, f32).reshape((50, 100)).sync_on(a.new_stream())
    y = x.to_device(b).sync_on(pair[run_on].new_stream())
    assert (y.device, y.shape, y.dtype) == (b, (50, 100), f32)
    api.fill(y[0].mut, 7).sync_on(b.new_stream())
    np.testing.assert_array_equal(y[1:].to_numpy().sync_on(b.new_stream()).ravel(), np.arange(100, 5000))
    np.testing.assert_array_equal(x.to_numpy().sync_on(a.new_stream()).ravel(), np.arange(5000))


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_tensors_without_elements_go_across_too(pair: tuple[Device, Device], shape: tuple[int, ...]) -> None:
    a = pair[0]
    x = api.zeros(shape).sync_on(a.new_stream())
    for device in pair:
        y = x.to_device(device).sync_on(a.new_stream())
        assert (y.device, y.shape, y.to_numpy().sync_on(device.new_stream()).shape) == (device, shape, shape)


def test_a_chain_goes_on_with_the_copy(pair: tuple[Device, Device]) -> None:
    a, b = pair
    op = api.arange(8).to_device(b).to_device(a).to_numpy()
    np.testing.assert_array_equal(op.sync_on(a.new_stream()), np.arange(8))


def test_dup_copies_to_the_device_that_it_runs_on(pair: tuple[Device, Device]) -> None:
    a, b = pair
    x = api.arange(8).sync_on(a.new_stream())
    y = x.dup().sync_on(b.new_stream())
    assert y.device is b
    np.testing.assert_array_equal(y.to_numpy().sync_on(b.new_stream()), np.arange(8))


@pytest.mark.parametrize("run_on", [0, 1], ids=["source", "destination"])
def test_memcpy_to_another_gpu(pair: tuple[Device, Device], run_on: int) -> None:
    a, b = pair
    x, y = api.arange(8).sync_on(a.new_stream()), api.zeros((4, 8)).sync_on(b.new_stream())
    api.memcpy(y[1].mut, x).sync_on(pair[run_on].new_stream())
    wanted = np.zeros((4, 8))
    wanted[1] = np.arange(8)
    np.testing.assert_array_equal(y.to_numpy().sync_on(b.new_stream()), wanted)


def test_copies_and_writes_are_ordered_on_both(pair: tuple[Device, Device]) -> None:
    a, b = pair
    x, y = api.zeros((64,)).sync_on(a.new_stream()), api.zeros((64,)).sync_on(b.new_stream())
    for step in range(10):
        api.fill(x, step).sync_on(a.new_stream())
        api.memcpy(y, x).sync_on((a, b)[step % 2].new_stream())
        assert (y.to_numpy().sync_on(b.new_stream()) == step).all()


def test_a_third_device_cannot_run_the_copy(pair: tuple[Device, Device]) -> None:
    a, b = pair
    x = api.zeros((3,)).sync_on(a.new_stream())
    with pytest.raises(ContextError, match="run it on a stream of one of the two"):
        x.to_device(b).sync_on(Device.from_driver(SimDriver(ordinal=7)).new_stream())


@pytest.mark.parametrize("count", [3, 3 << 20], ids=["staged", "in chunks"])
def test_between_the_host_and_a_gpu(gpu: Device, count: int) -> None:
    host = Device.host()
    x = api.arange(count, i32).sync_on(host.new_stream())
    there = x.to_device(gpu).sync_on(gpu.new_stream())
    assert there.device is gpu
    back = there.to_device(host).sync_on(gpu.new_stream())
    assert back.device is host
    np.testing.assert_array_equal(back.to_numpy().sync_on(host.new_stream()), np.arange(count))
    api.fill(x, 5).sync_on(host.new_stream())
    api.memcpy(there, x).sync_on(gpu.new_stream())
    api.memcpy(back, there).sync_on(gpu.new_stream())
    assert (back.to_numpy().sync_on(host.new_stream()) == 5).all()


def test_what_the_host_still_computes_is_waited_for(gpu: Device) -> None:
    host = Device.host()
    stream = host.new_stream()
    x = api.zeros((8,)).sync_on(stream)
    x.storage.use(stream, write=True)
    address = x.device_pointer()
    stream.call(lambda: _fill_slowly(address))
    there = x.to_device(gpu).sync_on(gpu.new_stream())
    assert (there.to_numpy().sync_on(gpu.new_stream()) == 3).all()


def _fill_slowly(address: int) -> None:
    import ctypes

    values = np.full(8, 3, np.float32)
    sum(range(300_000))  # long enough for a copy that does not wait to be seen
    ctypes.memmove(address, values.ctypes.data, values.nbytes)


def test_awaited_copies(gpu: Device) -> None:
    host = Device.host()

    async def there_and_back() -> api.Array:
        with gpu:
            x = await api.arange(100).sync_on(host.new_stream()).to_device(gpu)
            y = await x.to_device(host)
        with host:
            return await y.to_numpy()

    np.testing.assert_array_equal(asyncio.run(there_and_back()), np.arange(100))


def test_a_copy_from_the_host_runs_on_the_gpu(gpu: Device) -> None:
    host = Device.host()
    x = api.zeros((3,)).sync_on(host.new_stream())
    with pytest.raises(ContextError, match="run it on a stream of the GPU"):
        x.to_device(gpu).sync_on(host.new_stream())


def test_only_runs_of_bytes_go_across(pair: tuple[Device, Device]) -> None:
    a, b = pair
    x, y = api.zeros((4, 4)).sync_on(a.new_stream()), api.zeros((4, 4)).sync_on(b.new_stream())
    for make in (lambda: x.T.to_device(b), lambda: api.memcpy(y, x.T), lambda: api.memcpy(y.T.mut, x)):
        with pytest.raises(ArgumentError, match=r"strides \(1, 4\) do not follow one another"):
            make()
    with pytest.raises((ArgumentError, ContextError)):  # on a GPU a kernel gathers, and it runs where its data is
        x[:, ::2].dup().sync_on(b.new_stream())


def test_what_is_copied_is_lent(pair: tuple[Device, Device]) -> None:
    a, b = pair
    x = api.zeros((4,)).sync_on(a.new_stream())
    op = x.to_device(b)
    with pytest.raises(OwnershipError, match="'tensor'"):
        api.fill(x, 1)
    op.discard()
    api.fill(x, 1).sync_on(a.new_stream())


def test_a_failed_copy_spoils_only_its_result(pair: tuple[Device, Device]) -> None:
    a, b = pair
    if not isinstance(a.driver, SimDriver):
        pytest.skip("faults are injected in simulated devices")
    x, y = api.zeros((4,)).sync_on(a.new_stream()), api.zeros((4,)).sync_on(b.new_stream())
    a.driver.fail("run:copy")
    with pytest.raises(RuntimeError, match="injected fault"):
        api.memcpy(y, x).sync_on(a.new_stream())
    with pytest.raises(RuntimeError, match="injected fault"):
        y.to_numpy().sync_on(b.new_stream())
    np.testing.assert_array_equal(x.to_numpy().sync_on(a.new_stream()), np.zeros(4))
