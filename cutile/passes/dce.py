"""Drop what nobody uses: operations without effect whose results are unused, loops and branches included.

%0 = tile_block_id() {axis = 2}   ->   (gone)
"""

from __future__ import annotations

from cutile.ir.core import Block, Function, Value
from cutile.ir.effects import Effect
from cutile.ir.rewriter import KEEP, rewrite


def dce(function: Function) -> Function:
    """A copy of `function` without unused operations."""
    live: set[int] = set()
    _mark(function.body, set(), live)
    return rewrite(function, lambda op, rewriter: KEEP, drop=lambda op: id(op) not in live)


def _mark(block: Block, used: set[Value], live: set[int]) -> None:
    """Mark what is needed, from the last operation to the first. `used` grows with the operands of what is."""
    for op in reversed(block.operations):
        if op.effect >= Effect.WRITE or op.terminates or any(value in used for value in op.results):
            live.add(id(op))
            used.update(op.operands)
            for nested in reversed(op.regions):
                _mark(nested, used, live)
