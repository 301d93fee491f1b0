"""Launches of a graph order themselves once, and again only where another stream has used an operand.

Random programs of two graphs that share memory, on three streams, beside the same steps one after the other: on a
simulator that runs whatever is not ordered in any order, with a checker of races.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async import CudaGraph, Device, DriverError, OwnershipError, Storage, Stream
from cuda_async.core.storage import _Allocation  # pyright: ignore[reportPrivateUsage]
from cuda_async.driver.checked import CheckedStream
from cuda_async.testing import CheckedDriver, SimDriver, wait_all_idle
from cuda_async.unsafe import async_on
from tests.cuda_async.work import Affine, CopyTo, Read, words
from tests.support.interrupts import interleaved

COUNT, CELLS, STREAMS = 16, 4, 3
PATIENCE = 30
"""Attempts at an operation that an update in flight refuses: enough for the update's few steps to end."""


@dataclass(frozen=True)
class Step:
    """What happens: to which graph or cell, on which stream, how."""

    what: str
    which: int
    stream: int
    how: int


def recorded_by(targets: st.SearchStrategy[int], sources: st.SearchStrategy[int]) -> Any:
    """What a graph records: its cells that it writes, and those that it reads."""
    what = st.sampled_from(["affine", "copy"])
    return st.lists(st.tuples(what, targets, sources), min_size=1, max_size=3)


# The second graph reads what the first one writes. Another way of sharing is refused when it is captured.
graphs = st.tuples(
    recorded_by(st.integers(0, 1), st.integers(0, 1)), recorded_by(st.integers(2, 3), st.integers(0, CELLS - 1))
).map(list)
step = st.builds(
    Step,
    st.sampled_from(["launch", "launch", "launch", "read", "read", "update", "work", "wrap", "close"]),
    st.integers(0, CELLS - 1),
    st.integers(0, STREAMS - 1),
    st.integers(0, 2),
)


def renewed(graph: int, cell: int) -> list[Step]:
    """Launches with an update in between, all on one stream: what a program does for each token."""
    launch = Step("launch", graph, cell % 2, 2)
    return [launch, Step("update", cell, 0, 0), launch]


phrases = st.one_of(step.map(lambda each: [each]), st.builds(renewed, st.integers(0, 1), st.integers(0, CELLS - 1)))
steps = st.lists(phrases, min_size=1, max_size=12).map(lambda lists: [each for phrase in lists for each in phrase])
Program = tuple[list[list[tuple[str, int, int]]], list[Step]]
programs: st.SearchStrategy[Program] = st.tuples(graphs, steps)


def apply(values: list[int], recorded: list[tuple[str, int, int]]) -> None:
    """What a launch of a graph does."""
    for what, target, source in recorded:
        values[target] = (3 * values[target] + source if what == "affine" else values[source]) % 2**32


def record(stream: Stream, cells: list[Storage], recorded: list[tuple[str, int, int]]) -> CudaGraph[None]:
    with CudaGraph.scope(stream) as scope:
        for what, target, source in recorded:
            if what == "affine":
                scope.record(Affine(cells[target], 3, source))
            elif target != source:
                scope.record(CopyTo(cells[target], cells[source]))
    return scope.graph


def run(driver: CheckedDriver, program: Program) -> None:
    """Run a program, and compare what was read with the same steps one after the other."""
    device = Device.from_driver(driver)
    streams = [device.new_stream() for _ in range(STREAMS + CELLS)]
    cells = [words(number, count=COUNT).sync_on(streams[0]) for number in range(CELLS)]
    values = list(range(CELLS))
    recorded, steps = program
    graphs: list[CudaGraph[None]] = [record(streams[i], cells, each) for i, each in enumerate(recorded)]
    bound: dict[tuple[int, int], Any] = {}
    reads: list[tuple[Storage, int]] = []
    # At the end others write all that the graphs have used, while their last launches are in flight; each cell on a
    # stream of its own, which follows nothing yet.
    close = [Step("close", number, 0, 0) for number in range(2)]
    for step in (*steps, *close, *(Step("work", cell, STREAMS + cell, 0) for cell in range(CELLS))):
        stream, number = streams[step.stream], step.which % 2
        graph = graphs[number]
        if step.what == "launch" and not graph.closed:
            if step.how == 0:
                graph.launch().sync_on(stream)
            elif step.how == 1:
                async_on(graph.launch(), stream)
            else:
                key = number, step.stream
                launch = bound.get(key) or bound.setdefault(key, graph.launch().bind(stream))
                launch()
            apply(values, recorded[number])
        elif step.what == "wrap" and not graph.closed:
            try:
                outer = graph.launch().graph_on(streams[step.how])
            except OwnershipError:  # an update has not ended
                continue
            for _ in range(2):
                async_on(outer.launch(), stream)
                apply(values, recorded[number])
            outer.close()
        elif step.what == "read":
            fresh = words(77, count=COUNT).sync_on(streams[step.how])
            try:
                async_on(CopyTo(fresh, cells[step.which]), stream)
            except OwnershipError:  # an update has not ended
                continue
            reads.append((fresh, values[step.which]))
        elif step.what in ("update", "work"):
            for _ in range(PATIENCE):  # the simulation takes a step at each refusal
                try:
                    op = Affine(cells[step.which], 5, 1)
                    graph.update(op) if step.what == "update" and not graph.closed else async_on(op, stream)
                except OwnershipError:  # the memory is a graph's, or another graph's, or an update has not ended
                    continue
                values[step.which] = (5 * values[step.which] + 1) % 2**32
                break
        elif step.what == "close":
            graph.close()
    for stream in streams:  # updates end, and what they were lent
        stream.synchronize()
    for storage, value in [*reads, *zip(cells, values, strict=True)]:
        assert Read(storage).sync_on(streams[0]).tolist() == [value] * COUNT
    wait_all_idle(device)
    assert driver.races == []


