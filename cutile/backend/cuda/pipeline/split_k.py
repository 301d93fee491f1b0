"""Split-K: the iterations of a tile block are divided among several thread blocks.

It is for products with too few tile blocks to fill a GPU. A piece is one thread block's share of the iterations.

    for unit in first..tiles * pieces by step:
        tile, piece = unit // pieces, unit % pieces
        acc = zeros; for k in the piece's share of the loop: acc = mma(...)
        acc, mine = add_up(acc, tile, piece, pieces)
        if mine: ... the epilogue

`CompileOptions(num_pieces=16)` compiles a kernel that may be divided. It computes the number of pieces itself, from the
numbers of tile blocks, thread blocks and iterations. With enough tile blocks there is one piece, and nothing to add up.
The choice took 0.2 of the 3.5 us of a product of 512 cubed (H200). A kernel without the option does not make it.

**In a workspace**, with more than eight pieces, or with accumulators too large to be sent
(`MAX_CLUSTER_SUMS_BYTES`). Each thread block writes its accumulator to the workspace and counts
itself. The last one to come adds all of them, in the order of the pieces, so that results do not depend on timing. No
thread block waits for another, so they need not run at the same time.

**In a cluster**, with up to eight pieces. Their accumulators meet in the shared memory of the cluster:

    acc = zeros; for k in the piece's share of the loop: acc = mma(...)
    if pieces > 1:
        scatter(acc)                                send each thread block its columns; wait for those sent here
        for part in piece..parts by pieces:
            sums = reduce(part)                     of all pieces, in their order
            z[i, j * parts + part] = convert(sums)
    else:
        z[i, j] = convert(acc)

Each thread block adds up some columns, and runs the epilogue for them. A thread's register is the same element of the
tile in all thread blocks. So threads send their registers as they are (`st.async`). A barrier of the receiver counts
the bytes that arrive: there is no barrier of the cluster and no fence, and only the result is written to global memory.

A cluster has as many thread blocks as there may be pieces. If a launch has exactly one thread block for each piece, a
thread block does one piece. Else each does whole tile blocks.

An epilogue that does not work column by column is run whole, by the thread block of the first piece. The others send
their whole accumulators to it.

**Which launches.** A kernel that may be divided computes the number of pieces in each launch, and keeps room for the
accumulators of others. So a kernel is compiled undivided at first. Its fact `division` says which launches take a
variant that is compiled for some number of pieces. The fact is computed here, from the device's multiprocessors and
from the times below, measured on an H200. A launch only looks up its own numbers.

    fact division = ("(x.shape[1] + 63) // 64", ((8, 526, 16), (15, 24, 8), ..., (66, 29, 2)))
                     iterations of a tile block  (most tile blocks, fewest iterations, pieces)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cutile.analysis.affine import Facts, ceil_div
from cutile.analysis.preconditions import read_preconditions
from cutile.analysis.ranges import ONLY_IN_THE_KERNEL, Ranges
from cutile.backend.cuda.grids import COUNTERS
from cutile.backend.cuda.ops import Barrier, Fixup, KSplits, ReducePartials, ScatterPartials, WorkUnit
from cutile.backend.cuda.pipeline.accumulators import cluster_bytes, part_layout, parts_of, registers_of
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.plan import Dot, Plan
from cutile.backend.cuda.pipeline.schedule import Cooperative, SplitK, Tiles, block_axes
from cutile.backend.cuda.pipeline.subtiles import epilogue_of_part
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.backend.gpu.op_facts import constant_of, summing_chain, work_of
from cutile.backend.interface import CompileOptions
from cutile.dtypes import bool_, i32
from cutile.ir import Attribute, Effect, For, Function, Op, Value
from cutile.ops.arith import Mul
from cutile.ops.compare import Eq, Lt

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


MAX_PIECES = 16
"""Pieces of a tile block. The last thread block reads the accumulators of all. Chosen; no more were measured."""
MAX_CLUSTER_PIECES = 8
"""Pieces in a cluster: eight thread blocks are the most that every device takes."""
# Chosen; no measurement with more is recorded.
MAX_SUMS_BESIDE_MORE = 64
"""Accumulator registers of a thread that also holds an operand or an epilogue's tiles while it adds up pieces."""
# The kernel's own limits, if the option decides. Launches that choose the pieces also have those of `_break_even`.
MIN_WORKSPACE_ITERATIONS = 16
"""Iterations of a piece: fewer take less time than writing its accumulator and adding it up."""
MIN_CLUSTER_ITERATIONS = 3
"""The same in a cluster, which adds up sooner: with fewer, a piece mostly waits for its first iteration's loads."""
MAX_CLUSTER_SUMS_BYTES = 96 * 1024
"""Bytes that others send to a thread block, which take room from the stages. Chosen, not measured."""


