"""The ladder of plans: warp specialisation, a multistage pipeline, plain loops.

Rules on a kernel's IR decide which plan it gets. The lowered function has the reasons against the better plans in its
fact `refused`, which IR dumps show.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from cutile.backend.cuda.budget import shared_room
from cutile.backend.cuda.half_products import halve_products
from cutile.backend.cuda.long_rows import ROW_SUMS, cut_rows, number_tiles, power_sums
from cutile.backend.cuda.lower import lower as lower_for_one_group
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.mainloop_rules import plan_mainloop
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.pipeline.rotate import rotate
from cutile.backend.cuda.pipeline.rules import plan
from cutile.backend.cuda.pipeline.schedule import NUM_SMS, Cooperative
from cutile.backend.cuda.pipeline.split_k import launch_division
from cutile.backend.cuda.pipeline.swap_ab import swap
from cutile.backend.cuda.pipeline.updates import add_tiles
from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised
from cutile.backend.cuda.target import FLOATS, Architecture, Refusal, Refused, architecture
from cutile.backend.interface import CompileOptions, Target
from cutile.ir.core import Function
from cutile.passes.fast_math import FACT, fast_math
from cutile.passes.fold import fold
from cutile.passes.redundancy import cse, dce

Rules = Callable[[Kernel, Architecture, CompileOptions], Plan]


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function with every decision for `target` in it.

    Plans write index arithmetic that covers every case (`0 + 1 * 4`, a tile block's index twice). It is folded here,
    once for all plans: Numba takes half a millisecond for each call in the generated code.

    Raises:
        KernelTypeError: its tiles need more shared memory or registers than there are; names the nearest that fit.
    """
    # Ahead of the plans: they count registers and recognise epilogues, and so have to see the final operations.
    relaxed = fast_math(halve_products(function), options.fast_math_parts, FLOATS)
    lowered = dce(cse(fold(_lower(relaxed, target, options))))
    if done := (*relaxed.facts.get(FACT, ()), *lowered.facts.get(ROW_SUMS, ())):
        lowered.facts[FACT] = done
    return lowered


def _lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function, lowered by the first plan of the ladder that accepts it."""
    arch = architecture(target.arch)
    kernel = Kernel(function)
    if not kernel.products:
        rows, row_options, cut = cut_rows(function, arch, options)
        lowered = power_sums(number_tiles(lower_for_one_group(rows, target, row_options), cut))
        lowered.facts |= {key: value for key, value in rows.facts.items() if key == ROW_SUMS}
        return lowered
    swapped = swap(add_tiles(function))
    mainloop = _specialised(Kernel(swapped), arch, options, plan_mainloop, target.units)
    if isinstance(mainloop, Function):
        return mainloop
    reasons = [("specialised warps", mainloop)]
    rotated = rotate(swapped)
    # Thread blocks on one multiprocessor share its shared memory.
    block_arch = replace(arch, shared_bytes=shared_room(arch, options.occupancy or 1))
    lowered = _specialised(Kernel(rotated), block_arch, options, plan, target.units)
    # A rotated loop holds more registers, which may not fit.
    if isinstance(lowered, Refusal) and rotated is not swapped:
        lowered = _specialised(Kernel(swapped), block_arch, options, plan, target.units)
    if isinstance(lowered, Refusal):
        reasons.append(("pipelines", lowered))
        lowered = lower_for_one_group(function, target, options)
    lowered.facts["refused"] = tuple(reasons)
    return lowered


def _specialised(
    kernel: Kernel, arch: Architecture, options: CompileOptions, rules: Rules, sms: int
) -> Function | Refusal:
    """The kernel, lowered to specialised warps; or why these rules cannot plan it.

    Only the lowered kernel says how much shared memory it needs beside its stages. If there is too little, it is
    planned again with less room for stages. If its iterations may be divided, facts say which launches divide them, on
    a device with `sms` multiprocessors.
    """
    planned_arch = arch  # `arch` with the shared memory that the plan may take
    while True:
        plan_for = partial(_plan, kernel, planned_arch, rules, options)
        kernel_plan = plan_for()
        if isinstance(kernel_plan, Refusal):
            return kernel_plan
        lowered = WarpSpecialised(kernel.function, kernel_plan, arch).run()
        excess = lowered.facts["shared_bytes"] - arch.shared_bytes
        if excess <= 0:
            break
        planned_arch = replace(planned_arch, shared_bytes=planned_arch.shared_bytes - excess)
    schedule = kernel_plan.tiles.schedule
    if isinstance(schedule, Cooperative) and schedule.divisible and options.num_pieces is None:
        blocks = (sms or NUM_SMS) * (options.occupancy or 1)  # that run at once
        lowered.facts |= launch_division(kernel, kernel_plan, plan_for, blocks)
    return lowered


def _plan(kernel: Kernel, arch: Architecture, rules: Rules, options: CompileOptions, pieces: int = 0) -> Plan | Refusal:
    """The plan by some rules, or the reason why there is none.

    `pieces` takes the place of the options' `num_pieces`, if it is not 0.
    """
    try:
        return rules(kernel, arch, replace(options, num_pieces=pieces) if pieces else options)
    except Refused as error:
        return error.refusal
