"""Products whose tile blocks are too few to fill a GPU.

The turns of each are divided among several thread blocks.

    for unit in first..tiles * pieces by step:
        tile, piece = unit // pieces, unit % pieces
        acc = zeros; for k in the piece's share of the loop: acc = mma(...)
        acc, mine = add_up(acc, tile, piece, pieces)
        if mine: ... the rest of the kernel

How many pieces there are is found at the launch, by the kernel itself, from the number of tile blocks, of thread blocks
and of turns: a kernel that is asked to (`CompileOptions(num_pieces=16)`) serves small and large products, and where
tile blocks are enough there is one piece, and nothing to add up. Kernels that are not asked pay nothing: on an H200,
asking took 0.2 of the 3.5 us of a product of 512 cubed. Of these it is the launches with few tile blocks that take a
kernel which is asked: see below.

Where up to eight pieces are asked for, their thread blocks are a cluster, and read each other's sums, which meet in its
shared memory (below).
Of more, each thread block writes its sums to a workspace and counts itself; the one that comes last adds all of them,
in the order of the pieces whoever it is, so that results do not depend on timing. Nobody waits for anybody, so that it
does not matter which thread blocks run at one time.

Where the pieces' thread blocks are one cluster:

    acc = zeros; for k in the piece's share of the loop: acc = mma(...)
    if pieces > 1:
        deal_out(acc)                               to each thread block the columns that it adds up; wait for mine
        for part in piece..parts by pieces:
            sums = add_nearby(part)                 of all pieces, in their order
            z[i, j * parts + part] = convert(sums)
    else:
        z[i, j] = convert(acc)

Each thread block adds up some columns, and does for these what follows the loop of products. A register of a thread is
the same element of the tile in all of them, so threads send what they hold as it is, straight from their registers
(`st.async`), and read what they will hold. What arrives is counted in bytes by a barrier of the receiver: there is no
meeting of all and no fence, and no memory but the result's is written. A cluster is as large as there may be pieces, so
that a launch has all of them or none: it has them where it has just as many thread blocks as there are pieces in all,
each of which does one.

What does not work column by column is done whole, by the thread block of the first piece: it is sent everything.

**Which launches.** A kernel that may be divided asks at each launch whether it is to be, and keeps room for the sums of
others. So kernels are compiled undivided at first, and the fact `division` says from how few tile blocks and how many
iterations on a launch is to take one that was compiled for so many pieces. It is decided here, from the device's
multiprocessors and by what pieces save and cost, as was measured on an H200; a launch only looks up its numbers.

    fact division = ("(x.shape[1] + 63) // 64", ((8, 526, 16), (15, 24, 8), ..., (66, 29, 2)))
                     iterations of a tile block  tile blocks up to which, iterations from which on, pieces
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cutile.analysis.affine import Affine, Facts, ceil_div
from cutile.analysis.preconditions import read_preconditions
from cutile.analysis.ranges import ONLY_IN_THE_KERNEL, Ranges
from cutile.backend.cuda.grids import COUNTERS
from cutile.backend.cuda.ops import Barrier, Fixup, KSplits, ReducePartials, ScatterPartials, WorkUnit
from cutile.backend.cuda.pipeline.accumulators import cluster_bytes, part_layout, parts_of, registers_of, sums_bytes
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.plan import Dot, Plan
from cutile.backend.cuda.pipeline.schedule import Cooperative, SplitK, Tiles, block_axes
from cutile.backend.cuda.pipeline.subtiles import epilogue_of_part
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.backend.gpu.op_facts import constant_of, work_of
from cutile.backend.interface import CompileOptions
from cutile.dtypes import bool_, i32
from cutile.ir import Attribute, Effect, For, Function, MutType, Op, Value
from cutile.ops.arith import Mul
from cutile.ops.compare import Eq, Lt

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


MAX_PIECES = 16
"""Of a tile block: the last thread block reads the sums of all."""
MAX_CLUSTER_PIECES = 8
"""Pieces up to which their thread blocks are a cluster, which every kind of device takes."""
MAX_SUMS_BESIDE_MORE = 64
"""Sums of a thread up to which it adds those of other pieces where it holds more than sums."""
MIN_WORKSPACE_ITERATIONS = 16
"""Of a piece: what writing and adding up sums costs, in turns that would take longer."""
MIN_CLUSTER_ITERATIONS = 3
"""The same where thread blocks are a cluster, which adds up sooner: of fewer, most is the first turn's way there."""
MAX_CLUSTER_SUMS_BYTES = 96 * 1024
"""What a thread block may be sent: it takes room from the ring."""


