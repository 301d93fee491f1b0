"""Lowering of a whole kernel: tiles in, one function of loops out, `for block in range(first, last)`.

The lowered function takes the kernel's parameters, then how many tile blocks run as one along each axis of the grid,
then the range of (joined) blocks to run. Its facts say why a plan was refused.
"""

from __future__ import annotations

from cutile.backend.cpu.lowering.control import lower_block
from cutile.backend.cpu.lowering.lower import Lowering
from cutile.backend.cpu.stage import INDEX, STAGE
from cutile.ir.control import For
from cutile.ir.core import Function, Value


def lower_function(function: Function) -> Function:
    """Lower a kernel.

    Raises:
        IRError: it has an operation that this backend does not know.
    """
    lowering = Lowering(function)
    scope = lowering.scope
    blocks = lowering.open_grid()
    block = Value(INDEX, "block")
    first, last = lowering.range
    one = scope.index(1)
    with scope.block(block) as loop:
        lowering.open_block(block, blocks)
        lower_block(lowering, function.body)
        scope.builder.location = None
        scope.builder.yield_()
    scope.builder.add(For(start=first, stop=last, step=one, carried=(), body=loop))
    lowering.body.operations[:0] = lowering.scratch
    facts = {
        "coarse": lowering.axes.coarse,
        "joined": lowering.axes.joined,
        "refusals": tuple(f"{'xyz'[axis]}: {why}" for axis, why in lowering.axes.refusals.items() if why),
        "plans": tuple(lowering.plans),
        "noalias": not lowering.exposed and not function.facts.get("unsafe", False),
    }
    return Function(function.name, lowering.body, function.source, function.file, STAGE, facts)
