"""The ring of a lowered kernel as a protocol, and a small model that looks for deadlock and overwriting.

Loading and computing warps share a ring of slots and two barriers for each (`ops.py`). From the lowered IR come the
steps that each side takes; the model then goes through every order in which the sides and the copies under way can
advance, for a few turns more than the ring has slots, and raises where a side waits for ever, a slot is loaded while it
may still be read, or read before what it should hold has arrived.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cutile.backend.cuda.ops import (
    BulkLoad,
    Elected,
    FirstTile,
    GroupMma,
    GroupWait,
    RingAcquire,
    RingRelease,
    RingStart,
    RingWait,
    Roles,
    TileIndex,
    TileStep,
)
from cutile.backend.cuda.panels import Panels
from cutile.errors import IRError
from cutile.ir.constant import Constant
from cutile.ir.control import For, If
from cutile.ir.core import Block, Function, Op, Value
from cutile.ops.arith import Add, FloorDiv, Mul, Sub
from cutile.ops.compare import Lt, Ne
from cutile.ops.grid import NumTileBlocks


class ProtocolError(IRError):
    """The two sides of a ring do not fit together."""


State = tuple[tuple[int, ...], frozenset[tuple[int, int]], tuple[int, ...]]
"""The turns that each block has begun to load, which of these (block, turn) are under way, and where each reader is."""


@dataclass(frozen=True)
class Event:
    """One thing that a side does to the ring: acquire, load, wait, begin, finish or release.

    `count` is the turn; for `load` and `acquire`, `nbytes` is what is copied or announced; for `finish` the products
    that may still be under way.
    """

    what: str
    count: int
    nbytes: int = 0


@dataclass(frozen=True)
class Protocol:
    """What both sides of a ring do.

    Attributes:
        slots: of the ring.
        arrivals: that complete a phase of `empty`.
        groups: warp groups of a block that read.
        cluster: blocks that load a part each for all of them, and read all.
        loads: the loading side's events.
        reads: one computing warp group's events.
    """

    slots: int
    arrivals: int
    groups: int
    cluster: int
    loads: tuple[Event, ...]
    reads: tuple[Event, ...]


_FOLDED: dict[type[Op], Callable[[Any, Any], Any]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    FloorDiv: operator.floordiv,
    Ne: operator.ne,
    Lt: operator.lt,
}


class _Walk:
    """Runs one side's numbers. What only a launch knows, the turns of a loop of products, is `turns`."""

    def __init__(self, blocks: int, turns: int) -> None:
        self._blocks = blocks
        self._turns = turns
        self._known: dict[Value, Any] = {}

    def _number(self, value: Value) -> Any:
        return self._known.get(value, self._turns)

    def events(self, block: Block) -> Iterator[Event]:
        for op in block.operations:
            yield from self._event(op)

    def _event(self, op: Op) -> Iterator[Event]:
        if isinstance(op, Constant):
            self._known[op.result] = op.value
        elif isinstance(op, FirstTile | TileStep | Elected):
            self._known[op.result] = not isinstance(op, FirstTile)
        elif isinstance(op, NumTileBlocks):
            self._known[op.result] = self._blocks if op.axis == 0 else 1
        elif type(op) in _FOLDED and all(value in self._known for value in op.operands):
            self._known[op.result] = _FOLDED[type(op)](*map(self._number, op.operands))
        elif isinstance(op, Lt):
            self._known[op.result] = self._number(op.x) < self._number(op.y)
        elif isinstance(op, If):
            yield from self.events(op.then if self._number(op.condition) else op.orelse)
        elif isinstance(op, For):
            yield from self._loop(op)
        elif isinstance(op, RingAcquire):
            yield Event("acquire", self._number(op.turn), op.nbytes)
        elif isinstance(op, BulkLoad):
            yield Event("load", self._number(op.turn), Panels(*op.attributes["panels"]).nbytes)
        elif isinstance(op, RingWait):
            yield Event("wait", self._number(op.turn))
        elif isinstance(op, GroupMma):
            yield Event("begin", self._number(op.turn))
        elif isinstance(op, GroupWait):
            yield Event("finish", op.pending)
        elif isinstance(op, RingRelease) and self._number(op.condition):
            yield Event("release", self._number(op.turn))

    def _loop(self, op: For) -> Iterator[Event]:
        carried = [self._known.get(value) for value in op.carried]
        for count in range(self._number(op.start), self._number(op.stop), self._number(op.step)):
            self._known[op.induction] = count
            self._carry(op.body.arguments[1:], carried)
            yield from self.events(op.body)
            carried = [self._known.get(value) for value in op.body.terminator.operands]
        self._carry(op.results, carried)

    def _carry(self, values: tuple[Value, ...], numbers: list[Any]) -> None:
        for value, number in zip(values, numbers, strict=True):
            if number is not None:
                self._known[value] = number


def protocol(function: Function, tiles: int, turns: int) -> Protocol | None:
    """The protocol of a lowered kernel for some tile blocks of some turns each; None where it has no ring.

    Raises:
        ProtocolError: the operations do not speak of one ring.
    """
    starts = [op for op in function.walk() if isinstance(op, RingStart)]
    if not starts:
        return None
    (start,) = starts
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    for op in function.walk():
        if isinstance(op, RingAcquire | RingWait | RingRelease) and (op.slots, op.offset) != (
            start.slots,
            start.offset,
        ):
            raise ProtocolError(f"{op.name} is about {op.slots} slots at {op.offset}, the ring has {start.slots}")
    along = {op.along for op in function.walk() if isinstance(op, TileIndex)}
    blocks = tiles * start.cluster if along == {0} else tiles
    loads = tuple(_Walk(blocks, turns).events(roles.load))
    reads = tuple(_Walk(blocks, turns).events(roles.compute))
    return Protocol(start.slots, start.readers, roles.groups, start.cluster, loads, reads)


