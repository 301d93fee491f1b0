"""A model of pipelines that looks for deadlock, overwriting and lost phases.

It works on a protocol that `protocol.py` reads from the lowered IR, for more iterations than the pipeline has stages.
It needs no device. A fault that it finds does not depend on timing: it is in the order of events that all runs share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cutile.backend.cuda.model.happens_before import Node, Order
from cutile.backend.cuda.model.properties import (
    check_failures,
    check_order_barrier,
    check_stores,
    check_sums,
    check_written,
)
from cutile.backend.cuda.model.protocol import Event, Protocol, ProtocolError, protocols
from cutile.backend.cuda.ops import KSplits, Roles, ScatterPartials
from cutile.ir import Block, For, Function


def _count_loads(protocol: Protocol) -> int:
    """Check that each load announces the bytes that it copies; return their number."""
    announced: list[int] = []  # bytes, by load
    copied: list[int] = []
    for event in protocol.loads:
        if event.what == "acquire":
            if event.count != len(announced):
                raise ProtocolError(f"iteration {event.count} is acquired as the {len(announced)}th")
            announced.append(event.nbytes)
            copied.append(0)
        else:
            if event.count != len(announced) - 1:
                raise ProtocolError(f"iteration {event.count} is loaded without having been acquired")
            copied[-1] += event.nbytes
    if announced != copied:
        raise ProtocolError(f"announced are {announced} bytes, copied {copied}")
    return len(announced)


Places = dict[tuple[int, int], Node]
"""Events by (reader, iteration)."""


@dataclass(frozen=True)
class _Runs:
    """The order of a protocol's events, which all runs share, and events in it.

    Attributes:
        order: which event happens before which.
        arrival_seen: the event at which a reader has seen an iteration's load arrive.
        read_end: the event at which a reader has finished reading an iteration's stage.
        before_wait: the last event of a reader before it waits for an iteration.
        order_waits: by (a warpgroup that arrives on the order barrier, the number of its arrivals before), the wait of
            the other warpgroup that sees this arrival.
    """

    order: Order
    arrival_seen: Places
    read_end: Places
    before_wait: Places
    order_waits: Places


def _order_loads(order: Order, protocol: Protocol, iterations: int) -> None:
    """Add the loads: each follows the load before, and the release of its stage."""
    blocks = range(protocol.cluster)
    for block in blocks:
        for iteration in range(iterations):
            loads = ("loads", block, iteration)
            if iteration:
                order.edge(("loads", block, iteration - 1), loads)
            if iteration >= protocol.stages:
                order.edge(("empty", block, iteration - protocol.stages), loads)
            for other in blocks:  # a block's part of a tile arrives in all of them
                order.edge(loads, ("full", other, iteration))


def _order(protocol: Protocol, iterations: int) -> _Runs:
    """The order of a protocol's events, with `iterations` loads."""
    order = Order()
    arrival_seen: Places = {}
    read_end: Places = {}
    before_wait: Places = {}
    order_waits: Places = {}
    blocks = range(protocol.cluster)
    _order_loads(order, protocol, iterations)
    for reader in range(protocol.groups * protocol.cluster):
        (block, group), under_way, last = divmod(reader, protocol.groups), list[int](), ("starts", reader, 0)
        arrivals = 0
        for place, event in enumerate(protocol.reads_of(reader)):
            node = ("reads", reader, place)
            order.edge(last, node)
            before, last = last, node
            if event.what == "wait":
                before_wait[reader, event.count] = before
                order.edge(("full", block, event.count), node)
                arrival_seen[reader, event.count] = node
            elif event.what == "begin":
                under_way.append(event.count)
            elif event.what == "read":
                read_end[reader, event.count] = node
            elif event.what == "finish":
                finished = max(0, len(under_way) - event.count)
                read_end.update({(reader, iteration): node for iteration in under_way[:finished]})
                del under_way[:finished]
            elif event.what == "release":
                order.edge(node, ("releases", reader, event.count))
                for other in blocks:
                    order.edge(node, ("empty", other, event.count))
            elif event.what == "order arrive":
                order.edge(node, ("arrives", reader, arrivals))
                arrivals += 1
            elif event.what == "order wait" and (group or event.count):  # the first group's first wait ends at once
                other, count = (reader - 1, event.count) if group else (reader + 1, event.count - 1)
                order.edge(("arrives", other, count), node)
                order_waits[other, count] = node
    return _Runs(order, arrival_seen, read_end, before_wait, order_waits)


def _check_reads(protocol: Protocol, iterations: int) -> None:
    """Check that readers wait for each load, read it, and release its stage once."""
    for event in (event for reads in (protocol.reads, *protocol.others) for event in reads):
        if event.what == "wait" and event.count >= iterations:
            raise ProtocolError(f"deadlock: iteration {event.count} is waited for, {iterations} are loaded")
    every_release = [_releases(reads) for reads in (protocol.reads, *protocol.others)]
    if protocol.pingpong:  # each warpgroup reads the loads of its own tile blocks
        every_release = [[iteration for released in every_release for iteration in released]]
    for released in every_release:
        if sorted(released) != list(range(iterations)):
            raise ProtocolError(f"iterations {released} are released, {iterations} are loaded")


