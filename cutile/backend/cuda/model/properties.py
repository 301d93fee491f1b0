"""Models of what warp specialisation needs, beside its pipelines.

They go through the events that `protocol.py` reads from the lowered IR, in their order.

- The order barrier of ping-pong kernels, warp by warp. Two groups with tile blocks of their own hand over to each other
  (`pipeline/mainloop_rules.py`). A warp that is late, with its result yet to be written, waits to take over when others
  of its group already have: it must not miss that, for the next but one handing over would look the same to it. What
  keeps a group's warps together is that each product is made by all of them.
- Failed assertions: no warp leaves, and nothing more is stored.
- Results on their way through shared memory, and a cluster's sums. All warpgroups do the same as the first, and each
  warp has places of its own, but for the sums that other thread blocks send, which lie across all of them.
- Operands that consumers write to shared memory, each a part. Barriers of all consumers order them: between a write and
  the products that read it, and between these, once they are waited for, and the next write to the same stage. What is
  shown of one group's events in their order holds between any two.
"""

from collections.abc import Sequence

from cutile.backend.cuda.model.happens_before import Node, Order
from cutile.backend.cuda.model.protocol import WARPS, Event, Protocol, ProtocolError, first_group
from cutile.backend.cuda.ops import (
    BarriersStart,
    Failed,
    FailUnless,
    Roles,
    ScatterPartials,
    Store,
    TmaStore,
    WriteOperand,
)
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.ir import Block, For, Function, If, Op, Value
from cutile.ops.view import StoreView


def check_handing_over(protocol: Protocol) -> None:
    """Check that every warp sees one arrival of the order barrier before the next.

    Raises:
        ProtocolError: a warp may miss it.
    """
    order, seen = Order(), list[tuple[int, int, Node]]()
    for group in range(protocol.groups if protocol.alone else 0):
        for warp in range(WARPS):
            _hand_over(protocol, group, warp, order, seen)
    for group, count, node in seen:
        again = [_handed(1 - group, warp, count + 1) for warp in range(protocol.handing)]
        if order.knows(again[0]) and not any(order.follows(arrival, node) for arrival in again):
            raise ProtocolError(f"a warp of group {group} may miss that it is handed over to for the {count}th time")


def _hand_over(protocol: Protocol, group: int, warp: int, order: Order, seen: list[tuple[int, int, Node]]) -> None:
    """One warp's events, in their order.

    `seen` collects the arrivals that were waited for: of which group, the how manieth, and where.
    """
    last: Node = ("starts", group * WARPS + warp, 0)
    handed, under_way = 0, list[int]()
    for place, event in enumerate(protocol.reads_of(group)):
        node: Node = ("does", group * WARPS + warp, place)
        order.edge(last, node)
        last = node
        if event.what == "begin":
            under_way.append(place)
        elif event.what == "finish":
            finished = max(0, len(under_way) - event.count)
            for begun in under_way[:finished]:
                for other in range(WARPS):
                    order.edge(("does", group * WARPS + other, begun), node)
            del under_way[:finished]
        elif event.what == "hand over" and warp < protocol.handing:
            order.edge(node, _handed(group, warp, handed))
            handed += 1
        elif event.what == "take over" and (group or event.count):
            count = event.count if group else event.count - 1
            for other in range(protocol.handing):
                order.edge(_handed(1 - group, other, count), node)
            seen.append((group, count, node))


def _handed(group: int, warp: int, count: int) -> Node:
    return ("hands over", group * WARPS + warp, count)


def check_failures(function: Function) -> int:
    """Check the assertions of warps with roles; return how many there are.

    None ends its warp, so that every barrier is reached. Each sets a flag that is cleared before the roles begin. The
    consumers read it behind their main loop, and all that they store from there on goes where the flag says: to an
    index below zero, for which TMA is given nothing.

    Raises:
        ProtocolError: a warp leaves, or something is stored in spite of a failure.
    """
    inside = [op for roles in function.walk() if isinstance(roles, Roles) for op in _inside(roles)]
    asserted = [op for op in inside if isinstance(op, FailUnless)]
    if not asserted:
        return 0
    if any(op.leaves for op in asserted):
        raise ProtocolError("a warp leaves where an assertion fails, and others wait for it")
    (start,) = (op for op in function.walk() if isinstance(op, BarriersStart))
    questions = [op for op in inside if isinstance(op, Failed)]
    if start.flag is None or {op.flag for op in (*asserted, *questions)} != {start.flag}:
        raise ProtocolError("the flag of failed assertions is not the one that is cleared, set and read")
    if not questions:
        raise ProtocolError("nobody asks whether an assertion failed")
    told = _told(function)
    behind = inside[inside.index(questions[0]) :]
    for op in behind:
        if isinstance(op, Store | StoreView | TmaStore) and op.index[0] not in told:
            raise ProtocolError(f"{op.name} stores where an assertion failed")
        if isinstance(op, TmaStore) and not op.dropped:
            raise ProtocolError("TMA is given rows before a tensor's begin")
    return len(asserted)


def _inside(op: Op) -> list[Op]:
    return [each for block in op.regions for each in block.walk()]


def _told(function: Function) -> set[Value]:
    """The values that depend on whether an assertion failed."""
    told: set[Value] = set()
    count = -1
    while count != len(told):
        count = len(told)
        _tell(function.body, told)
    return told


