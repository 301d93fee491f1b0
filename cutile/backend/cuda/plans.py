"""The ladder of plans: warp specialisation, a multistage pipeline, plain loops.

Rules on a kernel's IR decide which step it gets. The reasons against the steps above stand in the fact `refused` of the
lowered function, and so in the dump.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from cutile.backend.cuda.budget import shared_room
from cutile.backend.cuda.half_products import halve_products
from cutile.backend.cuda.long_rows import cut_rows, number_tiles, power_sums
from cutile.backend.cuda.lower import lower as lower_for_one_group
from cutile.backend.cuda.pipeline.kernel import Kernel, Refused
from cutile.backend.cuda.pipeline.mainloop_rules import plan_mainloop
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.pipeline.rotate import rotate
from cutile.backend.cuda.pipeline.rules import plan
from cutile.backend.cuda.pipeline.schedule import NUM_SMS, Cooperative
from cutile.backend.cuda.pipeline.split_k import launch_division
from cutile.backend.cuda.pipeline.swap_ab import swap
from cutile.backend.cuda.pipeline.updates import add_tiles
from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised
from cutile.backend.cuda.target import Architecture, Refusal, architecture
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import bf16, f16, f32, f64
from cutile.ir.core import Function
from cutile.passes.fast_math import FACT, fast_math
from cutile.passes.fold import fold
from cutile.passes.redundancy import cse, dce

Rules = Callable[[Kernel, Architecture, CompileOptions], Plan]
FLOATS = (f16, bf16, f32, f64)
"""The dtypes in which one instruction multiplies and adds."""


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function with every decision for `target` in it.

    Plans write index arithmetic for every case (`0 + 1 * 4`, a tile block's index twice). It is folded here, once for
    all plans: each call that is left out saves Numba half a millisecond.

    Raises:
        KernelTypeError: its tiles need more shared memory or registers than there are; names the nearest that fit.
    """
    # Ahead of the plans, which count registers and recognise epilogues: they have to see the final operations.
    relaxed = fast_math(halve_products(function), options.fast_math_parts, FLOATS)
    lowered = dce(cse(fold(_lower(relaxed, target, options))))
    lowered.facts |= {key: value for key, value in relaxed.facts.items() if key == FACT}
    return lowered


def _lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function by the first plan of the ladder that takes it."""
    arch = architecture(target.arch)
    kernel = Kernel(function)
    if not kernel.products:
        rows, row_options, cut = cut_rows(function, arch, options)
        return power_sums(number_tiles(lower_for_one_group(rows, target, row_options), cut))
    swapped = swap(add_tiles(function))
    mainloop = _specialised(Kernel(swapped), arch, options, plan_mainloop, target.units)
    if isinstance(mainloop, Function):
        return mainloop
    reasons = [("specialised warps", mainloop)]
    rotated = rotate(swapped)
    # Thread blocks on one multiprocessor share its memory.
    share = replace(arch, shared_bytes=shared_room(arch, options.occupancy or 1))
    pipelined = _specialised(Kernel(rotated), share, options, plan, target.units)
    if (
        isinstance(pipelined, Refusal) and rotated is not swapped
    ):  # a rotated loop holds more registers, which may not fit
        pipelined = _specialised(Kernel(swapped), share, options, plan, target.units)
    if isinstance(pipelined, Refusal):
        reasons.append(("pipelines", pipelined))
        pipelined = lower_for_one_group(function, target, options)
    pipelined.facts["refused"] = tuple(reasons)
    return pipelined


def _specialised(
    kernel: Kernel, arch: Architecture, options: CompileOptions, rules: Rules, sms: int
) -> Function | Refusal:
    """The kernel by specialised warps, or the reason why these rules cannot plan it.

    Only the lowered kernel says how much shared memory it needs beside its stages. If there is too little, it is
    planned again with less room for stages. If loops may be divided, facts say which launches divide them, on a device
    with `sms` multiprocessors.
    """
    room = arch
    plan_ = _plan(kernel, room, rules, options)
    while isinstance(plan_, Plan):
        lowered = WarpSpecialised(kernel.function, plan_, arch).run()
        excess = lowered.facts["shared_bytes"] - arch.shared_bytes
        schedule = plan_.tiles.schedule
        if excess <= 0 and isinstance(schedule, Cooperative) and schedule.divisible and options.num_pieces is None:
            plan_for = partial(_plan, kernel, room, rules, options)
            lowered.facts |= launch_division(kernel, plan_, plan_for, (sms or NUM_SMS) * (options.occupancy or 1))
        if excess <= 0:
            return lowered
        room = replace(room, shared_bytes=room.shared_bytes - excess)
        plan_ = _plan(kernel, room, rules, options)
    return plan_


def _plan(kernel: Kernel, arch: Architecture, rules: Rules, options: CompileOptions, pieces: int = 0) -> Plan | Refusal:
    """The plan by some rules, or the reason why there is none.

    `pieces` replaces those of the options, if it is not 0.
    """
    try:
        return rules(kernel, arch, replace(options, num_pieces=pieces) if pieces else options)
    except Refused as error:
        return Refusal.of(error.args[0])
