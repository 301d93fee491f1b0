"""Graphs that live beside each other and beside other work, over our memory and another library's, whole and in parts.

Random programs: operations run, are recorded, replayed, passed to `graph.update`; graphs are closed or dropped; the
library works on its memory in between. An operation is refused exactly where it would write bytes that another living
graph uses; every other one leaves what the same program leaves that runs step by step.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async import CudaGraph, Device, DeviceOp, ExecutionContext, OwnershipError, Storage, Stream, Use, value
from cuda_async.foreign import ForeignStorage
from cuda_async.recorder import Recorder
from cuda_async.testing import SimDriver
from tests.cuda_async.work import Words, launch_affine, words, words_at

PARTS, COUNT = 4, 8  # parts of a block of memory, words of a part
NBYTES = 4 * COUNT
GRAPHS = 3
BLOCKS = ("ours", "ours too", "the library's")

Place = tuple[int, int]
"""A block, and the part of it."""


@dataclass(frozen=True)
class Work:
    """target = factor * source + 1, for one part of some memory."""

    target: Place
    source: Place
    factor: int


@dataclass(frozen=True)
class Step:
    """One step: `run`, `record`, `launch`, `update`, `close`, `drop`; or the `library` adds a number.

    `wrap` records a launch as the next graph.
    """

    kind: str
    work: Work
    graph: int
    stream: int


class Machine:
    """A simulated device with the memory, and the library that owns some of it."""

    def __init__(self, seed: int) -> None:
        self.device = Device.from_driver(SimDriver(seed))
        self.streams = [self.device.new_stream() for _ in range(2)]
        self.own = [words(number, count=PARTS * COUNT).sync_on(self.streams[0]) for number in range(2)]
        self.library = self.device.new_stream()
        self.lent = self.library.driver.allocate(PARTS * NBYTES)
        words_at(self.lent, PARTS * COUNT)[:] = 2

    def look(self, place: Place) -> tuple[Storage, int]:
        """The storage of a part, and its first byte there. Each look at the library's memory is another."""
        block, part = place
        if block < len(self.own):
            return self.own[block], part * NBYTES
        return ForeignStorage(self.device, self, lambda: self.library.driver.raw), self.lent + part * NBYTES

    def add(self, part: int, number: int) -> None:
        """The library adds a number to a part of its memory, on its stream."""
        address = self.lent + part * NBYTES

        def work() -> None:
            words_at(address, COUNT)[:] += np.uint32(number)

        self.library.driver.call(work)

    def contents(self) -> list[list[Words]]:
        for stream in (*self.streams, self.library):
            stream.synchronize()
        starts = [*(storage.address for storage in self.own), self.lent]
        return [[words_at(start + part * NBYTES, COUNT).copy() for part in range(PARTS)] for start in starts]


class Compute(DeviceOp[None]):
    """The operation of a `Work`, on its parts."""

    has_effects = True

    def __init__(self, machine: Machine, work: Work) -> None:
        super().__init__()
        self._work = work
        self._target, self._start = machine.look(work.target)
        self._source, self._from = machine.look(work.source)
        uses = [Use("y", self._target, True, self._start, self._start + NBYTES)]
        if work.source != work.target:
            uses.append(Use("x", self._source, False, self._from, self._from + NBYTES))
        self.lend(*uses)

    def execute(self, context: ExecutionContext) -> None:
        stream = context.stream
        target, source = self._target.address + self._start, self._source.address + self._from
        if target != source:
            self._source.use(stream, write=False)
            self._target.use(stream, write=True)
            stream.copy(target, source, NBYTES)
        self._target.use(stream, write=True)
        launch_affine(stream, target, COUNT, self._work.factor, 1)


def nested(machine: Machine, work: Work) -> DeviceOp[Any]:
    """The operation as a part of another, as libraries of kernels return it."""
    return value(1).then(lambda _: Compute(machine, work))


@dataclass
class Model:
    """The same, step by step."""

    blocks: list[list[int]] = field(default_factory=lambda: [[number] * PARTS for number in range(len(BLOCKS))])
    living: dict[int, list[Work]] = field(default_factory=dict[int, list[Work]])

    def do(self, work: Work) -> None:
        (target, part), (source, origin) = work.target, work.source
        self.blocks[target][part] = (work.factor * self.blocks[source][origin] + 1) % 2**32

    def refuses(self, work: Work, but: int | None = None) -> bool:
        """Whether it would write bytes that a living graph, other than `but`, uses."""
        return any(
            work.target in (each.target, each.source)
            for number, program in self.living.items()
            if number != but
            for each in program
        )