def _tell(block: Block, told: set[Value]) -> None:
    for op in block.operations:
        for nested in op.regions:
            _tell(nested, told)
        if isinstance(op, For):
            ends = op.body.terminator.operands
            for before, inside, end, result in zip(op.carried, op.body.arguments[1:], ends, op.results, strict=True):
                if before in told or end in told:
                    told.update((inside, result))
        elif isinstance(op, If):
            ends = zip(op.then.terminator.operands, op.orelse.terminator.operands, strict=True)
            told.update(result for result, pair in zip(op.results, ends, strict=True) if told.intersection(pair))
        elif isinstance(op, Failed) or any(each in told for each in op.operands):
            told.update(op.results)


def check_stores(function: Function) -> None:
    """Check that each piece of each result is stored once, where nothing else is.

    No place is written while TMA, or another warp, may still read it. A delayed result is stored before the next one.
    Stages of the pipeline are written when nothing is loaded any more, and all products are over.

    Raises:
        ProtocolError: a place is written too early, or not all of a result.
    """
    if not any(isinstance(op, TmaStore) for op in function.walk()):
        return
    put_off = any(isinstance(op, TmaStore) and op.packed for op in function.walk())
    for tiles, turns in ((1, 0), (2, 1), (3, 2), (1, 9), (2, 9)):
        events = first_group(function, tiles, turns)
        _check_places(events)
        _check_pieces(events, tiles, put_off)
    if any(isinstance(op, ScatterPartials) for op in function.walk()):
        pieces = int(function.facts["persistent"])
        for piece in (0, pieces - 1):
            events = first_group(function, 1, 2 * pieces, pieces, piece)
            _check_places(events)
            _check_sums(events)


def _check_places(events: Sequence[Event]) -> None:
    """That a place is written when TMA has read it, and is stored once then."""
    under_way: list[int] = []
    filled: list[int] = []
    for event in events:
        if event.what == "fill":
            del under_way[: max(0, len(under_way) - event.pending)]
            if event.place in (*under_way, *filled):
                raise ProtocolError(f"piece {event.count} is written to a place that is still being read")
            filled.append(event.place)
        elif event.what == "store":
            if event.place not in filled:
                raise ProtocolError(f"piece {event.count} is stored from a place that it was not written to")
            filled.remove(event.place)
            under_way.append(event.place)
    if filled:
        raise ProtocolError(f"what was written to the places {filled} is not stored")


def _check_pieces(events: Sequence[Event], tiles: int, put_off: bool) -> None:
    """That the pieces of results are stored in order, delayed ones before the next.

    If none is delayed, what is kept in words is the left operand of a product.
    """
    stores = [event for event in events if event.what == "store" or (put_off and event.what == "keep")]
    results = count = 0
    for tensor in dict.fromkeys(event.tensor for event in stores if event.what == "store"):
        pieces = [event.count for event in stores if event.what == "store" and event.tensor is tensor]
        results, count = pieces.count(0), max(pieces) + 1
        if pieces != list(range(count)) * results:
            raise ProtocolError(f"of {results} results, the pieces {pieces} are stored")
    kept = [event.what == "keep" for event in stores]
    if any(kept) and kept != ([True] + [False] * count) * (tiles - 1) + [False] * count:
        raise ProtocolError(f"of {tiles} results, all but one put off, {results} are stored, each before the next")


def _check_sums(events: Sequence[Event]) -> None:
    """That partial sums come to a place of their own, and all warps read them.

    They read it before it is used again.
    """
    stored: set[int] = set()
    unread: set[int] = set()
    for event in events:
        if event.what == "store":
            if event.base in unread:
                raise ProtocolError(f"piece {event.count} is written over sums that other warps have yet to add up")
            stored.add(event.base)
        elif event.what == "deal out" and event.base in stored:
            raise ProtocolError("sums are sent to a place that results are stored through")
        elif event.what == "add up":
            unread.add(event.base)
        elif event.what == "meet":
            unread.clear()


def check_written(function: Function) -> None:
    """Check that all consumers read what was written, and wrote what is read.

    Raises:
        ProtocolError: a barrier, or a wait for a product, is missing.
    """
    buffers = {op.buffer for op in function.walk() if isinstance(op, WriteOperand)}
    if not buffers:
        return
    for tiles, turns in ((1, 1), (1, 3), (2, 2)):
        events = first_group(function, tiles, turns)
        for buffer, kind in zip(buffers, buffer_types(list(buffers)), strict=True):
            _check(events, buffer, kind.stages)


def _check(events: Sequence[Event], buffer: Value, stages: int) -> None:
    under_way: list[int] = []  # of each product the counter of what it reads of the buffer, or -1
    to_meet = set[int]()  # those that a warpgroup may still be reading
    last, written = -1, ""
    for event in events:
        if event.what == "begin":
            read = dict(event.reads).get(buffer, -1)
            if read >= 0 and (read, written) != (last, "by all"):
                raise ProtocolError(f"{buffer.name} is read before all warpgroups have written it")
            under_way.append(read)
            to_meet |= {read} - {-1}
        elif event.what == "finish":
            del under_way[: max(0, len(under_way) - event.count)]
        elif event.what == "meet":
            to_meet = {*under_way} - {-1}
            written = "by all" if written else ""
        elif event.what == "write" and event.reads[0][0] is buffer:
            last, written = event.reads[0][1], "by one"
            if any((last - read) % stages == 0 for read in to_meet):
                raise ProtocolError(f"{buffer.name} is written while a warpgroup may still read it")
