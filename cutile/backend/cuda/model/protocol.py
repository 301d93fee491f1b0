"""The pipelines of a lowered kernel as data: the events of producer and consumers.

Producer and consumers share stages of buffers, with two barriers for each stage (`ops/pipeline.py`). The events come in
the order in which the IR runs. Events of results, which consumers store through shared memory, are among them.
`pipelines.py` checks the pipelines, `properties.py` the rest.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.model.happens_before import Order
from cutile.backend.cuda.ops import (
    Barrier,
    BarriersStart,
    Dot,
    DotWait,
    Elected,
    Failed,
    FailUnless,
    FirstIteration,
    FirstTile,
    Fixup,
    KSplits,
    NextTile,
    OrderBarrierArrive,
    OrderBarrierWait,
    PackPairs,
    PackQuads,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    PipelineWait,
    ReadBuffer,
    ReceiveTile,
    ReducePartials,
    Roles,
    ScatterPartials,
    SendTile,
    SimtMma,
    TileIndex,
    TileStep,
    TmaLoad,
    TmaStore,
    TripCount,
    Uniform,
    WarpgroupIndex,
    WorkUnit,
    WriteOperand,
)
from cutile.backend.cuda.ops.pipeline import BarriersType, PipelineType, ScratchType, buffer_types
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.smem_sizes import warp_mask
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.op_facts import DefUse
from cutile.errors import IRError
from cutile.ir import Block, Constant, For, Function, If, Op, Value, While
from cutile.ir.types import ResourceType
from cutile.ops.arith import Add, And, FloorDiv, Max, Min, Mul, Sub
from cutile.ops.compare import Eq, Ge, Lt, Ne, Select
from cutile.ops.grid import NumTileBlocks
from cutile.ops.reduce import Reduce, ReduceMax, ReduceMin, ReduceProd, ReduceSum

WARPS = 4
"""Warps of a warpgroup."""
_WORD = 4
"""Bytes of a tile block's number, which the producer sends to the consumers."""


class ProtocolError(IRError):
    """Producer and consumers of a pipeline do not fit together."""


@dataclass(frozen=True)
class Event:
    """One event of a pipeline, of a result, or of an operand that consumers write.

    Events of a pipeline: acquire, load, wait, begin (a product), finish (wait for products), release; read (threads
    read a stage themselves); order wait, order arrive (the order barrier of ping-pong). Events of results: pack (a
    delayed result, as words), fill (write a place in shared memory), store (TMA begins), scatter and reduce (a
    cluster's partial sums), barrier (of the consumers). Event of an operand: write. Events of assertions: test (the
    producer), ask (a consumer reads the flag of failures).

    Attributes:
        what: its name.
        count: the stage counter, which numbers the iterations of all tile blocks; -1 for a product that reads nothing
            of this pipeline. For `finish` it is the number of products that may still be under way, for `fill` and
            `store` the number of the subtile, for `order wait` the number of such waits before.
        nbytes: bytes that are copied or announced, for `load` and `acquire`.
        place: the number of the place that is filled or stored.
        pending: stores that TMA may still be reading when the place is filled.
        base: identifies the shared memory of the places.
        pipeline: the pipeline that the event is about; None for all.
        reads: for `begin` and `write`, each pipeline or buffer with its stage counter.
        tensor: the tensor to which a subtile is stored.
    """

    what: str
    count: int
    nbytes: int = 0
    place: int = 0
    pending: int = 0
    base: int = 0
    pipeline: Value | None = None
    reads: tuple[tuple[Value, int], ...] = ()
    tensor: Value | None = None

    def seen_from(self, pipeline: Value) -> Event | None:
        """The event as a pipeline sees it; None if it is about another pipeline."""
        if self.what == "begin":
            return replace(self, count=dict(self.reads).get(pipeline, -1), reads=())
        return None if self.pipeline not in (None, pipeline) else replace(self, pipeline=None)


