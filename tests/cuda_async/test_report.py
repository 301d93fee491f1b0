"""Reports of launches that fail: which wait raises the failure, and what is usable afterwards."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Any

import pytest

from cuda_async import (
    CudaGraph,
    Device,
    DeviceOp,
    ExecutionContext,
    OutOfMemoryError,
    SingleStream,
    Storage,
    Stream,
    Use,
    unsafe,
)
from cuda_async.core.report import REPORT_BYTES, Report, ReportMemory
from tests.cuda_async.work import Affine, Read, launch_affine, words


class WentWrongError(Exception):
    """The error that the reports of these tests make."""


def read(data: bytes) -> WentWrongError:
    return WentWrongError(int.from_bytes(data[4:8], "little"))


def launch(stream: Stream, report: Report, number: int) -> None:
    """Enqueue a stand-in for a kernel: it fails, and reports `number`, unless that is 0."""
    if number:
        launch_affine(stream, report.address + 4, 1, 0, number)
        launch_affine(stream, report.address, 1, 0, 2)  # the mark of a written report
    report.expect()


class Launch(DeviceOp[list[int]]):
    """Launches that fail where their number is not 0. Yields the reports' addresses."""

    has_effects = True
    graph_node = True

    def __init__(self, out: Storage, *numbers: int) -> None:
        super().__init__()
        self._out, self._numbers = out, numbers
        self.lend(Use("out", out, write=True))

    def execute(self, context: ExecutionContext) -> list[int]:
        self._out.use(context.stream, write=True)
        reports = [context.stream.report(read) for _ in self._numbers]
        for report, number in zip(reports, self._numbers, strict=True):
            launch(context.stream, report, number)
        return [report.address for report in reports]


def test_the_wait_for_a_launch_raises_what_it_says(stream: Stream) -> None:
    out = words(9, count=4).sync_on(stream)
    with pytest.raises(WentWrongError, match="7"):
        Launch(out, 0, 7, 8).sync_on(stream)


def test_other_launches_before_and_after_are_well(stream: Stream) -> None:
    fine, broken = (words(9, count=4).sync_on(stream) for _ in range(2))
    Launch(fine, 0).sync_on(stream)
    with pytest.raises(WentWrongError):
        Launch(broken, 1).sync_on(stream)
    Launch(fine, 0, 0).sync_on(stream)
    assert Read(fine).sync_on(stream).tolist() == [9] * 4


def test_of_two_in_flight_each_says_its_own(device: Device, stream: Stream) -> None:
    outs = [words(9, count=4).sync_on(stream) for _ in range(3)]

    async def run() -> list[object]:
        policy = SingleStream(device)
        futures = [Launch(out, number).schedule(policy) for out, number in zip(outs, (3, 0, 5), strict=True)]
        return await asyncio.gather(*futures, return_exceptions=True)

    first, second, third = asyncio.run(run())
    assert (repr(first), repr(third)) == ("WentWrongError(3)", "WentWrongError(5)")
    assert isinstance(second, list)


def test_a_graph_tells_at_the_launch_that_failed(device: Device, stream: Stream) -> None:
    out = words(9, count=4).sync_on(stream)
    with CudaGraph.capture(stream, Launch(out, 4)) as graph:
        for _ in range(2):
            with pytest.raises(WentWrongError, match="4"):
                graph.launch().sync_on(stream)


def test_what_is_launched_again_and_again_has_one_report(stream: Stream) -> None:
    report = stream.report(read, lasting=True)
    for number in (0, 6, 0):
        stream.begin_single()
        launch(stream, report, number)
        if number:
            with pytest.raises(WentWrongError, match="6"):
                stream.synchronize()
        else:
            stream.synchronize()


