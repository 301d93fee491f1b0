"""Rules of the runtime that no other file shows: what a capture leaves alone, and when an `await` may spin."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time

import pytest

from cuda_async import Device, DeviceFuture, DeviceOp, value
from cuda_async.config import config
from cuda_async.core.reactor import reactor
from cuda_async.core.run import Run
from cuda_async.driver.queue import QueueStream
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, Read, words


def test_nothing_is_given_back_during_a_capture(sim_device: Device, sim: SimDriver) -> None:
    x, y = words(1, count=8).sync(), words(2, count=8).sync()
    sim_device.collect()
    events: list[str] = []

    def drop(storage: object) -> DeviceOp[object]:
        nonlocal y
        del y  # collected here and now, inside the capture
        sim_device.defer(lambda: events.append("late"))
        return Affine(x, 3, 1)

    before = len(sim.log)
    with Affine(x, 2, 0).then(drop).graph() as graph:
        captured = sim.log[before:]
        assert captured[0].startswith("begin capture")
        assert not [line for line in captured if line.startswith("free")]
        assert events == []
        graph.launch().sync()  # a submission: now it is safe
        assert events == ["late"]
    assert [line for line in sim.log if line.startswith("free")]


def test_a_capturing_stream_is_never_queried(sim_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the capture itself nor by a wait meanwhile: on a GPU a query would end the capture."""
    calls: list[bool] = []

    def query(stream: QueueStream) -> bool:
        calls.append(True)
        assert stream._recorded is None, "a capturing stream was queried"  # pyright: ignore[reportPrivateUsage]
        return True

    monkeypatch.setattr(QueueStream, "query", query)
    x, y = words(1, count=8).sync(), words(2, count=8).sync()
    stop = threading.Event()
    errors: list[BaseException] = []

    def others() -> None:
        try:
            with sim_device:
                while not stop.is_set():
                    asyncio.run(one(Affine(y, 1, 1)))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    for _ in range(20):
        with Affine(x, 2, 0).graph() as graph:
            graph.launch().sync()
    stop.set()
    thread.join()
    assert errors == []
    assert sim_device.new_stream().query()
    assert calls


async def one(op: DeviceOp[object]) -> object:
    return await op


@pytest.fixture
def as_if_cuda(sim_device: Device, sim: SimDriver) -> Device:
    """A simulated device on which an `await` may spin, as on a GPU."""
    sim.works_alone = True
    return sim_device


def watched_when_idle() -> int:
    """Runs that the reactor has watched, once those of earlier tests are done."""
    while (known := reactor().statistics()).in_flight:
        time.sleep(0)
    return known.watched


def test_an_await_spins_only_when_the_loop_has_nothing_else_to_do(
    as_if_cuda: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = dataclasses.replace(config(), spin_budget_us=10e6)  # a loaded machine may take longer than 20 us
    monkeypatch.setattr("cuda_async.core.future.config", lambda: patient)

    async def alone() -> int:
        return await value(1)

    async def in_company() -> list[int]:
        futures = [value(number).into_future() for number in range(5)]
        return await asyncio.gather(*(asyncio.ensure_future(future) for future in futures))

    before = watched_when_idle()
    with as_if_cuda:
        assert asyncio.run(alone()) == 1
        assert watched_when_idle() == before  # the spin saw it complete
        assert asyncio.run(in_company()) == [0, 1, 2, 3, 4]
    assert reactor().statistics().watched > before  # those with others behind them were left to the reactor


def test_a_spin_ends(as_if_cuda: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that is not done within the budget does not hold the loop: the task is suspended."""
    gate = threading.Event()
    turns: list[int] = []
    poll = Run[int].poll

    def poll_behind_the_gate(run: Run[int]) -> bool:
        return gate.is_set() and poll(run)

    monkeypatch.setattr(Run, "poll", poll_behind_the_gate)

    async def ticking() -> None:
        for turn in range(5):
            turns.append(turn)
            await asyncio.sleep(0)
        gate.set()

    async def main() -> int:
        future: DeviceFuture[int] = value(7).into_future()
        waiting = asyncio.ensure_future(future)
        await ticking()
        return await waiting

    with as_if_cuda:
        assert asyncio.run(main()) == 7
    assert turns == [0, 1, 2, 3, 4]


def test_a_chain_is_submitted_whole(sim_device: Device, sim: SimDriver) -> None:
    """One submission for a chain, and one event at its end: the host is not asked in between."""
    x = words(1, count=8).sync()
    stream = sim_device.new_stream()
    Affine(x, 1, 0).sync_on(stream)  # what comes first on a stream may wait for others
    records = sim.calls["record"]
    begins = sim.calls["begin_run"]
    chain: DeviceOp[object] = Affine(x, 1, 1)
    for _ in range(20):
        chain = chain.then(lambda _: Affine(x, 1, 1))
    chain.sync_on(stream)
    assert (sim.calls["record"] - records, sim.calls["begin_run"] - begins) == (1, 1)
    assert Read(x).sync_on(stream)[0] == 22
    wait_all_idle(sim_device)
