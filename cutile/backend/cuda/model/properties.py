"""Properties of warp-specialised kernels, beside those of their pipelines.

The checks go through the events that `protocol.py` reads from the lowered IR, in their order.

- The order barrier of ping-pong kernels, warp by warp. Two warpgroups take turns at the tensor cores
  (`pipeline/mainloop_rules.py`). A warp that still writes its result may wait for the barrier later than the others of
  its warpgroup. It must not miss a phase. A wait sees only whether a phase is odd or even, so two phases later it would
  wait for the wrong one. The products keep the warps of a warpgroup together, since all of them issue each product.
- Failed assertions: no warp leaves, and nothing more is stored. Consumers read the flag of failures only after a wait
  that tells them of the tests.
- Results on their way through shared memory, and a cluster's sums. All warpgroups do the same as the first. Each warp
  has places of its own for results. The sums that other thread blocks send are the exception: all warps read them.
- Sums of products under way, whose registers change until a wait. Nothing reads them, and at most one product adds to
  them.
- Operands that consumers write to shared memory, each consumer a part. Two barriers of all consumers are needed. One
  stands between a write and the products that read it. The other stands between the wait for these products and the
  next write to the same stage. A barrier orders the events of any two warpgroups. So the events of one warpgroup, in
  their order, show this for all warpgroups.
"""

from collections.abc import Iterator, Sequence

from cutile.backend.cuda.model.happens_before import Node, Order
from cutile.backend.cuda.model.protocol import WARPS, Event, Protocol, ProtocolError, both_roles, first_group
from cutile.backend.cuda.ops import (
    BarriersStart,
    Dot,
    DotWait,
    Failed,
    FailUnless,
    Roles,
    ScatterPartials,
    Store,
    TmaStore,
    WriteOperand,
)
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.gpu.layout_assignment import carried_groups
from cutile.ir import Block, Function, Op, Value
from cutile.ops.view import StoreView


def check_order_barrier(protocol: Protocol) -> None:
    """Check that every warp sees each phase of the order barrier before the next one.

    Raises:
        ProtocolError: a warp may miss it.
    """
    order, waits = Order(), list[tuple[int, int, Node]]()
    for group in range(protocol.groups if protocol.pingpong else 0):
        for warp in range(WARPS):
            _add_warp(protocol, group, warp, order, waits)
    for group, count, node in waits:
        # The next phase ends when all warps have arrived. So if one of these arrivals follows this wait, the phase
        # cannot end before it.
        arrivals = [_arrival(1 - group, warp, count + 1) for warp in range(protocol.handing)]
        # If the order does not know the arrivals, the other warpgroup arrives no more.
        if order.knows(arrivals[0]) and not any(order.follows(arrival, node) for arrival in arrivals):
            raise ProtocolError(f"a warp of warpgroup {group} may miss phase {count} of its order barrier")


def _add_warp(protocol: Protocol, group: int, warp: int, order: Order, waits: list[tuple[int, int, Node]]) -> None:
    """Add one warp's events to the order.

    `waits` collects its waits for the order barrier: the number of the warpgroup, the number of the phase, the event.
    """
    last: Node = ("starts", group * WARPS + warp, 0)
    phase, under_way = 0, list[int]()
    for position, event in enumerate(protocol.reads_of(group)):
        node: Node = ("does", group * WARPS + warp, position)
        order.edge(last, node)
        last = node
        if event.what == "begin":
            under_way.append(position)
        elif event.what == "finish":  # `event.count` products may still be under way, the last ones
            finished = max(0, len(under_way) - event.count)
            for begun in under_way[:finished]:  # a product is finished when all warps of the group have begun it
                for other in range(WARPS):
                    order.edge(("does", group * WARPS + other, begun), node)
            del under_way[:finished]
        elif event.what == "order arrive" and warp < protocol.handing:
            order.edge(node, _arrival(group, warp, phase))
            phase += 1
        elif event.what == "order wait" and (group or event.count):  # the first group's first wait ends at once
            count = event.count if group else event.count - 1
            for other in range(protocol.handing):
                order.edge(_arrival(1 - group, other, count), node)
            waits.append((group, count, node))


def _arrival(group: int, warp: int, count: int) -> Node:
    """Arrival number `count`, from 0, of a warp of `group` on the order barrier."""
    return ("arrives", group * WARPS + warp, count)


