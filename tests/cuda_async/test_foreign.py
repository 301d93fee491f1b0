"""Memory of other libraries: ordered with their streams before and after, held as long as our work needs it."""

from __future__ import annotations

import ctypes
import gc
import itertools
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from cuda_async import ContextError, Device, DeviceOp, DriverError, ExecutionContext, OwnershipError, Storage, Use
from cuda_async.foreign import ForeignStorage, consumer_stream, end_export, import_stream, wait_for_writer
from cuda_async.testing import SimDriver, wait_all_idle
from cuda_async.unsafe import async_on
from tests.cuda_async.work import Read, Words, launch_affine, words, words_at

COUNT = 16


class Library:
    """Another library with a current stream and memory of its own, on a simulated device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.new_stream()
        self.address = self.stream.driver.allocate(4 * COUNT)
        words_at(self.address, COUNT)[:] = 1

    def run(self, function: Callable[[Words], object]) -> None:
        """Enqueue a function on the library's memory on its stream."""

        def work() -> None:
            function(words_at(self.address, COUNT))

        self.stream.driver.call(work)

    def read(self, sim: SimDriver) -> Words:
        """The words that work on the library's stream reads."""
        seen: list[Words] = []
        self.run(lambda x: seen.append(x.copy()))
        sim.run_until_idle()
        return seen[0]

    def lend(self, owner: object = None, *, read_only: bool = False) -> ForeignStorage:
        return ForeignStorage(
            self.device, owner or self, lambda: self.stream.driver.raw, read_only=read_only
        )  # asked at each use


class Affine(DeviceOp[None]):
    """x = factor * x + addend, on memory of a library."""

    has_effects = True

    def __init__(self, storage: Storage, address: int, factor: int, addend: int) -> None:
        super().__init__()
        self._storage, self._address, self._numbers = storage, address, (factor, addend)
        self.lend(Use("x", storage, True, address, address + 4 * COUNT))

    def execute(self, context: ExecutionContext) -> None:
        self._storage.use(context.stream, write=True)
        launch_affine(context.stream, self._address, COUNT, *self._numbers)


@pytest.mark.parametrize("seed", range(30))
def test_both_sides_work_in_the_order_of_their_code(seed: int) -> None:
    sim = SimDriver(seed)
    device = Device.from_driver(sim)
    library = Library(device)
    storage = library.lend()
    streams = [device.new_stream() for _ in range(2)]
    expected = 1
    for step in range(6):

        def add(x: Words, step: int = step) -> None:
            x += np.uint32(step)

        library.run(add)
        if step == 3:
            before = library.stream
            library.stream = device.new_stream()  # the library changes its stream, and orders the two
            event = device.borrow_event()
            before.driver.record(event)
            library.stream.driver.wait_event(event)
        Affine(storage, library.address, 3, 1).sync_on(streams[step % 2])
        expected = 3 * (expected + step) + 1
        assert library.read(sim).tolist() == [expected] * COUNT


def test_without_waiting_on_the_host_the_library_still_sees_the_result(sim_device: Device, sim: SimDriver) -> None:
    library = Library(sim_device)
    stream = sim_device.new_stream()
    sim.automatic = False
    storage = library.lend()
    storage.use(stream, write=True)
    launch_affine(stream, library.address, COUNT, 5, 0)
    stream.lead_lenders()
    assert library.read(sim).tolist() == [5] * COUNT


@pytest.mark.parametrize("waited", [True, False])
def test_where_a_call_fails_no_event_of_the_pool_is_lost(waited: bool) -> None:
    """The calls that order an operation and its lender, each of which fails in turn."""
    failures = 0
    for number in itertools.count(1):
        sim = SimDriver(1)
        device = Device.from_driver(sim)
        library = Library(device)
        stream = device.new_stream()
        op = Affine(library.lend(), library.address, 2, 0)
        sim.fail("*", at=number, error=DriverError(1, "SIM_FAULT", f"call {number}"))
        try:
            if waited:
                op.sync_on(stream)
            else:
                async_on(op, stream)
        except DriverError:
            failures += 1
        else:
            break
        sim.run_until_idle()
        assert sim.events == len(device.idle_events), f"call {number}"
    assert failures > 5


def test_work_on_the_lenders_own_stream_waits_for_nothing(sim_device: Device, sim: SimDriver) -> None:
    library = Library(sim_device)
    ours = consumer_stream(sim_device, library.stream.driver.raw)
    sim.log.clear()
    Affine(library.lend(), library.address, 2, 0).sync_on(ours)
    assert not [line for line in sim.log if line.startswith("wait")]


