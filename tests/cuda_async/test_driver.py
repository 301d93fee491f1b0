"""What every driver promises (`driver/interface.py`), on each of the three."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from cuda_async import Device, DeviceLostError, DriverError, LaunchError, OutOfMemoryError, Stream
from cuda_async.errors import ArgumentError
from cuda_async.testing import SimDriver
from tests.cuda_async.work import launch_affine, words_at


class Pinned:
    """Host memory that the device can copy to and from."""

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self.nbytes = 4 * count
        self.address = device.driver.pin(self.nbytes)
        self.words = words_at(self.address, count)

    def release(self) -> None:
        self._device.driver.unpin(self.address, self.nbytes)


@pytest.fixture
def pinned(device: Device):
    buffers: list[Pinned] = []

    def make(count: int) -> Pinned:
        buffers.append(Pinned(device, count))
        return buffers[-1]

    yield make
    for memory in buffers:
        memory.release()


MakePinned = Callable[[int], Pinned]


def test_properties_say_what_the_device_is(device: Device) -> None:
    assert device.name
    assert device.multiprocessor_count >= 1
    assert device.properties.total_memory_bytes > 0
    assert device.arch == "cpu" or device.arch.startswith("sm_")
    assert (device.shared_memory_bytes > 48 << 10) is (device.kind == "cuda")


@pytest.mark.parametrize("nbytes", [1, 63, 64, 4096, 300_000, 5 << 20])
def test_memory_is_aligned_and_disjoint(stream: Stream, nbytes: int) -> None:
    addresses = sorted(stream.driver.allocate(nbytes) for _ in range(4))
    assert all(address % 64 == 0 for address in addresses)
    assert all(b - a >= nbytes for a, b in itertools.pairwise(addresses))
    for address in addresses:
        stream.driver.free(address)
    stream.synchronize()


def test_freed_memory_is_used_again(device: Device, stream: Stream) -> None:
    nbytes = 64 << 20
    stream.driver.free(stream.driver.allocate(nbytes))
    stream.synchronize()
    reserved = device.memory_info().reserved
    for _ in range(10):
        stream.driver.free(stream.driver.allocate(nbytes))
        stream.synchronize()
    assert device.memory_info().reserved == reserved


def test_more_memory_than_there_is(stream: Stream) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        stream.driver.allocate(1 << 50)
    assert isinstance(caught.value, MemoryError)


def test_copies_there_and_back(device: Device, stream: Stream, pinned: MakePinned) -> None:
    count = 1 << 20  # large enough to be split where copies are
    source, target = pinned(count), pinned(count)
    source.words[:] = np.arange(count, dtype=np.uint32)
    a, b = stream.driver.allocate(4 * count), stream.driver.allocate(4 * count)
    stream.copy(a, source.address, 4 * count)
    stream.copy(b, a, 4 * count)
    stream.copy(target.address, b, 4 * count)
    stream.synchronize()
    assert np.array_equal(source.words, target.words)
    stream.driver.free(a)
    stream.driver.free(b)


@pytest.mark.parametrize("pattern", [b"\x07", b"\x01\x02", b"\x01\x02\x03\x04"])
@pytest.mark.parametrize("patterns", [1, 1000, 700_001])
def test_fills_repeat_the_pattern(stream: Stream, pinned: MakePinned, pattern: bytes, patterns: int) -> None:
    nbytes = patterns * len(pattern)
    target = pinned(-(-nbytes // 4))
    address = stream.driver.allocate(nbytes)
    stream.fill(address, nbytes, pattern)
    stream.copy(target.address, address, nbytes)
    stream.synchronize()
    assert ctypes.string_at(target.address, nbytes) == pattern * patterns
    stream.driver.free(address)


def test_a_fill_that_is_no_whole_number_of_patterns(stream: Stream) -> None:
    address = stream.driver.allocate(64)
    with pytest.raises(ValueError, match="divides the size"):
        stream.fill(address, 63, b"\x01\x02")
    stream.driver.free(address)


def test_a_stream_keeps_its_order(device: Device, stream: Stream, pinned: MakePinned) -> None:
    count = 1000
    target = pinned(count)
    address = stream.driver.allocate(4 * count)
    stream.fill(address, 4 * count, b"\x01\0\0\0")
    expected = 1
    for step in range(20):
        launch_affine(stream, address, count, 3, step)
        expected = (3 * expected + step) % 2**32
    stream.copy(target.address, address, 4 * count)
    stream.synchronize()
    assert set(target.words.tolist()) == {expected}
    stream.driver.free(address)


def test_an_event_that_was_never_recorded_is_complete(device: Device) -> None:
    event = device.new_event()
    assert event.query()
    event.synchronize()


def test_an_event_covers_what_was_enqueued_before_it(device: Device, stream: Stream) -> None:
    done: list[int] = []
    event = device.new_event()
    stream.call(lambda: done.append(1))
    event.record(stream)
    event.synchronize()
    assert event.query()
    assert done == [1]


def test_waiting_on_another_stream_orders_the_work(device: Device, pinned: MakePinned) -> None:
    streams = [device.new_stream() for _ in range(3)]
    count = 4096
    target = pinned(count)
    address = streams[0].driver.allocate(4 * count)
    streams[0].fill(address, 4 * count, b"\0")
    expected = 0
    for step in range(60):
        before, here = streams[step % 3], streams[(step + 1) % 3]
        event = device.driver.create_event()
        before.driver.record(event)
        here.driver.wait_event(event)
        event.close()  # the wait stays valid
        launch_affine(here, address, count, 5, step, grain=512)
        expected = (5 * expected + step) % 2**32
    last = streams[60 % 3]
    last.copy(target.address, address, 4 * count)
    last.synchronize()
    assert set(target.words.tolist()) == {expected}
    last.driver.free(address)


def test_recording_again_does_not_move_a_wait(device: Device, stream: Stream) -> None:
    """A stream waits for the record that was the latest when it was told to."""
    other = device.new_stream()
    gate = threading.Event()
    if device.kind == "sim":
        gate.set()
    event = device.driver.create_event()
    stream.driver.record(event)
    other.driver.wait_event(event)
    stream.call(lambda: assert_true(gate.wait(30)))
    stream.driver.record(event)
    done: list[int] = []
    other.call(lambda: done.append(1))
    other.synchronize()  # although the second record has not happened
    assert done == [1]
    gate.set()
    stream.synchronize()
    event.close()


def assert_true(condition: bool) -> None:
    assert condition


def test_events_measure_time(device: Device, stream: Stream) -> None:
    start, end = device.new_event(timing=True), device.new_event(timing=True)
    address = stream.driver.allocate(1 << 22)
    start.record(stream)
    stream.fill(address, 1 << 22, b"\x01")
    end.record(stream)
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 10_000
    stream.driver.free(address)


def test_host_functions_run_in_order_and_their_errors_arrive(device: Device, stream: Stream) -> None:
    seen: list[int] = []
    for number in range(100):
        stream.call(lambda number=number: seen.append(number))
    stream.synchronize()
    assert seen == list(range(100))

    def fail() -> None:
        raise ZeroDivisionError("in a host function")

    stream.driver.begin_run()
    stream.call(fail)
    stream.call(lambda: seen.append(-1))
    stream.driver.end_run()
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()
    assert seen[-1] != -1  # what stands behind an error is not run
    stream.driver.begin_run()
    stream.call(lambda: seen.append(-2))
    stream.driver.end_run()
    stream.synchronize()
    assert seen[-1] == -2  # another run is not touched by it


def test_the_other_kind_of_launch_is_refused(device: Device, stream: Stream) -> None:
    if device.kind == "cuda":
        with pytest.raises(LaunchError, match=r"Device\.host"):
            stream.parallel_for(lambda start, stop: None, 1, 1)
    else:
        with pytest.raises(LaunchError, match="parallel_for"):
            stream.launch_function(object(), (1, 1, 1), (1, 1, 1), 0, 0)
        with pytest.raises(LaunchError):
            stream.load_function(b"", "f", 0)
        with pytest.raises(LaunchError, match="at least 1"):
            stream.parallel_for(lambda start, stop: None, 0, 1)


def test_parallel_for_covers_each_index_once() -> None:
    stream = Device.host().new_stream()
    for count, grain in [(1, 1), (1000, 1), (1000, 7), (1000, 1000), (1000, 5000)]:
        hits = np.zeros(count, np.int64)

        def body(start: int, stop: int, hits: np.ndarray = hits, grain: int = grain) -> None:
            assert stop - start <= grain
            hits[start:stop] += 1

        stream.parallel_for(body, count, grain)
        stream.synchronize()
        assert hits.min() == hits.max() == 1


@pytest.mark.gpu
def test_a_bad_image_is_refused() -> None:
    with pytest.raises(DriverError, match="CUDA_ERROR"):
        Device(0).driver.load_function(b"no cubin\0", "f", 0)


def test_streams_make_progress_at_once() -> None:
    """Two streams whose functions wait for each other: both must be running."""
    device = Device.host()
    meeting = threading.Barrier(2, timeout=500)
    streams = [device.new_stream() for _ in range(2)]
    for stream in streams:
        stream.call(lambda: assert_true(meeting.wait() >= 0))
    for stream in streams:
        stream.synchronize()


def test_many_more_waiting_streams_than_workers() -> None:
    """A stream that waits occupies no worker, so a long chain of waits cannot starve its beginning."""
    device = Device.host()
    streams = [device.new_stream() for _ in range(200)]
    gate = threading.Event()
    order: list[int] = []
    event = device.driver.create_event()
    first = device.new_stream()
    first.call(lambda: assert_true(gate.wait(30)))
    first.driver.record(event)
    for number, stream in enumerate(streams):
        stream.driver.wait_event(event)
        stream.call(lambda number=number: order.append(number))
        event = device.driver.create_event()
        stream.driver.record(event)
    assert not order
    gate.set()
    streams[-1].synchronize()
    assert order == list(range(200))


def test_the_simulator_takes_no_step_amid_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event has its ticket before the queue is told of it: who waits in between would wait for nothing."""
    driver = SimDriver(1)
    stream, event = driver.create_stream(), driver.create_event()
    put, free = driver.executor.put, list[bool]()

    def try_step() -> None:
        free.append(driver.executor.lock.acquire(blocking=False))
        if free[-1]:
            driver.executor.lock.release()

    def look(task: Callable[[], None]) -> None:
        looker = threading.Thread(target=try_step)
        looker.start()
        looker.join(30)
        put(task)

    monkeypatch.setattr(driver.executor, "put", look)
    stream.record(event)
    assert free == [False]


