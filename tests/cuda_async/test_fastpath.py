"""Operations that are enqueued without a run: they keep the promises of a run."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async import (
    CudaGraph,
    Device,
    DeviceFuture,
    DeviceOp,
    DriverError,
    Instrument,
    OwnershipError,
    Storage,
    Stream,
    instrumented,
)
from cuda_async.core.operation import UnrunOperationWarning, whole
from cuda_async.core.run import Run
from cuda_async.driver.checked import CheckedDriver
from cuda_async.foreign import ForeignStorage
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from tests.cuda_async.test_foreign import Library
from tests.cuda_async.work import Affine, Read, words


def no_fast_path(op: Affine, *, waited: bool) -> None:
    """In place of `Affine.fast_path`: the operation needs a run."""


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a `Run` of an `Affine` an error of the test."""
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
def test_its_uses_are_in_the_checkers_records() -> None:
    driver = CheckedDriver(SimDriver(seed=2))
    device = Device.from_driver(driver)
    first, two = device.new_stream(), device.new_stream()
    storage = words(5).sync_on(first)
    before = driver.uses
    async_on(Affine(storage, 2, 0), first)
    async_on(Affine(storage, 3, 0), two)
    assert driver.uses == before + 2
    assert not driver.races
    assert Read(storage).sync_on(first).tolist() == [30]


def test_it_is_used_once(device: Device, stream: Stream) -> None:
    op = Affine(words(1).sync(), 2, 0)
    async_on(op, stream)
    with pytest.raises(OwnershipError, match=r"was already run at .*test_fastpath\.py"):
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


# -- both ways over random programs ----------------------------------------------------------------


class Alone(SimDriver):
    """A device that works by itself, so that `await` may spin, as a GPU does."""

    works_alone = True


class On:
    """A policy of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def next_stream(self) -> Stream:
        return self.stream


STEPS = ("sync_on", "async_on", "await", "future", "held by another", "used twice", "dropped", "fault", "late fault")


def step(way: str, op: DeviceOp[Any], stream: Stream, sim: SimDriver) -> object:
    """Run an operation in one of the ways, and return its result, if it has one."""
    if way == "async_on":
        return async_on(op, stream)
    if way == "await":
        return asyncio.run(awaited(op, stream))
    if way == "future":
        future = op.schedule(On(stream))
        future.start()
        return future.sync()
    if way == "used twice":
        async_on(op, stream)
        return async_on(op, stream)
    if way == "dropped":
        return op.discard()
    if way in ("fault", "late fault"):
        sim.fail("launch" if way == "fault" else "run:launch")
    return op.sync_on(stream)


async def awaited(op: DeviceOp[Any], stream: Stream) -> object:
    return await op.schedule(On(stream))


class Pair(Affine):
    """An `Affine` that yields its storage twice."""

    def _enqueue(self, stream: Stream) -> Any:
        storage = super()._enqueue(stream)
        return storage, storage


def made(kind: str, storage: Storage, factor: int) -> DeviceOp[Any]:
    """An operation: alone, or followed by steps that need no run either."""
    if kind == "alone":
        return Affine(storage, factor, 1)
    pair: Any = Pair(storage, factor, 1)
    return pair.first() if kind == "first" else pair.last().map(itself)


def itself(result: Any) -> Any:
    return result


Step = tuple[str, str, int, int, int]


def outcome(program: list[Step], *, fast: bool) -> list[object]:
    """The outcome of each step, and the memory at the end."""
    sim = Alone(seed=3)
    device = Device.from_driver(sim)
    streams = [device.new_stream(), device.new_stream()]
    storages = [words(1 + i, count=2).sync_on(streams[0]) for i in range(2)]
    outcomes: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setattr(Affine, "fast_path", no_fast_path)
        for way, kind, which, on, factor in program:
            storage, stream = storages[which], streams[on]
            op = made(kind, storage, factor)
            try:
                if way == "held by another":
                    Affine(storage, 9, 9)
                outcomes.append(step(way, op, stream, sim) is storage)
            except Exception as error:
                text = "\n".join([str(error), *getattr(error, "__notes__", ())])
                outcomes.append((type(error), re.sub(r"\S+\.py:\d+|stream \d+|Stream \d+", "...", text)))
            sim.run_until_idle()
            with suppress(DriverError):  # of an operation that nobody followed
                stream.synchronize()
            op.discard()  # if it was not run
            outcomes += [len(storage.leases), op.state, stream.sequence == stream.completed, len(stream.held)]
            outcomes += [part.state for part in whole(op)]
    for storage in storages:
        try:
            outcomes.append(Read(storage).sync_on(streams[0]).tolist())
        except Exception as error:
            outcomes.append(type(error))
    return outcomes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(STEPS),
            st.sampled_from(["alone", "first", "first", "mapped"]),
            st.integers(0, 1),
            st.integers(0, 1),
            st.integers(2, 5),
        ),
        max_size=5,
    )
)
def test_the_fast_path_does_what_a_run_does(program: list[Step]) -> None:
    assert outcome(program, fast=True) == outcome(program, fast=False)


def test_the_fast_path_is_taken_by_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs above would show nothing without it."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a run was made")

    def spin(is_done: Callable[[], bool]) -> bool:
        sim.run_until_idle()  # within the time of a spin
        return is_done()

    monkeypatch.setattr(DeviceFuture, "_spin", staticmethod(spin))
    for way, kind in product(("sync_on", "async_on", "await"), ("alone", "first")):
        sim = Alone(seed=3)
        stream = Device.from_driver(sim).new_stream()
        storage = words(3).sync_on(stream)
        with monkeypatch.context() as patch:
            patch.setattr(Run, "__init__", refuse)
            assert step(way, made(kind, storage, 2), stream, sim) is storage
        assert Read(storage).sync_on(stream).tolist() == [7]