def test_several_tensors_of_one_launch_wait_once(sim_device: Device, sim: SimDriver) -> None:
    library = Library(sim_device)
    stream = sim_device.new_stream()
    storages = [library.lend() for _ in range(3)]
    sim.log.clear()
    for storage in storages:
        storage.use(stream, write=False)
    stream.lead_lenders()
    assert sum(line.startswith("wait") for line in sim.log) == 2  # ours for the library, the library for ours


def test_two_looks_at_the_same_bytes_conflict(sim_device: Device) -> None:
    library = Library(sim_device)
    first, second = library.lend(), library.lend()
    op = Affine(first, library.address, 2, 0)
    with pytest.raises(OwnershipError, match="'x' would be written, but the operation made at"):
        Affine(second, library.address + 4, 2, 0)
    beside = Affine(second, library.address + 4 * COUNT, 2, 0)
    op.discard()
    beside.discard()


def test_read_only_memory_is_not_written(sim_device: Device) -> None:
    library = Library(sim_device)
    with pytest.raises(ContextError, match="imported as read-only would be written"):
        Affine(library.lend(read_only=True), library.address, 2, 0).sync_on(sim_device.new_stream())


class Owner:
    """A library's tensor, which owns its memory."""


def test_the_owner_is_held_until_the_work_is_done(sim_device: Device, sim: SimDriver) -> None:
    library = Library(sim_device)
    stream = sim_device.new_stream()
    sim.automatic = False
    owner = Owner()
    seen = weakref.ref(owner)
    storage = library.lend(owner)
    del owner
    storage.use(stream, write=True)
    launch_affine(stream, library.address, COUNT, 2, 0)
    del storage
    gc.collect()
    sim_device.collect()
    assert seen() is not None
    sim.run_until_idle()
    gc.collect()
    assert seen() is None


def test_an_owner_whose_work_is_done_is_let_go_at_once(sim_device: Device) -> None:
    library = Library(sim_device)
    owner = Owner()
    seen = weakref.ref(owner)
    storage = library.lend(owner)
    del owner
    stream = sim_device.new_stream()
    Affine(storage, library.address, 2, 0).sync_on(stream)
    del storage
    gc.collect()
    assert seen() is None


def test_data_that_comes_on_the_import_stream_is_waited_for(sim_device: Device, sim: SimDriver) -> None:
    library = Library(sim_device)
    event = sim_device.borrow_event()
    library.run(lambda x: x.fill(7))
    library.stream.driver.record(event)
    import_stream(sim_device).driver.wait_event(event)  # what __dlpack__(stream=...) does
    storage = ForeignStorage(sim_device, library, imported=True)
    stream = sim_device.new_stream()
    Affine(storage, library.address, 2, 0).sync_on(stream)
    assert words_at(library.address, COUNT).tolist() == [14] * COUNT


def test_the_end_of_an_export_is_waited_for(sim_device: Device, sim: SimDriver) -> None:
    stream, theirs = sim_device.new_stream(), sim_device.new_stream()
    storage = words(3, count=COUNT).sync_on(stream)
    consumer = consumer_stream(sim_device, theirs.driver.raw)
    storage.use(consumer, write=False)
    address = storage.address

    def clear() -> None:
        ctypes.memset(address, 0, 4 * COUNT)

    theirs.driver.call(clear)
    end_export(storage, consumer)
    assert Read(storage).sync_on(stream).tolist() == [0] * COUNT


def test_a_reader_on_the_host_waits_for_the_writer(sim_device: Device) -> None:
    stream = sim_device.new_stream()
    storage = words(3, count=COUNT).sync_on(stream)
    storage.use(stream, write=True)
    launch_affine(stream, storage.address, COUNT, 2, 0)
    wait_for_writer(storage)
    assert words_at(storage.address, COUNT).tolist() == [6] * COUNT
    wait_all_idle(sim_device)


def test_an_import_that_was_never_used_is_let_go_at_once(sim_device: Device) -> None:
    library = Library(sim_device)
    owner = Owner()
    seen = weakref.ref(owner)
    storage = ForeignStorage(sim_device, owner, library.stream.cu_stream, imported=True)
    del owner, storage
    gc.collect()
    assert seen() is None