def _releases(reads: Sequence[Event]) -> list[int]:
    """The iterations whose stages a reader releases, in its order."""
    waited: set[int] = set()
    under_way: list[int] = []
    released: list[int] = []
    for event in reads:
        if event.what == "wait":
            waited.add(event.count)
        elif event.what == "begin":
            if event.count not in waited and event.count >= 0:
                raise ProtocolError(f"iteration {event.count} is read without having been waited for")
            under_way.append(event.count)
        elif event.what == "finish":
            del under_way[: max(0, len(under_way) - event.count)]
        elif event.what == "read":
            if event.count not in waited or event.count in released:
                raise ProtocolError(
                    f"iteration {event.count} is read by threads before it arrives, or when it is released"
                )
        elif event.what == "release":
            if event.count in under_way:
                raise ProtocolError(f"iteration {event.count} is released while its product is under way")
            if event.count not in waited:
                raise ProtocolError(f"iteration {event.count} is released without having been waited for")
            released.append(event.count)
    return released


def check(protocol: Protocol) -> int:
    """Check a protocol in all its runs; return the number of loads.

    Barriers only ever count up, so the events that must happen before an event are the same in every run: they form a
    graph. It is checked that every event happens (no deadlock), and that a stage is loaded after all its readers are
    done. No barrier may be two phases ahead of a thread that waits for it, so that a parity tells phases apart.

    Raises:
        ProtocolError: a warp waits for ever, or a stage is loaded or read too early.
    """
    iterations = _count_loads(protocol)
    readers = range(protocol.groups * protocol.cluster)
    if protocol.arrivals != protocol.sharing * protocol.cluster:
        raise ProtocolError(f"{protocol.sharing * protocol.cluster} groups read, `empty` waits for {protocol.arrivals}")
    _check_reads(protocol, iterations)
    runs = _order(protocol, iterations)
    order = runs.order
    if stuck := order.stuck():
        raise ProtocolError(f"deadlock: {stuck[0]} never happens, nor do {len(stuck) - 1} others")
    _check_phases(protocol, runs)
    check_order_barrier(protocol)
    for iteration in range(iterations - protocol.stages):
        later = iteration + protocol.stages
        for block in range(protocol.cluster):
            for reader in readers:
                if (reader, iteration) not in runs.read_end:
                    continue  # another warpgroup reads it
                if not order.follows(("loads", block, later), runs.read_end[reader, iteration]):
                    raise ProtocolError(
                        f"iteration {later} is loaded over iteration {iteration}, which is still being read"
                    )
                release = ("releases", reader, later)
                if (reader, later) in runs.read_end and not order.follows(release, ("empty", block, iteration)):
                    raise ProtocolError(
                        f"iteration {later} is released while others have yet to release iteration {iteration}"
                    )
                if reader // protocol.groups == block and not order.follows(
                    ("full", block, later), runs.arrival_seen[reader, iteration]
                ):
                    raise ProtocolError(
                        f"iteration {later} arrives before all have seen that iteration {iteration} has"
                    )
    return iterations


def _check_phases(protocol: Protocol, runs: _Runs) -> None:
    """Check that each thread that waits for a phase has passed the one before.

    A parity does not tell a phase from the second one after it. So no warpgroup arrives on the order barrier again
    before the other warpgroup has seen the last arrival.
    """
    for (reader, count), node in runs.order_waits.items():
        if not runs.order.follows(node, ("starts", reader, 0)):
            raise ProtocolError(
                f"a warpgroup waits for the {count}th arrival on its order barrier, which does not happen"
            )
        again = ("arrives", reader, count + 1)
        if runs.order.knows(again) and not runs.order.follows(again, node):
            raise ProtocolError(
                f"a warpgroup arrives on the order barrier for the {count + 1}th time before the last arrival was seen"
            )
    for (reader, iteration), before in runs.before_wait.items():
        earlier = ("full", reader // protocol.groups, iteration - protocol.stages)
        if iteration >= protocol.stages and not runs.order.follows(before, earlier):
            former = iteration - protocol.stages
            raise ProtocolError(
                f"iteration {iteration} is waited for before iteration {former} arrives, which looks the same"
            )


def check_function(function: Function) -> int:
    """Check the pipelines of a lowered kernel; return the number of checked loads.

    It is 0 for a kernel without pipelines.

    Raises:
        ProtocolError: as `check`.
    """
    count = 0
    check_stores(function)
    check_sums(function)
    check_written(function)
    check_failures(function)
    pipelines = protocols(function, 1, 0)
    if not pipelines:
        return 0
    stages = max(each.stages for each in pipelines)
    # (tile blocks, iterations, splits). The iterations are none, fewer than the stages, one more than the stages, and
    # one more than twice the stages.
    whole = [(1, 0, 1), (2, 1, 1), (1, 2 * stages + 1, 1), (2, stages + 1, 1), (3, 2, 1)]
    split = [(2, stages + 1, 2), (1, 2 * stages + 1, 3), (1, 1, 2)]
    if any(isinstance(op, ScatterPartials) for op in function.walk()):
        pieces = int(function.facts["persistent"])
        split = [(1, iterations * pieces, pieces) for iterations in (1, stages + 1, 2 * stages + 1)]
    may_split = any(isinstance(op, KSplits) for op in function.walk())
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    depth = max(1, _loop_depth(roles.producer) - 1)  # the outermost loop is over tile blocks
    for tiles, iterations, pieces in whole + split * may_split:
        # `depth` nested loops share the iterations: each runs their `depth`-th root. The time of a check grows with the
        # square of their number.
        per_loop = math.ceil(iterations ** (1 / depth))
        count += sum(map(check, protocols(function, tiles, per_loop, pieces)))
    return count


def _loop_depth(block: Block) -> int:
    """The number of loops that are nested in one another."""
    inner = [isinstance(op, For) + max(map(_loop_depth, op.regions)) for op in block.operations if op.regions]
    return max(inner, default=0)