@settings(max_examples=300)
@given(seed=st.integers(0, 2**16), program=programs)
def test_random_programs(seed: int, program: Program) -> None:
    run(CheckedDriver(SimDriver(seed)), program)


@settings(max_examples=60)
@given(program=programs)
def test_random_programs_on_the_cpu(program: Program) -> None:
    run(CheckedDriver(Device.host().driver), program)


def test_an_update_of_what_launches_read() -> None:
    """It takes the place of the reads before it, and none of those behind it."""
    launch, update = Step("launch", 1, 1, 2), Step("update", 1, 1, 0)
    # The graph's number is the cell's, modulo two, and its own stream has the same number.
    program: Program = ([[("affine", 2, 0)], [("copy", 0, 1)] * 3], [launch, update, launch])
    for seed in range(4):
        run(CheckedDriver(SimDriver(seed)), program)


LAUNCH, READ = Step("launch", 0, 1, 2), Step("read", 0, 2, 0)
PROGRAM: Program = [[("affine", 0, 1), ("copy", 1, 0)], [("affine", 2, 2)]], [LAUNCH, LAUNCH, READ] * 3


def test_a_runtime_that_never_orders_them_anew_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: _Allocation) -> None:
        """In place of `end_replays`."""

    monkeypatch.setattr(_Allocation, "end_replays", nothing)
    wrong = 0
    for seed in range(8):
        try:
            run(CheckedDriver(SimDriver(seed)), PROGRAM)
        except AssertionError:
            wrong += 1
    assert wrong


def test_the_last_launch_counts() -> None:
    """Launches that note nothing are work in flight, of a writer and of a reader."""
    device = Device.from_driver(SimDriver(1))
    stream = device.new_stream()
    target, source = (words(number, count=COUNT).sync_on(stream) for number in (1, 2))
    with CudaGraph.scope(stream) as scope:
        scope.record(CopyTo(target, source))
    launch = scope.graph.launch().bind(stream)
    launch()
    stream.synchronize()
    allocations: list[_Allocation] = [target._allocation, source._allocation]  # pyright: ignore[reportPrivateUsage]
    assert (target.last_writer(), [each.in_use(but=None) for each in allocations]) == (None, [False, False])
    mark = target.write_mark()
    launch()
    assert (target.last_writer(), [each.in_use(but=None) for each in allocations]) == (stream, [True, True])
    assert target.write_mark() != mark
    assert source.last_writer() is None


def test_launches_on_one_stream_order_themselves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device.from_driver(SimDriver(1))
    stream, other = device.new_stream(), device.new_stream()
    cells = [words(number, count=COUNT).sync_on(stream) for number in range(50)]
    calls = 0
    order = Storage.order

    def counted(self: Storage, stream: Stream, write: bool) -> None:
        nonlocal calls
        calls += 1
        order(self, stream, write)

    monkeypatch.setattr(Storage, "order", counted)
    with CudaGraph.scope(stream) as scope:
        for cell in cells:
            scope.record(Affine(cell, 1, 1))
    launch = scope.graph.launch().bind(stream)
    for _ in range(5):
        launch()
    assert calls == 50
    scope.graph.update(Affine(cells[0], 1, 1))  # on the same stream: nothing changes
    launch()
    assert calls == 50
    stream.synchronize()  # the update's lease ends
    Read(cells[0]).sync_on(other)
    launch()
    launch()
    assert calls == 100
    assert Read(cells[0]).sync_on(other).tolist() == [9] * COUNT


