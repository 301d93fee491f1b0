"""Large copies go through page-locked memory in chunks; whatever fails on the way, nothing is left open or in use."""

from __future__ import annotations

import gc
import time
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from cuda_async import Device, DeviceError, Stream, staging, value, with_context
from cuda_async.core.context import ExecutionContext
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.faults import tried
from tests.cuda_async.work import Read, Words, words

COUNT = 160  # words: ten chunks


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of 640 bytes are large here."""
    monkeypatch.setattr(staging, "CHUNK_BYTES", 64)


def there_and_back(device: Device) -> Words:
    with device:
        stream = device.new_stream()
        storage = words(*range(COUNT)).sync_on(stream)
        return Read(storage).sync_on(stream)


def test_chunks_come_in_order(device: Device) -> None:
    stream = device.new_stream()
    storage = words(*range(COUNT)).sync_on(stream)
    np.testing.assert_array_equal(Read(storage).sync_on(stream), np.arange(COUNT))


@pytest.mark.parametrize("kind", ["copy", "call", "record", "wait_event", "create_event", "begin_run", "pin"])
def test_nothing_stays_open_when_a_call_fails(kind: str) -> None:
    driver = SimDriver(seed=2)
    there_and_back(Device.from_driver(driver))
    calls = driver.calls[kind]
    assert calls > 0
    tried.note("a chunk's call fails", calls)
    for number in range(1, calls + 1):
        driver = SimDriver(seed=2)
        device = Device.from_driver(driver)
        driver.fail(kind, at=number)
        with pytest.raises(DeviceError, match="injected fault"):
            there_and_back(device)
        assert driver.open_runs == 0, f"{kind} {number} left a run open"
        np.testing.assert_array_equal(there_and_back(device), np.arange(COUNT))  # with the same events and slots
        wait_all_idle(device)
        assert driver.memory_info().used == driver.pinned_bytes == 0
        assert driver.events == device.statistics().idle_events, f"{kind} {number} lost an event"


@pytest.mark.parametrize("number", range(1, 12))
def test_workers_are_waited_for_when_a_later_chunk_fails(number: int) -> None:
    """A worker's move touches the page-locked slots and the array: the run must not end before it."""
    driver = SimDriver(seed=number)
    device = Device.from_driver(driver)
    with device:
        stream = device.new_stream()
        storage = words(*range(COUNT)).sync_on(stream)
        driver.fail("record", at=number)
        moved = driver.calls["run:call"]
        calls = driver.calls["call"]
        with pytest.raises(DeviceError, match="injected fault"):
            Read(storage).sync_on(stream)
        assert driver.calls["run:call"] - moved == driver.calls["call"] - calls
    wait_all_idle(device)


def test_what_a_worker_failed_at_is_no_failure_of_later_copies() -> None:
    driver = SimDriver(seed=2)
    device = Device.from_driver(driver)
    driver.fail("run:call")
    with pytest.raises(DeviceError):
        there_and_back(device)
    for _ in range(2):
        np.testing.assert_array_equal(there_and_back(device), np.arange(COUNT))


def test_a_copy_waits_for_its_own_chunks_alone() -> None:
    """A copy of two chunks records two of three events: the third may stand for the failure of another copy."""
    driver = SimDriver(seed=2)
    device = Device.from_driver(driver)
    stream = device.new_stream()
    storage = words(*range(32)).sync_on(stream)  # 128 bytes: two chunks
    events = [device.borrow_event() for _ in range(12)]  # as many as two copies at once leave in the pool
    for event in events:
        device.return_event(event)
    for call in range(1, 11):
        driver.fail("run:call", at=call)
        with pytest.raises(DeviceError):
            there_and_back(device)
        np.testing.assert_array_equal(Read(storage).sync_on(stream), np.arange(32))


def test_ctrl_c_leaves_workers_the_memory_that_they_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that was interrupted let go of the array, to which workers went on to write."""
    device = Device.from_driver(SimDriver(seed=3))
    arrays: list[weakref.ref[Any]] = []

    def interrupt(stream: Stream) -> None:
        raise KeyboardInterrupt

    with device:
        stream = device.new_stream()
        storage = words(*range(COUNT)).sync_on(stream)

        def read(context: ExecutionContext) -> Any:
            array = np.empty(4 * COUNT, np.uint8)
            arrays.append(weakref.ref(array))
            with monkeypatch.context() as patch:
                patch.setattr(Stream, "synchronize", interrupt)
                staging.fetch(context, storage, array.ctypes.data, array.nbytes, keep=array)
            return value(array)

        with suppress(KeyboardInterrupt):  # pytest's `raises` would keep the traceback, and with it the array
            with_context(read).sync_on(stream)
        gc.collect()
        assert arrays[0]() is not None, "the device is not done"
        stream.synchronize()
        limit = time.monotonic() + 60
        while arrays[0]() is not None and time.monotonic() < limit:  # another thread ends the run
            time.sleep(0.001)
        assert arrays[0]() is None