def check_failures(function: Function) -> int:
    """Check the assertions of warp-specialised kernels; return their number.

    No assertion ends its warp, so that every barrier is reached. Each sets a flag, which is cleared before the roles
    begin. The consumers read the flag behind their main loop, or ahead of each store. The index of each store depends
    on the flag: after a failure it is below zero, where nothing is stored.

    Raises:
        ProtocolError: a warp leaves, something is stored in spite of a failure, or the flag is read too early.
    """
    operations = [op for roles in function.walk() if isinstance(roles, Roles) for op in _nested(roles)]
    assertions = [op for op in operations if isinstance(op, FailUnless)]
    if not assertions:
        return 0
    if any(op.leaves for op in assertions):
        raise ProtocolError("a warp leaves where an assertion fails, and others wait for it")
    (start,) = (op for op in function.walk() if isinstance(op, BarriersStart))
    reads = [op for op in operations if isinstance(op, Failed)]
    if start.flag is None or {op.flag for op in (*assertions, *reads)} != {start.flag}:
        raise ProtocolError("the flag of failed assertions is not the one that is cleared, set and read")
    if not reads:
        raise ProtocolError("nobody asks whether an assertion failed")
    dependent = _dependent_on_failures(function)
    for op in operations:
        # The flag goes into the first index alone: below zero there, a store is out of bounds whatever the others are.
        if isinstance(op, Store | StoreView | TmaStore) and op.index[0] not in dependent:
            raise ProtocolError(f"{op.name} stores where an assertion failed")
        if isinstance(op, TmaStore) and not op.dropped:
            raise ProtocolError("a TMA store gets rows before a tensor's first, and must drop them")
    # (iterations, splits, the split that runs). Of two splits of one iteration, one has none.
    for iterations, splits, split in ((0, 1, None), (1, 1, None), (2, 1, None), (1, 2, 0), (1, 2, 1)):
        roles = both_roles(function, 1, iterations, splits, split)
        _check_asked(*roles, once=not function.facts.get("rolled"))
    return len(assertions)


def _check_asked(producer: Sequence[Event], consumer: Sequence[Event], *, once: bool) -> None:
    """Check, in one tile block, that the flag is read after a wait for the producer.

    Args:
        producer: the events of the producer.
        consumer: the events of a consumer.
        once: whether the flag is read once, for all assertions of the tile block: behind a main loop. Elsewhere it is
            read ahead of each store, for the assertions ahead of that store, and assertions may follow.

    Raises:
        ProtocolError: an assertion may be tested only after the read.
    """
    asks = [place for place, event in enumerate(consumer) if event.what == "ask"]
    waits = {(event.pipeline, event.count) for event in consumer[: min(asks, default=0)] if event.what == "wait"}
    told = [at for at, of in enumerate(producer) if of.what == "acquire" and (of.pipeline, of.count) in waits]
    tests = [at for at, event in enumerate(producer) if event.what == "test"]
    if asks and tests and (not told or (once and max(told) < max(tests))):
        raise ProtocolError("whether an assertion failed is asked before it is tested")


def _nested(op: Op) -> list[Op]:
    return [nested for block in op.regions for nested in block.walk()]


def _dependent_on_failures(function: Function) -> set[Value]:
    """The values that depend on whether an assertion failed."""
    dependent: set[Value] = set()
    count = -1  # unlike any length, for the first round
    while count != len(dependent):  # again, since a loop carries a value back to its begin
        count = len(dependent)
        _add_dependent(function.body, dependent)
    return dependent


def _add_dependent(block: Block, dependent: set[Value]) -> None:
    """Add the results of a block's operations that read a dependent value."""
    for op in block.operations:
        for nested in op.regions:
            _add_dependent(nested, dependent)
        if isinstance(op, Failed) or (not op.regions and dependent.intersection(op.operands)):
            dependent.update(op.results)
        for sources, variables in _variables(op):
            if dependent.intersection(sources):
                dependent.update(variables)


def _variables(op: Op) -> Iterator[tuple[list[Value], list[Value]]]:
    """The variables of a loop or branch.

    Yields the values that each may get, and the arguments and the result that stand for it.
    """
    own = {*op.results, *(argument for block in op.regions for argument in block.arguments)}
    for group in carried_groups(op):
        yield [value for value in group if value not in own], [value for value in group if value in own]


def check_sums(function: Function) -> None:
    """Check that no sums are read while a product is under way.

    Another product may add to them. Then nothing else reads them, not even a third product.

    Raises:
        ProtocolError: sums are read while a product is under way.
    """
    begun = {op.result for op in function.walk() if isinstance(op, Dot) or (isinstance(op, DotWait) and op.goes_on)}
    for op in reversed([*function.walk()]):  # inner loops first: their products may be under way behind them
        for sources, variables in _variables(op):
            if begun.intersection(sources):
                begun.update(variables)
    _check_sums_of(function.body, begun, set())


def _check_sums_of(block: Block, begun: set[Value], added: set[Value]) -> set[Value]:
    """Check one block, and return the sums that products have added to by its end.

    Args:
        block: what is checked.
        begun: the sums of products that may be under way.
        added: those that a product has added to ahead of the block.
    """
    for op in block.operations:
        read = begun.intersection(op.operands)
        if read & added or (read and not isinstance(op, Dot | DotWait) and not op.terminates):
            raise ProtocolError(f"{op.name} reads the sums of a product under way")
        if isinstance(op, Dot):
            added = added | read
        # Only one block of a branch runs: what the one has added to, the other may.
        added = added.union(*(_check_sums_of(nested, begun, added) for nested in op.regions))
    return added


