"""The debug mode, `CUDA_ASYNC_CHECK=1`: it reports unordered uses, and does not disturb ordinary programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cuda_async import Device, DeviceOp, ExecutionContext, Storage, copy_storage
from cuda_async.config import config
from cuda_async.driver.checked import CheckedEvent, CheckedGraph, CheckedStream
from cuda_async.driver.debug import UnorderedUseWarning, checked_if_asked, process_ledger
from cuda_async.driver.host import HostDriver
from cuda_async.driver.sim.virtual import SimEvent, SimGraph, SimStream
from cuda_async.testing import CheckedDriver, Ledger, SimDriver, wait_all_idle
from tests.cuda_async.test_process import expect
from tests.cuda_async.work import Affine, Read, words


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUDA_ASYNC_CHECK", "1")
    config.cache_clear()
    yield
    monkeypatch.undo()
    config.cache_clear()
    process_ledger().races.clear()


class Careless(DeviceOp[None]):
    """Copies between storages without calling their `use`."""

    def __init__(self, destination: Storage, source: Storage) -> None:
        super().__init__()
        self._destination, self._source = destination, source

    def execute(self, context: ExecutionContext) -> None:
        context.stream.copy(self._destination.address, self._source.address, self._source.nbytes)


class Across(DeviceOp[None]):
    """Copies between storages of two devices."""

    def __init__(self, destination: Storage, source: Storage) -> None:
        super().__init__()
        self._destination, self._source = destination, source

    def execute(self, context: ExecutionContext) -> None:
        copy_storage(context, self._destination, self._source)


@pytest.mark.usefixtures("check")
@pytest.mark.parametrize("kind", ["sim", "host"])
def test_an_operation_that_hides_its_uses_is_told_of(kind: str) -> None:
    driver = checked_if_asked(SimDriver(seed=1) if kind == "sim" else HostDriver())
    device = Device.from_driver(driver)
    a, b = device.new_stream(), device.new_stream()
    x, y = words(1, count=8).sync_on(a), words(2, count=8).sync_on(a)
    x.use(a, write=True)  # enqueued and not waited for
    a.fill(x.address, x.nbytes, b"\1")
    with pytest.warns(UnorderedUseWarning, match=r"the copy from on stream .*not ordered behind the fill on") as told:
        Careless(y, x).sync_on(b)
    assert told[0].filename == __file__
    assert device.statistics().races == 1
    wait_all_idle(device, a, b)


@pytest.mark.usefixtures("check")
def test_ordinary_programs_are_not_disturbed() -> None:
    device = Device.from_driver(checked_if_asked(HostDriver()))
    streams = [device.new_stream() for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = words(1, count=1000).sync_on(streams[0])
        for step in range(9):
            Affine(x, 3, step).sync_on(streams[step % 3])
        assert Read(x).sync_on(streams[1])[0] == Read(x).sync_on(streams[2])[0]
        del x
        wait_all_idle(device, *streams)
    checked = device.statistics().uses_checked
    assert checked is not None
    assert checked > 20


def test_without_it_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_ASYNC_CHECK", raising=False)
    config.cache_clear()
    driver = HostDriver()
    assert checked_if_asked(driver) is driver
    assert Device.from_driver(driver).statistics().uses_checked is None
    monkeypatch.undo()
    config.cache_clear()


def test_a_failed_neighbour_is_the_same_under_the_checker() -> None:
    sim = SimDriver(seed=1)
    device = Device.from_driver(CheckedDriver(sim))
    a, b = device.new_stream(), device.new_stream()
    x, y = words(1, count=8).sync_on(a), words(2, count=8).sync_on(a)
    sim.fail("run:copy")
    with a.submission:
        x.use(a, write=False)
        y.use(a, write=True)
        a.copy(y.address, x.address, 32)  # fails, having read x
    assert Affine(x, 5, 0).then(Read).sync_on(b)[0] == 5  # overwrites x, and needs nothing of that


def test_failures_are_forgotten_under_the_checker_too() -> None:
    """Their tracebacks keep the frames of waiters, with all that these refer to."""
    driver = CheckedDriver(HostDriver())
    stream, event = driver.create_stream(), driver.create_event()

    def fail() -> None:
        raise ValueError("no")

    stream.begin_run()
    stream.call(fail)
    stream.record(event)
    assert event.wait(10)
    failure = event.failure()
    assert failure is not None
    assert failure.__traceback__ is not None
    stream.forget(failure)
    event.forget()
    stream.record(event)  # behind the same failure, without its frames
    assert event.wait(10)
    again = event.failure()
    assert isinstance(again, ValueError)
    assert again.__traceback__ is None


def test_devices_that_exchange_memory_share_a_ledger() -> None:
    ledger = Ledger()
    first = SimDriver(seed=1)
    near = Device.from_driver(CheckedDriver(first, ledger))
    two = Device.from_driver(CheckedDriver(SimDriver(ordinal=1, beside=first), ledger))
    a, b = near.new_stream(), two.new_stream()
    source, target = words(7, count=8).sync_on(a), words(0, count=8).sync_on(b)
    Affine(source, 2, 0).sync_on(a)
    Across(target, source).sync_on(b)
    assert np.array_equal(Read(target).sync_on(b), np.full(8, 14))
    assert ledger.races == []
    assert near.statistics().uses_checked == two.statistics().uses_checked == ledger.uses


def test_the_inner_driver_is_given_objects_of_its_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA driver takes handles from its arguments: what wraps one has none."""
    wrapped: list[str] = []
    calls: set[str] = set()

    def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls.add(name)
            if any(
                isinstance(value, CheckedDriver | CheckedEvent | CheckedGraph | CheckedStream)
                for value in (*arguments, *keywords.values())
            ):
                wrapped.append(name)
            return function(*arguments, **keywords)

        return call

    for kind in (SimDriver, SimEvent, SimGraph, SimStream):
        for name in dir(kind):
            function = getattr(kind, name)
            if not name.startswith("_") and callable(function):
                monkeypatch.setattr(kind, name, guarded(f"{kind.__name__}.{name}", function))
    ledger = Ledger()
    first = SimDriver(seed=1)
    near = Device.from_driver(CheckedDriver(first, ledger))
    far = Device.from_driver(CheckedDriver(SimDriver(ordinal=1, beside=first), ledger))
    a, b = near.new_stream(), far.new_stream()
    source, target = words(7, count=8).sync_on(a), words(0, count=8).sync_on(b)
    begin, end = near.new_event(timing=True), near.new_event(timing=True)
    begin.record(a)
    near.new_stream().driver.wait_event(begin.driver)
    graph = Affine(source, 2, 0).graph_on(a)
    graph.launch().sync_on(near.new_stream())
    graph.close()
    end.record(a)
    Across(target, source).sync_on(b)
    assert np.array_equal(Read(target).sync_on(b), np.full(8, 14))
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    wait_all_idle(near, a)
    wait_all_idle(far, b)
    assert not wrapped
    assert {f"SimGraph.{name}" for name in ("instantiate", "upload", "close")} <= calls
    assert {f"SimStream.{name}" for name in ("launch_graph", "copy_peer", "wait_event", "record")} <= calls


def test_the_variable_switches_it_on_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_ASYNC_CHECK", "1")
    expect(
        """
    device = Device.host()
    with device:
        x = words(1, count=64).sync()
        print(Affine(x, 3, 1).then(Read).sync()[0], device.statistics().uses_checked > 3, device.statistics().races)
    """,
        "4 True 0",
    )


def test_a_value_that_is_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_ASYNC_CHECK", "yes")
    config.cache_clear()
    with pytest.raises(ValueError, match=r"CUDA_ASYNC_CHECK='yes': expected 0 or 1"):
        config()
    monkeypatch.undo()
    config.cache_clear()