@dataclass(frozen=True)
class Protocol:
    """The events of producer and consumers of one pipeline.

    Attributes:
        stages: of the pipeline.
        arrivals: number of arrivals that complete a phase of `empty`.
        groups: number of readers in a block: warpgroups, or warps if each warp releases stages for itself.
        cluster: number of blocks that each load a part of a tile for all of them.
        loads: the producer's events.
        reads: the first warpgroup's events.
        others: the other warpgroups' events, if they differ.
        pingpong: whether each warpgroup has tile blocks, and so iterations, of its own.
        handing: in a ping-pong kernel, the number of warps of a warpgroup that arrive on the order barrier.
    """

    stages: int
    arrivals: int
    groups: int
    cluster: int
    loads: tuple[Event, ...]
    reads: tuple[Event, ...]
    others: tuple[tuple[Event, ...], ...] = ()
    pingpong: bool = False
    handing: int = 0

    @property
    def sharing(self) -> int:
        """The number of readers in a block that read each stage."""
        return 1 if self.pingpong else self.groups

    def reads_of(self, reader: int) -> tuple[Event, ...]:
        """The events of a reader's warpgroup; readers are numbered through the cluster."""
        every = (self.reads, *self.others)
        # `groups` readers have the events of `len(every)` warpgroups: several readers may be warps of one warpgroup.
        return every[reader % self.groups * len(every) // self.groups]


# `operator.floordiv` and `operator.and_` have no types.
def _floor_quotient(x: int, y: int) -> int:
    return x // y


def _both(x: int, y: int) -> int:
    return x & y


_FOLDED: dict[type[Op], Callable[[int, int], int]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    FloorDiv: _floor_quotient,
    Eq: operator.eq,
    Ne: operator.ne,
    Lt: operator.lt,
    Ge: operator.ge,
    And: _both,
}
"""The functions of operations whose result is known if their operands are."""
OF_RESULTS = ("pack", "fill", "store", "scatter", "reduce", "barrier", "write", "ask")
"""Events that are not of a pipeline, but of results, of operands that consumers write, or of assertions."""


class _Walk:
    """Evaluates the integers of the producer or of a warpgroup, and yields the events.

    A number that only a launch knows, such as the trip count of a main loop, is taken for `iterations`. A thread block
    goes through all splits of all tile blocks, or has the split `piece` of the last tile block.

    Args:
        layouts: by their names in the lowered IR.
        blocks: number of tile blocks.
        iterations: of each main loop.
        pieces: splits of each tile block.
        group: the warpgroup's number.
        piece: the only split that runs; None for all.
        pipeline_of: the pipeline of each buffer.
        conditions: comparisons that decide what runs (`_deciding`).
    """

    def __init__(
        self,
        layouts: Mapping[str, Layout],
        blocks: int,
        iterations: int,
        pieces: int,
        group: int = 0,
        *,
        piece: int | None = None,
        pipeline_of: Mapping[Value, Value] | None = None,
        conditions: frozenset[Value] = frozenset(),
    ) -> None:
        self.layouts = layouts
        self.blocks = blocks
        self.piece = piece
        self.group = group
        self.iterations = iterations
        self.taken = 0
        self.pieces = pieces
        self.known: dict[Value, Any] = {}
        self.pipeline_of = pipeline_of or {}
        self.conditions = conditions

    def number(self, value: Value) -> Any:
        return self.known.get(value, self.iterations)

    def events(self, block: Block) -> Iterator[Event]:
        for op in block.operations:
            yield from self.event(op)

    def event(self, op: Op) -> Iterable[Event]:
        """The events of an operation; its results become known."""
        kind = type(op)
        if kind in _FOLDED and all(value in self.known for value in op.operands):
            self.known[op.result] = _FOLDED[kind](*map(self.number, op.operands))
        elif kind in _NUMBERS:
            self.known[op.result] = _NUMBERS[kind](self, op)
        elif kind in _STEPS:
            return _STEPS[kind](self, op) or ()
        return ()

    def first_tile(self, op: FirstTile) -> int:
        if op.pingpong > 1:
            return self.group
        return 0 if self.piece is None else (self.blocks - 1) * self.pieces + self.piece

    def next_tile(self, op: NextTile) -> int:
        """The number of the next tile block: the only thread block takes all, one by one."""
        self.taken += 1
        return self.taken - 1

    def comparison(self, op: Lt | Ge) -> Any:
        if op.result in self.conditions:
            self.assume_range(op.x, op.y)
        return _FOLDED[type(op)](self.number(op.x), self.number(op.y))

    def extreme(self, op: Min | Max) -> None:
        if not self.stays_unknown(op):  # a loop that ends at an unknown bound has `iterations` iterations
            extreme = min if isinstance(op, Min) else max
            self.known[op.result] = extreme(self.number(op.x), self.number(op.y))

    def work_unit(self, op: WorkUnit) -> None:
        splits, whole = self.number(op.pieces), self.range_of(op)
        tile, split = divmod(self.number(op.unit), splits)
        first, last = (whole.start + len(whole) * end // splits * whole.step for end in (split, split + 1))
        self.known.update(zip(op.results, (tile, split, first, last), strict=True))

    def fixup(self, op: Fixup) -> None:
        self.known[op.results[1]] = self.number(op.piece) == self.number(op.pieces) - 1

    def branch(self, op: If) -> Iterator[Event]:
        branch = op.then if self.number(op.condition) else op.orelse
        yield from self.events(branch)
        self.carry(op.results, [self.known.get(value) for value in branch.terminator.operands])

    def receive(self, op: ReceiveTile) -> Iterator[Event]:
        self.known[op.result] = self.number(op.counter) + 1
        yield Event("begin", 0, reads=((op.pipeline, self.number(op.counter)),))
        yield Event("finish", 0, pipeline=op.pipeline)

    def of_stage(self, what: str, op: Any, nbytes: int = 0) -> Event:
        return Event(what, self.number(op.counter), nbytes, pipeline=op.pipeline)

    def send(self, op: SendTile) -> Iterator[Event]:
        yield self.of_stage("acquire", op, _WORD)
        yield self.of_stage("load", op, _WORD)

    def load(self, op: TmaLoad) -> Iterator[Event]:
        (buffer,) = buffer_types([op.buffer])
        yield self.of_stage("load", op, SmemLayout(*buffer.smem_layout).nbytes)

    def dot(self, op: Dot) -> Iterator[Event]:
        left = [] if op.left_counter is None else [(op.left, op.left_counter)]
        yield self.begin((op.right, op.counter), *left)

    def read(self, op: ReadBuffer) -> Iterator[Event]:
        pipeline = self.pipeline_of.get(op.buffer, op.buffer)
        yield Event("read", self.number(op.counter), pipeline=pipeline)

    def reduce(self, op: Reduce) -> Iterator[Event]:
        if warp_mask(self.layouts[op.attributes["source"]], op.axis):  # warps meet between their parts and all of them
            yield Event("barrier", 0)

    def release(self, op: PipelineRelease) -> Iterator[Event]:
        if self.number(op.condition):
            yield self.of_stage("release", op)

    def begin(self, *reads: tuple[Value, Value]) -> Event:
        """The event of a product that begins and reads stages of buffers."""
        counters = [(self.pipeline_of.get(buffer, buffer), self.number(counter)) for buffer, counter in reads]
        return Event("begin", counters[0][1], reads=tuple(dict.fromkeys(counters)))

    def stays_unknown(self, op: Min | Max) -> bool:
        """Whether the extreme of two numbers stays unknown.

        Numbers that only a launch knows are not below zero: the larger of 0 and such a number is that number.
        """
        known = [self.known[value] for value in op.operands if value in self.known]
        return not known or (isinstance(op, Max) and known == [0])

    def assume_range(self, start: Value, stop: Value) -> None:
        """Take the first of two bounds for 0, if only a launch knows both.

        The second one is taken for `iterations`, so a loop between them has so many iterations.
        """
        if start not in self.known and stop not in self.known:
            self.known[start] = 0

    def range_of(self, op: For | TripCount | WorkUnit) -> range:
        self.assume_range(op.start, op.stop)
        self.known.setdefault(op.start, self.iterations)  # other operations must see the same number
        start, stop, step = (self.number(bound) for bound in (op.start, op.stop, op.step))
        if step == 0:
            raise ProtocolError(f"{op.name} has the step 0, and never ends")
        return range(start, stop, step)

    def for_loop(self, op: For) -> Iterator[Event]:
        # A loop without stages may be in one role alone. Bounds assumed for it are forgotten behind it, since the other
        # role would not assume them.
        outside = None if _has_stages(op) else dict(self.known)
        carried = [self.known.get(value) for value in op.carried]
        for count in self.range_of(op):
            self.known[op.induction] = count
            self.carry(op.body.arguments[1:], carried)
            yield from self.events(op.body)
            carried = [self.known.get(value) for value in op.body.terminator.operands]
        self.known = self.known if outside is None else outside
        self.carry(op.results, carried)

    def while_loop(self, op: While) -> Iterator[Event]:
        """A loop of `iterations`, where only a launch may know its condition."""
        carried = [self.known.get(value) for value in op.carried]
        for iteration in itertools.count():
            self.carry(op.condition.arguments, carried)
            yield from self.events(op.condition)
            if not self.known.get(op.condition.terminator.operands[0], iteration < self.iterations):
                break
            self.carry(op.body.arguments, carried)
            yield from self.events(op.body)
            carried = [self.known.get(value) for value in op.body.terminator.operands]
        self.carry(op.results, carried)

    def carry(self, values: tuple[Value, ...], numbers: list[Any]) -> None:
        for value, number in zip(values, numbers, strict=True):
            if number is not None:
                self.known[value] = number


def _has_stages(op: For) -> bool:
    """Whether a stage of a pipeline is filled, read or released in a loop."""
    return any(isinstance(value.type, ResourceType) for inner in op.body.walk() for value in inner.operands)


def _stored(op: TmaStore, layout: Layout) -> Iterator[Event]:
    """The subtiles of a stored tile: each fills a place, and is stored from there."""
    facts = op.attributes
    for number in range(layout.registers * 2 // facts["span"]):
        begins = number % facts["buffers"] == 0 if op.adds else facts["begins"] and number == 0
        pending = 0 if begins else facts["buffers"] - 1
        place = (facts["first"] + number) % facts["buffers"]
        for what in (op.part,) if op.part else ("write", "begin"):
            name = "fill" if what == "write" else "store"
            yield Event(name, facts["piece"] + number, 0, place, pending, base=id(op.through), tensor=op.x)


_NUMBERS: Mapping[type[Op], Callable[[_Walk, Any], Any]] = {
    Constant: lambda walk, op: op.value,
    FirstTile: _Walk.first_tile,
    TileStep: lambda walk, op: op.pingpong if walk.piece is None else walk.blocks * walk.pieces,
    Elected: lambda walk, op: True,
    TripCount: lambda walk, op: len(walk.range_of(op)),
    FirstIteration: lambda walk, op: walk.group * walk.number(op.iterations),
    NumTileBlocks: lambda walk, op: walk.blocks if op.axis == 0 else 1,
    WarpgroupIndex: lambda walk, op: walk.group,
    Select: lambda walk, op: walk.number(op.x if walk.number(op.condition) else op.y),
    Lt: _Walk.comparison,
    Ge: _Walk.comparison,
    KSplits: lambda walk, op: walk.pieces,
    NextTile: _Walk.next_tile,
    Uniform: lambda walk, op: walk.number(op.x),
}
"""By operation, the function that computes its result, a number."""

_STEPS: Mapping[type[Op], Callable[[_Walk, Any], Iterable[Event] | None]] = {
    Min: _Walk.extreme,
    Max: _Walk.extreme,
    WorkUnit: _Walk.work_unit,
    Fixup: _Walk.fixup,
    If: _Walk.branch,
    For: _Walk.for_loop,
    While: _Walk.while_loop,
    SendTile: _Walk.send,
    ReceiveTile: _Walk.receive,
    PipelineAcquire: lambda walk, op: [walk.of_stage("acquire", op, op.nbytes)],
    TmaLoad: _Walk.load,
    PipelineWait: lambda walk, op: [walk.of_stage("wait", op)],
    SimtMma: lambda walk, op: [walk.begin((op.right, op.counter)), Event("finish", 0)],
    Dot: _Walk.dot,
    ReadBuffer: _Walk.read,
    WriteOperand: lambda walk, op: [Event("write", 0, reads=((op.buffer, walk.number(op.counter)),))],
    DotWait: lambda walk, op: [Event("finish", op.pending)],
    PipelineRelease: _Walk.release,
    OrderBarrierWait: lambda walk, op: [Event("order wait", walk.number(op.number) // walk.number(op.step))],
    OrderBarrierArrive: lambda walk, op: [Event("order arrive", 0)],
    PackPairs: lambda walk, op: [Event("pack", 0)],
    PackQuads: lambda walk, op: [Event("pack", 0)],
    ScatterPartials: lambda walk, op: [Event("scatter", 0, base=id(op.place))],
    ReducePartials: lambda walk, op: [Event("reduce", 0, base=id(op.place[0]))],
    Barrier: lambda walk, op: [Event("barrier", 0)],
    FailUnless: lambda walk, op: [Event("test", 0)],
    Failed: lambda walk, op: [Event("ask", 0)],
    **dict.fromkeys((ReduceSum, ReduceProd, ReduceMax, ReduceMin), _Walk.reduce),
    TmaStore: lambda walk, op: _stored(op, walk.layouts[op.attributes["layout"]]),
}
"""By operation, the function that gives its events. Some only change the walk's numbers."""


def first_group(
    function: Function, tiles: int, iterations: int, pieces: int = 1, piece: int | None = None
) -> tuple[Event, ...]:
    """The events of the first warpgroup, in `tiles` tile blocks of `iterations`.

    With `piece`, only that one of `pieces` splits of the last tile block runs, as in a cluster.
    """
    return both_roles(function, tiles, iterations, pieces, piece)[1]


def both_roles(
    function: Function, tiles: int, iterations: int, pieces: int = 1, piece: int | None = None
) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """The events of the producer, and those that `first_group` gives."""
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    walk = partial(_Walk, layouts_of(function), tiles, iterations, pieces, piece=piece, conditions=_deciding(function))
    return tuple(walk().events(roles.producer)), tuple(walk().events(roles.consumer))


def _deciding(function: Function) -> frozenset[Value]:
    """The comparisons that decide on branches, selections and releases.

    Comparisons that only assertions read are left out. Only the producer has assertions, so the consumers would not
    share the numbers that the walk assumes for these comparisons.
    """
    definitions = DefUse(function.body).definitions
    pending = [op.condition for op in function.walk() if isinstance(op, If | Select | PipelineRelease)]
    conditions: set[Value] = set()
    while pending:
        value = pending.pop()
        if value not in conditions:
            conditions.add(value)
            op = definitions.get(value)
            pending += op.operands if isinstance(op, And) else ()
    return frozenset(conditions)


def protocols(function: Function, tiles: int, iterations: int, pieces: int = 1) -> list[Protocol]:
    """The protocol of each pipeline, for `tiles` tile blocks of `iterations`.

    If iterations may be split, one thread block goes through all `pieces` splits of each tile block. If the splits are
    the thread blocks of a cluster, it is the thread block of the last split.

    Raises:
        ProtocolError: a load fills a buffer of one pipeline and arrives on another; barriers are not set up, or are for
            other stages than there are.
    """
    pipelines = [op for op in function.walk() if isinstance(op, Pipeline)]
    if not pipelines:
        return []
    started = {value for op in function.walk() if isinstance(op, BarriersStart) for value in op.of}
    for op in pipelines:
        _check_reserved(op, started)
    pipeline_of = {buffer: op.result for op in pipelines for buffer in op.buffers}
    for op in function.walk():
        if isinstance(op, TmaLoad) and pipeline_of[op.buffer] is not op.pipeline:
            raise ProtocolError(f"{op.name} fills {op.buffer}, which is no buffer of the pipeline it arrives on")
        if isinstance(op, SendTile | ReceiveTile):
            _check_numbers(op)
    kinds = [op.result.type for op in pipelines if isinstance(op.result.type, PipelineType)]
    cluster = max(kind.cluster for kind in kinds)
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    along = {op.along for op in function.walk() if isinstance(op, TileIndex)}
    blocks = tiles * cluster if along == {0} else tiles
    in_cluster = any(isinstance(op, ScatterPartials) for op in function.walk())
    layouts = layouts_of(function)
    piece = pieces - 1 if in_cluster and pieces > 1 else None
    walk = partial(
        _Walk, layouts, blocks, iterations, pieces, piece=piece, pipeline_of=pipeline_of, conditions=_deciding(function)
    )
    loads = [event for event in walk().events(roles.producer) if event.what != "test"]
    every = [
        [each for each in walk(group).events(roles.consumer) if each.what not in OF_RESULTS]
        for group in range(roles.warpgroups)
    ]
    orders = [op.barriers.type for op in function.walk() if isinstance(op, OrderBarrierWait)]
    pingpong = bool(orders)
    by_warps = {op.pipeline for op in function.walk() if isinstance(op, PipelineRelease) and op.warps}
    handing = max((each.arrivals for each in orders if isinstance(each, BarriersType)), default=0)
    if len(pipelines) > 1:
        check_together({op.result: kind.stages for op, kind in zip(pipelines, kinds, strict=True)}, loads, every)
    protocols_: list[Protocol] = []
    for op, kind in zip(pipelines, kinds, strict=True):
        own = _seen(loads, op.result)
        reads, *others = (_seen(events, op.result) for events in every)
        if all(each == reads for each in others) and not pingpong:
            others = []
        stages, arrivals = kind.stages, kind.arrivals
        readers = roles.warpgroups * (WARPS if op.result in by_warps else 1)
        protocols_.append(
            Protocol(stages, arrivals, readers, kind.cluster, own, reads, tuple(others), pingpong, handing)
        )
    return protocols_


def _check_reserved(op: Pipeline, started: Collection[Value]) -> None:
    """Check that a pipeline's barriers are set up, and its buffers have its stages."""
    name = op.result.name or "a pipeline"
    if op.result not in started:
        raise ProtocolError(f"the barriers of {name} are not set up")
    for kind in buffer_types(op.buffers):
        if kind.stages != op.stages:
            raise ProtocolError(f"{name} has {op.stages} stages, one of its buffers has {kind.stages}")


def _check_numbers(op: SendTile | ReceiveTile) -> None:
    """Check that each stage has a word for the number of a tile block."""
    scratch, kind = op.through.type, op.pipeline.type
    if isinstance(scratch, ScratchType) and isinstance(kind, PipelineType) and scratch.nbytes != _WORD * kind.stages:
        raise ProtocolError(f"{op.name} has {kind.stages} stages, and {scratch.nbytes} bytes for their words")


def check_together(stages: Mapping[Value, int], loads: Sequence[Event], every: Sequence[Sequence[Event]]) -> None:
    """Check that pipelines do not wait for each other, as one thread fills them all.

    Args:
        stages: the number of stages of each pipeline.
        loads: the producer's events.
        every: the events of each warpgroup.

    Raises:
        ProtocolError: an acquisition or a wait never comes to an end.
    """
    order, last = Order(), ("loads", 0, -1)
    number = {pipeline: place for place, pipeline in enumerate(stages)}
    for place, event in enumerate(event for event in loads if event.what == "acquire" and event.pipeline):
        node, of = ("loads", 0, place), number[event.pipeline] if event.pipeline else 0
        order.edge(last, node)
        if event.pipeline and event.count >= stages[event.pipeline]:
            order.edge((f"empty {of}", 0, event.count - stages[event.pipeline]), node)
        order.edge(node, (f"full {of}", 0, event.count))
        last = node
    for group, events in enumerate(every):
        last = ("reads", group, -1)
        for place, event in enumerate(events):
            if event.what not in ("wait", "release") or event.pipeline is None:
                continue
            node, of = ("reads", group, place), number[event.pipeline]
            order.edge(last, node)
            if event.what == "wait":
                order.edge((f"full {of}", 0, event.count), node)
            else:
                order.edge(node, (f"empty {of}", 0, event.count))
            last = node
    if stuck := order.stuck():
        raise ProtocolError(f"deadlock: {stuck[0]} never happens, nor do {len(stuck) - 1} others")


def _seen(events: Iterable[Event], pipeline: Value) -> tuple[Event, ...]:
    """The events that concern a pipeline."""
    return tuple(seen for event in events if (seen := event.seen_from(pipeline)) is not None)


def protocol(function: Function, tiles: int, iterations: int, pieces: int = 1) -> Protocol | None:
    """The protocol of a lowered kernel's only pipeline; None if it has no pipeline.

    Raises:
        ProtocolError: there are several.
    """
    pipelines = protocols(function, tiles, iterations, pieces)
    if len(pipelines) > 1:
        raise ProtocolError(f"there are {len(pipelines)} pipelines, not one")
    return pipelines[0] if pipelines else None
