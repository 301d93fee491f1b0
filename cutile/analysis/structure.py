"""The order of tile blocks, written views, late loads, the depth of blocks.

`why_linear` decides for every target whether tile blocks may run in any order. They may if each one writes only its own
tiles: a target may then group them, or give many to one thread block. A kernel with atomics, raw pointers or prints
gets a thread block for each tile block, in linear order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cutile.errors import KernelTypeError, Location
from cutile.ir import Block, Effect, For, Function, If, TensorType, Value, While
from cutile.ops.memory import LoadTile
from cutile.ops.pointer import TensorAddress
from cutile.ops.view import LoadView, TensorView


def why_linear(function: Function) -> str:
    """Why tile blocks must run in linear order, one thread block each.

    Empty if any order will do.
    """
    for op in function.walk():
        if not op.regions and op.effect is Effect.OUTSIDE:
            where = f" in line {op.location.line}" if op.location is not None else ""
            return f"{op.name}{where} reaches beyond the tile block"
    return ""


def late_loads(function: Function, ahead: Callable[[LoadTile | LoadView], tuple[int, str]]) -> Iterator[str]:
    """A line for each load that is begun fewer iterations ahead than its hint says.

    Args:
        function: the kernel, before a target lowers it.
        ahead: the iterations by which a target begins a load ahead, and why they are no more.
    """
    for op in function.walk():
        if isinstance(op, LoadTile | LoadView) and op.latency:
            count, why = ahead(op)
            how = f"begun {count} iteration{'s' * (count > 1)} ahead" if count else "not begun ahead"
            if count < op.latency:
                yield f"latency={op.latency} of {op.x.name or 'a view'}: {how}, {why}"


def is_reorderable(function: Function) -> bool:
    """Whether tile blocks may run in any order, and several in one thread block."""
    return not why_linear(function)


def written_views(function: Function) -> frozenset[Value]:
    """The tensors at addresses (views) whose elements the kernel may write.

    A slice of a tensor that nothing writes is not among them. A view at an address that the launch passes is. In an
    unsafe kernel all views are among them.

    Args:
        function: the kernel, before it is lowered to a target.
    """
    definitions = {value: op for op in function.walk() for value in op.results}
    definitions |= {value: op for op in function.walk() for block in op.regions for value in block.arguments}

    def sources(address: Value) -> Iterator[Value]:
        """The tensors whose addresses a number is computed from."""
        pending, seen = [address], set[Value]()
        while pending:
            value = pending.pop()
            op = definitions.get(value)
            if value in seen or op is None:
                continue
            seen.add(value)
            if isinstance(op, TensorAddress):
                yield op.x
            else:  # the result of a loop or branch may be any value that goes into it, or that its blocks yield
                pending += op.operands
                pending += [passed for block in op.regions for passed in block.terminator.operands]

    def may_be_written(view: TensorView) -> bool:
        of = list(sources(view.address))
        return not of or not all(isinstance(x.type, TensorType) and x.type.stable for x in of)

    unsafe = bool(function.facts.get("unsafe"))
    views = [op for op in function.walk() if isinstance(op, TensorView)]
    return frozenset(view.result for view in views if unsafe or may_be_written(view))


MAX_DEPTH = 20
"""Nested blocks that CPython's compiler takes in one function (`CO_MAXBLOCKS`); each loop is one."""


def require_shallow(function: Function, own: int = 0) -> None:
    """Check how many loops of a lowered function lie inside one another.

    Args:
        own: loops that the generated file has around all of them.

    Raises:
        KernelTypeError: too many lie inside one another; shows the innermost one that the user wrote.
    """
    deepest, where = _deepest(function.body)
    if deepest + own > MAX_DEPTH:
        raise KernelTypeError(
            f"{deepest + own} loops lie inside one another, with those over elements that they become; "
            f"at most {MAX_DEPTH} do",
            where,
            "Count several of the loops in one: for k in range(n * m): i, j = k // m, k % m.",
        )


MAX_BRANCHES = 16
"""Branches that generated text nests at most. CPython reads 100 levels of indentation, with those of loops."""


def chained(op: If) -> list[If]:
    """A branch, and the branches that follow it as in a chain of `elif`.

    Each further branch is the last operation of one side of the previous branch, and that side yields exactly its
    results. If both sides end in such a branch, the longer chain is returned.
    """
    longest: list[If] = []
    for side in (op.orelse, op.then):
        last = side.operations[-2] if len(side.operations) > 1 else None
        passed = [value for value in side.terminator.operands if last is not None and value in last.results]
        if isinstance(last, If) and sorted(map(id, passed)) == sorted(map(id, last.results)):
            longest = max(longest, chained(last), key=len)
    return [op, *longest]


def _deepest(block: Block) -> tuple[int, Location | None]:
    """The greatest number of loops inside one another, and the innermost one's place."""
    deepest: tuple[int, Location | None] = (0, None)
    stack: list[tuple[Block, int]] = [(block, 0)]
    while stack:
        here, depth = stack.pop()
        for op in here.operations:
            inner = depth + isinstance(op, For | While)
            if inner > deepest[0]:
                deepest = (inner, op.location or deepest[1])
            stack.extend((each, inner) for each in op.regions)
    return deepest
