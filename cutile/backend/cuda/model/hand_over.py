"""A model of the order barrier of ping-pong kernels, warp by warp.

Two groups with tile blocks of their own hand over to each other (`pipeline/warpgroups.py`). A warp that is late,
with its result yet to be written, waits to take over when others of its group already have: it must not miss that, for
the next but one handing over would look the same to it. What keeps a group's warps together is that each product is
made by all of them.
"""

from __future__ import annotations

from cutile.backend.cuda.model.happens_before import Node, Order
from cutile.backend.cuda.model.protocol import WARPS, Protocol, ProtocolError


def check_handing_over(protocol: Protocol) -> None:
    """Check that every warp sees one arrival of the order barrier before the next.

    Raises:
        ProtocolError: a warp may miss it.
    """
    order, seen = Order(), list[tuple[int, int, Node]]()
    for group in range(protocol.groups if protocol.alone else 0):
        for warp in range(WARPS):
            _follow(protocol, group, warp, order, seen)
    for group, count, node in seen:
        again = [_handed(1 - group, warp, count + 1) for warp in range(protocol.handing)]
        if order.knows(again[0]) and not any(order.follows(arrival, node) for arrival in again):
            raise ProtocolError(f"a warp of group {group} may miss that it is handed over to for the {count}th time")


def _follow(protocol: Protocol, group: int, warp: int, order: Order, seen: list[tuple[int, int, Node]]) -> None:
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