def check_stores(function: Function) -> None:
    """Check that each subtile of each result is stored once, from a place of its own.

    No place is written while TMA, or another warp, may still read it. A delayed result is stored before the next one.
    A cluster's sums come to places that no result is stored through.

    Raises:
        ProtocolError: a place is written too early, or a part of a result is not stored.
    """
    if not any(isinstance(op, TmaStore) for op in function.walk()):
        return
    delayed = any(isinstance(op, TmaStore) and op.packed for op in function.walk())
    # (tile blocks, iterations). The iterations are none, 1 and 2, which are no more than the stages, and 9, which are
    # more than the stages of a pipeline of up to 8.
    for tiles, iterations in ((1, 0), (2, 1), (3, 2), (1, 9), (2, 9)):
        events = first_group(function, tiles, iterations)
        _check_places(events)
        _check_subtiles(events, tiles, delayed)
    if any(isinstance(op, ScatterPartials) for op in function.walk()):
        splits = int(function.facts["persistent"])
        for split in (0, splits - 1):  # the first and the last, since those between do the same; of two iterations each
            events = first_group(function, 1, 2 * splits, splits, split)
            _check_places(events)
            _check_sums(events)


def _check_places(events: Sequence[Event]) -> None:
    """Check that a place is written only when TMA has read it, and then stored once."""
    under_way: list[int] = []
    filled: list[int] = []
    for event in events:
        if event.what == "fill":
            del under_way[: max(0, len(under_way) - event.pending)]
            if event.place in (*under_way, *filled):
                raise ProtocolError(f"subtile {event.count} is written to a place that is still being read")
            filled.append(event.place)
        elif event.what == "store":
            if event.place not in filled:
                raise ProtocolError(f"subtile {event.count} is stored from a place that it was not written to")
            filled.remove(event.place)
            under_way.append(event.place)
    if filled:
        raise ProtocolError(f"the subtiles at the places {filled} are not stored")


def _check_subtiles(events: Sequence[Event], tiles: int, delayed: bool) -> None:
    """Check that results are stored subtile by subtile, a delayed one before the next.

    If no result is delayed, a tile that is packed in registers (`pack`) is the left operand of a product.
    """
    stores = [event for event in events if event.what == "store" or (delayed and event.what == "pack")]
    results = count = 0
    for tensor in dict.fromkeys(event.tensor for event in stores if event.what == "store"):
        subtiles = [event.count for event in stores if event.what == "store" and event.tensor is tensor]
        results, count = subtiles.count(0), max(subtiles) + 1
        if subtiles != list(range(count)) * results:
            raise ProtocolError(f"of {results} results, the subtiles {subtiles} are stored")
    packs = [event.what == "pack" for event in stores]
    if any(packs) and packs != ([True] + [False] * count) * (tiles - 1) + [False] * count:
        raise ProtocolError(f"of {tiles} results, all but the last delayed, {results} are stored before the next one")


def _check_sums(events: Sequence[Event]) -> None:
    """Check that partial sums come to a place of their own.

    No result is stored through it before, and none after until all warps have read the sums.
    """
    stored: set[int] = set()
    unread: set[int] = set()
    for event in events:
        if event.what == "store":
            if event.base in unread:
                raise ProtocolError(f"subtile {event.count} is written over sums that other warps have yet to reduce")
            stored.add(event.base)
        elif event.what == "scatter" and event.base in stored:
            raise ProtocolError("sums are sent to a place that results are stored through")
        elif event.what == "reduce":
            unread.add(event.base)
        elif event.what == "barrier":
            unread.clear()


def check_written(function: Function) -> None:
    """Check the buffers that consumers write: for races of writes and reads.

    Raises:
        ProtocolError: a barrier, or a wait for a product, is missing.
    """
    buffers = {op.buffer for op in function.walk() if isinstance(op, WriteOperand)}
    if not buffers:
        return
    for tiles, iterations in ((1, 1), (1, 3), (2, 2)):  # one and several, of tile blocks and of iterations
        events = first_group(function, tiles, iterations)
        for buffer, kind in zip(buffers, buffer_types(list(buffers)), strict=True):
            _check_written_buffer(events, buffer, kind.stages)


def _check_written_buffer(events: Sequence[Event], buffer: Value, stages: int) -> None:
    """Check one buffer, by one warpgroup's events."""
    under_way: list[int] = []  # for each product, the stage counter of the buffer that it reads; -1 for none
    unmet = set[int]()  # counters that another warpgroup may still read: no barrier has followed the wait
    last, written = -1, ""  # the last counter that was written, and by whom
    for event in events:
        if event.what == "begin":
            read = dict(event.reads).get(buffer, -1)
            if read >= 0 and (read, written) != (last, "by all"):
                raise ProtocolError(f"{buffer.name} is read before all warpgroups have written it")
            under_way.append(read)
            unmet |= {read} - {-1}
        elif event.what == "finish":
            del under_way[: max(0, len(under_way) - event.count)]
        elif event.what == "barrier":
            unmet = {*under_way} - {-1}
            written = "by all" if written else ""
        elif event.what == "write" and event.reads[0][0] is buffer:
            last, written = event.reads[0][1], "by one"
            if any((last - read) % stages == 0 for read in unmet):
                raise ProtocolError(f"{buffer.name} is written while a warpgroup may still read it")
