"""May tile blocks run in any order? The one place that says so, for every target.

A kernel whose tile blocks write nothing but their own tiles gives the same result in any order, so a target may group
its blocks or hand many to one thread block. One with atomics, raw pointers or prints gets a thread block for each tile
block, in linear order.
"""

from __future__ import annotations

from cutile.ir.core import Effect, Function


def why_linear(function: Function) -> str:
    """Why tile blocks must run in linear order, one thread block each.

    Empty if any order will do.
    """
    for op in function.walk():
        if not op.regions and op.effect is Effect.OUTSIDE:
            where = f" in line {op.location.line}" if op.location is not None else ""
            return f"{op.name}{where} reaches beyond the tile block"
    return ""


def is_reorderable(function: Function) -> bool:
    """Whether tile blocks may run in any order, and several in one thread block."""
    return not why_linear(function)