def division(
    kernel: Kernel, loop: For, dot: Dot, warpgroups: int, tiles: Tiles, options: CompileOptions
) -> Cooperative | SplitK:
    """The schedule that divides iterations, or `Cooperative` with the reason.

    Args:
        kernel, loop, dot: the kernel, its main loop, and the first product there.
        warpgroups: the number of consumer warpgroups.
        tiles: the schedule of tile blocks so far.
        options: has the most pieces; without it the kernel may be divided, but is not.
    """
    registers, counter = dot.accumulator.registers, loop.start.tile.dtype
    held = "an operand" if dot.a_from_registers else "what follows the loop" if kernel.computes_behind(loop) else ""
    why = ""
    # Three warpgroups have the layout of four: partial sums would have registers of a fourth that does not exist.
    if warpgroups & (warpgroups - 1):
        why = f"{warpgroups} warpgroups share the sums"
    elif constant_of(loop.carried[0], kernel.definitions) != 0:
        why = "the sums do not begin as zeros"
    elif block_axes(loop.bounds, kernel.definitions):
        why = "the loop's bounds differ from tile block to tile block"
    elif kernel.writes_ahead(loop):  # each piece would write once more
        why = "the kernel writes ahead of its sums"
    elif tiles.cluster > 1:
        why = "the thread blocks of a cluster load together"
    elif registers > MAX_SUMS_BESIDE_MORE and held:
        why = f"a thread holds {registers} sums, and has registers for {MAX_SUMS_BESIDE_MORE} beside {held}"
    elif counter is not i32:  # pieces are computed in i32, with signs
        why = f"the loop counts in {counter}, and pieces in i32"
    if why:
        return Cooperative(why)
    pieces = min(options.num_pieces or 1, MAX_PIECES)
    if pieces < 2:
        why = "CompileOptions(num_pieces=1) says so" if options.num_pieces else "nobody asks this kernel for it"
        return Cooperative(why, divisible=True)
    return SplitK(pieces, cluster_parts(kernel, loop, dot.accumulator, pieces))


def summing_loop(kernel: Kernel, nests: Container[Op]) -> For | str:
    """The loop that carries only an accumulator, or the reason why there is none.

    Such a loop may be divided. `nests` are the loops and branches that the producer runs.
    """
    operations, products = kernel.function.body.operations, kernel.products
    loop, *others = [op for op in operations if op.regions] or [None]
    if not isinstance(loop, For) or others or any(kernel.home[op] is not loop.body for op in products):
        return "the products are not all in one loop, or it is not the only one"
    if loop not in nests:  # the producer has no iterations of it to divide
        return "the loop loads no operand"
    if summing_chain(loop.body.arguments[-1], kernel.users) != products:
        return "the loop does more than add up products"
    sums = products[-1].result
    if loop.body.terminator.operands != (sums,) or len(kernel.users[sums]) != 1:
        return "the loop carries more than the sums"
    if any(op.effect > Effect.READ for op in loop.body.operations[:-1]):  # each piece would write once more
        return "the loop writes"
    return loop


