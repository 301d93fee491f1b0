"""Drop what nobody uses: operations without effect whose results are unused, loops and branches included.

%0 = tile_block_id() {axis = 2}   ->   (gone)
"""

from __future__ import annotations

from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.effects import Effect
from cutile.ir.rewriter import ERASE, KEEP, Replacement, Rewriter, rewrite


def dce(function: Function) -> Function:
    """A copy of `function` without unused operations."""
    live: set[int] = set()
    _mark(function.body, set(), live)
    position = -1
    order = {id(op): index for index, op in enumerate(_post_order(function.body))}
    alive = {order[each] for each in live}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        # The rewriter visits in post-order, as `_post_order` does.
        nonlocal position
        del op, rewriter
        position += 1
        return KEEP if position in alive else ERASE

    return rewrite(function, rule)


def _post_order(block: Block) -> list[Op]:
    found: list[Op] = []
    for op in block.operations:
        for nested in op.regions:
            found.extend(_post_order(nested))
        found.append(op)
    return found


def _mark(block: Block, used: set[Value], live: set[int]) -> None:
    """Mark what is needed, from the last operation to the first. `used` grows with the operands of what is."""
    for op in reversed(block.operations):
        if op.effect is Effect.WRITE or op.terminates or any(value in used for value in op.results):
            live.add(id(op))
            used.update(op.operands)
            for nested in reversed(op.regions):
                _mark(nested, used, live)
