"""Compute equal things once, and before a loop what does not change in it.

Equal things (`cse`):

    %0 = tile_block_id() {axis = 0}        %0 = tile_block_id() {axis = 0}
    %1 = tile_block_id() {axis = 0}   ->   %2 = load_tile(%x, %0)
    %2 = load_tile(%x, %1)

Pure operations with equal operands and attributes merge, within a block and from an outer block into a nested one.
Loads of read-only tensors merge too: a launch refuses a tensor that is read and written at once.

What does not change in a loop (`licm`):

    for(...) {                                  %n = mul(%a, %b)
      %n = mul(%a, %b) : i32               ->   for(...) {
      ...                                         ...
    }                                           }

Only scalars and loads move: a constant or broadcast tile costs registers while it waits, and nothing to make.
"""

from __future__ import annotations

from typing import Any

from cutile.ir.control import For, While
from cutile.ir.core import Block, Effect, Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ir.types import TensorType, TileType
from cutile.ops.memory import LoadTile
from cutile.ops.pointer import LoadPointer
from cutile.ops.view import LoadView


def movable(op: Op) -> bool:
    """Whether an operation gives the same results wherever and however often it runs."""
    if op.regions or op.terminates:
        return False
    if isinstance(op, LoadTile | LoadView):
        return isinstance(op.x.type, TensorType) and op.x.type.stable
    if isinstance(op, LoadPointer):
        return op.constant
    return op.effect is Effect.NONE


def cse(function: Function) -> Function:
    """A copy of `function` in which equal operations are merged."""
    # A block's own list of operations identifies it while it is being built; entries of finished blocks are dropped
    # because lookups walk only the blocks that are open.
    seen: dict[int, dict[Any, tuple[Value, ...]]] = {}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if not movable(op):
            return KEEP
        key = (type(op), tuple(map(id, op.operands)), repr(op.attributes))
        for block in rewriter.builder.open_blocks:
            found = seen.get(id(block), {}).get(key)
            if found is not None:
                return found
        seen.setdefault(id(rewriter.builder.current), {})[key] = op.results
        kept.append(rewriter.builder.current)
        return KEEP

    kept: list[Any] = []  # holds every block, so that an id names one block only
    return rewrite(function, rule)


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
