"""The ladder of plans: specialised warps with bulk copies, one group with a ring of copies, plain.

Which step a kernel gets is decided by rules on its IR. What the steps above it lacked stands in the fact `refused` of
the lowered function, and so in the dump.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cutile.backend.cuda.lower import lower as lower_for_one_group
from cutile.backend.cuda.pipeline.lowering import WarpSpecialised
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.pipeline.plan import plan as plan_dots
from cutile.backend.cuda.pipeline.rotate import rotate
from cutile.backend.cuda.specialised.division import left_to_launches
from cutile.backend.cuda.specialised.record import Specialised
from cutile.backend.cuda.specialised.roles import RoleLowering
from cutile.backend.cuda.specialised.rules import plan
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.interface import CompileOptions, Target
from cutile.ir.core import Function
from cutile.ops.matmul import Mma
from cutile.passes.cse import cse
from cutile.passes.dce import dce
from cutile.passes.fold import fold


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function with every decision for `target` in it.

    Plans write index arithmetic for every case (`0 + 1 * 4`, a tile block's index twice). What that leaves is folded
    here, once for all plans: Numba takes half a millisecond for each call that is not written.

    Raises:
        KernelTypeError: its tiles need more shared memory or registers than there are; names the nearest that fit.
    """
    return dce(cse(fold(_lower(function, target, options))))


def _lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function by the first plan of the ladder that takes it."""
    arch = architecture(target.arch)
    if not any(isinstance(op, Mma) for op in function.walk()):
        return lower_for_one_group(function, target, options)
    found = plan(function, arch, options)
    room = arch.shared_bytes
    while isinstance(found, Specialised):
        made = RoleLowering(function, found, arch).run()
        if made.facts["shared_bytes"] <= arch.shared_bytes:
            if found.divisible and options.num_pieces is None:
                made_for = partial(_divided, function, replace(arch, shared_bytes=room), options)
                made.facts |= left_to_launches(function, found, made_for, target.units)
            return made
        # What follows the loop passes through shared memory too, which is known only now: a ring of fewer slots.
        room -= found.slot_bytes
        found = plan(function, replace(arch, shared_bytes=room), options)
    several = _by_pipelines(function, arch, options)
    if isinstance(several, Function):
        several.facts["refused"] = (("specialised warps", found),)
        return several
    made = lower_for_one_group(function, target, options)
    made.facts["refused"] = (("specialised warps", found), ("pipelines", several))
    return made


def _by_pipelines(function: Function, arch: Architecture, options: CompileOptions) -> Function | str:
    """The function with its loops of products pipelined, rotated if that can be; or the reason why it cannot."""
    reason = ""
    for candidate in dict.fromkeys((id(rotated := rotate(function)), id(function))):
        chosen = rotated if candidate == id(rotated) else function
        plan_ = plan_dots(chosen, arch, options)
        if isinstance(plan_, Plan):
            lowered = WarpSpecialised(chosen, plan_, arch).run()
            if lowered.facts["shared_bytes"] <= arch.shared_bytes:
                return lowered
            reason = f"buffers and what else is shared take {lowered.facts['shared_bytes']} bytes"
        else:
            reason = plan_
    return reason


def _divided(function: Function, arch: Architecture, options: CompileOptions, pieces: int) -> Specialised | str:
    """The plan for so many pieces, or the reason why there is none."""
    return plan(function, arch, replace(options, num_pieces=pieces))
