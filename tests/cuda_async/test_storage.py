"""Ordering belongs to storage: waits where they are needed, none where they are not; frees wait for all."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from cuda_async import ContextError, Device, OutOfMemoryError, Storage, Stream, value
from cuda_async.core import storage as storages
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, Read, launch_affine, words, words_at


def waits(sim: SimDriver) -> list[str]:
    return [line for line in sim.log if line.startswith("wait")]


def enqueue(storage: Storage, stream: object, *, write: bool) -> None:
    from cuda_async import Stream

    assert isinstance(stream, Stream)
    storage.use(stream, write=write)
    if write:
        launch_affine(stream, storage.address, storage.nbytes // 4, 3, 1)
    else:
        stream.call(lambda: None)


def test_one_stream_needs_no_events(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    storage = words(1, count=64).sync_on(stream)
    sim.log.clear()
    for _ in range(10):
        enqueue(storage, stream, write=True)
        enqueue(storage, stream, write=False)
    assert not [line for line in sim.log if line.startswith(("wait", "record"))]


def test_a_use_on_another_stream_waits_once(sim_device: Device, sim: SimDriver) -> None:
    a, b = sim_device.new_stream(), sim_device.new_stream()
    storage = words(1, count=64).sync_on(a)
    sim.log.clear()
    enqueue(storage, a, write=True)
    enqueue(storage, b, write=False)
    enqueue(storage, b, write=False)
    assert sum(line.startswith("record") for line in sim.log) == 1
    assert len(waits(sim)) == 1
    enqueue(storage, a, write=True)  # waits for the readers on b
    assert len(waits(sim)) == 2


def test_readers_do_not_wait_for_each_other(sim_device: Device, sim: SimDriver) -> None:
    streams = [sim_device.new_stream() for _ in range(3)]
    storage = words(1, count=64).sync_on(streams[0])
    sim.log.clear()
    for stream in streams:
        enqueue(storage, stream, write=False)
    assert waits(sim) == []  # and the writer is known to have completed


def test_a_writer_waits_for_every_reader(sim_device: Device, sim: SimDriver) -> None:
    streams = [sim_device.new_stream() for _ in range(4)]
    storage = words(1, count=64).sync_on(streams[0])
    for stream in streams:
        enqueue(storage, stream, write=False)
    sim.log.clear()
    enqueue(storage, streams[0], write=True)
    assert len(waits(sim)) == 3


def test_streams_that_read_are_not_kept(device: Device) -> None:
    storage = words(1, count=64).sync()
    streams: list[weakref.ref[Stream]] = []
    for _ in range(100):
        stream = device.new_stream()
        streams.append(weakref.ref(stream))
        Read(storage).sync_on(stream)
        del stream
    gc.collect()
    assert sum(stream() is not None for stream in streams) < 30


def test_streams_that_were_waited_for_are_not_kept(sim_device: Device, sim: SimDriver) -> None:
    reader = sim_device.new_stream()
    streams: list[weakref.ref[Stream]] = []
    for _ in range(5):
        stream = sim_device.new_stream()
        streams.append(weakref.ref(stream))
        storage = Storage.allocate(stream, 64)
        enqueue(storage, reader, write=False)
        del stream, storage
    wait_all_idle(sim_device)
    assert len(waits(sim)) >= 5
    assert not [stream() for stream in streams if stream() is not None]


@pytest.mark.parametrize("seed", range(20))
def test_a_free_waits_for_all_of_many_readers(seed: int) -> None:
    """Those that are in flight are not forgotten with those that are done."""
    sim = SimDriver(seed)
    device = Device.from_driver(sim)
    streams = [device.new_stream() for _ in range(40)]
    storage = words(7, count=64).sync_on(streams[0])
    copies = [device.driver.pin(256) for _ in streams]
    for number, (stream, copy) in enumerate(zip(streams, copies, strict=True)):
        storage.use(stream, write=False)
        stream.copy(copy, storage.address, 256)
        if number % 3 == 0:
            stream.synchronize()
    del storage
    gc.collect()
    value(1).sync_on(streams[0])  # gives back what the finalizer left
    sim.run_until_idle()
    for copy in copies:
        assert set(words_at(copy, 64).tolist()) == {7}
        device.driver.unpin(copy, 256)


@pytest.mark.parametrize("seed", range(20))
def test_the_result_does_not_depend_on_the_order_of_streams(seed: int) -> None:
    sim = SimDriver(seed)
    device = Device.from_driver(sim)
    streams = [device.new_stream() for _ in range(4)]
    storage = words(1, count=64).sync_on(streams[0])
    expected = 1
    for step in range(40):
        enqueue(storage, streams[(step * step + seed) % 4], write=True)
        expected = (3 * expected + 1) % 2**32
    assert set(Read(storage).sync_on(streams[1]).tolist()) == {expected}


@pytest.mark.parametrize("seed", range(20))
def test_a_free_waits_for_users_on_other_streams(seed: int) -> None:
    """The simulator overwrites freed memory: a read that comes later than the free would show it."""
    sim = SimDriver(seed)
    device = Device.from_driver(sim)
    a, b = device.new_stream(), device.new_stream()
    storage = words(7, count=64).sync_on(a)
    copy = device.driver.pin(256)
    storage.use(b, write=False)
    b.copy(copy, storage.address, 256)
    del storage
    gc.collect()
    value(1).sync_on(a)  # gives back what the finalizer left
    sim.run_until_idle()
    assert set(words_at(copy, 64).tolist()) == {7}
    device.driver.unpin(copy, 256)
    assert sim.memory_info().used == sim.pinned_bytes == 0


def test_finalizers_only_append(sim_device: Device, sim: SimDriver) -> None:
    storage = words(1, count=64).sync()
    sim.run_until_idle()
    sim.log.clear()
    del storage
    gc.collect()
    assert sim.log == []  # no driver call
    assert sim.memory_info().used > 0
    sim_device.collect()
    sim.run_until_idle()
    assert sim.memory_info().used == sim.pinned_bytes == 0


def test_a_cycle_with_storage_is_collected(device: Device) -> None:
    wait_all_idle(device)
    before = device.memory_info().used
    storage = words(1, count=1 << 18).sync()
    assert device.memory_info().used > before
    cycle: list[object] = [storage]
    cycle.append(cycle)
    del storage, cycle
    wait_all_idle(device)
    device.synchronize()
    assert device.memory_info().used <= before


def test_memory_of_another_device(sim_device: Device) -> None:
    other = Device.from_driver(SimDriver(seed=2, ordinal=1))
    storage = words(1).sync()
    with pytest.raises(ContextError, match=r"memory of sim:0 was passed to work on sim:1"):
        Affine(storage, 1, 0).sync_on(other.new_stream())
    Affine(storage, 1, 0).sync()


def test_outputs_of_failed_work_raise_its_error(sim_device: Device, sim: SimDriver) -> None:
    storage = words(1, count=64).sync()
    error = RuntimeError("the kernel failed")
    sim.fail("run:launch", error=error)
    with pytest.raises(RuntimeError, match="the kernel failed"):
        Affine(storage, 2, 0).sync()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the kernel failed") as caught:
            Read(storage).sync()
        remedies = [note for note in caught.value.__notes__ if "make the tensor anew" in note]
        assert len(remedies) == 1


def test_borrowed_memory_is_never_freed(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    address = sim.pin(256)
    storage = Storage.borrow(stream, address, 256)
    Affine(storage, 0, 9).sync_on(stream)
    del storage
    wait_all_idle(sim_device)
    assert not [line for line in sim.log if line.startswith("free")]
    sim.unpin(address, 256)
    for nbytes in (-1, float("nan")):
        with pytest.raises(ValueError, match="nbytes: expected a number of bytes"):
            Storage.borrow(stream, address, nbytes)  # type: ignore[arg-type]


def test_out_of_memory_behind_a_collective_that_waits_for_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frees of such a stream are not waited for without end: its other ranks may come after this call."""
    monkeypatch.setattr(storages, "_MEETING_LIMIT_S", 0.1)
    policy, stream = Device.host().new_stream(), Device.host().new_stream()
    monkeypatch.setattr(storages, "WAIT_SLICE_S", 0.01)

    def policy_streams(device: Device) -> tuple[Stream]:
        return (policy,)

    monkeypatch.setattr("cuda_async.core.policy.policy_streams", policy_streams)
    met = threading.Event()
    finishes: list[Callable[[], None]] = []

    def meet(finish: Callable[[BaseException | None, float | None], None], failure: Any, time: Any) -> None:
        finishes.append(lambda: finish(None, time))
        met.set()

    late: list[bool] = []

    def come_late() -> None:
        late.append(True)
        finishes[0]()

    policy.meet(lambda: meet)
    assert met.wait(10)
    rescue = threading.Timer(10, come_late)  # else a failure of this test would wait for ever
    rescue.start()
    with pytest.raises(OutOfMemoryError):
        Storage.allocate(stream, 1 << 50)
    rescue.cancel()
    assert not late
    finishes[0]()
    policy.synchronize()
