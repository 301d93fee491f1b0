"""Lowering to thread blocks that share a tile block's turns (`split.py`): what they take, and what becomes of it.

Their sums meet in a workspace, or in the shared memory of the cluster that they are (`nearby.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.ops import AddNearby, AddUp, Barrier, DealOut, Pieces, Share
from cutile.backend.cuda.placement import is_tile
from cutile.backend.cuda.residency import COUNTERS
from cutile.backend.cuda.specialised.nearby import loop_of_parts
from cutile.backend.cuda.specialised.reads import reads
from cutile.backend.cuda.specialised.record import Specialised
from cutile.backend.cuda.specialised.split import LEAST_NEARBY, LEAST_TURNS, part_layout, sums_bytes
from cutile.backend.cuda.specialised.tile_loop import TileLoop
from cutile.backend.cuda.target import Architecture
from cutile.dtypes import bool_
from cutile.ir.control import For, If
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import MutType
from cutile.ops.arith import Mul
from cutile.ops.compare import Eq, Lt


@dataclass(frozen=True)
class _Piece:
    """What a thread block does of a tile block.

    Attributes:
        tile: the number of the tile block.
        piece: of `pieces`, which one.
        bounds: of its turns, in place of the loop's.
    """

    tile: Value
    piece: Value
    pieces: Value
    bounds: list[Value]


class DividedLoop(TileLoop):
    """The loop over units of work: tile blocks, or pieces of them where turns may be divided."""

    def __init__(
        self, function: Function, plan: Specialised, arch: Architecture, accumulators: Sequence[tuple[Op, Layout]]
    ) -> None:
        super().__init__(function, plan, arch, accumulators)
        self._pieces: Value | None = None
        self._whole: list[Value] = []
        self._share: _Piece | None = None
        self._mine: Value | None = None
        self._hoisted: set[Op] = set()
        self._parts = loop_of_parts(function)

    def _divided_facts(self) -> dict[str, Any]:
        """What a launch has to know of it, and why turns are not divided."""
        plan = self._plan
        if plan.whole:
            return {"persistent": 1, "divided": f"no: {plan.whole}"}
        if plan.parts:
            return {
                "persistent": plan.pieces,
                "divided": f"{plan.pieces} pieces of {LEAST_NEARBY} turns or more, which are a cluster, "
                "where tile blocks are too few",
            }
        return {
            "persistent": plan.pieces,
            "divided": f"up to {plan.pieces} pieces of {LEAST_TURNS} turns or more, where tile blocks are too few",
            "workspace": 4 * COUNTERS,
            "workspace_per_block": sums_bytes(plan.accumulator, plan.product.acc.tile.dtype),
        }

    def _units(self, tiles: Value) -> Value:
        if self._plan.whole:
            return tiles
        builder = self._builder
        self._whole = self._whole_bounds()
        start, stop, step = self._whole
        nearby = self._plan.parts > 0
        limits: dict[str, int] = {"most": self._plan.pieces, "least": LEAST_NEARBY if nearby else LEAST_TURNS}
        made = Pieces(tiles=tiles, start=start, stop=stop, step=step, **limits, whole=nearby)
        self._pieces = builder.value(made, "pieces")
        return builder.value(Mul(x=tiles, y=self._pieces))

    def _whole_bounds(self) -> list[Value]:
        """The loop's bounds, before any tile block: they are the same for all."""
        loop = self._plan.loop
        wanted = [loop.start, loop.stop, loop.step]
        bounds = list(wanted)
        while wanted:
            op = self._definitions.get(wanted.pop())
            if op is not None:
                self._hoisted.add(op)
                wanted += reads(op)
        for op in self._function.body.operations:
            if op in self._hoisted:
                self._operation(op)
        self._builder.location = None
        return [self._map[each] for each in bounds]

    def _tile_of(self, unit: Value) -> Value:
        if self._pieces is None:
            return unit
        unit.name = "unit"
        start, stop, step = self._whole
        made = self._builder.add(Share(unit=unit, start=start, stop=stop, step=step, pieces=self._pieces))
        for value, name in zip(made.results, ("tile", "piece", "first", "last"), strict=True):
            value.name = name
        tile, piece, first, last = made.results
        self._share = _Piece(tile, piece, self._pieces, [first, last, step])
        return tile

    def _bounds(self) -> list[Value]:
        """The loop's bounds, for this thread block's piece of it."""
        loop = self._plan.loop
        return self._share.bounds if self._share else [self._map[each] for each in (loop.start, loop.stop, loop.step)]

    def _added_up(self, sums: Value) -> Value:
        """The sums of all pieces; `_mine` says whether this thread block has them."""
        share = self._share
        if share is None or self._parts is not None:
            return sums
        if self._plan.parts:
            return self._added_by_first(sums, share)
        self._builder.location = self._plan.loop.location
        op = AddUp(x=sums, tile=share.tile, piece=share.piece, pieces=share.pieces)
        added, self._mine = self._add(op, layout=self._name(self._plan.accumulator)).results
        return added

    def _finish_tile(self, operations: Sequence[Op]) -> None:
        """What follows the loop, by the thread block that has all sums."""
        builder = self._builder
        if self._parts is not None and self._share is not None:
            with builder.block() as then:
                self._finish_parts(self._parts, self._share, operations)
                builder.yield_()
            with builder.block() as orelse:
                for op in operations:
                    self._operation(op)
                builder.yield_()
            builder.location = None
            builder.add(If(condition=self._divided(), then=then, orelse=orelse))
            return
        if self._mine is None:
            for op in operations:
                self._operation(op)
            return
        with builder.block() as then:
            for op in operations:
                self._operation(op)
            builder.yield_()
        with builder.block() as orelse:
            builder.yield_()
        builder.location = None
        builder.add(If(condition=self._mine, then=then, orelse=orelse))

    # Sums that meet in a cluster's shared memory.

    def _divided(self) -> Value:
        """Whether there are several pieces of a tile block."""
        assert self._pieces is not None
        return self._builder.value(Lt(x=self._builder.constant(1), y=self._pieces))

    def _deal_out(self, sums: Value) -> None:
        plan = self._plan
        made = DealOut(sums, self._staging, self._further, parts=plan.parts, blocks=plan.pieces, limited=plan.limited)
        self._add(made, layout=self._name(plan.accumulator))

    def _nearby_sums(self, sums: Value, part: Value) -> Value:
        accumulator, parts = self._plan.accumulator, self._plan.parts
        made = AddNearby(sums, part, (self._staging,), parts=parts, blocks=self._plan.pieces)
        names = {"source": self._name(accumulator), "layout": self._name(part_layout(accumulator, parts))}
        return self._add(made, **names).result

    def _finish_parts(self, parts: For, share: _Piece, operations: Sequence[Op]) -> None:
        """What follows the loop, for those columns that this thread block adds up."""
        builder, sums = self._builder, self._plan.loop.results[0]
        builder.location = self._plan.loop.location
        self._deal_out(self._converted(self._map[sums], self._placement[sums], self._plan.accumulator))
        for op in operations:
            if not any(is_tile(each) or isinstance(each.type, MutType) for each in (*op.operands, *op.results)):
                self._operation(op)
        self._loops += 1
        body = self._block(parts.body)
        self._loops -= 1
        builder.location = None
        builder.add(
            For(start=share.piece, stop=builder.constant(self._plan.parts), step=share.pieces, carried=(), body=body)
        )

    def _added_by_first(self, sums: Value, share: _Piece) -> Value:
        """All sums, by the thread block of the first piece."""
        builder = self._builder
        builder.location = self._plan.loop.location
        divided = self._divided()
        with builder.block() as then:
            self._deal_out(sums)
            first = builder.value(Eq(x=share.piece, y=builder.constant(0)))
            with builder.block() as add:
                added = self._nearby_sums(sums, builder.constant(0))
                if self._plan.store is not None:  # by way of the place that other warps may yet have sums in
                    builder.add(Barrier())
                builder.yield_(added)
            with builder.block() as leave:
                builder.yield_(sums)
            (all_,) = builder.add(If(condition=first, then=add, orelse=leave)).results
            builder.yield_(all_, first)
        with builder.block() as orelse:
            builder.yield_(sums, builder.constant(True, bool_))
        added, self._mine = builder.add(If(condition=divided, then=then, orelse=orelse)).results
        return added
