"""The thread that completes runs by polling, and the alarm by which a completed run wakes its task."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from cuda_async import Device, value
from cuda_async.core import reactor as reactors
from cuda_async.core import waiting
from cuda_async.core.event import StreamIdle
from cuda_async.core.reactor import Reactor
from cuda_async.core.run import Run


class Later:
    """A run that is done after a number of polls."""

    def __init__(self, stream: object, sequence: int, polls: int, order: list[Later] | None = None) -> None:
        self.stream, self.sequence = stream, sequence
        self.left = polls
        self.polled = 0
        self.order = order
        self.done = threading.Event()

    def poll(self) -> bool:
        self.left -= 1
        self.polled += 1
        if self.left > 0:
            return False
        if self.order is not None:
            self.order.append(self)
        self.done.set()
        return True


def wait_until_idle(reactor: Reactor) -> None:
    deadline = time.monotonic() + 500
    while reactor.statistics().in_flight and time.monotonic() < deadline:
        pass


def test_it_completes_what_it_is_given_and_then_sleeps() -> None:
    reactor = Reactor()
    for _ in range(3):
        runs = [Later(stream, 0, polls) for stream, polls in enumerate((1, 5, 50))]
        for run in runs:
            reactor.watch(run)
        for run in runs:
            assert run.done.wait(30)
    wait_until_idle(reactor)
    statistics = reactor.statistics()
    assert (statistics.watched, statistics.completed, statistics.in_flight) == (9, 9, 0)


def lined_up(*runs: Later) -> dict[Any, Any]:
    """The lines of these runs, which were given at the time 0."""
    lines: dict[Any, Any] = {}
    for run in runs:
        reactors._line_up(lines, run, 0.0)  # pyright: ignore[reportPrivateUsage]
    return lines


def poll(lines: dict[Any, Any], now: float, *, busy: bool = True) -> int:
    return reactors._poll(lines, now, busy)  # pyright: ignore[reportPrivateUsage]


def test_of_each_stream_it_polls_the_first_run_only() -> None:
    first, second, other = Later("s", 1, 3), Later("s", 2, 1), Later("t", 1, 2)
    lines = lined_up(first, second, other)
    assert [poll(lines, now) for now in (0.0, 1.0, 2.0)] == [0, 1, 2]  # nothing, the other stream's, both of the first
    assert (first.polled, second.polled, other.polled) == (3, 1, 2)
    assert not lines


def test_runs_complete_in_the_order_of_their_stream_whoever_hands_them_over_first() -> None:
    order: list[Later] = []
    runs = [Later("s", sequence, 1, order) for sequence in (3, 1, 4, 2, 2)]
    assert poll(lined_up(*runs), 0.0) == 5
    assert [run.sequence for run in order] == [1, 2, 2, 3, 4]
    assert order[1:3] == [runs[3], runs[4]]


def test_many_that_are_done_are_completed_few_at_a_time_and_no_stream_waits_for_another() -> None:
    few = reactors._MAX_COMPLETIONS  # pyright: ignore[reportPrivateUsage]
    order: list[Later] = []
    lines = lined_up(*(Later(stream, sequence, 1, order) for stream in "st" for sequence in range(3 * few)))
    passes = 0
    while lines:
        assert poll(lines, float(passes)) <= few
        passes += 1
    assert passes == 6
    assert {run.stream for run in order[: 2 * few]} == {"s", "t"}


@pytest.mark.parametrize(("busy", "questions", "late"), [(True, 4, 0.6e-3), (False, 60, 0.1e-3)])
def test_a_run_is_asked_seldom_while_more_are_submitted(busy: bool, questions: int, late: float) -> None:
    """Each question takes the interpreter's lock, which the thread that submits more runs needs."""
    first, second = Later("s", 1, 2), Later("s", 2, 1000)
    lines = lined_up(first, second)
    assert [poll(lines, now, busy=busy) for now in (0.0, 1e-3)] == [0, 1]  # the first took a millisecond
    polls: list[float] = []
    for microsecond in range(1000, 3000, 10):
        now = 1e-6 * microsecond
        reactors._line_up(lines, Later("s", microsecond, 1), now)  # pyright: ignore[reportPrivateUsage] - behind it
        before = second.polled
        poll(lines, now, busy=busy)
        polls += [now] * (second.polled - before)
    assert polls[0] == pytest.approx(1.5e-3, abs=2e-5)
    assert len(polls) <= questions
    assert max(later - earlier for earlier, later in pairwise(polls)) < late


