"""The pipeline of a lowered kernel as data: what its producer and consumer warps do to it, in the order of the IR.

They share stages of buffers and two barriers for each (`ops/pipeline.py`). What consumers store by way of shared memory
is read here too. `rings.py` checks both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cutile.backend.cuda.draft import layouts_of
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.ops import (
    AddNearby,
    AddUp,
    Barrier,
    BulkLoad,
    BulkStore,
    DealOut,
    Elected,
    FirstTile,
    FirstTurn,
    GroupMma,
    GroupNumber,
    GroupWait,
    HandOver,
    OuterMma,
    Pack,
    Pieces,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    PipelineWait,
    Roles,
    Share,
    TakeOver,
    TileIndex,
    TileStep,
    Turns,
)
from cutile.backend.cuda.ops.pipeline import BarriersType, PipelineType, buffer_types
from cutile.backend.cuda.panels import Panels
from cutile.errors import IRError
from cutile.ir.constant import Constant
from cutile.ir.control import For, If
from cutile.ir.core import Block, Function, Op, Value
from cutile.ops.arith import Add, And, FloorDiv, Max, Min, Mul, Sub
from cutile.ops.compare import Eq, Ge, Lt, Ne, Select
from cutile.ops.grid import NumTileBlocks

WARPS = 4
"""Warps of a group."""


class ProtocolError(IRError):
    """The two sides of a ring do not fit together."""


@dataclass(frozen=True)
class Event:
    """One thing that a side does to the ring: acquire, load, wait, begin, finish or release; take over from another
    group, for the `count`th time, or hand over to it. Or what becomes of a result: it is kept, or a piece of it stored;
    sums that thread blocks of a cluster have sent are dealt out or added up; the computing warps meet.

    `count` is the turn; for `load` and `acquire`, `nbytes` is what is copied or announced; for `finish` the products
    that may still be under way. For `store`, `count` is the piece, written to `place`, of the ring or its own, when all
    stores before it have been read but the last `pending`. `base` is where places begin in shared memory.
    """

    what: str
    count: int
    nbytes: int = 0
    place: int = 0
    pending: int = 0
    in_ring: bool = False
    base: int = 0


@dataclass(frozen=True)
class Protocol:
    """What both sides of a ring do.

    Attributes:
        slots: of the ring.
        arrivals: that complete a phase of `empty`.
        groups: warp groups of a block that read, or warps, where each says for itself that it has read.
        cluster: blocks that load a part each for all of them, and read all.
        loads: the loading side's events.
        reads: the first computing warp group's events.
        others: the events of those after it, where they are not the same.
        alone: whether groups have tile blocks, and so turns, of their own.
        handing: where they have, the warps of a group that hand over.
    """

    slots: int
    arrivals: int
    groups: int
    cluster: int
    loads: tuple[Event, ...]
    reads: tuple[Event, ...]
    others: tuple[tuple[Event, ...], ...] = ()
    alone: bool = False
    handing: int = 0

    @property
    def sharing(self) -> int:
        """Groups of a block that read each turn."""
        return 1 if self.alone else self.groups

    def reads_of(self, reader: int) -> tuple[Event, ...]:
        """The events of a reader's warp group; readers count through the blocks of a cluster."""
        every = (self.reads, *self.others)
        return every[reader % self.groups * len(every) // self.groups]


def _whole_quotient(x: int, y: int) -> int:
    return x // y


def _both(x: int, y: int) -> int:
    return x & y


_FOLDED: dict[type[Op], Callable[[int, int], int]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    FloorDiv: _whole_quotient,
    Eq: operator.eq,
    Ne: operator.ne,
    Lt: operator.lt,
    Ge: operator.ge,
    And: _both,
}
OF_RESULTS = ("keep", "store", "deal out", "add up", "meet")
"""What events are about results, and not about the ring."""


class _Walk:
    """Runs one side's numbers. What only a launch knows, the turns of a loop of products, is `turns`.

    A thread block goes through all pieces of all tile blocks, or has one `piece` of the last.
    """

    def __init__(
        self,
        layouts: Mapping[str, Layout],
        blocks: int,
        turns: int,
        pieces: int,
        group: int = 0,
        *,
        piece: int | None = None,
    ) -> None:
        self._layouts = layouts
        self._blocks = blocks
        self._piece = piece
        self._group = group
        self._turns = turns
        self._pieces = pieces
        self._known: dict[Value, Any] = {}

    def _number(self, value: Value) -> Any:
        return self._known.get(value, self._turns)

    def events(self, block: Block) -> Iterator[Event]:
        for op in block.operations:
            yield from self._event(op)

    def _event(self, op: Op) -> Iterator[Event]:
        if isinstance(op, Constant):
            self._known[op.result] = op.value
        elif isinstance(op, FirstTile):
            first = 0 if self._piece is None else (self._blocks - 1) * self._pieces + self._piece
            self._known[op.result] = self._group if op.alone > 1 else first
        elif isinstance(op, TileStep):
            self._known[op.result] = op.alone if self._piece is None else self._blocks * self._pieces
        elif isinstance(op, Elected):
            self._known[op.result] = True
        elif isinstance(op, Turns):
            self._known[op.result] = len(self._range(op))
        elif isinstance(op, FirstTurn):
            self._known[op.result] = self._group * self._number(op.turns)
        elif isinstance(op, NumTileBlocks):
            self._known[op.result] = self._blocks if op.axis == 0 else 1
        elif type(op) in _FOLDED and all(value in self._known for value in op.operands):
            self._known[op.result] = _FOLDED[type(op)](*map(self._number, op.operands))
        elif isinstance(op, GroupNumber):
            self._known[op.result] = self._group
        elif isinstance(op, Min | Max):
            chosen = min if isinstance(op, Min) else max
            self._known[op.result] = chosen(self._number(op.x), self._number(op.y))
        elif isinstance(op, Select):
            self._known[op.result] = self._number(op.x if self._number(op.condition) else op.y)
        elif isinstance(op, Lt | Ge):
            self._known[op.result] = _FOLDED[type(op)](self._number(op.x), self._number(op.y))
        elif isinstance(op, Pieces):
            self._known[op.result] = self._pieces
        elif isinstance(op, Share):
            pieces = self._number(op.pieces)
            tile, piece = divmod(self._number(op.unit), pieces)
            whole = self._range(op)
            first, last = (whole.start + len(whole) * each // pieces * whole.step for each in (piece, piece + 1))
            self._known.update(zip(op.results, (tile, piece, first, last), strict=True))
        elif isinstance(op, AddUp):
            self._known[op.results[1]] = self._number(op.piece) == self._number(op.pieces) - 1
        elif isinstance(op, If):
            yield from self.events(op.then if self._number(op.condition) else op.orelse)
        elif isinstance(op, For):
            yield from self._loop(op)
        elif isinstance(op, PipelineAcquire):
            yield Event("acquire", self._number(op.counter), op.nbytes)
        elif isinstance(op, BulkLoad):
            (buffer,) = buffer_types([op.buffer])
            yield Event("load", self._number(op.counter), Panels(*buffer.panels).nbytes)
        elif isinstance(op, PipelineWait):
            yield Event("wait", self._number(op.counter))
        elif isinstance(op, GroupMma):
            yield Event("begin", self._number(op.counter))
        elif isinstance(op, OuterMma):
            yield Event("begin", self._number(op.counter))
            yield Event("finish", 0)
        elif isinstance(op, GroupWait):
            yield Event("finish", op.pending)
        elif isinstance(op, PipelineRelease) and self._number(op.condition):
            yield Event("release", self._number(op.counter))
        elif isinstance(op, TakeOver):
            yield Event("take over", self._number(op.number) // self._number(op.step))
        elif isinstance(op, HandOver):
            yield Event("hand over", 0)
        elif isinstance(op, Pack):
            yield Event("keep", 0)
        elif isinstance(op, DealOut):
            yield Event("deal out", 0, base=id(op.place))
        elif isinstance(op, AddNearby):
            yield Event("add up", 0, base=id(op.place[0]))
        elif isinstance(op, Barrier):
            yield Event("meet", 0)
        elif isinstance(op, BulkStore):
            yield from _stored(op, self._layouts[op.attributes["layout"]])

    def _range(self, op: For | Turns | Share) -> range:
        return range(*(self._number(each) for each in (op.start, op.stop, op.step)))

    def _loop(self, op: For) -> Iterator[Event]:
        carried = [self._known.get(value) for value in op.carried]
        for count in self._range(op):
            self._known[op.induction] = count
            self._carry(op.body.arguments[1:], carried)
            yield from self.events(op.body)
            carried = [self._known.get(value) for value in op.body.terminator.operands]
        self._carry(op.results, carried)

    def _carry(self, values: tuple[Value, ...], numbers: list[Any]) -> None:
        for value, number in zip(values, numbers, strict=True):
            if number is not None:
                self._known[value] = number


def _stored(op: BulkStore, layout: Layout) -> Iterator[Event]:
    """The pieces of a tile that are stored."""
    facts = op.attributes
    for number in range(layout.registers * 2 // facts["span"]):
        pending = 0 if facts["begins"] and number == 0 else facts["buffers"] - 1
        place = (facts["first"] + number) % facts["buffers"]
        yield Event("store", facts["piece"] + number, 0, place, pending, bool(op.warp_bytes), id(op.through))


def first_group(
    function: Function, tiles: int, turns: int, pieces: int = 1, piece: int | None = None
) -> tuple[Event, ...]:
    """All that the first warp group of a lowered kernel does, in some tile blocks of some turns each; or in one `piece`
    of a tile block, where `pieces` of them are a cluster."""
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    return tuple(_Walk(layouts_of(function), tiles, turns, pieces, piece=piece).events(roles.compute))


def protocol(function: Function, tiles: int, turns: int, pieces: int = 1) -> Protocol | None:
    """The protocol of a lowered kernel for some tile blocks of some turns each; None where it has no ring.

    Where turns may be divided, one thread block goes through all `pieces` of each tile block; where those are the
    thread blocks of a cluster, each has one of them, and this is the last.

    Raises:
        ProtocolError: the operations do not speak of one ring.
    """
    pipelines = [op for op in function.walk() if isinstance(op, Pipeline)]
    if not pipelines:
        return None
    if len(pipelines) > 1:
        raise ProtocolError(f"there are {len(pipelines)} pipelines, of which the model knows one")
    pipeline = pipelines[0].result.type
    assert isinstance(pipeline, PipelineType)
    buffers = {id(value) for value in pipelines[0].buffers}
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    for op in function.walk():
        if isinstance(op, BulkLoad) and id(op.buffer) not in buffers:
            raise ProtocolError(f"{op.name} fills {op.buffer}, which is no buffer of the pipeline it arrives on")
    along = {op.along for op in function.walk() if isinstance(op, TileIndex)}
    blocks = tiles * pipeline.cluster if along == {0} else tiles
    nearby = any(isinstance(op, DealOut) for op in function.walk())
    layouts = layouts_of(function)
    piece = pieces - 1 if nearby and pieces > 1 else None
    loads = tuple(_Walk(layouts, blocks, turns, pieces, piece=piece).events(roles.load))
    walks = (_Walk(layouts, blocks, turns, pieces, group, piece=piece) for group in range(roles.groups))
    every = (walk.events(roles.compute) for walk in walks)
    reads, *others = (tuple(each for each in events if each.what not in OF_RESULTS) for events in every)
    orders = [op.barriers.type for op in function.walk() if isinstance(op, TakeOver)]
    alone = bool(orders)
    if all(each == reads for each in others) and not alone:
        others = []
    by_warps = any(isinstance(op, PipelineRelease) and op.warps for op in function.walk())
    readers = roles.groups * (WARPS if by_warps else 1)
    handing = max((each.arrivals for each in orders if isinstance(each, BarriersType)), default=0)
    stages, arrivals, cluster = pipeline.stages, pipeline.arrivals, pipeline.cluster
    return Protocol(stages, arrivals, readers, cluster, loads, reads, tuple(others), alone, handing)
