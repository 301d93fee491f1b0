"""Lowering to a producer warp and consumer warpgroups, as `plan.py` says.

    %query = cuda.buffer() ...   %pipeline = cuda.pipeline(%query)   ...
    cuda.roles() {warpgroups = 2} {
      if elected: for tile in first..all by step: acquire; load query; for k in a..b: acquire; load key; ...
    } {
      for tile in first..all by step:
        wait for query
        for k in a..b: wait for key; s = dot(query, key); s = dot_wait(s); release key; ... the loop's other work
        release query; ... the rest of the kernel
    }

Both roles walk the same operations in the same order, and count the stages of each pipeline alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.cuda import ops
from cutile.backend.cuda.grids import COUNTERS
from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.op_lowering import load_in, lower_operation
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.cuda.pipeline.accumulators import part_layout
from cutile.backend.cuda.pipeline.epilogue import Epilogue
from cutile.backend.cuda.pipeline.loops import Nests
from cutile.backend.cuda.pipeline.operand import Operand, loads_of
from cutile.backend.cuda.pipeline.pipelines import Pipelines, TensorMaps
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.pipeline.products import Products, in_words
from cutile.backend.cuda.pipeline.schedule import SplitK, shared_along
from cutile.backend.cuda.pipeline.split_k import DividedLoop
from cutile.backend.cuda.pipeline.subtiles import cut_epilogue, epilogue_of_part, with_operations
from cutile.backend.cuda.pipeline.tile_scheduler import Indices, TileScheduler
from cutile.backend.cuda.smem_layout import WARPGROUP
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout import Layout, round_up
from cutile.backend.gpu.op_facts import inside, reads
from cutile.dtypes import i32
from cutile.ir import Block, For, Function, Op, TileType, Value, While
from cutile.ops.compare import Lt, Select
from cutile.ops.grid import NumTileBlocks
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.shape import Permute
from cutile.ops.view import StoreView

# Assertions in a kernel of specialised warps.
#
# The producer tests the assertions. If one fails, the thread block stores nothing more.
#
#     assert(e < count)     the producer writes the launch's report, sets a flag, and goes on, since others wait for it
#     z.store(t)            the producer arrives at the verdict; consumers wait for it and read the flag
#
# The verdict is a pipeline without buffers. Its full barrier tells consumers that the producer has tested all
# assertions ahead of a store. In a kernel with a main loop the producer tests all assertions ahead of the tile block's
# loads, and those of an iteration ahead of the iteration's loads. So the full stages of a tile block imply that its
# assertions were tested. Only a tile block without iterations has no stages: there the verdict stands behind the loop.


class WarpSpecialised(LoweringContext):
    """The lowering of both roles, one after the other.

    The producer's lowers loads and the operations that they need, the consumers' all operations.
    """

    early = True  # programmatic dependent launch: the kernel ahead may still write what this one reads

    def __init__(self, source: Function, plan: Plan, arch: Architecture) -> None:
        whole, parts = _in_subtiles(source, plan)
        function = whole if parts is None else with_operations(whole, [*whole.body.operations, parts])
        super().__init__(function, round_up(4 * plan.warpgroups), arch, _accumulators(function, plan))
        # Not of `function`: its epilogue of parts runs in place of the whole one, and stores nothing a second time.
        # `aliased`: raw addresses may reach these tensors, too.
        self.shared_tensors = self.find_shared_tensors(whole) | self.aliased
        self.plan, self.warps = plan, 4 * plan.warpgroups
        self._skipped = plan.skipped
        self._product_loads = loads_of(operand for dot in plan.dots.values() for operand in dot.operands)
        self.words = in_words(function, plan)
        self.maps = TensorMaps()
        self.pipelines = Pipelines(self)
        self.indices = Indices(self)
        self.split = None if plan.split is None else DividedLoop(self, plan.split, parts)
        self._hoisted = set[Op]() if self.split is None else self.split.hoisted
        self.tiles = TileScheduler(self)
        self.epilogue = Epilogue(self)
        self._products = Products(self)
        self.producing = False
        # The flag as it was read last: ahead of the store that is being lowered, or behind the main loop.
        self._failed: Value | None = None

    def run(self) -> Function:
        """The lowered function."""
        source, plan, builder, schedule = self.function, self.plan, self.builder, self.plan.split
        divided = f"no: {plan.tiles.schedule.undivided}" if not isinstance(plan.tiles.schedule, SplitK) else ""
        with builder.block(*(self.copy(value) for value in source.parameters)) as body:
            maps = [(operand.load.x, operand.map) for dot in plan.dots.values() for operand in dot.operands]
            maps += [(store.op.x, store.map) for store in plan.stores.values()]
            for tensor, form in dict.fromkeys(maps):
                builder.add(ops.TmaPrefetch(x=self.lowered[tensor], map=self.maps.name(tensor, form)))
            self.pipelines.reserve()
            # The kernel ahead in the stream may still write what this one reads, or read what this one writes. Nothing
            # above touches a tensor's elements.
            builder.add(ops.GridDependencyWait())
            if plan.clustered:
                # Other thread blocks arrive at this one's barriers. They must not do so before these are initialised.
                builder.add(ops.ClusterStart())
            blocks: list[Block] = []
            for role in (self._produce, self._consume):
                with builder.block() as block:
                    role()
                    builder.yield_()
                blocks.append(block)
            builder.add(ops.Roles(*blocks, warpgroups=plan.warpgroups))
            if plan.tiles.cluster > 1:
                # Others may still load into this thread block's shared memory, or arrive at its barriers. Not so in a
                # cluster that adds up parts: a thread block ends when it has received all that others send it.
                builder.add(ops.ClusterEnd())
        lowered = Function(source.name, body, source.source, source.file, "cuda")
        # Both look at all operations: which fences loops need, then where in shared memory each operation works.
        self.smem.relax((op.body for op in lowered.walk() if isinstance(op, For | While)), ops.Barrier)
        self.smem.place()
        lowered.facts = self.facts(
            threads=plan.threads,
            min_blocks=plan.occupancy,
            early="always",
            **({"persistent": 1, "divided": divided} if self.split is None else self.split.facts()),
            cluster=schedule.pieces if schedule is not None and plan.parts else plan.tiles.cluster,
            computing=WARPGROUP * plan.warpgroups,
            **({"rolled": True} if plan.mainloop is None else {}),  # LLVM must not unroll the producer's loops
            # Thread blocks take tile blocks from a counter in the workspace. The counters are words of 4 bytes.
            **({"workspace": 4 * COUNTERS} if plan.tiles.order.taken else {}),
            **({"speaks": True} if plan.limited else {}),  # a wait that lasts too long prints
            tensor_maps=self.maps.facts(source),
        )
        return lowered

    def _produce(self) -> None:
        """Lower the producer.

        One elected thread runs all of it, since one thread issues a load by TMA.
        """

        def tile() -> None:
            self.indices.add(self.tiles.number)
            self.run_block(self.function.body)
            self._ask_behind_loop()

        if self.plan.registers[0]:  # 0: as launched
            self.builder.add(ops.SetMaxRegisters(count=self.plan.registers[0], grow=False))
        self.producing, self._nests = True, Nests(self, None)
        elected = self.builder.value(ops.Elected(warpgroups=self.plan.warpgroups))
        self.builder.branch(elected, lambda: self.tiles.run(tile))
        self.producing = False

    def _consume(self) -> None:
        plan, delayed = self.plan, self.epilogue.delayed
        if plan.registers[1]:
            self.builder.add(ops.SetMaxRegisters(count=plan.registers[1], grow=True))
        carried = delayed.nothing() if delayed else ()
        self._nests = Nests(self, self._products)
        self.tiles.run(self._consume_tile, groups=plan.warpgroups if plan.pingpong else 1, carried=carried)
        if plan.stores:
            # TMA may still read shared memory, which is gone when the thread block ends.
            self.builder.add(ops.TmaStoreWait())

    def _consume_tile(self) -> None:
        """Lower all operations.

        The index of the tile block is computed under the first product, unless it is needed earlier.
        """
        plan, tiles, late = self.plan, self.tiles, self.indices.late
        if plan.pingpong:
            barriers = self.pipelines.more_barriers
            # The other warpgroup first issues all products of its tile block, and then arrives (`loops.py`). So one
            # warpgroup at a time has the tensor cores.
            self.builder.add(ops.OrderBarrierWait(tiles.number, tiles.step, barriers, limited=plan.limited))
        if late is None:
            self.indices.add(tiles.number)
        hoisted_or_late = {*(late or ()), *self._hoisted}
        parts = None if self.split is None else self.split.parts_loop
        operations = [op for op in self.function.body.operations if not op.terminates and op is not parts]
        epilogue_begin = max(place for place, op in enumerate(operations) if plan.dots.keys() & {op, *inside(op)}) + 1
        with self._products.block():
            self.operations([op for op in operations[:epilogue_begin] if op not in hoisted_or_late])
            self._products.release_all()
            self._ask_behind_loop()
            self._finish_in_grid([op for op in operations[epilogue_begin:] if op not in hoisted_or_late])

    # The epilogue of a tile block.

    def _finish_in_grid(self, operations: Sequence[Op]) -> None:
        """Lower the epilogue, and skip it where the tile block lies beyond the grid.

        The last thread block of a cluster may have no tile block. A tensor may have a tile there all the same, since a
        launch may cover a part of it. That tile must not be written.
        """
        tiles, builder = self.plan.tiles, self.builder
        if tiles.cluster == 1:
            self._finish_tile(operations)
            return
        # Ahead of the branch: thread blocks without a tile block wait for their products and release stages, too.
        self._products.settle_all()
        builder.location = None  # no line of the user's
        count = builder.value(NumTileBlocks(axis=tiles.along))
        exists = builder.value(Lt(x=self.block_ids[tiles.along], y=count))

        def finish() -> None:
            self._finish_tile(operations)
            builder.location = None

        builder.branch(exists, finish)

    def _finish_tile(self, operations: Sequence[Op]) -> None:
        if self.epilogue.delayed is not None:
            self.epilogue.delayed.finish(operations)
        elif self.split is not None:
            self.split.finish(operations)
        else:
            self.operations(operations)

    # Failed assertions.

    def _ask(self) -> None:
        """Lower the verdict of the assertions that stand ahead of this place.

        The producer signals that it has tested them. Consumers wait for the signal, and read the flag.
        """
        number, pipelines = self.plan.verdict, self.pipelines
        assert number is not None
        counter = pipelines.next_stage(number)
        if self.producing:
            pipelines.acquire(number, counter, nbytes=0)
            return
        pipelines.wait(number, counter)
        if self.plan.asks_at_stores:  # behind a main loop the flag is read with and without iterations
            self._read_flag()
        pipelines.release(number, counter)

    def _ask_behind_loop(self) -> None:
        """Ask for failed assertions behind a main loop.

        Consumers have waited for its full stages. Without iterations, the verdict takes their place.
        """
        number, loop, counters = self.plan.verdict, self.plan.mainloop, self.pipelines.counters
        self.builder.location = None  # no line of the user's
        if number is not None and loop is not None:
            start, stop, _ = self.bounds(loop)
            before, ran = counters[number], self.builder.value(Lt(x=start, y=stop))

            def ask() -> Sequence[Value]:
                self._ask()
                return [counters[number]]

            self.pipelines.set_counters([number], self.builder.branch(ran, lambda: [before], ask))
        if not (self.producing or self.plan.asks_at_stores):
            self._read_flag()

    def _read_flag(self) -> None:
        """Read the flag, after a wait that orders it after the producer's assertions."""
        if self.pipelines.flag is not None:
            self._failed = self.builder.value(ops.Failed(self.pipelines.flag), "failed")

    def allowed_index(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """The index of a store: outside of any tensor if an assertion failed."""
        if self._failed is None:
            return index
        outside = self.builder.constant(-1)
        return (self.builder.value(Select(condition=self._failed, x=outside, y=index[0])), *index[1:])

    @property
    def on_failure(self) -> tuple[int, *tuple[Value, ...]]:
        """The thread that reports a failure, and the flag that drops stores from then on.

        No thread leaves: others wait for the loads.
        """
        assert self.pipelines.flag is not None
        return (WARPGROUP * self.plan.warpgroups, self.pipelines.flag)

    # Operations.

    def run_block(self, block: Block, *, keep: bool = False) -> None:
        """Lower a role's part of a block, without its terminator.

        `keep` leaves its products under way at the end.
        """
        plan, operations = self.plan, [op for op in block.operations if not op.terminates]
        if not self.producing:
            with self._products.block(keep=keep):
                self.operations(operations)
            return
        numbers = (plan.slice.needed | plan.guards) - self._hoisted
        # Ahead of a main loop, and in it, assertions come first, with the scalars that they need: a full stage then
        # tells consumers that they were tested.
        asserting = numbers if not plan.asks_at_stores and plan.guards.intersection(operations) else frozenset[Op]()
        self.operations([op for op in operations if op in asserting])
        # The producer tells consumers of failed assertions where they store.
        stores = {op for op in operations if plan.asks_at_stores and isinstance(op, StoreMut | StoreView)}
        rest = [op for op in operations if op in numbers.union(self._skipped, plan.slice.nests, stores) - asserting]
        # Loads that arrive together begin where the first of them stands, since consumers wait for the stage there. So
        # the scalars of all these loads come first. Loads, assertions and verdicts keep the program's order: consumers
        # wait for stages and verdicts in that order. The verdict has `VERDICT_STAGES` stages. If the producer signalled
        # more stores than that ahead of a load, it would wait for consumers that wait for the load.
        ahead = any(plan.groups[op].ahead for op in rest if op in plan.groups)
        self.operations(sorted(rest, key=lambda op: ahead and op not in plan.slice.needed))

    def operation(self, op: Op) -> None:
        """Lower one operation for a role.

        The producer computes no tiles, and consumers test no assertions.
        """
        if op in self._skipped:
            self._take_stage(op)
        elif not self.producing:
            if op not in self.plan.guards:
                self._consume_operation(op)
        elif op in self.plan.slice.nests:
            self._nests.add(op)
        elif isinstance(op, StoreMut | StoreView):
            self._ask()
        else:
            self._lower(op)

    def _consume_operation(self, op: Op) -> None:
        self.epilogue.shuffle_back(op.operands)
        if op in self.plan.slice.nests:
            self._nests.add(op)
            if self.split is not None and op is self.plan.summing:
                self.lowered[op.results[0]] = self.split.added_up(self.lowered[op.results[0]])
        elif isinstance(op, Mma):
            self._products.begin(self.plan.dots[op])
        elif isinstance(op, ops.Subtile):
            self.epilogue.part(op)
        elif isinstance(op, ops.StoreSubtile):
            self.epilogue.store_part(op)
        elif isinstance(op, ops.ReducePartials) and self.split is not None:
            self.lowered[op.result] = self.split.reduced_part(self.lowered[op.x], self.lowered[op.part])
        else:
            # A store by TMA reads the matrix from which its `passed` operations make the stored tile. These are not
            # lowered.
            through = [self.plan.stores[op].value] if op in self.plan.stores else []
            self._products.settle([*reads(op), *through])
            self._products.enter_region(op)
            self._products.read(reads(op))
            self._compute(op)

    def _compute(self, op: Op) -> None:
        if isinstance(op, StoreMut | StoreView) and self.plan.asks_at_stores:
            self._ask()
        if op in self.plan.stores:
            self.epilogue.store(self.plan.stores[op])
        elif isinstance(op, ops.AddTile):
            self.builder.location = op.location
            self.add(self.copied(op), **self.access(op.x.tensor, self.layouts[op.value]))
        else:
            self._lower(op)
        for value in op.results:
            if value in self.words and not op.regions:  # values that control flow carries are words already
                # The new words go to the registers of the previous ones: no product may read these any more.
                self._products.settle_registers(value)
                self.lowered[value] = self._products.packed(value, self.lowered[value])

    def _lower(self, op: Op) -> None:
        """Lower an operation as for one group of warps.

        Loads of tiles with an accumulator's layout are an exception: their accesses are wide (`Epilogue.vector_load`).
        """
        if isinstance(op, LoadTile | LoadMut):
            self.builder.location = op.location
            layout = self.epilogue.vector_load(op) or self.layout(op.result)
            self.lowered[op.result] = load_in(self, op, layout)
        else:
            lower_operation(self, op)

    def bounds(self, loop: For) -> Sequence[Value]:
        """A loop's start, stop and step; those of the piece, where the loop is divided."""
        if self.split is not None and loop is self.plan.summing:
            return self.split.bounds
        return [self.lowered[value] for value in loop.bounds]

    def copy(self, value: Value) -> Value:
        """The lowered counterpart of a value.

        It is a tile of 32-bit words where `in_words` says so.
        """
        if value not in self.words:
            return super().copy(value)
        rows, columns = value.tile.shape
        self.lowered[value] = Value(TileType(i32, (rows, columns * value.tile.dtype.bits // 32)), value.name)
        return self.lowered[value]

    # Loads by TMA.

    def _take_stage(self, load: Op) -> None:
        """Take the next stage of a load's pipeline, at one load of its group.

        Consumers take it at the first load. The producer fills it at the last one, where all indices are known; at the
        first one if they are known there (`Group.ahead`).
        """
        group = self.plan.groups.get(load)
        if group is None or load is not (group.last if self.producing and not group.ahead else group.first):
            return
        if not self.producing:
            self._products.name_stage(group)
            return
        number, pipelines, counter = group.pipeline, self.pipelines, self.pipelines.counters[group.pipeline]
        self.builder.location = group.operands[0].load.location
        pipelines.acquire(number, counter, sum(operand.smem_layout.nbytes for operand in group.operands))
        for operand, buffer in zip(group.operands, pipelines.buffers[number], strict=True):
            self._load_operand(operand, (buffer, pipelines.values[number], counter))
        pipelines.next_stage(number)

    def _load_operand(self, operand: Operand, stage: tuple[Value, Value, Value]) -> None:
        """Load an operand into a stage: its buffer, its pipeline and its counter."""
        load, index = operand.load, tuple(self.lowered[value] for value in operand.index)
        self.builder.location = load.location
        copy = ops.TmaLoad(
            *(self.lowered[load.x], *stage, index),
            map=self.maps.name(load.x, operand.map),
            axis=operand.lead + operand.axis,
            cluster=operand.shared,
            steps=operand.steps,
            shape=() if load.shape == buffer_types(stage[:1])[0].shape else load.shape,
            shared_along=self._shared_along(operand),
        )
        self.builder.add(copy)

    def _shared_along(self, operand: Operand) -> tuple[int, ...] | None:
        """The axes of the grid along which tile blocks load the same tile.

        They decide whether the L2 cache is to evict the tile first (`TmaLoad`). None for no hint: one tile block may
        load the tile twice, or it is a product's operand, which has to stay in the cache for other tile blocks.
        """
        if operand.load in self._product_loads:
            return None
        loops = [nest for nest in self.chains.parents[operand.load] if isinstance(nest, For | While)]
        return shared_along(operand.index, loops, self.definitions)


def _in_subtiles(source: Function, plan: Plan) -> tuple[Function, For | None]:
    """The function with its epilogue in subtiles, and the loop over a cluster's parts.

    The loop is None where no cluster adds up parts.
    """
    loop, whole = plan.summing, source
    if loop is None:
        return source, None
    if plan.subtile:
        whole = cut_epilogue(source, loop, plan.subtile, ahead=not (plan.narrow or plan.dot.simt))
    return whole, epilogue_of_part(source, loop, plan.parts) if plan.parts > 1 else None


def _accumulators(function: Function, plan: Plan) -> list[tuple[Op, Layout]]:
    """The layouts of accumulators, of their parts, and of transposed sums."""
    parts = [op for op in function.walk() if isinstance(op, ops.Subtile | ops.ReducePartials)]
    sums: list[tuple[Op, Layout]] = [(dot.op, dot.accumulator) for dot in plan.dots.values()]
    if plan.mainloop is not None:
        turned = [op for op in function.body.operations if isinstance(op, Permute) and op.x is plan.mainloop.results[0]]
        sums += [(op, plan.dot.accumulator.permute(op.axes)) for op in turned]
    return [*sums, *plan.anchors, *((op, part_layout(plan.dot.accumulator, op.parts)) for op in parts)]
