"""The persistent loop over tile blocks, carrying the counter of each pipeline.

    for tile in first..all by step:          where tile blocks are alike
    while tile < all: ... tile = next        where the producer takes them one by one, and sends on which

Which comes when, `schedule.py` says.

Which place of the grid a tile block's number stands for takes a few divisions: some 300 cycles, which the tensor cores
would be idle for between two tiles. Consumers need the place only for what follows the main loop, so they find it while
its first product is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cutile.backend.cuda import ops
from cutile.backend.cuda.ops import TileIndex
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.gpu.op_facts import inside, is_scalar_work, reads, work_of
from cutile.dtypes import bool_, i32
from cutile.ir import For, Function, Op, TileType, Value, While
from cutile.ops.arith import Add, FloorDiv, Mul
from cutile.ops.compare import Lt
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.memory import LoadMut, StoreMut

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


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

    def __init__(self, walk: WarpSpecialised) -> None:
        self._walk = walk

    def run(self, tile: Callable[[], None], *, groups: int = 1, carried: Sequence[Value] = ()) -> None:
        """Add the loop.

        Args:
            tile: adds what is done for a tile block.
            groups: of warpgroups that have tile blocks of their own: the iterations of the others' are skipped.
            carried: what `self.carried` begins with.
        """
        builder, pipelines = self._walk.builder, self._walk.pipelines
        count, split = self._count(), self._walk.split
        self.total = count if split is None else split.units(count)
        along = {"cluster": self._walk.plan.tiles.cluster, "pingpong": groups}
        self.first, self.step = (builder.value(kind(**along)) for kind in (ops.FirstTile, ops.TileStep))
        others = None
        if groups > 1:  # the iterations of the main loop
            assert self._walk.plan.mainloop is not None
            start, stop, step = self.hoist(self._walk.plan.mainloop)
            others = builder.value(ops.TripCount(start=start, stop=stop, step=step))
        counters = [builder.constant(0) if others is None else builder.value(ops.FirstIteration(iterations=others))]
        counters += [builder.constant(0) for _ in (*pipelines.values[1:], *pipelines.written)]
        if self._walk.plan.tiles.order.taken:
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
        context = self._walk
        self.number = number if self._walk.split is None else self._walk.split.tile_of(number)
        context.loops += 1  # what one tile block left in shared memory, other warps may still read in the next
        tile()
        context.loops -= 1
        context.builder.location = None

    def _while_there_are(self, tile: Callable[[], None], counters: Sequence[Value]) -> None:
        """The loop where thread blocks take tile blocks as they come to them."""
        builder, pipelines = self._walk.builder, self._walk.pipelines
        number, counter = Value(self.first.type, "tile"), Value(self.first.type, "tile_counter")
        pipelines.counters = [Value(value.type, "counter") for value in counters]
        arguments = [Value(value.type) for value in (number, counter, *counters)]
        with builder.block(*arguments) as condition:
            builder.yield_(builder.value(Lt(x=arguments[0], y=self.total)))
        with builder.block(number, counter, *pipelines.counters) as block:
            self._tile(number, tile)
            following = self._next_tile(counter)
            counted = builder.value(Add(x=counter, y=builder.constant(1)), "tile_counter")
            builder.yield_(following, counted, *pipelines.counters)
        carried = (self.first, builder.constant(0), *counters)
        builder.add(While(carried=carried, condition=condition, body=block))

    def _next_tile(self, counter: Value) -> Value:
        """The next tile block: the producer asks for it, consumers receive it.

        It asks behind the loads of the tile block before. Ahead of them nobody would know yet who is free first: with
        two tile blocks for each thread block, all second ones are taken at once, by whoever has the longest as well.
        """
        builder, limited = self._walk.builder, self._walk.plan.limited
        pipeline, through = self._walk.pipelines.tiles, self._walk.pipelines.numbers
        if self._walk.producing:
            taken = builder.value(ops.NextTile(total=self.total), "taken")
            following = builder.value(Add(x=taken, y=self.step))
            number = builder.value(ops.Uniform(x=following), "next_tile")
            builder.add(ops.SendTile(pipeline, through, counter, number, limited=limited))
            return number
        builder.add(ops.PipelineWait(pipeline, counter, limited=limited))
        number = builder.value(ops.ReceiveTile(pipeline, through, counter), "next_tile")
        builder.add(ops.PipelineRelease(pipeline, counter, builder.constant(True, bool_), warps=True))
        return number

    def _count(self) -> Value:
        """All tile blocks, or clusters of them."""
        builder, tiles = self._walk.builder, self._walk.plan.tiles
        counts = [builder.value(NumTileBlocks(axis=axis)) for axis in range(3)]
        if tiles.cluster > 1:
            rounded = builder.value(Add(x=counts[tiles.along], y=builder.constant(tiles.cluster - 1)))
            counts[tiles.along] = builder.value(FloorDiv(x=rounded, y=builder.constant(tiles.cluster)))
        return builder.value(Mul(x=counts[0], y=builder.value(Mul(x=counts[1], y=counts[2]))))

    def hoist(self, loop: For) -> list[Value]:
        """The bounds of a loop, ahead of all tile blocks: they are the same for all."""
        context, bounds = self._walk, (loop.start, loop.stop, loop.step)
        work = work_of(bounds, context.definitions)
        context.operations([op for op in context.function.body.operations if op in work])
        context.builder.location = None
        return [context.lowered[value] for value in bounds]


class Indices:
    """The indices of a tile block, by the user's names.

    Attributes:
        late: what is found under the main loop's first product: numbers made from the index; None where the kernel
            needs them earlier.
    """

    def __init__(self, walk: WarpSpecialised) -> None:
        self._walk = walk
        self.late = _late(walk.function, walk.plan)

    def add(self, number: Value) -> None:
        """Find the index of the tile block with that number."""
        tiles = self._walk.plan.tiles

        def index(axis: int) -> Op:
            return TileIndex(
                number=number,
                axis=axis,
                rows=tiles.rows,
                columns=tiles.columns,
                group=tiles.grouped,
                cluster=tiles.cluster,
                along=tiles.along,
                backwards=axis in tiles.order.backwards,
            )

        beside = [tiles.along] if tiles.cluster > 1 else []  # the last of a cluster may be beyond the grid
        self._walk.make_block_ids(index, beside)

    # Numbers made from the index: under the first product, where nothing waits for them.

    def late_values(self) -> list[Value]:
        """Values like those that are found late."""
        if self.late is None:
            return []
        indices = [Value(TileType(i32), index.name) for index in self._walk.block_ids.values()]
        return [*indices, *(Value(value.type, value.name) for value in self._numbers())]

    def _numbers(self) -> list[Value]:
        late = self.late or []
        return [value for op in late for value in op.results if not isinstance(op, TileBlockId)]

    def found(self, is_known: Value, values: Sequence[Value], number: Value) -> tuple[Value, ...]:
        """`values` where they are known.

        Else they are worked out, of the tile block with that number.
        """
        if self.late is None or not values:
            return ()
        context, builder = self._walk, self._walk.builder

        def find() -> Sequence[Value]:
            self.add(number)
            context.operations(self.late or ())
            builder.location = None
            return (*context.block_ids.values(), *(context.lowered[value] for value in self._numbers()))

        results = builder.branch(is_known, lambda: values, find)
        for result, value in zip(results, values, strict=True):
            result.name = value.name
        return results

    def settle(self, values: Sequence[Value]) -> None:
        """From here on, the numbers are these."""
        if self.late is None or not values:
            return
        context = self._walk
        context.lowered.update(zip(self._numbers(), values[len(context.block_ids) :], strict=True))
        context.block_ids = dict(zip(context.block_ids, values, strict=False))
        for op in self.late:
            if isinstance(op, TileBlockId):
                context.lowered[op.result] = context.block_ids[op.axis]


def _late(source: Function, plan: Plan) -> list[Op] | None:
    """What stands before the main loop, and can wait until it is over.

    Numbers made from the tile block's index.

    None where something else before it, or the loop itself, needs them; or where no first product goes on by itself.
    """
    loop = plan.mainloop
    if loop is None or plan.dot.promote_interval or plan.dot.simt:
        return None
    operations = source.body.operations
    late: list[Op] = []
    values: set[Value] = set()
    for op in operations[: operations.index(loop)]:
        if op in plan.guards:
            continue
        if isinstance(op, TileBlockId) or any(value in values for value in reads(op)):
            if not is_scalar_work(op):
                return None
            late.append(op)
            values.update(op.results)
        elif any(isinstance(nested, LoadMut | StoreMut) for nested in (op, *inside(op))):  # of this block's own tile
            return None
    return None if any(value in values for value in loop.operands) else late