@pytest.mark.parametrize("device", [Device.host(), Device.from_driver(SimDriver(3))], ids=["host", "sim"])
def test_another_thread_reads_between_launches(device: Device) -> None:
    """Each read has one launch's result, and no earlier one than the read before it."""
    stream, other = device.new_stream(), device.new_stream()
    cell, copy = (words(0, count=4096).sync_on(stream) for _ in range(2))
    with CudaGraph.scope(stream) as scope:
        scope.record(Affine(cell, 1, 1))
    launch = scope.graph.launch().bind(stream)
    errors: list[BaseException] = []

    def replay() -> None:
        try:
            for _ in range(300):
                launch()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=replay)
    thread.start()
    last = 0
    while thread.is_alive():
        async_on(CopyTo(copy, cell), other)
        seen = Read(copy).sync_on(other)
        assert (np.asarray(seen) == seen[0]).all()
        assert seen[0] >= last
        last = int(seen[0])
    thread.join(60)
    assert not errors, errors
    assert Read(cell).sync_on(other)[0] == 300


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell where threads may change")
@pytest.mark.parametrize("writes", [True, False], ids=["written", "read"])
@pytest.mark.parametrize(
    ("how", "other"),
    [("read", "elsewhere"), ("read", "here"), ("read", "work"), ("many reads", "here"), ("launch", "here")],
)
def test_threads_change_anywhere(how: str, other: str, writes: bool) -> None:
    """What a thread does amid another's use of an operand goes into the records, wherever the threads change."""
    number, place = 0, "the beginning"
    while place is not None:
        driver = CheckedDriver(SimDriver(1))
        assert isinstance(driver.inner, SimDriver)
        sim: SimDriver = driver.inner
        device = Device.from_driver(driver)
        home, here, elsewhere, reader, witness, last = (device.new_stream() for _ in range(6))
        cell, source = (words(n, count=COUNT).sync_on(home) for n in range(2))
        operand = cell if writes else source
        graph = record(home, [cell, source], [("copy", 0, 1)])
        launch, launch_elsewhere = graph.launch().bind(here), graph.launch().bind(elsewhere)
        readers = [device.new_stream() for _ in range(20 if how == "many reads" else 0)]
        sim.automatic = False  # nothing completes, so that streams alone order the work
        launch()
        for stream in readers:
            use(stream, operand, write=False)

        def complete() -> None:
            sim.run_until_idle()  # noqa: B023
            for stream in (here, *readers):  # noqa: B023
                stream.completed = stream.sequence

        def do() -> None:
            if other == "work":
                use(here, operand, write=True)  # noqa: B023
            else:
                for _ in range(3):
                    (launch_elsewhere if other == "elsewhere" else launch)()  # noqa: B023
                if how == "many reads":  # which forget those that are done
                    complete()

        def this() -> None:
            if how == "launch":
                launch_elsewhere()  # noqa: B023
            else:
                use(reader, operand, write=False)  # noqa: B023

        place = interleaved(this, number, do)
        if place is None:
            do()
        again = launch if other == "here" else launch_elsewhere
        again()
        if how != "many reads":
            use(witness, operand, write=False)  # waits for an event, which covers no later launch
        again()
        use(last, operand, write=True)
        assert isinstance(last.driver, CheckedStream)
        for stream in (here, elsewhere, reader):
            assert isinstance(stream.driver, CheckedStream)
            step = stream.driver.clock.get(stream.driver.number, 0)
            assert last.driver.clock.get(stream.driver.number, 0) >= step, f"{number}: {place}"
        sim.automatic = True
        wait_all_idle(device)
        number += 1
    assert number > 20


def use(stream: Stream, storage: Storage, *, write: bool) -> None:
    """Enqueue a use of a storage."""
    with stream.submission:
        storage.use(stream, write=write)
        stream.fill(storage.address, storage.nbytes, b"1") if write else stream.call(lambda: None)


def test_a_neighbours_failure_is_its_own() -> None:
    """A launch of another graph fails on the stream; memory of this graph is not concerned."""
    sim = SimDriver(1)
    device = Device.from_driver(sim)
    stream, other = device.new_stream(), device.new_stream()
    cells = [words(number, count=COUNT).sync_on(stream) for number in range(3)]
    record(stream, cells, [("affine", 0, 1)]).launch().sync_on(stream)
    sim.fail("run:copy")
    record(stream, cells, [("copy", 1, 2)]).launch().bind(stream)()
    assert Read(cells[0]).sync_on(other).tolist() == [1] * COUNT
    with pytest.raises(DriverError, match="injected fault"):
        stream.synchronize()


def test_graphs_made_again_and_again_leave_nothing_in_their_operands() -> None:
    device = Device.from_driver(SimDriver(1))
    stream = device.new_stream()
    cells = [words(number, count=COUNT).sync_on(stream) for number in range(2)]
    for _ in range(20):
        with record(stream, cells, [("affine", 0, 1)]) as graph:
            graph.launch().sync_on(stream)
    assert len(cells[0]._allocation.replays) <= 2  # pyright: ignore[reportPrivateUsage]
    with record(stream, cells, [("copy", 0, 1)]) as graph:
        cells[1].fail(RuntimeError("no data"))
        for _ in range(20):
            with pytest.raises(RuntimeError, match="no data"):
                graph.launch().sync_on(stream)
    assert len(cells[0]._allocation.replays) <= 2  # pyright: ignore[reportPrivateUsage]
    assert Read(cells[0]).sync_on(device.new_stream())[0] == (3**20 - 1) // 2 % 2**32