def test_page_locked_memory_is_given_back_while_another_thread_takes_steps() -> None:
    driver = SimDriver()
    stream = driver.create_stream()
    addresses = [driver.pin(8) for _ in range(20_000)]  # so many that copies come between
    source, target = driver.pin(8), driver.pin(8)  # the last ones, which a copy finds behind all the others

    def give_back() -> None:
        for address in addresses:
            driver.unpin(address, 8)

    copies, event, before = 0, driver.create_event(), sys.getswitchinterval()
    thread = threading.Thread(target=give_back)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        while thread.is_alive():
            stream.copy(target, source, 8)
            driver.run_until_idle()
            copies += 1
    finally:
        sys.setswitchinterval(before)
        thread.join(100)
    stream.record(event)
    assert event.wait(100)
    assert event.failure() is None
    assert copies, "the threads never met: the test shows nothing"


def test_a_full_simulated_device_has_no_bytes_left_and_not_fewer() -> None:
    driver = SimDriver(memory_bytes=100)
    address = driver.allocate(100)  # its block has 128
    assert driver.memory_info().free == 0
    driver.free(address)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([("allocate", 1), ("allocate", 2)], "ff.."),
        ([("allocate", 2), ("allocate", 1)], "ff.."),
        ([("allocate", 1), ("allocate", 1)], "f..."),
        ([("allocate", 1), ("*", 3)], "f.f."),
        ([("*", 2), ("allocate", 2), ("allocate", 3)], ".ff."),
        ([("*", 1), ("run:copy", 2), ("copy", 1)], "f..."),
    ],
)
def test_each_fault_counts_all_calls_of_its_name(faults: list[tuple[str, int]], expected: str) -> None:
    driver = SimDriver()
    for name, at in faults:
        driver.fail(name, at=at)
    outcomes = ""
    for _ in expected:
        try:
            driver.enter("allocate")
            outcomes += "."
        except DriverError:
            outcomes += "f"
    assert outcomes == expected


