"""Lowering to a producer warp and consumer warpgroups: the plan of `plan.py`, carried out.

%query = cuda.buffer() ...   %pipeline = cuda.pipeline(%query)   ...
cuda.roles() {groups = 2} {
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
from dataclasses import dataclass, field

from cutile.backend.cuda.layout import Layout, group_accumulator, round_up
from cutile.backend.cuda.lower import Lowering
from cutile.backend.cuda.ops import (
    BarriersStart,
    Buffer,
    BulkDrain,
    BulkLoad,
    BulkPrefetch,
    BulkStore,
    Dot,
    DotWait,
    Elected,
    FirstTile,
    FollowOn,
    GroupWait,
    Opaque,
    Pack,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    PipelineWait,
    Registers,
    Roles,
    Scratch,
    TileIndex,
    TileStep,
)
from cutile.backend.cuda.panels import GROUP
from cutile.backend.cuda.pipeline.plan import STORE_BUFFERS, Group, Plan
from cutile.backend.cuda.pipeline.plan import Dot as PlannedDot
from cutile.backend.cuda.placement import carried_groups, is_tile
from cutile.backend.cuda.ring import Ring
from cutile.backend.cuda.specialised.operand import Operand, loads_of
from cutile.backend.cuda.specialised.reads import reads
from cutile.backend.cuda.specialised.record import BARRIER_BYTES
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import TensorMap
from cutile.dtypes import bool_, i32
from cutile.ir.control import For, If
from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.types import TileType
from cutile.ops.arith import Add, Mul, Sub
from cutile.ops.compare import Lt, Ne
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, StoreMut

ROWS_TOGETHER = 12
"""Rows of tile blocks that are gone through column by column: 132 multiprocessors then work on about 12 x 11 tiles."""


@dataclass
class _Use:
    """A stage that consumers have waited for.

    Attributes:
        group: what was loaded there.
        counter: of the stage.
        readers: products that read it.
        left: those that have yet to begin.
        waited: whether consumers have waited for it.
    """

    group: Group
    counter: Value
    readers: int
    left: int
    waited: bool = False


@dataclass
class _Begun:
    """A product under way.

    Attributes:
        result: of the product, in the source.
        value: its lowered sums.
        left: the registers that it reads; None where its left operand is in shared memory.
        uses: the stages that it reads, and those that products read which it adds to.
    """

    result: Value
    value: Value
    left: Value | None
    uses: list[_Use] = field(default_factory=list[_Use])


class WarpSpecialised(Lowering):
    """One walk for the producer, over what its loads need, and one for the consumers, over everything."""

    def __init__(self, function: Function, plan: Plan, arch: Architecture) -> None:
        accumulators = [(dot.op, dot.accumulator) for dot in plan.dots.values()]
        super().__init__(function, round_up(4 * plan.warpgroups), arch, accumulators)
        self._plan = plan
        self._warps = 4 * plan.warpgroups
        self._skipped = {*plan.staged, *plan.passed}
        self._producing = False
        self._maps: dict[tuple[Value, TensorMap], str] = {}
        self._buffers: list[list[Value]] = []
        self._pipelines: list[Value] = []
        self._staging: Value | None = None
        self._counters: list[Value] = []
        self._uses_of: dict[Op, _Use] = {}
        self._under_way: list[_Begun] = []
        self._group_of: dict[Op, Group] = {
            operand.load: group for group in plan.groups.values() for operand in group.operands
        }
        self._words = _in_words(function, plan)
        self._asked = {op.axis: op for op in reversed(list(function.walk())) if isinstance(op, TileBlockId)}

    def _ring(self, op: For) -> Ring | None:
        """Loops have pipelines here, or keep to registers."""
        return None

    def run(self) -> Function:
        """The lowered function."""
        source, plan, builder = self._function, self._plan, self._builder
        shrunk, grown = plan.registers
        with builder.block(*(self._copy(value) for value in source.parameters)) as body:
            for operand in dict.fromkeys(each for group in plan.groups.values() for each in group.operands):
                if (operand.load.x, operand.map) not in self._maps:
                    name = self._map_name(operand.load.x, operand.map)
                    builder.add(BulkPrefetch(x=self._map[operand.load.x], map=name))
            if plan.store is not None:
                builder.add(BulkPrefetch(x=self._map[plan.store.x], map=self._map_name(plan.store.x, self._store_map)))
            self._reserve()
            builder.add(FollowOn())
            with builder.block() as produce:
                if shrunk:
                    builder.add(Registers(count=shrunk, grow=False))
                elected = builder.value(Elected(groups=plan.warpgroups))
                with builder.block() as then:
                    self._producing = True
                    self._tiles()
                    self._producing = False
                    builder.yield_()
                with builder.block() as orelse:
                    builder.yield_()
                builder.add(If(condition=elected, then=then, orelse=orelse))
                builder.yield_()
            with builder.block() as consume:
                if grown:
                    builder.add(Registers(count=grown, grow=True))
                self._tiles()
                if plan.store is not None:
                    builder.add(BulkDrain())
                builder.yield_()
            builder.add(Roles(load=produce, compute=consume, groups=plan.warpgroups))
        lowered = Function(source.name, body, source.source, source.file, "cuda")
        self._arena.place()
        lowered.facts = self._facts(
            threads=plan.threads,
            min_blocks=1,
            early=True,
            persistent=1,
            cluster=1,
            computing=GROUP * plan.warpgroups,
            **({"speaks": True} if plan.limited else {}),  # where a wait lasts too long
            tensor_maps=tuple(
                (name, source.parameters.index(value), form.box, form.swizzle, form.order, form.rounded)
                for (value, form), name in self._maps.items()
            ),
        )
        return lowered

    def _reserve(self) -> None:
        """The buffers, and the barriers of their pipelines."""
        plan, builder, arena = self._plan, self._builder, self._arena
        pipelines: list[tuple[Op, int]] = []
        for number, (operands, stages) in enumerate(zip(plan.operands, plan.stages, strict=True)):
            nbytes = plan.stage_bytes(number)
            place = arena.reserve(stages * nbytes)
            buffers: list[Value] = []
            for operand in operands:
                load, panels = operand.load, operand.panels
                buffer = Buffer(dtype=load.x.tensor.dtype, shape=load.shape, panels=panels.plain, stages=stages)
                self._add(buffer, stage_bytes=nbytes)
                buffer.result.name = f"{load.x.name}_buffer"
                arena.share(buffer, place)
                place += panels.place_bytes
                buffers.append(buffer.result)
            pipeline = builder.add(Pipeline(tuple(buffers), stages=stages, arrivals=plan.warpgroups))
            pipeline.result.name = "_".join(dict.fromkeys(operand.load.x.name for operand in operands)) + "_pipeline"
            self._buffers.append(buffers)
            pipelines.append((pipeline, 2 * stages * BARRIER_BYTES))
        if plan.store is not None:
            scratch = builder.add(Scratch(nbytes=plan.store_bytes))
            scratch.result.name = "staging"
            arena.share(scratch, arena.reserve(plan.store_bytes))
            self._staging = scratch.result
        for pipeline, nbytes in pipelines:  # behind all buffers, which want to be aligned
            arena.share(pipeline, arena.reserve(nbytes))
            self._pipelines.append(pipeline.result)
        builder.add(BarriersStart(tuple(self._pipelines)))

    @property
    def _store_map(self) -> TensorMap:
        panels = self._plan.store_panels
        return TensorMap((panels.length, panels.span), panels.swizzle, (0, 1))

    def _tma_store(self, op: StoreMut) -> None:
        """Have TMA store a tile, by way of shared memory."""
        plan = self._plan
        assert self._staging is not None
        rows, columns = op.value.tile.shape
        layout = group_accumulator((rows, columns), plan.warpgroups)
        value = self._converted(self._map[op.value], self._placement[op.value], layout)
        self._builder.location = op.location
        name = self._map_name(op.x, self._store_map)
        store = BulkStore(self._map[op.x], value, self._staging, self._own_index(op.x.mut), map=name)
        span = plan.store_panels.span
        self._add(store, layout=self._name(layout), piece=0, first=0, begins=True, span=span, buffers=STORE_BUFFERS)

    def _map_name(self, tensor: Value, form: TensorMap) -> str:
        """The name of the parameter with a tensor's map."""
        key = (tensor, form)
        if key not in self._maps:
            taken = sum(each[0] is tensor for each in self._maps)
            self._maps[key] = f"{tensor.name}_map" + (f"_{taken}" if taken else "")
        return self._maps[key]

    # Tile blocks.

    def _tiles(self) -> None:
        """`for tile in first..all by step`, carrying the counter of each pipeline."""
        builder = self._builder
        counts = [builder.value(NumTileBlocks(axis=axis)) for axis in range(3)]
        total = builder.value(Mul(x=counts[0], y=builder.value(Mul(x=counts[1], y=counts[2]))))
        first, step = builder.value(FirstTile(cluster=1)), builder.value(TileStep(cluster=1))
        zeros = [builder.constant(0) for _ in self._pipelines]
        number = Value(first.type, "tile")
        self._counters = [Value(zero.type, "counter") for zero in zeros]
        with builder.block(number, *self._counters) as body:
            self._loops += 1  # what one tile block left in shared memory, other warps may still read in the next
            self._tile_indices(number)
            self._run_block(self._function.body)
            self._loops -= 1
            builder.location = None
            builder.yield_(*self._counters)
        builder.add(For(start=first, stop=total, step=step, carried=tuple(zeros), body=body))

    def _tile_indices(self, number: Value) -> None:
        """The index of the tile block, by the user's names."""
        stored = [op.x.mut.rank for op in self._function.walk() if isinstance(op, StoreMut | LoadMut)]
        self._block_ids = {}
        for axis in sorted({*self._asked, *range(max(stored, default=0))}):
            self._builder.location = self._asked[axis].location if axis in self._asked else None
            index = TileIndex(number=number, axis=axis, rows=0, columns=1, group=ROWS_TOGETHER, cluster=1, along=0)
            name = self._asked[axis].result.name if axis in self._asked else f"block_{axis}"
            self._block_ids[axis] = self._builder.value(index, name)
        self._builder.location = None

    # Blocks.

    def _run_block(self, block: Block, *, keep: bool = False) -> None:
        """What a role does of a block's operations, but for its terminator."""
        held = self._uses_of
        self._uses_of = dict(held)
        for op in block.operations:
            if not op.terminates:
                self._operation(op)
        if not self._producing:
            if not keep:
                self._settle_all()
            for use in {id(use): use for load, use in self._uses_of.items() if load not in held}.values():
                if not use.group.within:
                    self._release(use.group.pipeline, use.counter)
        self._uses_of = held

    def _operation(self, op: Op) -> None:
        if isinstance(op, TileBlockId):
            self._map[op.result] = self._block_ids[op.axis]
        elif op in self._skipped:
            group = self._group_of.get(op)
            if group is not None and op is group.operands[-1 if self._producing else 0].load:
                self._fill_stage(group)
        elif op in self._plan.nests:
            self._nest(op)
        elif self._producing:
            if op in self._plan.needed:
                super()._operation(op)
        elif isinstance(op, Mma):
            self._dot(self._plan.dots[op])
        elif isinstance(op, StoreMut) and op is self._plan.store:
            self._settle(reads(op))
            self._tma_store(op)
        else:
            self._settle(reads(op))
            super()._operation(op)
            for value in op.results:
                if value in self._words:
                    # The registers of the words before may take the new ones when no product reads them any more.
                    self._settle([each.result for each in self._under_way if each.left is not None])
                    self._map[value] = self._packed(value, self._map[value])

    def _packed(self, value: Value, lowered: Value) -> Value:
        """A left operand as it is kept until its product: 32-bit words of two elements."""
        packed = self._add(Pack(x=lowered), layout=self._name(self._layout_of_words(value))).result
        packed.name = lowered.name
        return packed

    def _layout_of_words(self, value: Value) -> Layout:
        rows, columns = value.tile.shape
        return group_accumulator((rows, columns // 2), self._plan.warpgroups)

    def _copy(self, value: Value) -> Value:
        if value not in self._words:
            return super()._copy(value)
        rows, columns = value.tile.shape
        words = Value(TileType(i32, (rows, columns // 2)), value.name)
        self._map[value] = words
        return words

    def _fill_stage(self, group: Group) -> None:
        """The next stage of a group's pipeline: the producer fills it where the last of the loads stands, when all of
        their indices are known; consumers name it where the first does."""
        number = group.pipeline
        counter = self._counters[number]
        if self._producing:
            self._builder.location = group.operands[0].load.location
            nbytes = sum(operand.panels.nbytes for operand in group.operands)
            limited = self._plan.limited
            self._builder.add(PipelineAcquire(self._pipelines[number], counter, nbytes=nbytes, limited=limited))
            for operand, buffer in zip(group.operands, self._buffers[number], strict=True):
                self._load_operand(operand, buffer, self._pipelines[number], counter)
        else:
            loads = loads_of(group.operands)
            dots = self._plan.dots.values()
            readers = sum(any(operand.load in loads for operand in dot.operands) for dot in dots)
            use = _Use(group, counter, readers, readers)
            self._uses_of.update((operand.load, use) for operand in group.operands)
        self._builder.location = None
        self._counters[number] = self._after(counter)

    def _after(self, counter: Value) -> Value:
        return self._builder.value(Add(x=counter, y=self._builder.constant(1)), "counter")

    def _load_operand(self, operand: Operand, buffer: Value, pipeline: Value, counter: Value) -> None:
        load = operand.load
        self._builder.location = load.location
        index = tuple(self._map[value] for value in load.index)
        name = self._map_name(load.x, operand.map)
        axis = operand.lead + operand.axis
        self._builder.add(BulkLoad(self._map[load.x], buffer, pipeline, counter, index, map=name, axis=axis))

    def _nest(self, op: Op) -> None:
        """A loop or a branch with loads in it, which carries the counters of their pipelines."""
        if not self._producing:
            self._settle_all()
            for use in self._uses_of.values():  # ahead of a branch, which may not be taken where another is
                if not use.group.within:
                    self._wait(use)
        inside = {id(each) for block in op.regions for each in block.walk()}
        used = sorted({group.pipeline for load, group in self._plan.groups.items() if id(load) in inside})
        self._builder.location = op.location
        if isinstance(op, For):
            self._nested_loop(op, used)
        else:
            assert isinstance(op, If)
            self._nested_branch(op, used)

    def _nested_loop(self, op: For, used: Sequence[int]) -> None:
        builder = self._builder
        carried = [] if self._producing else [self._initial(op, at) for at in range(len(op.carried))]
        before = [self._counters[number] for number in used]
        arguments = [] if self._producing else [self._copy(value) for value in op.body.arguments[1:]]
        counters = [Value(value.type, "counter") for value in before]
        start, stop, step = (self._map[value] for value in (op.start, op.stop, op.step))
        deferred = not self._producing and self._only_multiplies(op)
        self._loops += 1
        with builder.block(self._copy(op.induction), *arguments, *counters) as body:
            self._set_counters(used, counters)
            self._run_block(op.body, keep=deferred)
            if deferred:
                self._wait_for_last_iteration(builder.value(Ne(x=self._map[op.induction], y=start)), counters, used)
            yields = [] if self._producing else [self._map[value] for value in op.body.terminator.operands]
            builder.location = op.location
            builder.yield_(*yields, *(self._counters[number] for number in used))
        self._loops -= 1
        done = builder.add(For(start=start, stop=stop, step=step, carried=(*carried, *before), body=body))
        self._finish_nest(op, done, used)
        if deferred:
            self._settle_loop(op, builder.value(Lt(x=start, y=stop)), used)

    def _only_multiplies(self, op: For) -> bool:
        """Whether a loop adds products to what it carries, and touches the sums in no other way."""
        body = op.body.operations[:-1]
        dots = [each for each in body if each in self._plan.dots]
        sums = {value for dot in dots for value in dot.results} | set(op.body.arguments[1:])
        chained = all(dot.operands[2] in sums and self._plan.dots[dot].left is not None for dot in dots)
        others = [each for each in body if each not in self._plan.dots and each not in self._skipped]
        apart = not any(each.regions or any(map(is_tile, (*each.operands, *each.results))) for each in others)
        loads = loads_of(operand for dot in dots for operand in self._plan.dots[dot].operands)
        return bool(dots) and chained and apart and loads <= set(body)

    def _wait_for_last_iteration(self, later: Value, counters: Sequence[Value], used: Sequence[int]) -> None:
        """Wait for the products of the iteration before, whose stages are released; this one's go on."""
        under_way, self._under_way = self._under_way, []
        dots = sum(use.readers for use in {id(use): use for each in under_way for use in each.uses}.values())
        first = under_way[0]
        layout = self._name(next(dot.accumulator for dot in self._plan.dots.values() if dot.op.result is first.result))
        waited = self._add(GroupWait(acc=first.value, pending=dots, groups=1), layout=layout).result
        self._map[first.result] = waited
        for number, counter in zip(used, counters, strict=True):
            before = self._builder.value(Sub(x=counter, y=self._builder.constant(1)))
            self._builder.add(PipelineRelease(self._pipelines[number], before, later))

    def _settle_loop(self, op: For, ran: Value, used: Sequence[int]) -> None:
        """Wait for the products of a loop's last iteration, and release its stages."""
        layout_of = {dot.op.result: dot.accumulator for dot in self._plan.dots.values()}
        for result, value in zip(op.results, op.body.terminator.operands, strict=True):
            if value in layout_of:
                wait = DotWait(self._map[result], (), pending=0)
                settled = self._add(wait, layout=self._name(layout_of[value])).result
                self._place(result, settled, layout_of[value])
        for number in used:
            before = self._builder.value(Sub(x=self._counters[number], y=self._builder.constant(1)))
            self._builder.add(PipelineRelease(self._pipelines[number], before, ran))

    def _initial(self, op: For, at: int) -> Value:
        """What a loop begins with: sums in registers that the compiler does not make anew in each iteration."""
        value = self._map[op.carried[at]]
        chained = any(dot.op.acc is op.body.arguments[1 + at] for dot in self._plan.dots.values())
        if not chained:
            return value
        return self._add(Opaque(x=value), layout=self._name(self._placement[op.carried[at]])).result

    def _nested_branch(self, op: If, used: Sequence[int]) -> None:
        builder = self._builder
        before = list(self._counters)
        blocks: list[Block] = []
        for source in (op.then, op.orelse):
            self._counters = list(before)
            with builder.block() as block:
                self._run_block(source)
                yields = [] if self._producing else [self._map[value] for value in source.terminator.operands]
                builder.location = op.location
                builder.yield_(*yields, *(self._counters[number] for number in used))
            blocks.append(block)
        self._counters = before
        done = builder.add(If(condition=self._map[op.condition], then=blocks[0], orelse=blocks[1]))
        self._finish_nest(op, done, used)

    def _finish_nest(self, op: Op, done: Op, used: Sequence[int]) -> None:
        results = () if self._producing else op.results
        for old, new in zip(results, done.results, strict=False):
            new.name = old.name
            self._map[old] = new
        self._set_counters(used, done.results[len(results) :])

    def _set_counters(self, used: Sequence[int], counters: Sequence[Value]) -> None:
        for number, counter in zip(used, counters, strict=True):
            counter.name = "counter"
            self._counters[number] = counter

    # Products.

    def _dot(self, dot: PlannedDot) -> None:
        """Begin a product."""
        op, builder = dot.op, self._builder
        uses: list[_Use] = []
        for operand in dot.operands:
            use = self._uses_of[operand.load]
            if use not in uses:
                uses.append(use)
        if dot.left is None:
            self._settle([op.a])
        acc = None if dot.fresh else self._sums(dot)
        builder.location = op.location
        for use in uses:
            self._wait(use)
        if dot.left is not None:
            rest = [self._buffer(dot.left), self._counter_of(dot.left)]
        else:
            left = self._map[op.a]
            rest = [left if op.a in self._words else self._packed(op.a, left)]
        begun = Dot(
            self._buffer(dot.right),
            self._counter_of(dot.right),
            (*rest, *([] if acc is None else [acc])),
            left_dtype=op.a.tile.dtype,
            right_dtype=op.b.tile.dtype,
            acc_dtype=op.acc.tile.dtype,
            shape=dot.accumulator.shape,
            depth=op.a.tile.shape[1],
            from_registers=dot.left is None,
            fresh=dot.fresh,
        )
        self._add(begun, layout=self._name(dot.accumulator))
        if dot.left is None:
            begun.attributes["source"] = self._name(self._layout_of_words(op.a))
        begun.result.name = op.result.name
        mine = [use for use in uses if use.group.within]
        for use in mine:
            use.left -= 1
        earlier = next((each for each in self._under_way if each.value is acc), None)
        if earlier is not None:  # this product is over when the earlier one is
            self._under_way.remove(earlier)
            mine += earlier.uses
        self._under_way.append(_Begun(op.result, begun.result, rest[0] if dot.left is None else None, mine))
        self._map[op.result] = begun.result

    def _counter_of(self, operand: Operand) -> Value:
        return self._uses_of[operand.load].counter

    def _buffer(self, operand: Operand) -> Value:
        group = self._group_of[operand.load]
        place = [each.load for each in group.operands].index(operand.load)
        return self._buffers[group.pipeline][place]

    def _sums(self, dot: PlannedDot) -> Value:
        """What a product adds to: sums that are under way too, or that may be read."""
        op = dot.op
        value = self._map[op.acc]
        if any(each.value is value for each in self._under_way):
            return value
        return self._converted(value, self._placement[op.acc], dot.accumulator)

    def _wait(self, use: _Use) -> None:
        """Wait for a stage, where nobody has."""
        if use.waited:
            return
        use.waited = True
        pipeline = self._pipelines[use.group.pipeline]
        self._builder.add(PipelineWait(pipeline, use.counter, limited=self._plan.limited))

    def _settle_all(self) -> None:
        self._settle([each.result for each in self._under_way])

    def _settle(self, values: Sequence[Value]) -> None:
        """Wait for the products whose sums these are, and so for all before them; release what they read."""
        wanted = set(values)
        last = max((at for at, each in enumerate(self._under_way) if each.result in wanted), default=-1)
        if last < 0:
            return
        over, self._under_way = self._under_way[: last + 1], self._under_way[last + 1 :]
        layout_of = {dot.op.result: dot.accumulator for dot in self._plan.dots.values()}
        for each in over:
            layout = layout_of[each.result]
            left = () if each.left is None else (each.left,)
            wait = DotWait(each.value, left, pending=len(self._under_way))
            settled = self._add(wait, layout=self._name(layout)).result
            self._place(each.result, settled, layout)
        for use in {id(use): use for each in over for use in each.uses}.values():
            if use.left == 0 and not any(other is use for each in self._under_way for other in each.uses):
                self._release(use.group.pipeline, use.counter)

    def _release(self, number: int, counter: Value) -> None:
        always = self._builder.constant(True, bool_)
        self._builder.add(PipelineRelease(self._pipelines[number], counter, always))


def _in_words(function: Function, plan: Plan) -> frozenset[Value]:
    """The values that are kept as 32-bit words of two elements: left operands that only products and loops take.

    An element of 16 bits in a variable of a loop would have a register of its own.
    """
    lefts = [dot.op.a for dot in plan.dots.values() if dot.left is None]
    carried = [group for op in function.walk() for group in carried_groups(op)]
    words: set[Value] = set()
    for value in lefts:
        chain = {value}
        size = 0
        while size != len(chain):
            size = len(chain)
            chain.update(*(group for group in carried if chain.intersection(group)))
        takers = [op for op in function.walk() if chain.intersection(op.operands)]
        products = {op for op, dot in plan.dots.items() if dot.left is None and dot.op.a in chain}
        if all(op in products or op.terminates or isinstance(op, For) for op in takers):
            words |= chain
    return frozenset(words)
