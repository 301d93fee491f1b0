"""A model of operands that consumers write to shared memory, each a part.

Barriers of all consumers order them: between a write and the products that read it, and between these, once they are
waited for, and the next write. All warpgroups do the same, so that what is shown of one group's events in their order
holds between any two.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.cuda.model.protocol import Event, ProtocolError, first_group
from cutile.backend.cuda.ops import WriteOperand
from cutile.ir.core import Function, Value


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
        for buffer in buffers:
            _check(events, buffer)


def _check(events: Sequence[Event], buffer: Value) -> None:
    under_way: list[bool] = []  # of each product whether it reads the buffer
    to_meet, written = False, ""
    for event in events:
        if event.what == "begin":
            reads = any(value is buffer for value, _ in event.reads)
            if reads and written != "by all":
                raise ProtocolError(f"{buffer.name} is read before all warpgroups have written it")
            under_way.append(reads)
            to_meet |= reads
        elif event.what == "finish":
            del under_way[: max(0, len(under_way) - event.count)]
        elif event.what == "meet":
            to_meet = any(under_way)
            written = "by all" if written else ""
        elif event.what == "write" and event.reads[0][0] is buffer:
            if to_meet:
                raise ProtocolError(f"{buffer.name} is written while a warpgroup may still read it")
            written = "by one"
