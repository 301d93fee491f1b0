"""The ladder of plans: specialised warps with bulk copies, one group with a ring of copies, plain.

Which step a kernel gets is decided by rules on its IR. What the steps above it lacked stands in the fact `refused` of
the lowered function, and so in the dump.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cutile.backend.cuda.lower import lower as lower_for_one_group
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.pipeline.roles import WarpSpecialised
from cutile.backend.cuda.pipeline.rotate import rotate
from cutile.backend.cuda.pipeline.rules import plan as plan_dots
from cutile.backend.cuda.pipeline.swap import swap
from cutile.backend.cuda.pipeline.updates import add_tiles
from cutile.backend.cuda.specialised.division import left_to_launches
from cutile.backend.cuda.specialised.rules import plan
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import bf16, f16, f32, f64
from cutile.ir.core import Function
from cutile.ops.matmul import Mma
from cutile.passes.cse import cse
from cutile.passes.dce import dce
from cutile.passes.fast_math import FACT, fast_math
from cutile.passes.fold import fold

FLOATS = (f16, bf16, f32, f64)
"""The dtypes in which one instruction multiplies and adds."""


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function with every decision for `target` in it.

    Plans write index arithmetic for every case (`0 + 1 * 4`, a tile block's index twice). What that leaves is folded
    here, once for all plans: Numba takes half a millisecond for each call that is not written.

    Raises:
        KernelTypeError: its tiles need more shared memory or registers than there are; names the nearest that fit.
    """
    # First: what plans count of registers and recognise behind a product is what will be there.
    relaxed = fast_math(function, options.fast_math_parts, FLOATS)
    lowered = dce(cse(fold(_lower(relaxed, target, options))))
    lowered.facts |= {key: value for key, value in relaxed.facts.items() if key == FACT}
    return lowered


def _lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function by the first plan of the ladder that takes it."""
    arch = architecture(target.arch)
    if not any(isinstance(op, Mma) for op in function.walk()):
        return lower_for_one_group(function, target, options)
    chosen = plan(function, arch, options)
    room = arch.shared_bytes
    while isinstance(chosen, Plan):
        lowered = WarpSpecialised(function, chosen, arch).run()
        if lowered.facts["shared_bytes"] <= arch.shared_bytes:
            if chosen.tiles.divisible and options.num_pieces is None:
                made_for = partial(_divided, function, replace(arch, shared_bytes=room), options)
                lowered.facts |= left_to_launches(function, chosen, made_for, target.units)
            return lowered
        # What follows the loop passes through shared memory too, which is known only now: fewer stages.
        room -= chosen.stage_bytes(0)
        chosen = plan(function, replace(arch, shared_bytes=room), options)
    several = _by_pipelines(function, arch, options)
    if isinstance(several, Function):
        several.facts["refused"] = (("specialised warps", chosen),)
        return several
    made = lower_for_one_group(function, target, options)
    made.facts["refused"] = (("specialised warps", chosen), ("pipelines", several))
    return made


def _by_pipelines(function: Function, arch: Architecture, options: CompileOptions) -> Function | str:
    """The function with its loops of products pipelined, rotated if that can be; or the reason why it cannot."""
    function, reason = swap(add_tiles(function)), ""
    for candidate in dict.fromkeys((id(rotated := rotate(function)), id(function))):
        chosen = rotated if candidate == id(rotated) else function
        room, plan_ = arch.shared_bytes, plan_dots(chosen, arch, options)
        while isinstance(plan_, Plan):
            lowered = WarpSpecialised(chosen, plan_, arch).run()
            excess = lowered.facts["shared_bytes"] - arch.shared_bytes
            if excess <= 0:
                return lowered
            # What else is in shared memory is known only now: fewer stages.
            room -= excess
            plan_ = plan_dots(chosen, replace(arch, shared_bytes=room), options)
        reason = plan_
    return reason


def _divided(function: Function, arch: Architecture, options: CompileOptions, pieces: int) -> Plan | str:
    """The plan for so many pieces, or the reason why there is none."""
    return plan(function, arch, replace(options, num_pieces=pieces))