def play(machine: Machine, steps: list[Step]) -> tuple[Model, list[str]]:
    """Take the steps on both; returns the model, and what the two disagree about."""
    model, wrong = Model(), list[str]()
    graphs: dict[int, CudaGraph[Any]] = {}
    for step in steps:
        stream: Stream = machine.streams[step.stream]
        graph = graphs.get(step.graph)
        if step.kind == "library":
            machine.add(step.work.target[1], step.work.factor)
            parts = model.blocks[2]
            parts[step.work.target[1]] = (parts[step.work.target[1]] + step.work.factor) % 2**32
        elif step.kind in ("run", "record", "update"):
            if step.kind == "update" and graph is None:
                continue
            refused = model.refuses(step.work, step.graph if step.kind == "update" else None)
            try:
                if step.kind == "run":
                    nested(machine, step.work).sync_on(stream)
                elif step.kind == "update":
                    assert graph is not None
                    graph.update(nested(machine, step.work))
                    graph.stream.synchronize()  # until then it holds what was lent to it
                elif step.graph not in graphs:
                    graphs[step.graph] = nested(machine, step.work).graph_on(stream)
                    model.living[step.graph] = [step.work]
                else:
                    continue
            except OwnershipError as error:
                if not refused:
                    wrong.append(f"{step}: {error}")
                continue
            if refused:
                wrong.append(f"{step}: was not refused")
            if step.kind != "record":
                model.do(step.work)
        elif graph is not None and step.kind == "wrap":
            outer = (step.graph + 1) % GRAPHS
            if outer not in graphs:
                graphs[outer] = graph.launch().graph_on(stream)
                model.living[outer] = model.living[step.graph]
        elif graph is not None and step.kind == "launch":
            graph.launch().sync_on(stream)
            for work in model.living[step.graph]:
                model.do(work)
        elif graph is not None:
            if step.kind == "close":
                graph.close()
            del graphs[step.graph], model.living[step.graph], graph  # at once: no garbage is collected here
    return model, wrong


def check(seed: int, steps: list[Step]) -> list[str]:
    machine = Machine(seed)
    gc.disable()
    try:
        model, wrong = play(machine, steps)
    finally:
        gc.enable()
    if [[int(part[0]) for part in block] for block in machine.contents()] != model.blocks:
        wrong.append("the memory holds something else")
    return wrong


PLACES = st.tuples(st.integers(0, len(BLOCKS) - 1), st.integers(0, PARTS - 1))
STEPS = st.builds(
    Step,
    st.sampled_from(("run", "record", "record", "launch", "launch", "update", "wrap", "close", "drop", "library")),
    st.builds(Work, PLACES, PLACES, st.integers(0, 5)),
    st.integers(0, GRAPHS - 1),
    st.integers(0, 1),
)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**16), steps=st.lists(STEPS, max_size=16))
def test_random_programs_with_graphs(seed: int, steps: list[Step]) -> None:
    assert check(seed, steps) == []


@pytest.mark.parametrize("block", range(len(BLOCKS)), ids=BLOCKS)
def test_graphs_of_different_parts_live_beside_each_other(block: int) -> None:
    """Also where both are parts of one storage, as all memory of other libraries on one device is."""
    first, other, third = (Work((block, part), (block, part), 3) for part in range(3))
    steps = [Step("record", first, 0, 0), Step("record", other, 1, 1), Step("run", third, 0, 0)]
    steps += [Step("launch", first, number, 0) for number in (0, 1, 0)]
    steps += [Step("wrap", first, 1, 0), Step("run", third, 0, 0), Step("launch", first, 2, 0)]
    assert check(1, [*steps, Step("close", first, 0, 0), Step("run", first, 0, 1), Step("launch", first, 1, 0)]) == []


def test_the_check_finds_a_graph_that_holds_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(recorder: Recorder, storage: Storage) -> list[tuple[int, None]]:
        return [(0, None)]

    monkeypatch.setattr(Recorder, "_lent", whole)
    one, other = (Work((2, part), (2, part), 3) for part in range(2))
    (wrong,) = check(1, [Step("record", one, 0, 0), Step("record", other, 1, 0)])
    assert "uses the same memory at each launch" in wrong


def test_the_check_finds_a_graph_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(recorder: Recorder) -> list[Use]:
        return []

    monkeypatch.setattr(Recorder, "operands", nothing)
    one = Work((0, 0), (0, 0), 3)
    (wrong,) = check(1, [Step("record", one, 0, 0), Step("run", one, 0, 0)])
    assert wrong.endswith("was not refused")


@pytest.mark.parametrize("records", [False, True], ids=["runs", "records"])
def test_a_graph_goes_ahead_of_the_modules_that_it_uses(records: bool) -> None:
    """A driver unloads modules where a run begins. Dropped graphs that use them must be closed before."""
    device = Device.from_driver(SimDriver(1))
    stream, order = device.new_stream(), list[str]()
    kind = type(stream.driver)

    def begin_run(driver: Any) -> None:
        order.append("modules")
        begin(driver)

    begin = kind.begin_run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "begin_run", begin_run)
        device.defer(lambda: order.append("graph"))
        if records:
            CudaGraph.capture(stream, value(1))
        else:
            value(1).sync_on(stream)
    assert order[:2] == ["graph", "modules"]


class Code:
    """Stands for loaded code."""


class HoldsCode(DeviceOp[None]):
    """Holds code as a launch does, and has no reference to it afterwards."""

    graph_node = True

    def __init__(self, code: Code) -> None:
        self._codes = [code]
        super().__init__()

    def execute(self, context: ExecutionContext) -> None:
        context.hold_code(self._codes.pop())


@pytest.mark.parametrize("scope", [False, True])
def test_a_graph_keeps_the_code_of_its_launches(scope: bool) -> None:
    """An operation may be compiled again meanwhile: then only the graph runs the old code."""
    with Device.from_driver(SimDriver(3)) as device:
        stream, code = device.new_stream(), Code()
        seen = weakref.ref(code)
        ops = [HoldsCode(code)]
        del code
        op = ops.pop
        graph = CudaGraph.scope(stream, lambda scope: scope.record(op())) if scope else op().graph_on(stream)
        gc.collect()
        assert seen() is not None
        graph.launch().sync_on(stream)
        graph.close()
        del graph
        stream.synchronize()
        gc.collect()
        assert seen() is None