def test_a_lost_device_is_lost_by_the_second_fault_that_is_due_as_well() -> None:
    driver = SimDriver()
    driver.fail("launch")
    driver.fail("*", error=DeviceLostError(719, "SIM_LOST", "lost"))
    with pytest.raises(DriverError, match="injected fault in launch"):
        driver.enter("launch")
    assert driver.lost is not None
    with pytest.raises(DeviceLostError):
        driver.enter("launch")


def test_page_locked_memory_takes_none_of_a_simulated_device() -> None:
    driver = SimDriver(memory_bytes=1 << 20)
    pinned = driver.pin(1 << 20)
    address = driver.allocate(1 << 20)
    assert (driver.memory_info().used, driver.pinned_bytes) == (1 << 20, 1 << 20)
    driver.unpin(pinned, 1 << 20)
    driver.free(address)
    assert (driver.memory_info().used, driver.pinned_bytes) == (0, 0)


def test_a_device_beside_another_has_its_seed_and_workers() -> None:
    first = SimDriver(7, width=5)
    second = SimDriver(ordinal=1, beside=first)
    assert (second.properties.name, second.properties.multiprocessor_count) == ("simulated device (seed 7)", 5)
    with pytest.raises(ArgumentError, match="seed: a device beside another one has that device's, got 2"):
        SimDriver(2, beside=first)
    with pytest.raises(ArgumentError, match="width: a device beside another one has that device's, got 3"):
        SimDriver(width=3, beside=first)
