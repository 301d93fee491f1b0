"""Operations that are enqueued without a run: what a run promises holds for them too."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cuda_async import CudaGraph, Device, DriverError, Instrument, OwnershipError, Stream, instrumented
from cuda_async.driver.checked import CheckedDriver
from cuda_async.foreign import ForeignStorage
from cuda_async.op import UnrunOperationWarning
from cuda_async.run import Run
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from tests.cuda_async.test_foreign import Library
from tests.cuda_async.work import Affine, Read, words


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a `Run` that is made for an `Affine` fail the test."""
    make: Any = vars(Run)["__init__"]

    def refuse(self: object, op: object, stream: Stream) -> None:
        assert not isinstance(op, Affine), "a run was made"
        make(self, op, stream)

    monkeypatch.setattr(Run, "__init__", refuse)


@pytest.mark.usefixtures("no_runs")
def test_it_needs_no_run_and_is_ordered_like_one(device: Device) -> None:
    streams = [device.new_stream() for _ in range(3)]
    storage = words(1, 2, 3).sync_on(streams[0])
    expected = [1, 2, 3]
    for step in range(12):
        assert async_on(Affine(storage, 2, step), streams[step % 3]) is storage
        expected = [2 * each + step for each in expected]
    assert Read(storage).sync_on(streams[1]).tolist() == expected


@pytest.mark.usefixtures("no_runs")
def test_its_uses_are_in_the_checkers_books() -> None:
    driver = CheckedDriver(SimDriver(seed=2))
    device = Device.from_driver(driver)
    one, two = device.new_stream(), device.new_stream()
    storage = words(5).sync_on(one)
    before = driver.uses
    async_on(Affine(storage, 2, 0), one)
    async_on(Affine(storage, 3, 0), two)
    assert driver.uses == before + 2
    assert not driver.races
    assert Read(storage).sync_on(one).tolist() == [30]


def test_it_is_used_once(device: Device, stream: Stream) -> None:
    op = Affine(words(1).sync(), 2, 0)
    async_on(op, stream)
    with pytest.raises(OwnershipError, match=r"was already run at .*test_straight\.py"):
        async_on(op, stream)
    with pytest.raises(OwnershipError, match="was already run"):
        op.sync_on(stream)
    stream.synchronize()


@pytest.mark.parametrize("call", ["begin_run", "launch"])
def test_what_goes_wrong_is_raised_with_its_path_and_nothing_stays_lent(call: str) -> None:
    sim = SimDriver(seed=1)
    stream = Device.from_driver(sim).new_stream()
    storage = words(4).sync_on(stream)
    sim.fail(call)
    with pytest.raises(DriverError, match="injected fault") as caught:
        async_on(Affine(storage, 2, 0), stream)
    assert any("while submitting affine (" in note for note in caught.value.__notes__)
    assert not storage.leases
    assert async_on(Affine(storage, 3, 0), stream) is storage
    assert Read(storage).sync_on(stream).tolist() == [12]


def test_earlier_failures_are_not_its_own() -> None:
    sim = SimDriver(seed=1)
    stream = Device.from_driver(sim).new_stream()
    storage, other = words(4).sync_on(stream), words(1).sync_on(stream)
    sim.fail("run:launch")
    async_on(Affine(storage, 2, 0), stream)
    async_on(Affine(other, 7, 0), stream)  # begins anew, as a run would
    with pytest.raises(DriverError):  # which nobody has waited for
        stream.synchronize()
    assert Read(other).sync_on(stream).tolist() == [7]


def test_it_does_not_write_a_graphs_operand(device: Device, stream: Stream) -> None:
    storage = words(1).sync_on(stream)
    with Affine(storage, 2, 0).graph_on(stream), pytest.raises(OwnershipError, match=r"graph\.update"):
        async_on(Affine(storage, 3, 0), stream)
    async_on(Affine(storage, 3, 0), stream)
    assert Read(storage).sync_on(stream).tolist() == [3]


def test_a_scope_records_it_only_by_record(device: Device, stream: Stream) -> None:
    storage = words(1).sync_on(stream)
    with CudaGraph.scope(stream) as scope:
        scope.record(Affine(storage, 2, 0))
    scope.graph.launch().sync_on(stream)
    scope.graph.close()
    assert Read(storage).sync_on(stream).tolist() == [2]


def test_instruments_are_told_of_it(device: Device, stream: Stream) -> None:
    told: list[str] = []

    class Log(Instrument):
        def before_enqueue(self, operation: object) -> None:
            told.append("before")

        def after_enqueue(self, operation: object, error: BaseException | None) -> None:
            told.append("after")

    storage = words(1).sync_on(stream)
    with instrumented(Log()):
        async_on(Affine(storage, 2, 0), stream)
    assert told == ["before", "after"]
    stream.synchronize()


def test_a_lender_waits_for_it(sim_device: Device, sim: SimDriver) -> None:
    library = Library(sim_device)
    storage = ForeignStorage(sim_device, library, lambda: library.stream.driver.raw)
    stream = sim_device.new_stream()

    class Once(Affine):
        def __init__(self) -> None:
            super().__init__(words(0).sync_on(stream), 2, 0)

        def _enqueue(self, stream: Stream) -> object:  # type: ignore[override]
            storage.use(stream, write=False)
            return super()._enqueue(stream)

    sim.log.clear()
    async_on(Once(), stream)
    assert sum(line.startswith("wait") for line in sim.log) == 2  # ours for the library, the library for ours
    assert not stream.lenders
    sim.run_until_idle()


def test_storage_forgets_leases_as_they_end(device: Device, stream: Stream) -> None:
    storage = words(1).sync_on(stream)
    async_on(Affine(storage, 2, 0), stream)
    assert storage.leases == []
    with pytest.warns(UnrunOperationWarning, match="affine made here was never run"):
        Affine(storage, 3, 0)
    async_on(Affine(storage, 5, 0), stream)  # what was dropped holds nothing
    assert storage.leases == []
    assert Read(storage).sync_on(stream).tolist() == [10]


def test_threads_enqueue_at_once_on_one_stream(device: Device, stream: Stream) -> None:
    storages = [words(1).sync_on(stream) for _ in range(4)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                async_on(Affine(storages[number], 3, 0), stream)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert [Read(each).sync_on(stream).tolist() for each in storages] == [[3**10]] * 4
