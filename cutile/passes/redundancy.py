"""Passes that remove redundant operations: `cse`, `licm` and `dce`.

Equal operations (`cse`):

    %0 = tile_block_id() {axis = 0}        %0 = tile_block_id() {axis = 0}
    %1 = tile_block_id() {axis = 0}   ->   %2 = load_tile(%x, %0)
    %2 = load_tile(%x, %1)

Pure operations with equal operands and attributes merge, within a block and from an outer block into a nested one.
Loads of read-only tensors merge too: a launch refuses a tensor that is read and written at once.

Loop-invariant operations (`licm`):

    for(...) {                                  %n = mul(%a, %b)
      %n = mul(%a, %b) : i32               ->   for(...) {
      ...                                         ...
    }                                           }

Only scalars and loads of tiles move: other tiles would occupy registers throughout the loop, and cost little to make.

Unused operations (`dce`) go: operations without effect whose results are unused, loops and branches among them. So do
unused values that the other loops and branches carry.

    %0 = tile_block_id() {axis = 2}                 (gone)
    %a, %b = if(%c) { yield(%x, %y) } {...}   ->    %a = if(%c) { yield(%x) } {...}      (%b is unused)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cutile.ir.builder import KEEP, Replacement, Rewriter, rewrite
from cutile.ir.control import For, If, While
from cutile.ir.core import Block, Effect, Function, Op, Value
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
    # The results of an operation, by the id of its block and by its key. A lookup asks the open blocks alone: their
    # values may be used here.
    seen: dict[int, dict[Any, tuple[Value, ...]]] = {}
    blocks: list[Block] = []  # kept alive, so that no later block has the id of an earlier one

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if not movable(op):
            return KEEP
        key = (type(op), tuple(map(id, op.operands)), repr(op.attributes))  # by `repr`, 0.0 is not -0.0, nor 1 True
        for block in rewriter.builder.open_blocks:
            results = seen.get(id(block), {}).get(key)
            if results is not None:
                return results
        seen.setdefault(id(rewriter.builder.current), {})[key] = op.results
        blocks.append(rewriter.builder.current)
        return KEEP

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
        is_cheap_tile = not isinstance(op, LoadTile | LoadView) and any(
            isinstance(value.type, TileType) and not value.type.is_scalar for value in op.results
        )
        if movable(op) and not is_cheap_tile and not any(value in inside for value in op.operands):
            rewriter.builder.current.operations.append(op)
        else:
            rest.append(op)
            inside.update(op.results)
    body.operations[:] = rest


def dce(function: Function) -> Function:
    """A copy of `function` without unused operations."""
    liveness = _Liveness()
    liveness.block(function.body, ())
    pruned = _prune(function, liveness)
    if pruned is not function:  # a copy: its operations have other identities
        liveness = _Liveness()
        liveness.block(pruned.body, ())
    return rewrite(pruned, lambda op, rewriter: KEEP, drop=lambda op: id(op) not in liveness.live)


class _Liveness:
    """The operations and values that are needed.

    They are found from the last operation to the first. The sets only grow, so that loops can be marked again.

    Attributes:
        used: the values that live operations read.
        live: the operations that stay, by identity.
        kept: the positions of the results that each loop and branch has to carry, by the identity of the operation.
    """

    def __init__(self) -> None:
        self.used: set[Value] = set()
        self.live: set[int] = set()
        self.kept: dict[int, set[int]] = {}

    def block(self, block: Block, positions: Iterable[int]) -> None:
        """Mark what a block needs to yield its values at `positions`, and for its effects."""
        for op in reversed(block.operations):
            if op.terminates:
                self.live.add(id(op))
                self.used.update(op.operands[position] for position in positions)
            elif op.effect >= Effect.WRITE or any(value in self.used for value in op.results):
                self.live.add(id(op))
                self._operation(op)

    def _operation(self, op: Op) -> None:
        used = {position for position, value in enumerate(op.results) if value in self.used}
        if isinstance(op, If):
            self.kept[id(op)] = used
            self.used.add(op.condition)
            self.block(op.then, used)
            self.block(op.orelse, used)
        elif isinstance(op, For | While):
            self._loop(op, used)
        else:
            self.used.update(op.operands)
            for nested in reversed(op.regions):
                self.block(nested, range(len(nested.terminator.operands)))

    def _loop(self, op: For | While, used: set[int]) -> None:
        """Mark a loop.

        A carried value is needed after the loop, or by the next iteration, which may need further values, and so on.
        """
        own = 1 if isinstance(op, For) else 0  # the loop variable is the first argument
        while True:
            self.block(op.body, used)
            if isinstance(op, While):
                self.block(op.condition, (0,))
            arguments = [op.body.arguments[own:], *([op.condition.arguments] if isinstance(op, While) else [])]
            read = {at for group in arguments for at, value in enumerate(group) if value in self.used}
            if read <= used:
                break
            used |= read
        self.kept[id(op)] = used
        if isinstance(op, For):
            self.used.update((op.start, op.stop, op.step))
        self.used.update(op.carried[position] for position in used)


def _prune(function: Function, liveness: _Liveness) -> Function:
    """The function, with loops and branches that carry needed values alone.

    An operation that reads a value which is no longer carried is dead. `dce` drops it next. Until then it reads a value
    that nothing defines.
    """
    order = [liveness.kept.get(id(op)) for op in _inner_first(function.body)]
    sizes = [len(op.results) for op in _inner_first(function.body)]
    if all(kept is None or len(kept) == size for kept, size in zip(order, sizes, strict=True)):
        return function
    remaining = iter(order)

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if not op.regions:
            return KEEP
        positions = next(remaining)
        if positions is None or len(positions) == len(op.results):
            return KEEP
        return _without(op, sorted(positions), rewriter)

    return rewrite(function, rule)


def _inner_first(block: Block) -> Iterator[Op]:
    """Operations with nested blocks, in the order in which a rule sees them."""
    for op in block.operations:
        for nested in op.regions:
            yield from _inner_first(nested)
        if op.regions:
            yield op


def _without(op: Op, positions: list[int], rewriter: Rewriter) -> Replacement:
    """`op` with the results at `positions` alone."""
    builder = rewriter.builder

    def narrowed(block: Block, own: int, *, yields: bool = True) -> Block:
        arguments = (
            (*block.arguments[:own], *(block.arguments[own + at] for at in positions)) if block.arguments else ()
        )
        inner = Block(arguments, block.operations)
        if yields:
            end = inner.operations.pop()
            with builder.within(inner):
                builder.yield_(*(end.operands[position] for position in positions))
        return inner

    if isinstance(op, If):
        new: Op = If(condition=op.condition, then=narrowed(op.then, 0), orelse=narrowed(op.orelse, 0))
    elif isinstance(op, For):
        carried = tuple(op.carried[position] for position in positions)
        new = type(op)(start=op.start, stop=op.stop, step=op.step, carried=carried, body=narrowed(op.body, 1))
    else:
        assert isinstance(op, While)
        carried = tuple(op.carried[position] for position in positions)
        new = While(carried=carried, condition=narrowed(op.condition, 0, yields=False), body=narrowed(op.body, 0))
    results = dict(zip(positions, builder.add(new).results, strict=True))
    return [results.get(position) or Value(old.type) for position, old in enumerate(op.results)]
