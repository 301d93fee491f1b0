"""Unsafe calls: nested execution, enqueueing without a wait, borrowed memory. Also the old names."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from cuda_async import Device, DriverError, ReentrancyError, Stream, compat, unsafe, value, with_context, zip
from cuda_async.op import DeviceOp
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, Read, words


def test_then_unchecked_may_run_operations_on_the_same_and_on_other_streams(device: Device) -> None:
    outer, other = device.new_stream(), device.new_stream()
    storage = words(1, 2, 3).sync_on(outer)
    seen: list[Any] = []

    def nested(result: Any) -> DeviceOp[Any]:
        seen.append(Read(result).sync_on(other).tolist())  # what is enqueued on `outer` is there
        Affine(result, 2, 0).sync_on(outer)
        return Affine(result, 1, 1)

    unsafe.then_unchecked(Affine(storage, 10, 0), nested).sync_on(outer)
    assert seen == [[10, 20, 30]]
    assert Read(storage).sync_on(other).tolist() == [21, 41, 61]


def test_what_runs_inside_is_checked_again(stream: Stream) -> None:
    def nested(_: int) -> DeviceOp[int]:
        return value(value(1).map(lambda x: value(x).sync_on(stream)).sync_on(stream))

    with pytest.raises(ReentrancyError, match="then_unchecked"):
        unsafe.then_unchecked(value(0), nested).sync_on(stream)
    with pytest.raises(ReentrancyError):
        value(0).then(lambda x: value(value(x).sync_on(stream))).sync_on(stream)


def test_async_on_does_not_wait() -> None:
    driver = SimDriver(seed=4)
    driver.automatic = False
    device = Device.from_driver(driver)
    stream = device.new_stream()
    storage = words(3).sync_on(stream)
    steps = driver.time
    same = unsafe.async_on(Affine(storage, 2, 1), stream)
    assert same is storage
    assert driver.time == steps  # nothing has run
    assert Read(storage).sync_on(device.new_stream()).tolist() == [7]
    wait_all_idle(device, stream)
    assert stream.query()


def test_async_on_raises_what_goes_wrong_at_submission(device: Device, stream: Stream) -> None:
    def fail(_: object) -> DeviceOp[Any]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        unsafe.async_on(value(1).then(fail), stream)


def test_async_on_inside_a_closure_uses_what_is_in_flight(device: Device, stream: Stream) -> None:
    other = device.new_stream()
    storage = words(1, 1).sync_on(stream)

    def spread(result: Any) -> DeviceOp[Any]:
        unsafe.async_on(Affine(result, 3, 0), other)
        return Affine(result, 1, 1)

    unsafe.then_unchecked(Affine(storage, 2, 0), spread).sync_on(stream)
    assert Read(storage).sync_on(stream).tolist() == [7, 7]


def test_a_failure_on_the_device_is_told_by_the_stream() -> None:
    driver = SimDriver(seed=1)
    stream = Device.from_driver(driver).new_stream()
    storage = words(1).sync_on(stream)
    driver.fail("run:launch")
    unsafe.async_on(Affine(storage, 2, 0), stream)
    with pytest.raises(DriverError, match="injected fault"):
        stream.synchronize()


def test_borrowed_memory_is_used_and_not_freed() -> None:
    stream = Device.host().new_stream()
    memory = (ctypes.c_uint32 * 3)(1, 2, 3)
    storage = unsafe.borrow_storage(stream, ctypes.addressof(memory), 12, keep=memory)
    Affine(storage, 5, 0).sync_on(stream)
    del storage
    wait_all_idle(stream.device, stream)
    assert list(memory) == [5, 10, 15]


def test_the_old_names_mean_what_they_meant(device: Device, stream: Stream) -> None:
    assert compat.DeviceOperation is DeviceOp
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        compat.nothing  # noqa: B018  # pyright: ignore
    storage = words(1, 2).sync_on(stream)
    op = compat.zip((compat.device_operation(storage), 3, value(1))).apply(Affine)
    chain = op.and_then(lambda x: Affine(x, 1, 1)).and_then_with_context(lambda context, x: value((context.stream, x)))
    used, same = chain.sync_on(stream)
    assert used is stream
    assert same is storage
    assert Read(storage).sync_on(stream).tolist() == [5, 8]
    assert compat.zip(1, value(2)).unzip()[1].arc().sync_on(stream) == 2
    assert value(4).apply(value).sync_on(stream) == 4
    assert compat.stream_operation(lambda context: value(context.stream)).sync_on(stream) is stream
    assert zip(1, with_context(lambda context: value(2))).apply(_add).sync_on(stream) == 3


def _add(a: int, b: int) -> DeviceOp[int]:
    return value(a + b)