def division(
    kernel: Kernel, loop: For, dot: Dot, groups: int, tiles: Tiles, options: CompileOptions
) -> Cooperative | SplitK:
    """The division of iterations that is asked for; else why there is none."""
    bounds = (loop.start, loop.stop, loop.step)
    sums, counts = dot.accumulator.registers, loop.start.tile.dtype
    held = "an operand" if dot.a_from_registers else "what follows the loop" if kernel.computes_behind(loop) else ""
    why = ""
    if groups & (groups - 1):
        why = f"{groups} warp groups share the sums"
    elif constant_of(loop.carried[0], kernel.definitions) != 0:
        why = "the sums do not begin as zeros"
    elif block_axes(bounds, kernel.definitions):
        why = "the loop's bounds differ from tile block to tile block"
    elif tiles.cluster > 1:
        why = "the thread blocks of a cluster load together"
    elif sums > MAX_SUMS_BESIDE_MORE and held:
        why = f"a thread holds {sums} sums, and has registers for {MAX_SUMS_BESIDE_MORE} beside {held}"
    elif counts is not i32:  # numbers that plans make of iterations are i32, and may be less than none
        why = f"the loop counts in {counts}, and pieces in i32"
    if why:
        return Cooperative(why)
    pieces = min(options.num_pieces or 1, MAX_PIECES)
    if pieces < 2:
        why = "CompileOptions(num_pieces=1) says so" if options.num_pieces else "nobody asks this kernel for it"
        return Cooperative(why, divisible=True)
    return SplitK(pieces, cluster_parts(kernel, loop, dot.accumulator, pieces))


def summing_loop(kernel: Kernel) -> For | str:
    """The loop that carries nothing but its products' sums.

    It may be divided. Or why there is none.
    """
    operations, products = kernel.function.body.operations, kernel.products
    loops = [op for op in operations if op.regions]
    loop = loops[0] if len(loops) == 1 else None
    if not isinstance(loop, For) or any(kernel.home[op] is not loop.body for op in products):
        return "the products are not all in one loop, or it is not the only one"
    value = loop.body.arguments[-1]
    for op in products:
        if op.acc is not value or kernel.uses[value] != 1:
            return "the loop does more than add up products"
        value = op.result
    if loop.body.terminator.operands != (value,) or kernel.uses[value] != 1:
        return "the loop carries more than the sums"
    before = operations[: operations.index(loop)]
    if any(op.effect > Effect.READ for op in (*before, *loop.body.operations[:-1])):
        return "the kernel writes ahead of its sums"
    return loop


def cluster_parts(kernel: Kernel, loop: For, sums: Layout, pieces: int) -> int:
    """Into how many parts a cluster of so many pieces cuts the columns of a tile.

    0 where pieces are no cluster.

    Args:
        kernel, loop: the kernel and its main loop.
        sums: the layout of what they add up to.
        pieces: of its turns.
    """
    if not 2 <= pieces <= MAX_CLUSTER_PIECES:
        return 0
    columns, least = sums.shape[1], sums.core[1]
    count = parts_of(columns, least, pieces)
    lies = columns % (least * count) == 0 and registers_of(sums, count) is not None
    if not lies or count == 1 or epilogue_of_part(kernel.function, loop, count) is None:
        count = 1
    return count if cluster_bytes(sums, count, pieces) <= MAX_CLUSTER_SUMS_BYTES else 0