def cluster_parts(kernel: Kernel, loop: For, sums: Layout, pieces: int) -> int:
    """The number of parts into which a cluster cuts the columns of a tile.

    0 where the pieces are no cluster. 1 where the epilogue cannot be cut.

    Args:
        kernel, loop: the kernel and its main loop.
        sums: the layout of the accumulator.
        pieces: the number of pieces into which the loop's iterations are divided.
    """
    if not 2 <= pieces <= MAX_CLUSTER_PIECES:
        return 0
    count = parts_of(sums.shape[1], sums.core[1], pieces)
    # Each part has to be the same registers of every thread, at one distance from part to part.
    divides = sums.shape[1] % (sums.core[1] * count) == 0 and registers_of(sums, count) is not None
    if not divides or count == 1 or epilogue_of_part(kernel.function, loop, count) is None:
        count = 1
    return count if cluster_bytes(sums, count, pieces) <= MAX_CLUSTER_SUMS_BYTES else 0


# Without 7: clusters of seven were not measured. A launch takes six or eight pieces instead.
CLUSTER_SMS = {2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 8: 120}
"""Multiprocessors of an H200 that clusters of so many thread blocks fill; pairs fill all."""
MIN_ITERATION_S = 0.13e-6
"""Seconds of an iteration, however small its tiles. This and the rates below were measured on an H200."""
LOAD_BYTES_PER_S, CLUSTER_LOAD_BYTES_PER_S = 155e9, 92e9
"""Loads of one thread block: alone, while half of the multiprocessors are idle; and in a cluster, whose thread blocks
are neighbours."""
MMA_BYTES_PER_S, SIMT_FLOP_PER_S = 7.3e12, 0.39e12
"""Products of one thread block: rows by columns by bytes of the depth on tensor cores; else operations of f32."""
ENOUGH_STAGES = 4
"""Stages of a pipeline; with fewer, loads wait for products."""
CLUSTER_REDUCE_S, CLUSTER_SEND_BYTES_PER_S = 0.6e-6, 30e9
"""Seconds in which a cluster adds up, and the rate at which a thread block exchanges accumulators with the others."""
WORKSPACE_REDUCE_S, WORKSPACE_READ_BYTES_PER_S = 3e-6, 100e9
"""Seconds until the last thread block knows that it is the last, and the rate at which it reads accumulators."""
MIN_GAIN = 1.25
"""Seconds that a division has to save for each second that it costs: a margin for errors of the times above. Chosen."""

MAX_ITERATIONS = 2**31 - 1
"""Iterations at most, of a loop that counts in i32. As the fewest iterations of a division: no launch takes it."""

Divisions = tuple[tuple[int, int, int], ...]
"""(most tile blocks, fewest iterations, pieces); a launch takes the first that holds."""


def launch_division(
    kernel: Kernel, whole: Plan, plan_for: Callable[[int], Plan | str], resident_blocks: int
) -> dict[str, Attribute]:
    """The facts `division` and `divided` of a kernel that is compiled without split-K.

    `divided` says which launches are divided, or why none is.

    Args:
        kernel: the kernel.
        whole: its plan without split-K.
        plan_for: from a number of pieces to the kernel's plan with them, or to the reason why there is none.
        resident_blocks: thread blocks that run at once.
    """
    iterations = iterations_at_launch(kernel.function, whole)
    if iterations is None:
        option = f"CompileOptions(num_pieces={MAX_PIECES})"
        return {"divided": f"no: launches do not know its iterations; {option} leaves it to the kernel"}
    divisions = divisions_of(plan_for, resident_blocks)
    if not divisions:
        return {"divided": "no: there is no room for the sums of other pieces"}
    launches = f"by launches of up to {max(tiles for tiles, *_ in divisions)} tile blocks, as `division` says"
    return {"divided": launches, "division": (iterations, divisions)}


