"""Random DAGs of operations over random streams and threads: the results of the sequential run, and no race.

A node makes new storage from two earlier nodes' (half of each), and computes on it. Nodes are shared: the first that
needs one runs it, on whatever thread and stream that is, while others order themselves behind it; what nobody needs any
more is freed while it may be in use. Nothing but the runtime orders them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async import (
    Device,
    DeviceOp,
    ExecutionContext,
    SharedDeviceOp,
    Storage,
    Stream,
    StreamPoolRoundRobin,
    zip,
)
from cuda_async.shared import _Once  # pyright: ignore[reportPrivateUsage]
from cuda_async.testing import CheckedDriver, SimDriver, wait_all_idle
from tests.cuda_async.work import Read, launch_affine, words

COUNT = 32
NBYTES = 4 * COUNT


@dataclass(frozen=True)
class Planned:
    """A node: the two nodes before it that it reads, and what it computes."""

    left: int
    right: int
    factor: int
    addend: int


@dataclass(frozen=True)
class Wanted:
    """A result to ask for: the node, the thread, the stream, and whether by `await` or by `sync_on`."""

    node: int
    thread: int
    stream: int
    awaits: bool


class Half(DeviceOp[Storage]):
    """New storage: the first half of one, the second half of another, then factor * x + addend."""

    def __init__(self, left: Storage, right: Storage, plan: Planned) -> None:
        super().__init__()
        self._left, self._right, self._plan = left, right, plan

    def execute(self, context: ExecutionContext) -> Storage:
        result, stream = context.allocate(NBYTES), context.stream
        for source, start in ((self._left, 0), (self._right, NBYTES // 2)):
            source.use(stream, write=False)
            result.use(stream, write=True)
            stream.copy(result.address + start, source.address + start, NBYTES // 2)
            context.keep(source)
        result.use(stream, write=True)
        launch_affine(stream, result.address, COUNT, self._plan.factor, self._plan.addend, grain=8)
        return result


def sequential(plans: list[Planned]) -> list[list[int]]:
    """The value of each node, computed one after the other."""
    results = [[number] * COUNT for number in range(2)]
    for plan in plans:
        halves = results[plan.left][: COUNT // 2] + results[plan.right][COUNT // 2 :]
        results.append([(plan.factor * x + plan.addend) % 2**32 for x in halves])
    return results


def build(plans: list[Planned]) -> list[SharedDeviceOp[Storage]]:
    nodes = [words(number, count=COUNT).shared() for number in range(2)]
    for plan in plans:
        sources: DeviceOp[Any] = zip(nodes[plan.left].clone(), nodes[plan.right].clone())
        nodes.append(sources.then(lambda pair, plan=plan: Half(pair[0], pair[1], plan)).shared())
    return nodes


@pytest.fixture(autouse=True, scope="module")
def _threads_change_often() -> Iterator[None]:
    """Threads change after a few instructions: locks that wait for each other in a ring are then met within a second.

    By default they change every 5 ms. By then a thread has submitted most of its operations.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run(device: Device, plans: list[Planned], expected: list[Wanted]) -> list[tuple[int, list[int]]]:
    """Ask for all results, from all threads at once."""
    streams = [device.new_stream() for _ in range(3)]
    nodes = build(plans)
    shares: dict[int, list[Wanted]] = {}
    for each in expected:
        shares.setdefault(each.thread, []).append(each)
    results: list[tuple[int, list[int]]] = []
    errors: list[BaseException] = []
    ready = threading.Barrier(max(1, len(shares)))
    asks = {number: [(each, nodes[each.node].clone().then(Read)) for each in share] for number, share in shares.items()}
    del nodes  # what nobody asks for any more is gone as soon as the last who does has run

    async def gather(share: list[tuple[Wanted, DeviceOp[Any]]]) -> None:
        policy = StreamPoolRoundRobin(device, 2)
        found = await asyncio.gather(*(op.schedule(policy) for _, op in share))
        results.extend((each.node, words.tolist()) for (each, _), words in pairs(share, found))

    def work(number: int) -> None:
        try:
            share = asks.pop(number)
            ready.wait(30)
            with device:
                asyncio.run(gather([ask for ask in share if ask[0].awaits]))
                for each, op in share:
                    if not each.awaits:
                        results.append((each.node, op.sync_on(streams[each.stream]).tolist()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    return results


def pairs(left: list[Any], right: list[Any]) -> list[tuple[Any, Any]]:
    return [(left[number], right[number]) for number in range(len(left))]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Planned], list[Wanted]]:
    plans: list[Planned] = []
    for number in range(draw(st.integers(1, 10))):
        earlier = st.integers(0, number + 1)
        plans.append(Planned(draw(earlier), draw(earlier), draw(st.integers(0, 9)), draw(st.integers(0, 9))))
    node = st.integers(0, len(plans) + 1)
    wish = st.builds(Wanted, node, st.integers(0, 2), st.integers(0, 2), st.booleans())
    return plans, draw(st.lists(wish, min_size=1, max_size=8))


def check(driver: CheckedDriver, program: tuple[list[Planned], list[Wanted]]) -> None:
    device = Device.from_driver(driver)
    plans, nodes = program
    expected = sequential(plans)
    results = run(device, plans, nodes)
    assert len(results) == len(nodes)
    for node, result in results:
        assert result == expected[node]
    wait_all_idle(device)
    assert driver.races == []


@settings(max_examples=100)
@given(seed=st.integers(0, 2**16), program=programs())
def test_random_dags_on_the_simulator(seed: int, program: tuple[list[Planned], list[Wanted]]) -> None:
    driver = CheckedDriver(SimDriver(seed))
    check(driver, program)
    assert driver.memory_info().used == 0


@settings(max_examples=100)
@given(program=programs())
def test_random_dags_on_the_cpu(program: tuple[list[Planned], list[Wanted]]) -> None:
    check(CheckedDriver(Device.host().driver), program)


@pytest.mark.gpu
@settings(max_examples=20)
@given(program=programs())
def test_random_dags_on_a_gpu(program: tuple[list[Planned], list[Wanted]]) -> None:
    plans, wanted = program
    expected = sequential(plans)
    for node, result in run(Device(0), plans, wanted):
        assert result == expected[node]


def test_a_runtime_that_orders_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its waits between streams the same DAGs race: these tests can fail."""

    def no_wait(*_: object, **__: object) -> None:
        """In place of `Stream.follow`: no wait."""

    monkeypatch.setattr(Stream, "follow", no_wait)
    monkeypatch.setattr(_Once, "_join", no_wait)
    plans = [Planned(number % 2, number, 3, number) for number in range(1, 6)]
    expected = [
        Wanted(node, thread, thread, awaits) for node in (4, 5, 6) for thread in range(3) for awaits in (True, False)
    ]
    raced = 0
    for seed in range(5):
        driver = CheckedDriver(SimDriver(seed))
        with contextlib.suppress(AssertionError):  # a wrong result is the other way to be found out
            check(driver, (plans, expected))
        raced += bool(driver.races)
    assert raced == 5