def _turns_loaded(each: Protocol) -> int:
    """How many turns are loaded, having checked that each announces what it copies."""
    announced: list[int] = []
    copied: list[int] = []
    for event in each.loads:
        if event.what == "acquire":
            if event.count != len(announced):
                raise ProtocolError(f"turn {event.count} is acquired as the {len(announced)}th")
            announced.append(event.nbytes)
            copied.append(0)
        else:
            if event.count != len(announced) - 1:
                raise ProtocolError(f"turn {event.count} is loaded without having been acquired")
            copied[-1] += event.nbytes
    if announced != copied:
        raise ProtocolError(f"announced are {announced} bytes, copied {copied}")
    return len(announced)


def _read_steps(each: Protocol) -> list[tuple[int, tuple[int, ...]]]:
    """A reader's steps: the turn waited for (-1 for none), and the turns that are given up after it."""
    steps: list[tuple[int, tuple[int, ...]]] = []
    under_way: list[int] = []
    for event in each.reads:
        if event.what == "wait":
            steps.append((event.count, ()))
        elif event.what == "begin":
            if not steps or steps[-1][0] != event.count:
                raise ProtocolError(f"turn {event.count} is read without having been waited for")
            under_way.append(event.count)
        elif event.what == "finish":
            del under_way[: max(0, len(under_way) - event.count)]
        elif event.what == "release":
            if event.count in under_way:
                raise ProtocolError(f"turn {event.count} is given up while its product is under way")
            steps.append((-1, (event.count,)))
    return steps


def check(each: Protocol) -> int:
    """Go through every order of events; return how many states there are.

    Raises:
        ProtocolError: a side waits for ever, or a slot is loaded or read too early.
    """
    turns, steps = _turns_loaded(each), _read_steps(each)
    readers = each.groups * each.cluster
    if each.arrivals != readers:
        raise ProtocolError(f"{readers} groups read, `empty` waits for {each.arrivals}")
    released = sorted(turn for _, given in steps for turn in given)
    if released != list(range(turns)):
        raise ProtocolError(f"turns {released} are given up, {turns} are loaded")
    first: State = ((0,) * each.cluster, frozenset(), (0,) * readers)
    seen: set[State] = {first}
    pending: list[State] = [first]
    end: State = ((turns,) * each.cluster, frozenset(), (len(steps),) * readers)
    while pending:
        state = pending.pop()
        following = list(_following(each, steps, turns, state))
        if not following and state != end:
            raise ProtocolError(f"deadlock: {state[0]} of {turns} turns loaded, readers at {state[2]} of {len(steps)}")
        for new in following:
            if new not in seen:
                seen.add(new)
                pending.append(new)
    return len(seen)


def _advanced(places: tuple[int, ...], which: int) -> tuple[int, ...]:
    return (*places[:which], places[which] + 1, *places[which + 1 :])


def _following(each: Protocol, steps: list[tuple[int, tuple[int, ...]]], turns: int, state: State) -> Iterator[State]:
    begun, under_way, places = state
    given = [{turn for _, some in steps[:place] for turn in some} for place in places]
    for copy in under_way:
        yield begun, under_way - {copy}, places
    for block, turn in enumerate(begun):
        if turn == turns:
            continue
        arrived = sum(t % each.slots == turn % each.slots for some in given for t in some)
        # the parity waited for is that of the phase before
        if arrived // each.arrivals & 1 != (turn // each.slots & 1) ^ 1:
            before = turn - each.slots
            if before >= 0 and any(before not in some for some in given):
                raise ProtocolError(f"turn {turn} is loaded over turn {before}, which is still being read")
            yield _advanced(begun, block), under_way | {(block, turn)}, places
    for reader, place in enumerate(places):
        if place == len(steps):
            continue
        turn, _ = steps[place]
        done = begun, under_way, _advanced(places, reader)
        if turn < 0 or _has_phase(each, state, reader // each.groups, turn):
            arrived = [turn < count and (block, turn) not in under_way for block, count in enumerate(begun)]
            if turn >= 0 and not all(arrived):
                raise ProtocolError(f"turn {turn} is read before it has arrived")
            yield done


def _has_phase(each: Protocol, state: State, block: int, turn: int) -> bool:
    """Whether who waits for a turn's bytes in a block goes on: by the parity of the phases completed there.

    A phase is complete when the block has announced its bytes and all of them, also the others' parts, are there.
    """
    begun, under_way, _ = state
    phases = sum(
        t % each.slots == turn % each.slots
        and all(t < count and (other, t) not in under_way for other, count in enumerate(begun))
        for t in range(begun[block])
    )
    return phases & 1 != turn // each.slots & 1


def check_function(function: Function) -> int:
    """Check the ring of a lowered kernel; return the number of states gone through, 0 where it has no ring.

    Raises:
        ProtocolError: as `check`.
    """
    found = 0
    ring = protocol(function, 1, 0)
    if ring is None:
        return 0
    sizes = [(1, 0), (2, 1), (1, ring.slots + 1)]
    if ring.cluster == 1:  # a cluster has many times the states
        sizes += [(1, 2 * ring.slots + 1), (2, ring.slots + 1), (3, 2)]
    for tiles, turns in sizes:
        each = protocol(function, tiles, turns)
        assert each is not None
        found += check(each)
    return found