def iterations_at_launch(function: Function, plan: Plan) -> str | None:
    """The iterations of the divided loop, as Python over the kernel's parameters.

    None where only the kernel knows.
    """
    facts = Facts()
    read_preconditions(function, facts)
    ranges = Ranges(function, facts)

    assert plan.summing is not None  # a divisible plan has a loop that may be divided
    start, stop, step = (ranges.of(value).launch_known for value in plan.summing.bounds)
    if start is None or stop is None or step is None or not step.known or step.known < 0:
        return None
    text = ceil_div(stop - start, step.known).text
    return None if ONLY_IN_THE_KERNEL in text else text


def divisions_of(plan_for: Callable[[int], Plan | str], resident_blocks: int) -> Divisions:
    """The divisions among which a launch chooses.

    All pieces are to run at once: the fewer the tile blocks, the more pieces each may have. Each division has the
    fewest iterations at which it beats all divisions into fewer pieces. Divisions in a workspace have more pieces than
    those in clusters; there the kernel itself computes how many pieces run at once.

    Args:
        plan_for: from a number of pieces to the kernel's plan with them, or to the reason why there is none.
        resident_blocks: thread blocks that run at once.
    """
    divisions: list[tuple[int, int, int]] = []
    costs = {1: 0.0}  # seconds in which accumulators are added up, by the number of pieces
    for pieces, sms in CLUSTER_SMS.items():
        plan = plan_for(pieces)
        if isinstance(plan, Plan) and plan.parts:
            reduce_s = CLUSTER_REDUCE_S + _sums_bytes(plan) / CLUSTER_SEND_BYTES_PER_S
            least = max(pieces * MIN_CLUSTER_ITERATIONS, _break_even(plan, pieces, reduce_s, costs))
            divisions.append((resident_blocks * sms // CLUSTER_SMS[2] // pieces, least, pieces))
            costs[pieces] = reduce_s
    plan = plan_for(MAX_PIECES)
    if isinstance(plan, Plan) and plan.split is not None:
        # The workspace is for launches with so few tile blocks that each may have twice the pieces of the largest
        # cluster, all running at once. Twice, since it takes five times as long to add up (`WORKSPACE_REDUCE_S`).
        fewest = 2 * max(costs)
        reduce_s = WORKSPACE_REDUCE_S + fewest * _sums_bytes(plan) / WORKSPACE_READ_BYTES_PER_S
        least = max(fewest * MIN_WORKSPACE_ITERATIONS, _break_even(plan, fewest, reduce_s, costs))
        divisions.append((resident_blocks // fewest, least, MAX_PIECES))
    return tuple(division for division in reversed(divisions) if division[0] > 0)


def _break_even(plan: Plan, pieces: int, reduce_s: float, costs: Mapping[int, float]) -> int:
    """The fewest iterations from which so many pieces beat any smaller number.

    A piece does `n / pieces` of `n` iterations. More pieces save `n` times the difference of the quotients' times, and
    cost the difference of the times in which accumulators are added up.

    Args:
        plan: the plan with `pieces`.
        pieces: the number of pieces.
        reduce_s: seconds in which their accumulators are added up.
        costs: the same of each smaller number of pieces.
    """
    whole, divided = _iteration_s(plan, alone=True), _iteration_s(plan, alone=False)
    needed: list[float] = []
    for fewer, cost in costs.items():
        saved = (whole if fewer == 1 else divided / fewer) - divided / pieces
        needed.append(MIN_GAIN * (reduce_s - cost) / saved if saved > 0 else math.inf)
    return math.ceil(min(max(needed), MAX_ITERATIONS))


def _iteration_s(plan: Plan, *, alone: bool) -> float:
    """Seconds of an iteration.

    Args:
        plan: the plan.
        alone: whether the thread block has the tile block alone, or is one of several.
    """
    size, lefts = plan.dot.op.acc.tile.size, [dot.op.a.tile for dot in plan.dots.values()]
    if plan.dot.simt:
        return 2 * size * lefts[0].shape[1] / SIMT_FLOP_PER_S
    # Loads outside of the loop, such as that of an operand that all iterations share, take no time of an iteration.
    body = plan.summing.body.operations if plan.summing is not None else ()
    groups = [group for load, group in plan.groups.items() if load is group.first and load in body]
    nbytes = sum(operand.smem_layout.nbytes for group in groups for operand in group.operands)
    mma_s = size * sum(tile.shape[1] * tile.dtype.bits / 8 for tile in lefts) / MMA_BYTES_PER_S
    # With few stages loads wait for products. Accumulators that others send take room from the stages.
    slow = max([1, *(ENOUGH_STAGES / plan.stages[group.pipeline] for group in groups if not alone)])
    return slow * max(MIN_ITERATION_S, nbytes / (LOAD_BYTES_PER_S if alone else CLUSTER_LOAD_BYTES_PER_S), mma_s)


def _sums_bytes(plan: Plan) -> int:
    """Bytes of one piece's sums."""
    return plan.dot.accumulator.registers * plan.dot.accumulator.threads * plan.dot.op.acc.tile.dtype.bits // 8


# Lowering to thread blocks that share the iterations of a tile block.


class DividedLoop:
    """The division of a loop, as it is lowered.

    A unit of work is a piece of a tile block.

    Attributes:
        hoisted: the operations that the loop's bounds need, which are the same for all tile blocks. `work_units` needs
            them ahead of the loop over units of work.
        parts_loop: the loop over parts of the columns that runs the epilogue for each, at the end of the kernel; None
            where the epilogue is run whole.
        bounds: start, stop and step of the loop for this thread block's piece.
    """

    bounds: list[Value]
    _whole_bounds: list[Value]  # of the loop over all pieces
    _pieces: Value  # their number
    _tile: Value
    _piece: Value
    _runs_epilogue: Value  # whether this thread block does, where the epilogue is run whole

    def __init__(self, walk: WarpSpecialised, split: SplitK, parts_loop: For | None) -> None:
        assert walk.plan.summing is not None
        self._walk = walk
        self._split = split
        self._loop = walk.plan.summing
        self.hoisted = work_of(self._loop.bounds, walk.definitions)
        self.parts_loop = parts_loop

    def facts(self) -> dict[str, Any]:
        """The facts that a launch needs."""
        split, few = self._split, "where tile blocks are too few"
        if split.parts:
            divided = (
                f"{split.pieces} pieces of {MIN_CLUSTER_ITERATIONS} iterations or more, which are a cluster, {few}"
            )
            return {"persistent": split.pieces, "divided": divided}
        return {
            "persistent": split.pieces,
            "divided": f"up to {split.pieces} pieces of {MIN_WORKSPACE_ITERATIONS} iterations or more, {few}",
            "workspace": 4 * COUNTERS,
            "workspace_per_block": _sums_bytes(self._walk.plan),
        }

    def work_units(self, tiles: Value) -> Value:
        """The number of units of work, from the number of tile blocks."""
        context, split = self._walk, self._split
        start, stop, step = self._whole_bounds = context.tiles.hoist(self._loop)
        limits = {"most": split.pieces, "least": MIN_CLUSTER_ITERATIONS if split.parts else MIN_WORKSPACE_ITERATIONS}
        pieces = KSplits(tiles=tiles, start=start, stop=stop, step=step, **limits, whole=split.parts > 0)
        self._pieces = context.builder.value(pieces, "pieces")
        return context.builder.value(Mul(x=tiles, y=self._pieces))

    def tile_of(self, unit: Value) -> Value:
        """The tile block of a unit of work."""
        unit.name = "unit"
        start, stop, step = self._whole_bounds
        share = self._walk.builder.add(WorkUnit(unit=unit, start=start, stop=stop, step=step, pieces=self._pieces))
        for value, name in zip(share.results, ("tile", "piece", "first", "last"), strict=True):
            value.name = name
        self._tile, self._piece, first, last = share.results
        self.bounds = [first, last, step]
        return self._tile

    def added_up(self, sums: Value) -> Value:
        """The sums of all pieces, in the thread block that runs the epilogue whole.

        With an epilogue in parts nothing is added here. The result is this piece's `sums`; `_finish_parts` adds up.
        """
        plan, context = self._walk.plan, self._walk
        if self.parts_loop is not None:
            return sums
        if self._split.parts:
            return self._added_by_first(sums)
        context.builder.location = self._loop.location
        add = Fixup(x=sums, tile=self._tile, piece=self._piece, pieces=self._pieces)
        added, self._runs_epilogue = context.add(add, layout=context.layout_name(plan.dot.accumulator)).results
        return added

    def finish(self, operations: Sequence[Op]) -> None:
        """Run the epilogue in the thread blocks that have the sums."""
        context, parts_loop = self._walk, self.parts_loop
        context.builder.location = None

        def whole() -> None:
            context.operations(operations)

        if parts_loop is None:
            context.builder.branch(self._runs_epilogue, whole)
        else:
            context.builder.branch(self._divided(), lambda: self._finish_parts(parts_loop, operations), whole)

    # Sums that meet in a cluster's shared memory.

    def _divided(self) -> Value:
        """Whether there are several pieces of a tile block."""
        return self._walk.builder.value(Lt(x=self._walk.builder.constant(1), y=self._pieces))

    def _scatter(self, sums: Value) -> None:
        """Send each thread block of the cluster the parts that it adds up."""
        plan, context, pipelines = self._walk.plan, self._walk, self._walk.pipelines
        sizes = {"parts": self._split.parts, "blocks": self._split.pieces}
        scatter = ScatterPartials(sums, pipelines.staging, pipelines.more_barriers, **sizes, limited=plan.limited)
        context.add(scatter, layout=context.layout_name(plan.dot.accumulator))

    def reduced_part(self, sums: Value, part: Value) -> Value:
        """Add up a part: this thread block's `sums`, and those that others sent."""
        context, accumulator, parts = self._walk, self._walk.plan.dot.accumulator, self._split.parts
        add = ReducePartials(sums, part, (self._walk.pipelines.staging,), parts=parts, blocks=self._split.pieces)
        return context.add(add, **context.names(accumulator, part_layout(accumulator, parts))).result

    def _finish_parts(self, parts_loop: For, operations: Sequence[Op]) -> None:
        """Run the epilogue for the columns that this thread block adds up."""
        context, builder, sums = self._walk, self._walk.builder, self._loop.results[0]
        builder.location = self._loop.location
        self._scatter(context.lowered[sums])
        for op in operations:  # scalars of the epilogue, which the loop over parts reads
            if not any(map(is_tile, (*op.operands, *op.results))):
                context.operation(op)
        context.loops += 1  # as inside any loop, operations that use shared memory begin with a barrier
        body = context.block(parts_loop.body)
        context.loops -= 1
        builder.location = None
        count = builder.constant(self._split.parts)
        builder.add(For(start=self._piece, stop=count, step=self._pieces, carried=(), body=body))

    def _added_by_first(self, sums: Value) -> Value:
        """Have the thread block of the first piece add up everything."""
        builder = self._walk.builder
        builder.location = self._loop.location

        def reduce() -> tuple[Value]:
            reduced = self.reduced_part(sums, builder.constant(0))
            # The epilogue's TMA store goes through the same shared memory: all warps have to have read their sums.
            if self._walk.plan.store is not None:
                builder.add(Barrier())
            return (reduced,)

        def scatter() -> tuple[Value, ...]:
            self._scatter(sums)
            first = builder.value(Eq(x=self._piece, y=builder.constant(0)))
            return (*builder.branch(first, reduce, lambda: (sums,)), first)

        whole = builder.branch(self._divided(), scatter, lambda: (sums, builder.constant(True, bool_)))
        reduced, self._runs_epilogue = whole
        return reduced
