"""Which kernels have a main loop: all that they multiply is one product, in a loop that does nothing else (sm_90a).

    for each tile block of this thread block:           the producer's warps      |  consumer warpgroups
        acc = zeros                                     for each tile block:     |  for each tile block:
        for k in 0..n:                                    for k in 0..n:         |    for k in 0..n:
            acc = mma(x[i, k], y[k, j], acc)     -->        acquire; load x, y   |      wait; multiply; release
        z[i, j] = convert(acc)                                                   |    z[i, j] = convert(acc)

What is special about such a loop is used: its operands may change places or lie across K, its iterations may be divided
among thread blocks, warpgroups may have tile blocks of their own, and a result may be stored under the next products.
The requirements are in the order of the tests; the first that does not hold is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cutile.backend.cuda.layout import Layout, group_accumulator
from cutile.backend.cuda.op_facts import inside, is_scalar_work, only_asserts, reads
from cutile.backend.cuda.panels import ALIGNMENT, ROWS, Panels
from cutile.backend.cuda.pipeline import warpgroups
from cutile.backend.cuda.pipeline.accumulators import (
    THREE_WARPGROUP_ROWS,
    THREE_WARPGROUPS,
    a_from_registers_accumulator,
    pingpong_accumulator,
    simt_accumulator,
    swap_ab_accumulator,
)
from cutile.backend.cuda.pipeline.epilogue import DELAYED_WARPGROUPS, may_delay
from cutile.backend.cuda.pipeline.instructions import Instructions, instructions_of
from cutile.backend.cuda.pipeline.kernel import Kernel, Refused, require
from cutile.backend.cuda.pipeline.operand import Operand, operand_of
from cutile.backend.cuda.pipeline.plan import Dot, Plan, TmaStore
from cutile.backend.cuda.pipeline.reads import Reads
from cutile.backend.cuda.pipeline.schedule import (
    Cooperative,
    PingPong,
    Schedule,
    SplitK,
    Tiles,
    block_axes,
    cluster_of,
    square_group,
)
from cutile.backend.cuda.pipeline.slice import Slice, producer_slice
from cutile.backend.cuda.pipeline.split_k_rules import MAX_PIECES, cluster_parts, why_no_registers, why_undivided
from cutile.backend.cuda.pipeline.stages import groups_of, max_stages
from cutile.backend.cuda.pipeline.swap_ab import swaps_ab
from cutile.backend.cuda.pipeline.tma_stores import only_store_of
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import CompileOptions
from cutile.dtypes import i32
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Op, Value
from cutile.ops.debug import Assert

GOOD_STAGES = 4
"""Stages for which a store makes do with fewer buffers."""
MAX_STORE_BUFFERS = 4
"""Buffers of a warp for pieces of a tile on their way to memory."""


def plan_mainloop(kernel: Kernel, arch: Architecture, options: CompileOptions) -> Plan | str:
    """The plan for a kernel with a main loop, or the reason why it has none."""
    try:
        return _plan(kernel, arch, options)
    except Refused as reason:
        return str(reason)


def _plan(kernel: Kernel, arch: Architecture, options: CompileOptions) -> Plan:
    kernel.require_specialisable(arch, options)
    loop = _only_loop(kernel)
    (product,) = kernel.products
    how = instructions_of(product, kernel.definitions)
    pingpong = _asks_for_pingpong(how, product.acc.tile.shape[0], options)
    operands = [operand_of(value, axis, kernel, loop) for value, axis in ((product.a, 1), (product.b, 0))]
    guards = _guards(kernel, loop)
    tiles, left, right = _clustered(kernel, loop, how, operands, options, alone=bool(guards) or kernel.stores_views)
    _require_products_alone(kernel, loop, (left, right), guards)
    accumulator = _accumulator(kernel, loop, how, left, right)
    store = only_store_of(kernel, loop, how.warpgroups) if how.by_instruction else None
    moving = bool(block_axes(_bounds(loop), kernel.definitions))
    if pingpong:
        _require_pingpong(how, guards, store, tiles, moving=moving)
        accumulator = pingpong_accumulator((accumulator.shape[0], accumulator.shape[1]))
        require(not (why := warpgroups.why_not_pingpong(kernel, loop, accumulator)), why)
    columns_at_a_time, promote_interval = how.promoted(product.a.tile.shape[1], by_turns=loop.start.tile.dtype is i32)
    zeros = kernel.definitions.get(loop.carried[0])
    dot = Dot(
        product,
        left,
        right,
        accumulator,
        fresh=isinstance(zeros, Constant) and zeros.value == 0,
        simt=how.atom is None,
        swap_ab=how.swap_ab,
        a_from_registers=how.a_from_registers,
        promote_columns=columns_at_a_time,
        promote_interval=promote_interval,
    )
    schedule = PingPong() if pingpong else _split_k(kernel, loop, dot, how, tiles, options, moving=moving)
    if isinstance(schedule, Cooperative) and _may_delay(kernel, loop, how, tiles, store):
        schedule = replace(schedule, delayed=True)
    narrow = pingpong and warpgroups.goes_narrow(kernel.function, loop)
    columns = accumulator.shape[1]
    span = Panels(warpgroups.NARROW_COLUMNS if narrow else columns, 1, 2, k_major=False).span
    subtile = 0 if how.swap_ab else span if columns % 16 == 0 else columns  # swapped, columns are dealt to warps
    stores: dict[Op, TmaStore] = {}
    if store is not None:
        stores[store.op] = replace(store, box=(*store.box[:-1], span), layout=accumulator)
    dots: dict[Op, Dot] = {}
    dots[product] = dot
    groups, buffers = groups_of(kernel, dots, Reads())
    first = Plan(
        warpgroups=how.warpgroups,
        dots=dots,
        groups=groups,
        stages=(0,),
        operands=buffers,
        slice=_producer_slice(kernel, loop, dot, guards),
        guards=frozenset(guards),
        limited=options.limit_waits,
        stores=stores,
        tiles=replace(tiles, schedule=schedule),
        mainloop=loop,
        subtile=accumulator.core[1] if dot.simt else subtile,
        narrow=narrow,
    )
    return _with_room(first, arch)


# The loop.


def _only_loop(kernel: Kernel) -> For:
    """The loop that the one product of a kernel is in."""
    require(len(kernel.products) == 1, f"the kernel has {len(kernel.products)} products, not one")
    (product,) = kernel.products
    loops = [op for op in kernel.function.body.operations if isinstance(op, For) and product in op.body.operations]
    require(len(loops) == 1, "the product is not in a loop of the kernel's own")
    return loops[0]


def _bounds(loop: For) -> tuple[Value, Value, Value]:
    return (loop.start, loop.stop, loop.step)


def _guards(kernel: Kernel, loop: For) -> list[Op]:
    """The assertions of a kernel, each with the conditions around it: in its body or the loop's.

    In place of consumers the producer makes them: it has the numbers anyway, and a call, which a failed assertion is,
    would make consumers wait for each product before they begin the next (the linker's remark C7510).
    """
    blocks = (kernel.function.body, loop.body)
    guards = [op for block in blocks for op in block.operations if only_asserts(op)]
    asserting = {nested for op in guards for nested in (op, *inside(op))}
    followed = all(op in asserting for op in kernel.order if isinstance(op, Assert))
    require(followed, "it asserts under conditions or in loops that the loading warps do not follow")
    return guards


def _require_products_alone(kernel: Kernel, loop: For, operands: Sequence[Operand], guards: Sequence[Op]) -> None:
    """That the loop adds products to what it carries, and nothing else."""
    (product,) = kernel.products
    ours = (product, *(op for operand in operands for op in (operand.load, *operand.passed)), *guards)
    for op in loop.body.operations[:-1]:
        require(op in ours or is_scalar_work(op), f"the loop does more than multiply: {op.name}")
    require(loop.body.terminator.operands == (product.result,), "the loop carries more than the sums")
    require(product.acc is loop.body.arguments[1], "what is added to is not what the loop carries")
    require(kernel.uses[product.result] == 1, "the sums are used within the loop")
    step = kernel.definitions.get(loop.step)
    require(isinstance(step, Constant) and step.value > 0, "the loop's step is no positive constant")


def _producer_slice(kernel: Kernel, loop: For, dot: Dot, guards: Sequence[Op]) -> Slice:
    """What the producer runs: the loop is the only nest that it enters."""
    index = [value for operand in dot.operands for value in operand.index]
    numbers = [value for op in guards for value in reads(op)]
    slice_ = producer_slice(kernel, [*index, *numbers], [dot.right.load])
    plain = not slice_.nests.difference((loop, *guards)) and all(map(is_scalar_work, slice_.needed))
    require(plain, "an index of a load depends on more than numbers, or on numbers from memory")
    return Slice(slice_.needed, frozenset[Op]([loop]), {loop: ()})


# The operands and the sums.


def _clustered(
    kernel: Kernel, loop: For, how: Instructions, operands: Sequence[Operand], options: CompileOptions, *, alone: bool
) -> tuple[Tiles, Operand, Operand]:
    """The order of tile blocks, and the operands as they are multiplied: of a cluster's blocks, `alone` has no others.

    A cluster's last block may have no tile block: what it does for one beyond the grid must have no effect.
    """
    for operand in operands:
        require(not operand.steps and operand.merged == 1, "an operand's tiles do not lie side by side in a matrix")
    rows, columns = kernel.products[0].acc.tile.shape
    left, right = reversed(operands) if how.swap_ab else operands
    axes = {one: block_axes((*one.index, *_bounds(loop)), kernel.definitions) for one in (left, right)}
    hints = replace(options, num_cta_in_cga=1) if alone else options
    cluster, along, left, right = cluster_of(left, right, axes, hints, how.swap_ab, swaps_ab(rows, columns))
    lead = min(1, max(left.lead, right.lead))  # tile blocks of one matrix are neighbours
    grouped = square_group(rows, columns, cluster if along == 0 else 1)
    return Tiles(cluster=cluster, along=along, rows=lead, columns=lead + 1, grouped=grouped), left, right


def _accumulator(kernel: Kernel, loop: For, how: Instructions, left: Operand, right: Operand) -> Layout:
    """Where the sums are, if the warpgroups share a tile."""
    (product,) = kernel.products
    (rows, columns), groups = product.acc.tile.shape, how.warpgroups
    if how.atom is None:
        layout = simt_accumulator((rows, columns), 4 * groups, (left.panels.k_major, right.panels.k_major))
        if layout is None:
            raise Refused(f"{rows} x {columns} sums do not divide among {4 * groups} warps")
        return layout
    usual = swap_ab_accumulator(rows, columns, groups) if how.swap_ab else group_accumulator((rows, columns), groups)
    if groups == THREE_WARPGROUPS:
        dtype = product.a.tile.dtype
        require(not how.swap_ab, f"{THREE_WARPGROUP_ROWS} columns of few rows do not divide among 2 warp groups")
        require(not how.a_from_registers, f"three warp groups do not turn operands of {dtype} on the way in")
        require(not (why := warpgroups.why_not_three(kernel, loop, usual, apart=how.promotes)), why)
    if how.a_from_registers:
        return a_from_registers_accumulator((rows, columns), groups, left.panels.size, exchanged=how.swap_ab)
    return usual


# The schedule.


def _asks_for_pingpong(how: Instructions, rows: int, options: CompileOptions) -> bool:
    """Whether the author asks for as many warps as ping-pong warpgroups have."""
    usual = 4 * how.warpgroups
    warps = options.num_worker_warps or usual
    pingpong = (
        how.warpgroups == warpgroups.PINGPONG_WARPGROUPS and how.atom is not None and warps == warpgroups.PINGPONG_WARPS
    )
    fits = pingpong or warps == usual
    require(fits, f"{warps} worker warps are asked for, a tile of {rows} rows has {usual}")
    return pingpong


def _require_pingpong(
    how: Instructions, guards: Sequence[Op], store: TmaStore | None, tiles: Tiles, *, moving: bool
) -> None:
    """That warpgroups may have tile blocks of their own."""
    plain = not (how.swap_ab or how.a_from_registers or how.promotes)
    require(plain, "warp groups alone add up 16-bit operands as they lie")
    require(not guards, "warp groups alone end at no assert")
    require(store is not None, "warp groups alone write by TMA, which does not store this result")
    require(tiles.cluster == 1, "warp groups alone share no operands with another block")
    require(not moving, "tile blocks of warp groups alone have as many turns each")


def _split_k(
    kernel: Kernel, loop: For, dot: Dot, how: Instructions, tiles: Tiles, options: CompileOptions, *, moving: bool
) -> Schedule:
    """The division of iterations that is asked for; else why there is none."""
    counts = loop.start.tile.dtype  # numbers that plans make of iterations are i32, and may be less than none
    why = why_undivided(kernel.definitions.get(loop.carried[0]), moving, tiles.cluster, how.warpgroups)
    why = why or why_no_registers(kernel, loop, dot.accumulator, how.a_from_registers)
    if not why and counts is not i32:
        why = f"the loop counts in {counts}, and pieces in i32"
    if why:
        return Cooperative(why)
    pieces = min(options.num_pieces or 1, MAX_PIECES)
    if pieces < 2:
        why = "CompileOptions(num_pieces=1) says so" if options.num_pieces else "nobody asks this kernel for it"
        return Cooperative(why, divisible=True)
    return SplitK(pieces, cluster_parts(kernel, loop, dot.accumulator, pieces))


def _may_delay(kernel: Kernel, loop: For, how: Instructions, tiles: Tiles, store: TmaStore | None) -> bool:
    """Whether a result is stored under the next tile block's products."""
    if store is None or how.warpgroups != DELAYED_WARPGROUPS or tiles.cluster > 1 or loop.start.tile.dtype is not i32:
        return False
    pieces = Panels(store.value.tile.shape[1], ROWS, 2, k_major=False).count
    return not how.promotes and may_delay(kernel, loop, store, how.sums, pieces)


def _with_room(plan: Plan, arch: Architecture) -> Plan:
    """The plan with the most stages and store buffers that shared memory takes.

    Each warp has a buffer for what it stores.
    """
    dot, store = plan.dot, plan.store
    rows, columns = dot.op.acc.tile.shape
    sharing = 1 if plan.pingpong else plan.warpgroups
    pieces = rows // (ROWS * sharing) * columns // store.span if store else 0
    most = max_stages(operand.latency for operand in dot.operands)
    for buffers in range(min(pieces, MAX_STORE_BUFFERS), 0, -1) if store else [0]:
        stores: dict[Op, TmaStore] = {op: replace(one, buffers=buffers) for op, one in plan.stores.items()}
        fitted = replace(plan, stores=stores)
        stages = min(most, (arch.shared_bytes - ALIGNMENT - fitted.staging_bytes) // plan.stage_bytes(0))
        if stages >= min(GOOD_STAGES, most) or (buffers <= 1 and stages >= 2):
            return replace(fitted, stages=(stages,))
    raise Refused(f"two stages of {plan.stage_bytes(0)} bytes do not fit into shared memory")