CLUSTER_SHARES = {2: 1.0, 3: 0.885, 4: 0.91, 5: 0.835, 6: 0.775, 8: 0.91}
"""Pieces that launches may ask for in clusters, and the share of a GPU that these fill: of 132 multiprocessors an H200
has 117 in clusters of three, 120 of four and of eight, 110 of five, 102 of six."""
MIN_ITERATION_S = 0.13e-6
"""Seconds of the shortest turn,"""
LOAD_BYTES_PER_S, CLUSTER_LOAD_BYTES_PER_S = 155e9, 92e9
"""bytes that a thread block loads in a second, where half of the multiprocessors have one at most, and in a cluster,
whose thread blocks are neighbours,"""
MMA_BYTES_PER_S, SIMT_FLOP_PER_S = 7.3e12, 0.39e12
"""and what it multiplies: rows by columns by bytes of the depth on tensor cores; operations of f32 without them."""
ENOUGH_STAGES = 4
"""Slots of a ring; with fewer, loads wait for products."""
CLUSTER_REDUCE_S, CLUSTER_SEND_BYTES_PER_S = 0.6e-6, 30e9
"""Seconds in which the sums of a cluster meet, and bytes that a thread block has with the others in one."""
WORKSPACE_REDUCE_S, WORKSPACE_READ_BYTES_PER_S = 3e-6, 100e9
"""Seconds until the last thread block is found by way of a workspace, and bytes of sums that it reads in one."""
MIN_GAIN = 1.25
"""How many times what it costs a division is to save."""

MAX_ITERATIONS = 2**31 - 1
"""More than a loop of the kernel has."""

Divisions = tuple[tuple[int, int, int], ...]
"""Tile blocks up to which, and turns from which on, there are so many pieces; the first that holds counts."""


def launch_division(
    kernel: Kernel, whole: Plan, plan_for: Callable[[int], Plan | str], units: int
) -> dict[str, Attribute]:
    """The facts `division` and `divided` of a kernel that is compiled without split-K.

    `divided` says so, or why it has no division.

    Args:
        kernel: the kernel.
        whole: its plan.
        plan_for: its plan for so many pieces, or why there is none.
        units: thread blocks that run at once.
    """
    turns = iterations_at_launch(kernel.function, whole)
    if turns is None:
        asking = f"CompileOptions(num_pieces={MAX_PIECES})"
        return {"divided": f"no: launches do not know its turns; {asking} leaves it to the kernel"}
    divisions = divisions_of(plan_for, units)
    if not divisions:
        return {"divided": "no: there is no room for the sums of other pieces"}
    most = max(tiles for tiles, _, _ in divisions)
    return {"divided": f"by launches of up to {most} tile blocks, as `division` says", "division": (turns, divisions)}


def iterations_at_launch(function: Function, plan: Plan) -> str | None:
    """The turns of the loop of products, as Python over the kernel's parameters.

    None where only the kernel knows.
    """
    facts = Facts()
    read_preconditions(function, facts)
    ranges = Ranges(function, facts)

    def known(value: Value) -> Affine | None:
        return ranges.of(value).launch_known

    loop = plan.summing
    if loop is None:
        return None
    start, stop, step = known(loop.start), known(loop.stop), known(loop.step)
    if start is None or stop is None or step is None or not step.known or step.known < 0:
        return None
    text = ceil_div(stop - start, step.known).text
    return None if ONLY_IN_THE_KERNEL in text else text


