"""How deeply loops may lie inside one another in a generated file."""

from __future__ import annotations

from cutile.errors import KernelTypeError, Location
from cutile.ir.control import For, While
from cutile.ir.core import Block, Function

MAX_DEPTH = 20
"""Nested blocks that CPython compiles, loops included: a constant of its compiler."""


def require_shallow(function: Function, own: int = 0) -> None:
    """Check the loops of a lowered function, and `own` that its file has around them.

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


def _deepest(block: Block) -> tuple[int, Location | None]:
    """How many loops lie inside one another, and the innermost one's place."""
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
