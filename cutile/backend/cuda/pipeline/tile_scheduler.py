"""The persistent loop over tile blocks, carrying the counter of each pipeline.

    for tile in first..all by step:          where all tile blocks take the same time
    while tile < all: ... tile = next        else: the producer takes one tile block at a time, and sends its number

`schedule.py` decides which of the two it is, and the order of the tile blocks.

A tile block's index is computed from its number by a few divisions, which take some 300 cycles. The tensor cores would
be idle for as long between two tiles. Consumers need the index only in the epilogue, so they compute it while the main
loop's first product is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cutile.backend.cuda import ops
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
    """The loop of one role: of the producer, or of the consumers.

    Attributes:
        number: the number of the current tile block.
        step: the distance from one tile block of a thread block to its next; in a ping-pong kernel, of a warpgroup.
        first: the number of the thread block's first tile block; in a ping-pong kernel, of the warpgroup's.
        total: the number of tile blocks, of clusters of them, or of pieces of them where iterations are divided.
        carried: the values carried beside the counters: inside the loop those of the iteration, after it its results.
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
            tile: adds the operations for a tile block.
            groups: the number of warpgroups with tile blocks of their own (ping-pong); else 1.
            carried: the initial values of `self.carried`.
        """
        builder, pipelines, plan = self._walk.builder, self._walk.pipelines, self._walk.plan
        count, split = self._num_units(), self._walk.split
        self.total = count if split is None else split.work_units(count)
        along = {"cluster": plan.tiles.cluster, "pingpong": groups}
        self.first, self.step = (builder.value(kind(**along)) for kind in (ops.FirstTile, ops.TileStep))
        # In a ping-pong kernel the two warpgroups' tile blocks take turns at the stages of one pipeline. So the counter
        # of the second warpgroup begins after the iterations of the first one's tile block.
        trips = None  # iterations of a tile block's main loop
        if groups > 1:
            # `mainloop_rules.py` alone plans ping-pong. Its only product loads both operands in the loop, so they share
            # a pipeline. It takes no assertions and writes no operands, so there is no other pipeline.
            assert plan.mainloop is not None
            assert len(pipelines.values) + len(pipelines.written) == 1
            start, stop, step = self.hoist(plan.mainloop)
            trips = builder.value(ops.TripCount(start=start, stop=stop, step=step))
        counters = [builder.constant(0) if trips is None else builder.value(ops.FirstIteration(iterations=trips))]
        counters += [builder.constant(0) for _ in (*pipelines.values[1:], *pipelines.written)]
        if plan.tiles.order.taken:
            # Only plans of `rules.py` take tile blocks: they have no ping-pong, and carry no delayed result.
            self._while_there_are(tile, counters)
            return
        number = Value(counters[0].type, "tile")
        pipelines.counters = [Value(counter.type, "counter") for counter in counters]
        self.carried = tuple(Value(value.type, value.name) for value in carried)
        with builder.block(number, *pipelines.counters, *self.carried) as block:
            self._tile(number, tile)
            # Skip the iterations of the other warpgroup's tile block.
            following = [x if trips is None else builder.value(Add(x=x, y=trips)) for x in pipelines.counters]
            builder.yield_(*following, *self.carried)
        loop = For(start=self.first, stop=self.total, step=self.step, carried=(*counters, *carried), body=block)
        self.carried = builder.add(loop).results[len(counters) :]

    def _tile(self, number: Value, tile: Callable[[], None]) -> None:
        walk = self._walk
        self.number = number if walk.split is None else walk.split.tile_of(number)
        # In a loop, operations that use shared memory begin with a barrier: an iteration must not overwrite what other
        # warps still read for the iteration before.
        walk.loops += 1
        tile()
        walk.loops -= 1
        walk.builder.location = None  # no line of the user's computes the next tile block

    def _while_there_are(self, tile: Callable[[], None], counters: Sequence[Value]) -> None:
        """Add the loop in which a free thread block takes the next tile block."""
        builder, pipelines = self._walk.builder, self._walk.pipelines
        number, counter = Value(self.first.type, "tile"), Value(self.first.type, "tile_counter")
        pipelines.counters = [Value(value.type, "counter") for value in counters]
        arguments = [Value(value.type) for value in (number, counter, *counters)]
        # As in MLIR's `scf.while`, each block has arguments of its own; but the condition passes none on to the body.
        with builder.block(*arguments) as condition:
            builder.yield_(builder.value(Lt(x=arguments[0], y=self.total)))
        with builder.block(number, counter, *pipelines.counters) as block:
            self._tile(number, tile)
            following = self._next_tile(counter)
            counted = builder.value(Add(x=counter, y=builder.constant(1)), "tile_counter")
            builder.yield_(following, counted, *pipelines.counters)
        builder.add(While(carried=(self.first, builder.constant(0), *counters), condition=condition, body=block))

    def _next_tile(self, counter: Value) -> Value:
        """The next tile block: the producer takes it from a counter, consumers receive it.

        The producer takes it after the loads of the tile block before. Ahead of those loads, all thread blocks would
        take their second tile block at once, also those whose first one is the longest. After them, the thread block
        that is free first takes the next one.
        """
        builder, limited = self._walk.builder, self._walk.plan.limited
        pipeline, through = self._walk.pipelines.tiles, self._walk.pipelines.numbers
        if self._walk.producing:
            taken = builder.value(ops.NextTile(total=self.total), "taken")
            # The counter starts at 0. The first `step` tile blocks are the thread blocks' first ones.
            following = builder.value(Add(x=taken, y=self.step))
            # TMA reads indices from uniform registers, and they are computed from this number.
            number = builder.value(ops.Uniform(x=following), "next_tile")
            builder.add(ops.SendTile(pipeline, through, counter, number, limited=limited))
            return number
        builder.add(ops.PipelineWait(pipeline, counter, limited=limited))
        number = builder.value(ops.ReceiveTile(pipeline, through, counter), "next_tile")
        # Each warp has read the number by itself, and releases the stage by itself. `Pipelines.reserve` makes the
        # pipeline with as many arrivals.
        builder.add(ops.PipelineRelease(pipeline, counter, builder.constant(True, bool_), warps=True))
        return number

    def _num_units(self) -> Value:
        """The number of tile blocks, or of clusters of them.

        It fits an i32: `grids.py` refuses grids of more than 2**31 - 1 tile blocks.
        """
        builder, tiles = self._walk.builder, self._walk.plan.tiles
        counts = [builder.value(NumTileBlocks(axis=axis)) for axis in range(3)]
        if tiles.cluster > 1:
            rounded = builder.value(Add(x=counts[tiles.along], y=builder.constant(tiles.cluster - 1)))
            counts[tiles.along] = builder.value(FloorDiv(x=rounded, y=builder.constant(tiles.cluster)))
        return builder.value(Mul(x=counts[0], y=builder.value(Mul(x=counts[1], y=counts[2]))))

    def hoist(self, loop: For) -> list[Value]:
        """The bounds of a loop, computed ahead of all tile blocks.

        They do not depend on the tile block.
        """
        walk, work = self._walk, work_of(loop.bounds, self._walk.definitions)
        walk.operations([op for op in walk.function.body.operations if op in work])
        walk.builder.location = None
        return [walk.lowered[value] for value in loop.bounds]


class Indices:
    """The indices of a tile block, by the user's names.

    Attributes:
        late: the operations that compute scalars from the index, lowered under the main loop's first product; None
            where the kernel needs their results earlier.
    """

    def __init__(self, walk: WarpSpecialised) -> None:
        self._walk = walk
        self.late = _late(walk.function, walk.plan)

    def add(self, number: Value) -> None:
        """Compute the index of the tile block with that number."""
        tiles = self._walk.plan.tiles

        def index(axis: int) -> Op:
            return ops.TileIndex(
                number=number,
                axis=axis,
                rows=tiles.rows,
                columns=tiles.columns,
                group=tiles.grouped,
                cluster=tiles.cluster,
                along=tiles.along,
                backwards=axis in tiles.order.backwards,
            )

        # A cluster's last tile block may lie beyond the grid: the epilogue then stores nothing. So it needs the index
        # along this axis even where the kernel does not.
        further = [tiles.along] if tiles.cluster > 1 else []
        self._walk.make_block_ids(index, further)

    # Scalars that depend on the index: computed under the first product, where nothing waits for them.

    def late_values(self) -> list[Value]:
        """Placeholders for the index and the scalars that are computed late."""
        if self.late is None:
            return []
        indices = [Value(TileType(i32), index.name) for index in self._walk.block_ids.values()]
        return [*indices, *(Value(value.type, value.name) for value in self._numbers())]

    def _numbers(self) -> list[Value]:
        return [value for op in self.late or () for value in op.results if not isinstance(op, TileBlockId)]

    def computed(self, is_known: Value, values: Sequence[Value], number: Value) -> tuple[Value, ...]:
        """The late values: `values` if `is_known` holds, else computed now.

        Args:
            is_known: whether an earlier iteration of the main loop has computed them.
            values: the late values that it has computed.
            number: the number of the tile block.
        """
        if not values:  # the kernel needs the index earlier
            return ()
        walk, builder = self._walk, self._walk.builder

        def compute() -> Sequence[Value]:
            self.add(number)
            walk.operations(self.late or ())
            builder.location = None
            return (*walk.block_ids.values(), *(walk.lowered[value] for value in self._numbers()))

        results = builder.branch(is_known, lambda: values, compute)
        for result, value in zip(results, values, strict=True):
            result.name = value.name
        return results

    def settle(self, values: Sequence[Value]) -> None:
        """Use these late values in operations that are lowered from here on."""
        if not values:
            return
        walk, count = self._walk, len(self._walk.block_ids)  # indices come first, the other scalars after them
        walk.lowered.update(zip(self._numbers(), values[count:], strict=True))
        walk.block_ids = dict(zip(walk.block_ids, values[:count], strict=True))
        for op in self.late or ():
            if isinstance(op, TileBlockId):
                walk.lowered[op.result] = walk.block_ids[op.axis]


def _late(source: Function, plan: Plan) -> list[Op] | None:
    """The operations before the main loop that only the epilogue needs.

    They compute the tile block's index, and scalars from it. None where something else before the loop, or the loop
    itself, needs them.
    """
    loop = plan.mainloop
    # With partial accumulators or SIMT products, no product is under way that would hide the work.
    if loop is None or plan.dot.promote_interval or plan.dot.simt:
        return None
    operations = source.body.operations
    late: list[Op] = []
    values: set[Value] = set()
    for op in operations[: operations.index(loop)]:
        if op in plan.guards:  # assertions, which the producer checks
            continue
        if isinstance(op, TileBlockId) or any(value in values for value in reads(op)):
            if not is_scalar_work(op):
                return None
            late.append(op)
            values.update(op.results)
        elif any(isinstance(nested, LoadMut | StoreMut) for nested in (op, *inside(op))):
            return None  # an access of the block's own tile needs the index
    return None if any(value in values for value in loop.operands) else late
