"""Lowering to thread blocks that share a tile block's turns (`split.py`): what they take, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.ops import AddUp, Pieces, Share
from cutile.backend.cuda.residency import COUNTERS
from cutile.backend.cuda.specialise import Specialised
from cutile.backend.cuda.split import LEAST_TURNS, sums_bytes
from cutile.backend.cuda.target import Architecture
from cutile.backend.cuda.tile_loop import TileLoop
from cutile.ir.control import If
from cutile.ir.core import Function, Op, Value
from cutile.ops.arith import Mul


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

    def _divided_facts(self) -> dict[str, Any]:
        """What a launch has to know of it, and why turns are not divided."""
        plan = self._plan
        if plan.whole:
            return {"persistent": 1, "divided": f"no: {plan.whole}"}
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
        made = Pieces(tiles=tiles, start=start, stop=stop, step=step, most=self._plan.pieces, least=LEAST_TURNS)
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
                wanted += op.operands
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
        if share is None:
            return sums
        self._builder.location = self._plan.loop.location
        op = AddUp(x=sums, tile=share.tile, piece=share.piece, pieces=share.pieces)
        added, self._mine = self._add(op, layout=self._name(self._plan.accumulator)).results
        return added

    def _finish_tile(self, operations: Sequence[Op]) -> None:
        """What follows the loop, by the thread block that has all sums."""
        builder = self._builder
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
