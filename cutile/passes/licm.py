"""Move what does not change in a loop to before it.

    for(...) {                                  %n = mul(%a, %b)
      %n = mul(%a, %b) : i32               ->   for(...) {
      ...                                         ...
    }                                           }

Only scalars and loads move: a constant or broadcast tile costs registers while it waits, and nothing to make.
"""

from __future__ import annotations

from cutile.ir.control import For, While
from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ir.types import TileType
from cutile.ops.memory import LoadTile
from cutile.ops.view import LoadView
from cutile.passes.cse import movable


def licm(function: Function) -> Function:
    """A copy of `function` with loop-invariant operations before their loops."""

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, For | While):
            for body in op.regions:
                _hoist_from(body, rewriter)
        return KEEP

    return rewrite(function, rule)


def _hoist_from(body: Block, rewriter: Rewriter) -> None:
    inside: set[Value] = set(body.arguments)
    rest: list[Op] = []
    for op in body.operations:
        cheap = not isinstance(op, LoadTile | LoadView) and any(
            isinstance(value.type, TileType) and not value.type.is_scalar for value in op.results
        )
        if movable(op) and not cheap and not any(value in inside for value in op.operands):
            rewriter.builder.current.operations.append(op)
        else:
            rest.append(op)
            inside.update(op.results)
    body.operations[:] = rest
