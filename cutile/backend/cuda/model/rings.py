"""A model of pipelines that looks for deadlock, overwriting and lost phases.

It works on a protocol read from the lowered IR (`protocol.py`), for more iterations than the pipeline has stages. It
needs no device: what it finds is in every run, or in none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cutile.backend.cuda.model.happens_before import Node, Order
from cutile.backend.cuda.model.properties import check_failures, check_handing_over, check_stores, check_written
from cutile.backend.cuda.model.protocol import Event, Protocol, ProtocolError, protocols
from cutile.backend.cuda.ops import KSplits, Roles, ScatterPartials
from cutile.ir import Block, For, Function


def _turns_loaded(protocol: Protocol) -> int:
    """How many turns are loaded, having checked that each announces what it copies."""
    announced: list[int] = []
    copied: list[int] = []
    for event in protocol.loads:
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


Places = dict[tuple[int, int], Node]
"""By (reader, turn)."""


@dataclass(frozen=True)
class _Known:
    """What is known of a protocol's runs.

    Attributes:
        order: what happens before what.
        seen: where readers have seen a turn arrive.
        over: where its product is known to be over.
        asked: what readers did before they waited for a turn.
        taken: by (group that hands over, how often before), where the other group has seen that.
    """

    order: Order
    seen: Places
    over: Places
    asked: Places
    taken: Places


def _order_loads(order: Order, protocol: Protocol, turns: int) -> None:
    """A load follows the one before, and the release of its stage.

    Its bytes arrive in all blocks of the cluster.
    """
    blocks = range(protocol.cluster)
    for block in blocks:
        for turn in range(turns):
            loads = ("loads", block, turn)
            if turn:
                order.edge(("loads", block, turn - 1), loads)
            if turn >= protocol.slots:
                order.edge(("empty", block, turn - protocol.slots), loads)
            for other in blocks:  # a block's part of a tile arrives in all of them
                order.edge(loads, ("full", other, turn))


def _order(protocol: Protocol, turns: int) -> _Known:
    """The order of a protocol."""
    order = Order()
    seen: Places = {}
    over: Places = {}
    befores: Places = {}
    handed_over: Places = {}
    blocks = range(protocol.cluster)
    _order_loads(order, protocol, turns)
    for reader in range(protocol.groups * protocol.cluster):
        (block, group), under_way, last = divmod(reader, protocol.groups), list[int](), ("starts", reader, 0)
        handed = 0
        for place, event in enumerate(protocol.reads_of(reader)):
            node = ("reads", reader, place)
            order.edge(last, node)
            before, last = last, node
            if event.what == "wait":
                befores[reader, event.count] = before
                order.edge(("full", block, event.count), node)
                seen[reader, event.count] = node
            elif event.what == "begin":
                under_way.append(event.count)
            elif event.what == "read":
                over[reader, event.count] = node
            elif event.what == "finish":
                finished = max(0, len(under_way) - event.count)
                over.update({(reader, turn): node for turn in under_way[:finished]})
                del under_way[:finished]
            elif event.what == "release":
                order.edge(node, ("gives up", reader, event.count))
                for other in blocks:
                    order.edge(node, ("empty", other, event.count))
            elif event.what == "hand over":
                order.edge(node, ("hands over", reader, handed))
                handed += 1
            elif event.what == "take over" and (group or event.count):
                other, count = (reader - 1, event.count) if group else (reader + 1, event.count - 1)
                order.edge(("hands over", other, count), node)
                handed_over[other, count] = node
    return _Known(order, seen, over, befores, handed_over)


def _check_reads(protocol: Protocol, turns: int) -> None:
    """Check that a reader waits before it reads, and releases each stage once.

    It releases no stage before it has read it.
    """
    for event in (event for reads in (protocol.reads, *protocol.others) for event in reads):
        if event.what == "wait" and event.count >= turns:
            raise ProtocolError(f"deadlock: turn {event.count} is waited for, {turns} are loaded")
    given_up = [_given_up(reads) for reads in (protocol.reads, *protocol.others)]
    if protocol.alone:
        given_up = [[turn for some in given_up for turn in some]]
    for released in given_up:
        if sorted(released) != list(range(turns)):
            raise ProtocolError(f"turns {released} are given up, {turns} are loaded")


def _given_up(reads: Sequence[Event]) -> list[int]:
    """The turns that a reader gives up."""
    waited: set[int] = set()
    under_way: list[int] = []
    released: list[int] = []
    for event in reads:
        if event.what == "wait":
            waited.add(event.count)
        elif event.what == "begin":
            if event.count not in waited and event.count >= 0:
                raise ProtocolError(f"turn {event.count} is read without having been waited for")
            under_way.append(event.count)
        elif event.what == "finish":
            del under_way[: max(0, len(under_way) - event.count)]
        elif event.what == "read":
            if event.count not in waited or event.count in released:
                raise ProtocolError(f"turn {event.count} is read by threads before it arrives, or given up")
        elif event.what == "release":
            if event.count in under_way:
                raise ProtocolError(f"turn {event.count} is given up while its product is under way")
            if event.count not in waited:
                raise ProtocolError(f"turn {event.count} is given up without having been waited for")
            released.append(event.count)
    return released


def check(protocol: Protocol) -> int:
    """Check a protocol in all its runs; return the number of turns.

    The barriers only ever count up, so what must have happened before each event is the same in every run. That is a
    graph, of which is asked: does everything happen (no deadlock)? is a slot loaded after all its readers are done? and
    is a barrier never two phases ahead of who waits for it, so that a parity tells phases apart?

    Raises:
        ProtocolError: a side waits for ever, or a slot is loaded or read too early.
    """
    turns = _turns_loaded(protocol)
    readers = range(protocol.groups * protocol.cluster)
    if protocol.arrivals != protocol.sharing * protocol.cluster:
        raise ProtocolError(f"{protocol.sharing * protocol.cluster} groups read, `empty` waits for {protocol.arrivals}")
    _check_reads(protocol, turns)
    runs = _order(protocol, turns)
    order, seen, over = runs.order, runs.seen, runs.over
    if stuck := order.stuck():
        raise ProtocolError(f"deadlock: {stuck[0]} never happens, nor do {len(stuck) - 1} others")
    _check_phases(protocol, runs)
    check_handing_over(protocol)
    for turn in range(turns - protocol.slots):
        later = turn + protocol.slots
        for block in range(protocol.cluster):
            for reader in readers:
                if (reader, turn) not in over:
                    continue  # another group's
                if not order.follows(("loads", block, later), over[reader, turn]):
                    raise ProtocolError(f"turn {later} is loaded over turn {turn}, which is still being read")
                gives_up = ("gives up", reader, later)
                if (reader, later) in over and not order.follows(gives_up, ("empty", block, turn)):
                    raise ProtocolError(f"turn {later} is given up while others have yet to give up turn {turn}")
                if reader // protocol.groups == block and not order.follows(("full", block, later), seen[reader, turn]):
                    raise ProtocolError(f"turn {later} arrives before all have seen that turn {turn} has")
    return turns


def _check_phases(protocol: Protocol, runs: _Known) -> None:
    """Check that each thread that waits for a phase has passed the one before.

    A parity does not tell a phase from the next but one. For the order barrier likewise: no warpgroup arrives a second
    time before the first was seen.
    """
    for (reader, count), node in runs.taken.items():
        if not runs.order.follows(node, ("starts", reader, 0)):
            raise ProtocolError(f"a group waits to be handed over to for the {count}th time, which does not happen")
        again = ("hands over", reader, count + 1)
        if runs.order.knows(again) and not runs.order.follows(again, node):
            raise ProtocolError(f"a group hands over for the {count + 1}th time before that was seen")
    for (reader, turn), before in runs.asked.items():
        earlier = ("full", reader // protocol.groups, turn - protocol.slots)
        if turn >= protocol.slots and not runs.order.follows(before, earlier):
            raise ProtocolError(
                f"turn {turn} is waited for before turn {turn - protocol.slots} arrives, which looks the same"
            )


def check_function(function: Function) -> int:
    """Check the pipelines of a lowered kernel; return the iterations gone through.

    0 for a kernel without pipelines.

    Raises:
        ProtocolError: as `check`.
    """
    found = 0
    check_stores(function)
    check_written(function)
    check_failures(function)
    pipelines = protocols(function, 1, 0)
    if not pipelines:
        return 0
    stages = max(each.slots for each in pipelines)
    several = [(2, stages + 1, 2), (1, 2 * stages + 1, 3), (1, 1, 2)]
    whole = [(1, 0, 1), (2, 1, 1), (1, 2 * stages + 1, 1), (2, stages + 1, 1), (3, 2, 1)]
    divided = any(isinstance(op, KSplits) for op in function.walk())
    if any(isinstance(op, ScatterPartials) for op in function.walk()):
        pieces = int(function.facts["persistent"])
        several = [(1, turns * pieces, pieces) for turns in (1, stages + 1, 2 * stages + 1)]
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    deep = max(1, _deepest(roles.producer) - 1)  # the outermost loop is that over tile blocks
    for tiles, turns, pieces in whole + several * divided:
        # A loop in a loop has so many turns in all: the check takes the square of their number.
        each = math.ceil(turns ** (1 / deep))
        found += sum(map(check, protocols(function, tiles, each, pieces)))
    return found


def _deepest(block: Block) -> int:
    """How many loops are in one another."""
    inner = [isinstance(op, For) + max(map(_deepest, op.regions)) for op in block.operations if op.regions]
    return max(inner, default=0)
