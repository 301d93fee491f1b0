"""Hooks around what runs, and NVTX ranges made of them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cuda_async import Device, Instrument, ObservedOperation, add_instrument, instrumented, remove_instrument, value
from cuda_async.core import observers
from cuda_async.profile import NvtxRanges, nvtx_ranges
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from tests.cuda_async.test_process import expect
from tests.cuda_async.work import Affine, Call, Read, words


class Log(Instrument):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: list[ObservedOperation] = []

    def before_enqueue(self, operation: ObservedOperation) -> None:
        self.seen.append(operation)
        self.lines.append(f"before {operation.label}")

    def after_enqueue(self, operation: ObservedOperation, error: BaseException | None) -> None:
        self.lines.append(f"after {operation.label}: {error}")

    def after_complete(self, operation: ObservedOperation, error: BaseException | None) -> None:
        assert operation in self.seen
        self.lines.append(f"complete {operation.label}: {error}")


def test_hooks_in_order(device: Device) -> None:
    x = words(1).sync()
    with instrumented(Log()) as log:
        assert isinstance(log, Log)
        Affine(x, 2, 0).sync()
        asyncio.run(one(Affine(x, 2, 0)))
    Affine(x, 2, 0).sync()  # not told of
    each = ["before affine", "after affine: None", "complete affine: None"]
    assert log.lines == 2 * each
    assert log.seen[0].site[0] == __file__
    assert log.seen[0].number < log.seen[1].number
    assert "affine" in str(log.seen[0])


def test_hooks_are_told_of_the_end_of_what_nobody_follows(sim: SimDriver, sim_device: Device) -> None:
    x, stream = words(1).sync(), sim_device.new_stream()
    with instrumented(Log()) as log:
        assert isinstance(log, Log)
        async_on(Affine(x, 2, 0), stream)
        stream.synchronize()
        limit = time.monotonic() + 60
        while len(log.lines) < 3 and time.monotonic() < limit:  # the reactor sees the end
            sim.run_until_idle()
    assert log.lines == ["before affine", "after affine: None", "complete affine: None"]


async def one(op: Any) -> Any:
    return await op


@dataclass
class Counter(Instrument):
    """An instrument that equals each other one of the same count."""

    count: int = 0

    def before_enqueue(self, operation: ObservedOperation) -> None:
        self.count += 1


def test_instruments_that_are_equal_are_all_told() -> None:
    with instrumented(Counter()) as first, instrumented(Counter()) as second:
        assert first == second
        value(1).sync()
    assert first == second == Counter(1)


def test_a_block_leaves_an_instrument_registered_that_was_so_before() -> None:
    counter = Counter()
    with instrumented(counter):
        with instrumented(counter):
            value(1).sync()
        value(1).sync()
    value(1).sync()
    assert counter.count == 2


def test_failures_are_told_of(sim_device: Device, sim: SimDriver) -> None:
    x = words(1).sync()
    with instrumented(Log()) as log:
        assert isinstance(log, Log)
        sim.fail("launch", error=RuntimeError("refused"))
        with pytest.raises(RuntimeError, match="refused"):
            Affine(x, 2, 0).sync()
        sim.fail("run:launch", error=RuntimeError("broke"))
        with pytest.raises(RuntimeError, match="broke"):
            Affine(x, 2, 0).sync()
    assert log.lines[1:3] == ["after affine: refused", "complete affine: refused"]
    assert log.lines[4:] == ["after affine: None", "complete affine: broke"]


def test_an_instrument_that_raises_is_removed_and_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Instrument):
        def after_enqueue(self, operation: ObservedOperation, error: BaseException | None) -> None:
            raise ZeroDivisionError("in the hook")

    broken, log = Broken(), Log()
    add_instrument(broken)
    add_instrument(log)
    try:
        with Device.from_driver(SimDriver()), caplog.at_level(logging.ERROR, "cuda_async"):
            assert value(1).sync() == 1
            assert value(2).sync() == 2
    finally:
        remove_instrument(log)
    assert observers.observe is None
    assert len(log.lines) == 6
    assert len(caplog.records) == 1
    assert "in the hook" in caplog.text


def test_without_instruments_nothing_is_made(sim_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> None:
        raise AssertionError("observed")

    monkeypatch.setattr("cuda_async.instrument.ObservedOperation", begin)
    assert value(1).sync() == 1


def test_operations_of_several_threads() -> None:
    def work() -> None:
        with Device.host():
            x = words(1, count=100).sync()
            for _ in range(50):
                Affine(x, 1, 1).sync()

    with instrumented(Log()) as log:
        assert isinstance(log, Log)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(log.lines) == 3 * 3 * 51
    assert len({each.number for each in log.seen}) == 3 * 51


class Ranges:
    """The calls of `nvtx`, recorded."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.open: set[int] = set()

    def start_range(self, message: str, **options: Any) -> int:
        self.calls.append(("start", message.partition(" (")[0]))
        self.open.add(len(self.calls))
        return len(self.calls)

    def end_range(self, number: int) -> None:
        self.open.remove(number)
        self.calls.append(("end", None))

    def push_range(self, message: str, **options: Any) -> None:
        self.calls.append(("push", message.partition(" (")[0]))

    def pop_range(self, **options: Any) -> None:
        self.calls.append(("pop", options["domain"]))


def test_nvtx_ranges_open_and_close(device: Device) -> None:
    ranges = Ranges()
    with instrumented(NvtxRanges(ranges)):
        x = words(1).sync()
        ranges.calls.clear()
        Affine(x, 2, 0).then(Read).sync()
    assert ranges.open == set()
    assert ranges.calls == [
        ("start", "then"),
        ("push", "enqueue then"),
        ("pop", "cuda_async"),
        ("end", None),
    ]


def test_an_instrument_registered_half_way_closes_nothing(sim_device: Device) -> None:
    ranges = Ranges()
    nvtx = NvtxRanges(ranges)
    with instrumented(Log()):  # so that the operation is observed at all
        Call(lambda: None).inspect(lambda _: add_instrument(nvtx)).sync()
    remove_instrument(nvtx)
    assert ranges.calls == []


def test_the_real_nvtx_without_a_profiler() -> None:
    pytest.importorskip("nvtx", reason="needs the extra profile")
    with nvtx_ranges(), Device.from_driver(SimDriver()):
        assert words(5).then(Read).sync()[0] == 5


def test_a_missing_nvtx_is_told_of_with_the_remedy() -> None:
    expect(
        """
    sys.modules["nvtx"] = None       # as if it were not installed
    from cuda_async.profile import nvtx_ranges
    try:
        with nvtx_ranges():
            pass
    except ImportError as error:
        print("[profile]" in str(error))
    """,
        "True",
    )


@pytest.mark.parametrize(
    ("wrong", "remedy"), [(None, "derive its class"), (5, "derive its class"), (Log, r"write Log\(\)")]
)
def test_only_instruments_are_registered(wrong: Any, remedy: str) -> None:
    """Others raised in the log, at the next operation."""
    registers: list[Callable[[Any], object]] = [add_instrument, lambda it: instrumented(it).__enter__()]
    for register in registers:
        with pytest.raises(
            TypeError, match=rf"instrument: expected an object of a class of Instrument, got .*; {remedy}"
        ):
            register(wrong)
