"""The order of this target's passes, with reasons; lowering of a whole kernel.

Pure: IR in, IR out. The lowered function takes the kernel's parameters, then how many tile blocks run as one along each
axis of the grid, then the range of (joined) blocks to run. Its facts have the reasons against better plans.
"""

from cutile.analysis.structure import late_loads
from cutile.backend.cpu.lowering.accesses import gathers
from cutile.backend.cpu.lowering.control import lower_block
from cutile.backend.cpu.lowering.lower import Lowering
from cutile.backend.cpu.lowering.strength_reduction import reciprocals
from cutile.backend.cpu.stage import INDEX, STAGE
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import f32, f64
from cutile.ir import UNUSED, For, Function, Value
from cutile.ir.verify import verify
from cutile.passes.fast_math import FACT, exact_parts, fast_math, lower_scaled_mma
from cutile.passes.redundancy import dce


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """Tiles to loops.

    Of the options, "contract" of `fast_math` alone counts here: a CPU fuses multiply-adds of f32 and f64 by one
    instruction. A multiply-add of 16-bit floats that is rounded once takes several. Inexact quotients and roots would
    be no faster than exact ones.

    Raises:
        IRError: an operation is unknown here, or what came out breaks a rule of the IR.
    """
    del target
    parts = [part for part in options.fast_math_parts if part == "contract"]
    relaxed = fast_math(lower_scaled_mma(function, f32), parts, (f32, f64))
    # Dead code goes before lowering: a tensor whose address nobody takes is known to overlap no other.
    lowered = lower_function(dce(gathers(relaxed)))
    lowered.facts |= {key: value for key, value in relaxed.facts.items() if key == FACT}
    lowered.note_unused(function.facts.get(UNUSED, ()))
    lowered.note_unused(late_loads(function, lambda _: (0, "since a CPU loads nothing ahead")))
    lowered.note_unused(exact_parts(function, options.fast_math_parts, ("contract",), (f32, f64)))
    reciprocals(lowered)
    verify(lowered)
    return dce(lowered)  # last: lowering computes every offset and extent that may be needed


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
        "max_joined_along": lowering.axes.max_joined_along,
        "max_joined": lowering.axes.max_joined,
        "refusals": tuple(f"{'xyz'[axis]}: {why}" for axis, why in lowering.axes.refusals.items() if why),
        "plans": tuple(lowering.plans),
        "refused_plans": tuple(lowering.refused_plans),
        "noalias": not lowering.aliases.exposed and not function.facts.get("unsafe", False),
    }
    return Function(function.name, lowering.body, function.source, function.file, STAGE, facts)
