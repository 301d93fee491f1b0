"""Lowering to thread blocks that share the iterations of a tile block.

What they take, and what becomes of it.

Their sums meet in a workspace, or in the shared memory of the cluster that they are (`split_k_rules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cutile.backend.cuda.grids import COUNTERS
from cutile.backend.cuda.ops import Barrier, Fixup, KSplits, ReducePartials, ScatterPartials, WorkUnit
from cutile.backend.cuda.pipeline.accumulators import part_layout, sums_bytes
from cutile.backend.cuda.pipeline.schedule import SplitK
from cutile.backend.cuda.pipeline.split_k_rules import MIN_CLUSTER_ITERATIONS, MIN_WORKSPACE_ITERATIONS
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.backend.gpu.op_facts import work_of
from cutile.dtypes import bool_
from cutile.ir.control import For
from cutile.ir.core import Op, Value
from cutile.ir.types import MutType
from cutile.ops.arith import Mul
from cutile.ops.compare import Eq, Lt

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


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