def test_reports_are_used_again(stream: Stream) -> None:
    out = words(9, count=4).sync_on(stream)
    used: set[int] = set()
    for _ in range(20):
        used.update(Launch(out, *[0] * 40).sync_on(stream))
    assert 40 <= len(used) <= 40 + 3 * 64  # those of one launch, and what was there
    assert all(address % 16 == 0 for address in used)
    assert len({address // REPORT_BYTES for address in used}) == len(used)


def test_what_nobody_waited_for_is_not_told_to_others(device: Device, stream: Stream) -> None:
    addresses = {stream.report(read).address for _ in range(64)}
    gc.collect()
    for address in addresses:
        ctypes.c_uint32.from_address(address).value = 2
    Launch(words(9, count=4).sync_on(stream), 0, 0).sync_on(stream)


def test_the_next_wait_on_a_stream_raises_what_nobody_waited_for(device: Device, stream: Stream) -> None:
    out, other = (words(9, count=4).sync_on(stream) for _ in range(2))
    unsafe.async_on(Launch(out, 7), stream)
    with pytest.raises(WentWrongError, match="7"):
        Read(other).sync_on(stream)
    assert Read(other).sync_on(stream).tolist() == [9] * 4
    for number in (0, 8, 0):
        unsafe.async_on(Launch(other, number), stream)
    with pytest.raises(WentWrongError, match="8"):
        stream.synchronize()
    assert Read(other).sync_on(stream).tolist() == [9] * 4


def test_it_does_not_keep_what_is_enqueued_next_from_being_done(device: Device, stream: Stream) -> None:
    out = words(9, count=4).sync_on(stream)
    other = words(5, count=4).sync_on(stream)
    unsafe.async_on(Launch(out, 7), stream)
    unsafe.async_on(Affine(other, 2, 1), stream)
    with pytest.raises(WentWrongError, match="7"):
        stream.synchronize()
    assert Read(other).sync_on(stream).tolist() == [11] * 4


@pytest.mark.parametrize("printing", [False, True])
def test_an_event_of_cuda_fails_by_the_checks_of_what_it_was_recorded_behind(
    printing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each question, and also where an earlier kernel of the process prints."""
    pytest.importorskip("cuda.bindings.driver")
    from cuda_async.driver.cuda import stream as cuda

    class Context:
        usable, speaks, lost = True, printing, None

        def query(self, function: Any, handle: object) -> object:
            return function(handle)[0]

        def write_output(self, wait: object, handle: object) -> None:
            written.append(handle)

    def refuse() -> None:
        calls.append("refuse")
        raise WentWrongError(5)

    def query(handle: object) -> tuple[object]:
        return (handle,)

    calls: list[str] = []
    written: list[object] = []
    monkeypatch.setattr(cuda, "_query", query)
    events = [object.__new__(cuda.CudaEvent) for _ in range(3)]
    errors = cuda.RunErrors()
    for number, event in enumerate(events):
        monkeypatch.setattr(cuda.CudaEvent, "_context", Context(), raising=True)
        event.handle = cuda._NOT_READY  # pyright: ignore[reportPrivateUsage]
        if number == 1:
            errors.add([refuse, lambda: calls.append("fine"), refuse])
        event.begin(errors if number < 2 else cuda.RunErrors())
    assert [event.query() for event in events] == [False] * 3
    for event in events:
        event.handle = cuda._SUCCESS  # pyright: ignore[reportPrivateUsage]
    for _ in range(2):
        assert [event.query() for event in events] == [True] * 3
        assert [repr(event.failure()) for event in events] == ["None", "WentWrongError(5)", "None"]
    assert bool(written) is printing
    assert calls == ["refuse", "fine"]
    assert errors.used


# What nobody waits for, on a stream of CUDA whose driver is a fake.


class FakeDriver:
    """The calls of CUDA that streams and events make; all work is over at once."""

    usable, speaks, lost = True, False, None
    garbage = ()

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("cuda.bindings.driver")
        from cuda_async.driver.cuda import stream as cuda

        self.cuda = cuda
        self.context = self
        self.over = True
        self.events = 0
        self.pinned: list[Any] = []
        monkeypatch.setattr(cuda, "_query", self._query)

    def _query(self, _: object) -> tuple[object]:
        return (self.cuda._SUCCESS if self.over else self.cuda._NOT_READY,)  # pyright: ignore[reportPrivateUsage]

    def is_current(self) -> bool:
        return True

    def call(self, function: Any, *_: object) -> int:
        self.events += {"cuEventCreate": 1, "cuEventDestroy": -1}.get(function.__name__, 0)
        return self.events

    direct = call

    def pin(self, nbytes: int) -> int:
        self.pinned.append(ctypes.create_string_buffer(nbytes))
        return ctypes.addressof(self.pinned[-1])


class Launches:
    """Runs of one stream, each with a launch that fails if it says a number, followed by somebody or not."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.stream: Any = driver.cuda.CudaStream(driver, 5)  # pyright: ignore[reportArgumentType]
        self.addresses: set[int] = set()
        self.memory = ReportMemory(driver)  # pyright: ignore[reportArgumentType]

    def run(self, number: int = 0, *, followed: bool = True) -> Any:
        """The event of whoever waits for the run, if somebody does."""
        self.stream.begin_run()
        report = Report(self.memory, self.stream, read, lasting=False)
        if number:
            ctypes.memmove(report.address, bytes((2, 0, 0, 0, number)), 5)
        report.expect()
        self.addresses.add(report.address)
        del report
        end = self.record() if followed else None
        if followed:
            self.stream.followed()
        self.stream.end_run()
        return end

    def record(self) -> Any:
        """An event behind what was enqueued."""
        event: Any = self.driver.cuda.CudaEvent(self.driver, False)  # pyright: ignore[reportArgumentType]
        self.stream.record(event)
        return event

    def tell(self, number: int = 0) -> str:
        """What whoever waits for such a run is told."""
        return told(self.run(number))


def told(event: Any) -> str:
    """What whoever waits for an event is told."""
    assert event.query()
    return repr(event.failure())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(FakeDriver(monkeypatch))


def test_the_next_wait_raises_what_nobody_waited_for(launches: Launches) -> None:
    launches.run(7, followed=False)
    assert [launches.tell() for _ in range(2)] == ["WentWrongError(7)", "None"]
    launches.run(followed=False)
    launches.run(8, followed=False)
    launches.run(9, followed=False)
    launches.run(followed=False)
    assert told(launches.record()) == "WentWrongError(8)"
    assert launches.tell() == "None"


def test_what_somebody_waits_for_is_told_to_nobody_else(launches: Launches) -> None:
    expected = ["WentWrongError(7)", "None", "WentWrongError(8)", "None"]
    assert [launches.tell(number) for number in (7, 0, 8, 0)] == expected
    launches.driver.over = False
    ends = [launches.run(number) for number in (7, 0, 8, 0)]
    launches.driver.over = True
    assert [told(end) for end in reversed(ends)] == expected[::-1]


def test_a_bound_launch_has_no_failure_that_was_told(launches: Launches) -> None:
    """It belongs to the run before it, unless a waiter has that run's failure."""
    report = Report(launches.memory, launches.stream, read, lasting=True)

    def bound_launch(number: int = 0) -> None:
        launches.stream.continue_run()
        if number:
            ctypes.memmove(report.address, bytes((2, 0, 0, 0, number)), 5)
        report.expect()

    assert launches.tell(7) == "WentWrongError(7)"
    bound_launch()
    assert told(launches.record()) == "None"
    bound_launch(8)
    bound_launch()
    assert [launches.tell() for _ in range(2)] == ["WentWrongError(8)", "None"]
    launches.run(9, followed=False)
    bound_launch()
    assert told(launches.record()) == "WentWrongError(9)"


def test_whoever_waits_is_expected_once(launches: Launches) -> None:
    """Checks ask when somebody waits and has nothing else to do, not at each launch or followed run."""
    expected: list[str] = []

    def expect() -> None:
        expected.append("wait")

    def launch() -> None:
        launches.stream.continue_run()
        launches.stream.check_behind(lambda: True, expect=expect)

    for _ in range(3):
        launch()
    assert not expected
    launches.record()  # for another stream's order, say
    assert not expected
    launches.stream.awaited()
    launches.stream.awaited()
    assert expected == ["wait"]
    launch()
    launches.driver.over = False
    end = launches.run()
    assert expected == ["wait"]
    assert not end.wait(0)
    assert expected == ["wait"] * 2


def test_the_checks_of_a_long_run_are_looked_at_now_and_then(launches: Launches) -> None:
    for _ in range(1000):
        launches.stream.continue_run()
        launches.stream.check_behind(lambda: True)
        assert len(launches.stream.errors.checks) < 200


def test_checks_that_cannot_tell_are_looked_at_once_in_many_calls(launches: Launches) -> None:
    """Of a collective the hub may answer only when somebody waits: until then each look is no use."""
    looks: list[int] = []
    for call in range(1000):
        launches.stream.continue_run()
        launches.stream.check_behind(lambda: bool(looks.append(call)))  # noqa: B023 - the call at which it is looked at
    assert len(set(looks)) <= 1000 // 64 + 1


def test_a_report_is_taken_by_nobody_else_before_its_launch_is_over(launches: Launches) -> None:
    launches.driver.over = False
    for _ in range(200):
        launches.run(followed=False)
    gc.collect()
    addresses = {launches.memory.take() for _ in range(300)}
    assert launches.addresses.isdisjoint(addresses)


def test_launches_that_nobody_waits_for_are_looked_at_now_and_then(launches: Launches) -> None:
    for number in range(1000):
        launches.run(3 if number == 500 else 0, followed=False)
    gc.collect()
    assert len(launches.addresses) <= 4 * 64
    assert launches.driver.events <= 2
    assert [launches.tell() for _ in range(2)] == ["WentWrongError(3)", "None"]


def test_a_report_that_cannot_be_had_leaves_nothing_to_give_back(stream: Stream, monkeypatch: Any) -> None:
    """Its finalizer finds no address, and raises nothing."""

    def pin(nbytes: int) -> int:
        raise OutOfMemoryError(2, "OUT_OF_MEMORY", "no page-locked memory")

    monkeypatch.setattr(stream.device.driver, "pin", pin)
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with pytest.raises(OutOfMemoryError):
        Report(ReportMemory(stream.device.driver), stream.driver, read, lasting=False)
    gc.collect()
    assert not unraisable
