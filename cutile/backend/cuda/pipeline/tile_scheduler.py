"""The persistent loop over tile blocks, carrying the counter of each pipeline.

    for tile in first..all by step:          where tile blocks are alike
    while tile < all: ... tile = next        where the producer takes them one by one, and sends on which

Which comes when, `tile_order.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cutile.backend.cuda import ops
from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.pipeline.cluster import block_axes
from cutile.backend.cuda.pipeline.pipelines import Pipelines
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.pipeline.split_k import DividedLoop
from cutile.dtypes import bool_
from cutile.ir.control import For, While
from cutile.ir.core import Value
from cutile.ops.arith import Add, FloorDiv, Mul
from cutile.ops.compare import Lt
from cutile.ops.grid import NumTileBlocks


@dataclass
class TileQueue:
    """Tile blocks that thread blocks take as they come to them, for both roles.

    The producer asks for the next, and tells the consumers.
    """

    context: LoweringContext
    pipelines: Pipelines
    limited: bool
    taken: Value | None = None

    def ask(self, total: Value) -> None:
        """Ask for the next tile block, in the producer.

        Ahead of the tile block's own loads, which take longer than the answer, and read behind them.
        """
        self.taken = self.context.builder.value(ops.NextTile(total=total), "taken")

    def next_tile(self, counter: Value, step: Value) -> Value:
        """The tile block that was asked for: the producer sends it, consumers receive it."""
        builder, pipeline, through = self.context.builder, self.pipelines.tiles, self.pipelines.numbers
        assert pipeline is not None
        assert through is not None
        if self.taken is not None:
            number = builder.value(ops.Uniform(x=builder.value(Add(x=self.taken, y=step))), "next_tile")
            builder.add(ops.SendTile(pipeline, through, counter, number, limited=self.limited))
            self.taken = None
            return number
        builder.add(ops.PipelineWait(pipeline, counter, limited=self.limited))
        number = builder.value(ops.ReceiveTile(pipeline, through, counter), "next_tile")
        builder.add(ops.PipelineRelease(pipeline, counter, builder.constant(True, bool_), warps=True))
        return number


class TileScheduler:
    """The loop of one role.

    Attributes:
        number: of the tile block.
        step: from one of a thread block's tile blocks to the next.
        first: the number of the thread block's first one.
        total: how many tile blocks there are.
        carried: what is carried beside the counters: within the loop, and behind it.
    """

    number: Value
    step: Value
    first: Value
    total: Value
    carried: Sequence[Value]

    def __init__(self, context: LoweringContext, plan: Plan, pipelines: Pipelines, split: DividedLoop | None) -> None:
        self._context = context
        self._plan = plan
        self._pipelines = pipelines
        self._split = split
        self._queue = TileQueue(context, pipelines, plan.limited)

    def run(self, tile: Callable[[], None], *, groups: int = 1, carried: Sequence[Value] = ()) -> None:
        """Add the loop.

        Args:
            tile: adds what is done for a tile block.
            groups: of warpgroups that have tile blocks of their own: the iterations of the others' are skipped.
            carried: what `self.carried` begins with.
        """
        builder, pipelines = self._context.builder, self._pipelines
        self.total = self._count()
        if self._split is not None:
            self.total = self._split.units(self.total)
        along = {"cluster": self._plan.tiles.cluster, "alone": groups}
        self.first, self.step = (builder.value(kind(**along)) for kind in (ops.FirstTile, ops.TileStep))
        others = self._iterations() if groups > 1 else None
        counters = [builder.constant(0) if others is None else builder.value(ops.FirstIteration(turns=others))]
        counters += [builder.constant(0) for _ in pipelines.values[1:]]
        if self._plan.tiles.order.taken:
            self._while_there_are(tile, counters)
            return
        number = Value(counters[0].type, "tile")
        pipelines.counters = [Value(counter.type, "counter") for counter in counters]
        self.carried = tuple(Value(value.type, value.name) for value in carried)
        with builder.block(number, *pipelines.counters, *self.carried) as block:
            self._tile(number, tile)
            after = pipelines.counters
            if others is not None:
                after = [builder.value(Add(x=counter, y=others)) for counter in after]
            builder.yield_(*after, *self.carried)
        done = For(start=self.first, stop=self.total, step=self.step, carried=(*counters, *carried), body=block)
        self.carried = builder.add(done).results[len(counters) :]

    def _tile(self, number: Value, tile: Callable[[], None]) -> None:
        context = self._context
        self.number = number if self._split is None else self._split.tile_of(number)
        context.loops += 1  # what one tile block left in shared memory, other warps may still read in the next
        tile()
        context.loops -= 1
        context.builder.location = None

    def _while_there_are(self, tile: Callable[[], None], counters: Sequence[Value]) -> None:
        """The loop where thread blocks take tile blocks as they come to them."""
        builder, pipelines, queue = self._context.builder, self._pipelines, self._queue
        number, counter = Value(self.first.type, "tile"), Value(self.first.type, "tile_counter")
        pipelines.counters = [Value(value.type, "counter") for value in counters]
        arguments = [Value(value.type) for value in (number, counter, *counters)]
        with builder.block(*arguments) as condition:
            builder.yield_(builder.value(Lt(x=arguments[0], y=self.total)))
        with builder.block(number, counter, *pipelines.counters) as block:
            self._tile(number, tile)
            following = queue.next_tile(counter, self.step)
            counted = builder.value(Add(x=counter, y=builder.constant(1)), "tile_counter")
            builder.yield_(following, counted, *pipelines.counters)
        carried = (self.first, builder.constant(0), *counters)
        builder.add(While(carried=carried, condition=condition, body=block))

    def ask_for_next(self) -> None:
        """In the producer: ask for the next tile block from the queue.

        Where thread blocks take them as they come to them.
        """
        if self._plan.tiles.order.taken:
            self._queue.ask(self.total)

    def _count(self) -> Value:
        """All tile blocks, or clusters of them."""
        builder, tiles = self._context.builder, self._plan.tiles
        counts = [builder.value(NumTileBlocks(axis=axis)) for axis in range(3)]
        if tiles.cluster > 1:
            rounded = builder.value(Add(x=counts[tiles.along], y=builder.constant(tiles.cluster - 1)))
            counts[tiles.along] = builder.value(FloorDiv(x=rounded, y=builder.constant(tiles.cluster)))
        return builder.value(Mul(x=counts[0], y=builder.value(Mul(x=counts[1], y=counts[2]))))

    def _iterations(self) -> Value:
        """The iterations of the main loop, which are the same for all tile blocks."""
        context, loop = self._context, self._plan.mainloop
        assert loop is not None
        operations = context.function.body.operations
        for op in operations[: operations.index(loop)]:
            if op in self._plan.slice.needed and not block_axes(op.results, context.definitions):
                context.operation(op)
        context.builder.location = None
        start, stop, step = (context.lowered[value] for value in (loop.start, loop.stop, loop.step))
        return context.builder.value(ops.TripCount(start=start, stop=stop, step=step))
