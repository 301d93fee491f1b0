"""A model of failed assertions: no warp leaves, and nothing more is stored."""

from __future__ import annotations

from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import BarriersStart, Failed, FailUnless, Roles, Store, TmaStore
from cutile.ir.control import For, If
from cutile.ir.core import Block, Function, Op, Value
from cutile.ops.view import StoreView


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
        _follow(function.body, told)
    return told


def _follow(block: Block, told: set[Value]) -> None:
    for op in block.operations:
        for nested in op.regions:
            _follow(nested, told)
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