def test_a_run_behind_others_wakes_nobody_and_one_of_an_idle_stream_does() -> None:
    reactor = Reactor()
    reactor._thread = threading.current_thread()  # pyright: ignore[reportPrivateUsage] - so that none is started
    reactor._lines = lined_up(Later("s", 1, 1))  # pyright: ignore[reportPrivateUsage]
    woken: list[int] = []
    for stream in "sts":
        reactor.watch(Later(stream, 2, 1))
        woken.append(reactor._alarm.qsize())  # pyright: ignore[reportPrivateUsage]
    assert woken == [0, 1, 1]


def test_tasks_that_are_ready_together_share_one_call_of_the_loop() -> None:
    """A thousand tasks woken from another thread: none is lost, and no step of the loop wakes more than a few."""

    class Counting(asyncio.SelectorEventLoop):
        calls = 0

        def call_soon_threadsafe(self, *args: Any, **named: Any) -> asyncio.Handle:
            type(self).calls += 1
            return super().call_soon_threadsafe(*args, **named)

    class Done:
        def __init__(self) -> None:
            self.waiters: list[Any] = []

        def when_done(self, waiter: Any) -> None:
            self.waiters.append(waiter)

    class Suspended:
        def __init__(self, run: Done) -> None:
            self.run = run

        def __await__(self) -> Any:
            return waiting.suspend(self.run)

    async def task(run: Done) -> int:
        await Suspended(run)
        return 1

    async def main() -> int:
        run = Done()
        tasks = [asyncio.create_task(task(run)) for _ in range(1000)]
        tasks[5].cancel()
        await asyncio.sleep(0)
        assert len(run.waiters) == 999
        woken = threading.Thread(target=lambda: [waiter() for waiter in run.waiters])
        woken.start()
        woken.join()  # the loop is held meanwhile: everything is ready before it looks
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return sum(each for each in results if isinstance(each, int))

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(main()) == 999
    assert Counting.calls <= 2  # one of ours; a thread's end may bring another


def test_a_loop_that_was_closed_is_not_woken() -> None:
    alarm: Any = None
    waiters: list[Any] = []

    async def main() -> None:
        nonlocal alarm
        loop = asyncio.get_running_loop()
        alarm = waiting._alarm_of(loop)  # pyright: ignore[reportPrivateUsage]
        waiters.append(loop.create_future())

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    alarm.wake(waiters[0])
    alarm.wake(waiters[0])
    assert not waiters[0].done()


def test_a_device_that_cannot_be_asked_fails_its_run_and_not_the_reactor(sim_device: Device) -> None:
    """An exception that ended the thread would leave everybody waiting for ever."""

    class Unaskable(StreamIdle):
        def query(self) -> bool:
            raise RuntimeError("nobody answers")

    stream = sim_device.new_stream()
    run = Run(value(1), stream)
    run.submit()
    run._event = Unaskable(stream.driver)  # pyright: ignore[reportPrivateUsage]
    reactor, done = Reactor(), threading.Event()
    run.when_done(done.set)
    reactor.watch(run)
    assert done.wait(30)
    with pytest.raises(RuntimeError, match="nobody answers"):
        run.outcome()
    later = Later("s", 0, 3)
    reactor.watch(later)
    assert later.done.wait(30)
