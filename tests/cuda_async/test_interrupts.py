"""Ctrl-C at every place of the runtime at which a signal can come: nothing stays lent, nothing hangs."""

from __future__ import annotations

import asyncio
import dataclasses
import dis
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, cast
from unittest import mock

import pytest

import cuda_async
from cuda_async import (
    CudaGraph,
    DependencyError,
    Device,
    DeviceFuture,
    DriverError,
    FutureState,
    NotReadyError,
    OwnershipError,
    Storage,
    Stream,
    locks,
    value,
    zip,
)
from cuda_async.config import config
from cuda_async.core.lease import current_holder
from cuda_async.core.run import Run
from cuda_async.driver.queue import QueueStream
from cuda_async.locks import Gate
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from tests.cuda_async.scenes import waits
from tests.cuda_async.work import Affine, Read, words
from tests.support.interrupts import interrupted
from tests.support.kinds import of_kind

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where signals may come")

Scene = Callable[[Device, Storage], object]


@pytest.fixture(autouse=True)
def no_lock_is_left_taken() -> Iterator[None]:
    """An interrupt that loses a lock would stop other threads, in whatever test comes later.

    A note that a submission waits would have one of them go first without a reason.
    """

    def taken() -> list[object]:
        return [lock for lock in list(locks._locks) if lock._is_owned()]  # pyright: ignore

    before = taken()  # by tests of other files, in the same process
    yield
    assert [lock for lock in taken() if all(lock is not other for other in before)] == []
    assert waits() == {}


def by_fast_path(device: Device, storage: Storage) -> None:
    Affine(storage, 2, 1).sync()


def by_a_run(device: Device, storage: Storage) -> None:
    Affine(storage, 2, 1).then(Read).inspect(id).sync()


def together(device: Device, storage: Storage) -> None:
    zip(Affine(storage, 1, 1), words(3, count=4), value(2)).sync()


def unfollowed(device: Device, storage: Storage) -> None:
    async_on(Affine(storage, 2, 1), device.new_stream())


def awaited(device: Device, storage: Storage) -> None:
    async def main() -> None:
        await Affine(storage, 2, 1)
        await Affine(storage, 1, 2).then(Read)

    asyncio.run(main())


def future(device: Device, storage: Storage) -> None:
    started = Affine(storage, 2, 1).into_future()
    started.start()
    started.sync()


def shared(device: Device, storage: Storage) -> None:
    one = Affine(storage, 2, 1).shared()
    zip(one.map(lambda s: s.nbytes), one.clone()).sync_on(device.new_stream())


def graph(device: Device, storage: Storage) -> None:
    stream = device.new_stream()
    with Affine(storage, 2, 1).graph_on(stream) as captured:
        captured.update(Affine(storage, 1, 1))
        captured.launch().sync_on(stream)


def scope(device: Device, storage: Storage) -> None:
    stream = device.new_stream()
    with CudaGraph.scope(stream) as recorded:
        recorded.record(Affine(storage, 2, 1))
    recorded.graph.launch().sync_on(stream)
    recorded.graph.close()


SCENES: list[Scene] = [by_fast_path, by_a_run, together, unfollowed, awaited, future, shared, graph, scope]


@pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")  # it was not: Ctrl-C came before
@pytest.mark.parametrize(
    ("scene", "kind", "step"),
    [
        (by_fast_path, "host", 1),
        (by_fast_path, "sim", 1),
        (future, "host", 1),
        (future, "sim", 1),
        (unfollowed, "host", 1),
    ]
    + [(awaited, "spinning", 1)]
    + [(scene, "host", 3) for scene in SCENES if scene not in (by_fast_path, future, unfollowed)],
)
def test_ctrl_c_at_every_place(scene: Scene, kind: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place of the short scenes, and every third place of the others."""
    device = of_kind("sim" if kind == "spinning" else kind, seed=1)
    if kind == "spinning":  # as a GPU, at which an `await` may spin until the work is done
        monkeypatch.setattr(device.driver, "works_alone", True)
        patient = dataclasses.replace(config(), spin_budget_us=10e6)
        monkeypatch.setattr("cuda_async.core.future.config", lambda: patient)
    with device:
        storage = words(1, count=64).sync()
        for _ in range(2):
            scene(device, storage)
        number, place = 0, scene.__name__
        while place is not None:
            check(device, storage, f"place {number}: {place}")
            place = interrupted(lambda: scene(device, storage), number)
            number += step
    assert number > 50


class Only:
    """A policy with one stream, whose future may take the fast path."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def next_stream(self) -> Stream:
        return self.stream


class Trap(Affine):
    """An operation whose work fails on the device."""

    def fast_path(self, *, waited: bool) -> Callable[[Stream], Storage]:
        return self.enqueue_on

    def enqueue_on(self, stream: Stream) -> Storage:
        self._storage.use(stream, write=True)
        stream.parallel_for(refuse, 4, 4)
        return self._storage


class Faulty(Affine):
    """An operation whose submission fails, before or behind its launch."""

    def __init__(self, storage: Storage, *, behind: bool) -> None:
        super().__init__(storage, 2, 1)
        self._behind = behind

    def fast_path(self, *, waited: bool) -> Callable[[Stream], Storage]:
        return self.enqueue_on

    def enqueue_on(self, stream: Stream) -> Storage:
        if self._behind:
            super().fast_path(waited=True)(stream)
        raise LookupError("an injected fault")


def refuse(*args: object) -> None:
    raise LookupError("an injected fault")


def ends(future: DeviceFuture[Storage]) -> bool:
    """Whether a wait for a future comes to an end."""

    def wait() -> None:
        with suppress(BaseException):  # Ctrl-C is the outcome of an interrupted submission
            future.sync()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


@pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")  # it was not: Ctrl-C came before
@pytest.mark.parametrize("way", ["sync_on", "await"])
@pytest.mark.parametrize("fault", ["before the launch", "behind the launch", "record"])
def test_ctrl_c_at_every_place_of_a_submission_that_fails(
    way: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enqueued work is followed, and its memory lent until it is done; a future that was started ends."""
    patient = dataclasses.replace(config(), spin_budget_us=10e6)
    monkeypatch.setattr("cuda_async.core.future.config", lambda: patient)
    number, place = 0, "the beginning"
    while place is not None:
        driver = SimDriver(seed=1)
        driver.works_alone = True  # as a GPU, at which an `await` may spin until the work is done
        device = Device.from_driver(driver)
        stream, reader = device.new_stream(), device.new_stream()
        storage = words(1, count=4).sync_on(stream)
        op = Affine(storage, 2, 1) if fault == "record" else Faulty(storage, behind=fault == "behind the launch")
        future = op.schedule(Only(stream)) if way == "await" else None

        async def main(future: DeviceFuture[Storage] | None = future) -> None:
            if future is not None:
                await future

        def attempt(op: Affine = op, on: Stream = stream, is_awaited: bool = way == "await") -> None:
            with suppress(LookupError):
                asyncio.run(main()) if is_awaited else op.sync_on(on)

        with monkeypatch.context() as patches:
            if fault == "record":
                patches.setattr(type(stream.driver), "record", refuse)
            place = interrupted(attempt, number)
        at = f"place {number}: {place}"
        is_lent, run_before = any(lease.active for lease in storage.leases), driver.calls["run:launch"]
        driver.run_until_idle()
        has_run = driver.calls["run:launch"]
        assert is_lent or has_run == run_before, at  # else it ran with memory that nobody held
        is_watched = place is None or "Run.watch" not in place
        assert future is None or future.state is FutureState.IDLE or not is_watched or ends(future), at
        del op, future, main, attempt
        gc.collect()
        assert set(Read(storage).sync_on(reader).tolist()) == ({3} if has_run else {1}), at
        assert not [lease for lease in storage.leases if lease.active], at
        number += 1
    assert number > 30


@pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")  # it was not: Ctrl-C came before
def test_ctrl_c_hides_no_failure_of_the_device() -> None:
    """Memory that failed work was to write is marked wherever the wait was broken off."""
    number, place = 0, "the beginning"
    while place is not None:
        driver = SimDriver(seed=1)
        device = Device.from_driver(driver)
        stream, reader = device.new_stream(), device.new_stream()
        storage = words(1, count=4).sync_on(stream)
        op = Trap(storage, 2, 1)

        def attempt(op: Affine = op, on: Stream = stream) -> None:
            with suppress(DriverError, LookupError):
                op.sync_on(on)

        place = interrupted(attempt, number)
        driver.run_until_idle()
        if driver.calls["run:launch"]:
            for _ in range(2):  # each use raises the failure
                with pytest.raises((DriverError, DependencyError, LookupError)):
                    Read(storage).sync_on(reader)
        number += 1
    assert number > 30


@pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")  # it was not: Ctrl-C came before
@pytest.mark.parametrize("before", ["nothing", "a launch", "a failure"])
@pytest.mark.parametrize("is_bound", [False, True], ids=["operation", "bound"])
def test_ctrl_c_amid_a_launch_leaves_no_output_without_data(is_bound: bool, before: str) -> None:
    """An output has its data, or raises; and the next launches make it."""
    number, place = 0, "the beginning"
    while place is not None:
        driver = SimDriver(seed=1)
        device = Device.from_driver(driver)
        home, other, reader = (device.new_stream() for _ in range(3))
        graph = words(3, count=8).graph_on(home)
        output = graph.take_output()
        assert output is not None
        changing = Affine(output, 2, 1).graph_on(other)
        if before != "nothing":
            graph.launch().sync_on(home)
        if before == "a failure":
            driver.fail("run:launch")
            with pytest.raises(DriverError, match="injected fault"):
                changing.launch().sync_on(other)
        launch = graph.launch()
        place = interrupted(launch.bind(home) if is_bound else lambda op=launch, on=home: op.sync_on(on), number)
        driver.run_until_idle()
        with suppress(NotReadyError, DriverError, OwnershipError):
            assert set(Read(output).sync_on(reader).tolist()) == {3}, f"place {number}: {place}"
        graph.launch().sync_on(home)
        changing.launch().sync_on(other)
        assert set(Read(output).sync_on(reader).tolist()) == {7}, f"place {number}: {place}"
        number += 1
    assert number > 30


def test_ctrl_c_in_a_completion_wakes_all_who_wait() -> None:
    driver = SimDriver(seed=1)
    device = Device.from_driver(driver)
    stream = device.new_stream()
    storage = words(1, count=4).sync_on(stream)
    number, place = 0, "the beginning"
    while place is not None:
        run = Run(Affine(storage, 2, 1), stream)
        run.submit()
        wakers = [mock.Mock(), mock.Mock(), mock.Mock()]
        for waker in wakers:
            run.when_done(waker)
        driver.run_until_idle()
        place = interrupted(run.complete, number)
        if not run.done:  # it was interrupted before it had claimed the run: the next who asks completes it
            run.complete()
        assert all(waker.called for waker in wakers), f"place {number}: {place}"
        number += 1
    assert number > 20


def test_a_gate_whose_waiter_ctrl_c_interrupts_stays_open() -> None:
    number, place = 0, "the beginning"
    while place is not None:
        gate = Gate()
        gate.open()
        place = interrupted(gate.wait, number)
        assert gate.is_open
        assert gate.wait(0), f"place {number}: {place}"
        number += 1
    assert number > 2


def mark(stream: Stream, storage: Storage) -> None:
    stream.mark(stream.sequence + 1)  # more than is covered: it records anew


def test_a_mark_that_ctrl_c_ended_is_no_point_that_nobody_reaches() -> None:
    device = Device.from_driver(SimDriver(seed=1))
    stream, other = device.new_stream(), device.new_stream()
    storage = words(1, count=4).sync_on(stream)
    number, place = 0, "the beginning"
    while place is not None:
        Affine(storage, 2, 1).sync_on(stream)
        stream.mark(stream.sequence)
        marked = stream.sequence
        async_on(Affine(storage, 2, 1), stream)
        place = interrupted(lambda: mark(stream, storage), number)
        other.driver.wait_event(stream.mark(marked)[0])
        other.synchronize()  # raises an InternalError where it would wait for ever
        number += 1
    assert number > 5


def forget(stream: Stream, storage: Storage) -> None:
    allocation = storage._allocation  # pyright: ignore[reportPrivateUsage]
    allocation.readers[stream] = 0
    allocation.forget_readers()


def synchronize(stream: Stream, storage: Storage) -> None:
    stream.hold(storage)
    stream.synchronize()


@pytest.mark.parametrize("action", [mark, forget, synchronize])
def test_ctrl_c_loses_no_lock_that_is_only_tried(action: Callable[[Stream, Storage], None]) -> None:
    device = Device.from_driver(SimDriver(seed=1))
    stream = device.new_stream()
    storage = words(1, count=4).sync_on(stream)
    number, place = 0, "the beginning"
    while place is not None:
        place = interrupted(lambda: action(stream, storage), number)
        assert not stream.submission._is_owned(), f"place {number}: {place}"  # pyright: ignore
        number += 1
    assert number > 3


def test_no_loop_jumps_back_outside_of_what_is_around_it() -> None:
    """CPython 3.13 raises Ctrl-C there: neither `except` nor `finally` sees it, and a `with` loses its lock.

    It is where a `while` tests its condition again, and where a condition that ends a loop's body is false.
    """
    harmless = {
        "ProcessEngine._send_all": "on a thread of its own, to which no signal comes",
        "WorkerPool._rest": "on a thread of its own",
        "DeviceOp.__del__": "Python drops what a finalizer raises",
        "Operation.__del__": "Python drops what a finalizer raises",
        "_processor_name": "its `except` is for errors of files",
        "_bare_copy": "its `except` is for errors of constructors",
        "enqueue_chain": "its `except` names the part that failed",
    }
    places: list[str] = []
    for path in sorted(Path(cuda_async.__file__).parent.rglob("*.py")):
        stack = [compile(path.read_text(), path.name, "exec")]
        while stack:
            code = stack.pop()
            stack += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            if code.co_qualname not in harmless:
                places += [f"{path.name}:{line} {code.co_qualname}" for line in unguarded_jumps(code)]
    assert places == []

    def loses(lock: threading.Lock, items: list[int]) -> None:
        with lock:
            while not items:
                pass

    def loses_at_a_condition(lock: threading.Lock, items: list[int]) -> None:
        with lock:
            for item in items:
                if item:
                    items.remove(item)

    for function in (loses, loses_at_a_condition):  # on other versions nothing is to be found
        assert len(unguarded_jumps(function.__code__)) == (sys.version_info[:2] == (3, 13))


def unguarded_jumps(code: CodeType) -> list[int]:
    """The lines of jumps back that a handler is not around, though it is around what they jump to."""
    entries = cast("list[Any]", dis._parse_exception_table(code))  # pyright: ignore
    steps = list(dis.get_instructions(code))
    operations = {step.offset: step.opname for step in steps}

    def handlers(offset: int) -> set[int]:
        """Those of `try` and `with`; others are those of any generator, and of comprehensions."""
        targets = {entry.target for entry in entries if entry.start <= offset < entry.end}
        return {target for target in targets if operations[target] == "PUSH_EXC_INFO"}

    return [
        step.positions.lineno if step.positions and step.positions.lineno else 0
        for step in steps
        if step.opname == "JUMP_BACKWARD" and handlers(step.argval) - handlers(step.offset)
    ]


def check(device: Device, storage: Storage, place: str) -> None:
    """Check that nothing is lent or in use, once the device is done."""
    assert current_holder() is None, place
    limit = time.monotonic() + 500
    while True:
        try:
            Affine(storage, 0, 7).sync()
            break
        except OwnershipError:  # the interrupted operation may be in flight
            if time.monotonic() > limit:
                raise
            gc.collect()  # a graph that only the frames of a task's exception hold
    assert set(Read(storage).sync_on(device.new_stream()).tolist()) == {7}, place
    assert not [lease for lease in storage.leases if lease.active], place
    assert len(set(device.idle_events)) == len(device.idle_events), place  # two operations would share an event


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cuda_async.UnrunOperationWarning")  # it was not: Ctrl-C came before
@pytest.mark.parametrize("scene", [by_a_run, graph])
def test_ctrl_c_leaves_no_run_of_the_driver_open(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU an open run keeps the device's context current on the thread."""
    began, ended = QueueStream.begin_run, QueueStream.end_run
    runs = 0

    def begin_run(stream: QueueStream) -> None:
        nonlocal runs
        began(stream)
        runs += 1

    def end_run(stream: QueueStream) -> None:
        nonlocal runs
        runs -= 1
        ended(stream)

    device = of_kind("host", seed=1)
    with device:
        storage = words(1, count=64).sync()
        scene(device, storage)
        monkeypatch.setattr(QueueStream, "begin_run", begin_run)
        monkeypatch.setattr(QueueStream, "end_run", end_run)
        number, place = 0, scene.__name__
        while place is not None:
            check(device, storage, f"place {number}: {place}")
            assert not runs, f"place {number}: {place}"
            place = interrupted(lambda: scene(device, storage), number)
            number += 1
    assert number > 50