def divisions_of(plan_for: Callable[[int], Plan | str], units: int) -> Divisions:
    """How launches split their iterations, where so many thread blocks run at once.

    More pieces for fewer tile blocks: as many as the device has room for at once, from as many turns on as make them
    worth more than any fewer. Where the sums are too large for a cluster, they meet in a workspace, and the kernel
    finds by itself how many pieces fit.

    Args:
        plan_for: the plan of the kernel for so many pieces, or why there is none.
        units: thread blocks that run at once.
    """
    divisions: list[tuple[int, int, int]] = []
    costs = {1: 0.0}
    for pieces, share in CLUSTER_SHARES.items():
        plan = plan_for(pieces)
        if isinstance(plan, Plan) and plan.parts:
            meet = CLUSTER_REDUCE_S + _sums_bytes(plan) / CLUSTER_SEND_BYTES_PER_S
            least = max(pieces * MIN_CLUSTER_ITERATIONS, _worth(plan, pieces, meet, costs))
            divisions.append((int(units * share) // pieces, least, pieces))
            costs[pieces] = meet
    plan = plan_for(MAX_PIECES)
    if isinstance(plan, Plan) and plan.split is not None:
        fewest = 2 * max(costs)
        meet = WORKSPACE_REDUCE_S + fewest * _sums_bytes(plan) / WORKSPACE_READ_BYTES_PER_S
        least = max(fewest * MIN_WORKSPACE_ITERATIONS, _worth(plan, fewest, meet, costs))
        divisions.append((units // fewest, least, MAX_PIECES))
    return tuple(division for division in reversed(divisions) if division[0] > 0)


def _worth(plan: Plan, pieces: int, meet: float, costs: Mapping[int, float]) -> int:
    """Iterations from which so many splits beat each smaller number.

    Their sums meet within `meet` seconds.

    Args:
        plan: of the kernel that has them.
        pieces: how many.
        meet: what it costs.
        costs: the same of each fewer.
    """
    whole, divided = _iteration_s(plan, alone=True), _iteration_s(plan, alone=False)
    needed: list[float] = []
    for fewer, cost in costs.items():
        saved = (whole if fewer == 1 else divided / fewer) - divided / pieces
        needed.append(MIN_GAIN * (meet - cost) / saved if saved > 0 else math.inf)
    return math.ceil(min(max(needed), MAX_ITERATIONS))


def _iteration_s(plan: Plan, *, alone: bool) -> float:
    """Seconds of a turn.

    Of a thread block that has a tile block alone, or of one of several.
    """
    size, left = plan.dot.op.acc.tile.size, [dot.op.a.tile for dot in plan.dots.values()]
    if plan.dot.simt:
        return 2 * size * left[0].shape[1] / SIMT_FLOP_PER_S
    loaded = sum(operand.smem_layout.nbytes for operands in plan.operands for operand in operands) / (
        LOAD_BYTES_PER_S if alone else CLUSTER_LOAD_BYTES_PER_S
    )
    multiplied = size * sum(tile.shape[1] * tile.dtype.bits / 8 for tile in left) / MMA_BYTES_PER_S
    return max(MIN_ITERATION_S, loaded, multiplied) * (1 if alone else max(1, ENOUGH_STAGES / plan.stages[0]))


def _sums_bytes(plan: Plan) -> int:
    return sums_bytes(plan.dot.accumulator, plan.dot.op.acc.tile.dtype)


# Lowering to thread blocks that share the iterations of a tile block.


class DividedLoop:
    """Units of work: pieces of tile blocks.

    Attributes:
        hoisted: the operations that the loop's bounds need, which are the same for all tile blocks.
        parts: the loop that does what follows the main loop for some columns of the tile, at the end of the kernel.
        bounds: the main loop's, for this thread block's piece of it.
    """

    bounds: list[Value]
    _all: list[Value]
    _pieces: Value
    _tile: Value
    _piece: Value
    _mine: Value

    def __init__(self, walk: WarpSpecialised, split: SplitK, parts: For | None) -> None:
        assert walk.plan.summing is not None
        self._walk = walk
        self._split = split
        self._loop = walk.plan.summing
        self.hoisted = work_of((self._loop.start, self._loop.stop, self._loop.step), walk.definitions)
        self.parts = parts

    def facts(self) -> dict[str, Any]:
        """What a launch has to know of it."""
        split, dot = self._split, self._walk.plan.dot
        if split.parts:
            return {
                "persistent": split.pieces,
                "divided": f"{split.pieces} pieces of {MIN_CLUSTER_ITERATIONS} turns or more, which are a cluster, "
                "where tile blocks are too few",
            }
        return {
            "persistent": split.pieces,
            "divided": f"up to {split.pieces} pieces of {MIN_WORKSPACE_ITERATIONS} turns or more, "
            "where tile blocks are too few",
            "workspace": 4 * COUNTERS,
            "workspace_per_block": sums_bytes(dot.accumulator, dot.op.acc.tile.dtype),
        }

    def units(self, tiles: Value) -> Value:
        """How many units of work so many tile blocks are."""
        context, split = self._walk, self._split
        start, stop, step = self._all = context.tiles.hoist(self._loop)
        limits: dict[str, int] = {
            "most": split.pieces,
            "least": MIN_CLUSTER_ITERATIONS if split.parts else MIN_WORKSPACE_ITERATIONS,
        }
        pieces = KSplits(tiles=tiles, start=start, stop=stop, step=step, **limits, whole=split.parts > 0)
        self._pieces = context.builder.value(pieces, "pieces")
        return context.builder.value(Mul(x=tiles, y=self._pieces))

    def tile_of(self, unit: Value) -> Value:
        """The tile block of a unit of work."""
        unit.name = "unit"
        start, stop, step = self._all
        share = self._walk.builder.add(WorkUnit(unit=unit, start=start, stop=stop, step=step, pieces=self._pieces))
        for value, name in zip(share.results, ("tile", "piece", "first", "last"), strict=True):
            value.name = name
        self._tile, self._piece, first, last = share.results
        self.bounds = [first, last, step]
        return self._tile

    def added_up(self, sums: Value) -> Value:
        """The sums of all pieces, where this thread block has them."""
        plan, context = self._walk.plan, self._walk
        if self.parts is not None:
            return sums
        if self._split.parts:
            return self._added_by_first(sums)
        context.builder.location = self._loop.location
        add = Fixup(x=sums, tile=self._tile, piece=self._piece, pieces=self._pieces)
        added, self._mine = context.add(add, layout=context.layout_name(plan.dot.accumulator)).results
        return added

    def finish(self, operations: Sequence[Op]) -> None:
        """What follows the main loop, by the thread block that has all sums."""
        context, parts = self._walk, self.parts
        context.builder.location = None

        def whole() -> None:
            context.operations(operations)

        if parts is None:
            context.builder.branch(self._mine, whole)
        else:
            context.builder.branch(self._divided(), lambda: self._finish_parts(parts, operations), whole)

    # Sums that meet in a cluster's shared memory.

    def _divided(self) -> Value:
        """Whether there are several pieces of a tile block."""
        return self._walk.builder.value(Lt(x=self._walk.builder.constant(1), y=self._pieces))

    def _deal_out(self, sums: Value) -> None:
        plan, context, pipelines = self._walk.plan, self._walk, self._walk.pipelines
        sizes = {"parts": self._split.parts, "blocks": self._split.pieces}
        deal = ScatterPartials(sums, pipelines.staging, pipelines.more_barriers, **sizes, limited=plan.limited)
        context.add(deal, layout=context.layout_name(plan.dot.accumulator))

    def nearby_sums(self, sums: Value, part: Value) -> Value:
        context, accumulator, parts = self._walk, self._walk.plan.dot.accumulator, self._split.parts
        add = ReducePartials(sums, part, (self._walk.pipelines.staging,), parts=parts, blocks=self._split.pieces)
        return context.add(add, **context.names(accumulator, part_layout(accumulator, parts))).result

    def _finish_parts(self, parts: For, operations: Sequence[Op]) -> None:
        """What follows the main loop, for those columns that this thread block adds up."""
        context, builder, sums = self._walk, self._walk.builder, self._loop.results[0]
        builder.location = self._loop.location
        self._deal_out(context.lowered[sums])
        for op in operations:
            if not any(is_tile(value) or isinstance(value.type, MutType) for value in (*op.operands, *op.results)):
                context.operation(op)
        context.loops += 1
        body = context.block(parts.body)
        context.loops -= 1
        builder.location = None
        count = builder.constant(self._split.parts)
        builder.add(For(start=self._piece, stop=count, step=self._pieces, carried=(), body=body))

    def _added_by_first(self, sums: Value) -> Value:
        """All sums, by the thread block of the first piece."""
        builder = self._walk.builder
        builder.location = self._loop.location

        def reduce() -> tuple[Value]:
            reduced = self.nearby_sums(sums, builder.constant(0))
            if self._walk.plan.store is not None:  # by way of the place that other warps may yet have sums in
                builder.add(Barrier())
            return (reduced,)

        def scatter() -> tuple[Value, ...]:
            self._deal_out(sums)
            first = builder.value(Eq(x=self._piece, y=builder.constant(0)))
            return (*builder.branch(first, reduce, lambda: (sums,)), first)

        whole = builder.branch(self._divided(), scatter, lambda: (sums, builder.constant(True, bool_)))
        reduced, self._mine = whole
        return reduced
