"""Tile blocks that thread blocks take as they come to them: the producer asks for the next, and tells the consumers.

    while tile < all: ... tile = next

Which comes when, `tile_order.py` says.
"""

from __future__ import annotations

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.ops import NextTile, PipelineRelease, PipelineWait, ReceiveTile, SendTile, Uniform
from cutile.backend.cuda.pipeline.pipelines import Pipelines
from cutile.dtypes import bool_
from cutile.ir.core import Value
from cutile.ops.arith import Add


class TileQueue:
    """The next tile block, for both roles."""

    def __init__(self, context: LoweringContext, pipelines: Pipelines, *, limited: bool) -> None:
        self._context = context
        self._pipelines = pipelines
        self._limited = limited
        self._taken: Value | None = None

    def ask(self, total: Value) -> None:
        """Ask for the next tile block, in the producer: ahead of the tile block's own loads, which take longer than the
        answer, and read behind them."""
        self._taken = self._context.builder.value(NextTile(total=total), "taken")

    def next_tile(self, counter: Value, step: Value) -> Value:
        """The tile block that was asked for: the producer sends it, consumers receive it."""
        builder, pipeline, through = self._context.builder, self._pipelines.tiles, self._pipelines.numbers
        assert pipeline is not None
        assert through is not None
        if self._taken is not None:
            number = builder.value(Uniform(x=builder.value(Add(x=self._taken, y=step))), "next_tile")
            builder.add(SendTile(pipeline, through, counter, number, limited=self._limited))
            self._taken = None
            return number
        builder.add(PipelineWait(pipeline, counter, limited=self._limited))
        number = builder.value(ReceiveTile(pipeline, through, counter), "next_tile")
        builder.add(PipelineRelease(pipeline, counter, builder.constant(True, bool_), warps=True))
        return number
