"""Loops and branches of the two roles, with the counters of their pipelines.

Both roles walk loops and branches with loads. The main loop of the consumers multiplies by warpgroups, adding to the
accumulator at once or some iterations apart from it, or by fused multiply-adds:

    for k in a..b:
        wait for the stage of k; begin its product; wait for the product before; release the stage of k - 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutile.backend.cuda import ops
from cutile.backend.cuda.pipeline.operand import loads_of
from cutile.backend.cuda.pipeline.plan import Dot
from cutile.backend.cuda.pipeline.products import Products
from cutile.backend.gpu.op_facts import reads
from cutile.ir.control import For, If, While
from cutile.ir.core import Block, Op, Value
from cutile.ops.arith import Add, Max, Min, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Lt, Ne, Select
from cutile.ops.memory import StoreMut
from cutile.ops.view import StoreView

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


MAX_UNDEF_SUMS = 112
"""Sums of a thread that may have registers all the time beside a left operand, or beside the whole of an epilogue."""


@dataclass(frozen=True)
class Mainloop:
    """The consumers' share of the main loop."""

    walk: WarpSpecialised
    loop: For

    @property
    def _dot(self) -> Dot:
        return self.walk.plan.dot

    @property
    def _counter(self) -> Value:
        return self.walk.pipelines.counters[0]

    def _set_counter(self, counter: Value) -> None:
        self.walk.pipelines.set_counters([0], [counter])

    def add(self) -> None:
        """The loop, and the sums of all its pieces."""
        context, builder, loop, dot = self.walk, self.walk.builder, self.loop, self._dot
        builder.location = loop.location
        bounds = context.bounds(loop)
        if dot.simt:
            sums = self._simt(bounds)
        elif dot.promote_interval:
            sums = self._promoted(self._first_sums(blank=False), bounds)
        else:
            blank = self._starts_undefined
            sums = self._iterations(self._first_sums(blank=blank), bounds, fresh=blank)
            if blank:
                ran = builder.value(Lt(x=bounds[0], y=bounds[1]))
                sums = context.add_in(ops.ZeroUnless(x=sums, condition=ran), dot.accumulator)
        if context.split:
            sums = context.split.added_up(sums)
        context.place(loop.results[0], sums, dot.accumulator)

    @property
    def _starts_undefined(self) -> bool:
        """Whether the first product may replace the accumulator, which starts from zeros.

        Not where registers are few: those that nobody sets are taken for used from the kernel's begin to its end, also
        where the sums of one tile have been done with and those of the next have not begun.
        """
        dot = self._dot
        beside = dot.a_from_registers or self._epilogue_holds_tiles
        few = self.walk.plan.narrow or (beside and dot.accumulator.registers > MAX_UNDEF_SUMS)
        return dot.fresh and not dot.promote_columns and not few

    @property
    def _epilogue_holds_tiles(self) -> bool:
        """Whether what follows computes whole tiles of the sums' size.

        A softmax of rows does. Such tiles have no subtiles.
        """
        operations, sums = self.walk.function.body.operations, self.loop.results[0].tile
        after = operations[operations.index(self.loop) + 1 :]
        return any(op.results and op.result.tile == sums and not isinstance(op, Convert) for op in after)

    def _first_sums(self, *, blank: bool) -> Value:
        """The accumulator's start, in registers that the loop does not make anew."""
        context, loop, accumulator = self.walk, self.loop, self._dot.accumulator
        if blank:
            acc = loop.carried[0].tile
            sums = context.add_in(ops.Undef(dtype=acc.dtype, shape=acc.shape), accumulator)
        else:
            start = context.converted(context.lowered[loop.carried[0]], context.layouts[loop.results[0]], accumulator)
            sums = context.add_in(ops.OptimizationBarrier(x=start), accumulator)
        sums.name = loop.results[0].name
        return sums

    def _iterations(self, sums: Value, bounds: Sequence[Value], *, fresh: bool) -> Value:
        """Add products to sums, and finish them.

        To nothing where the sums are `fresh`.
        """
        context, builder, dot, indices = self.walk, self.walk.builder, self._dot, self.walk.indices
        pipelines, delayed, (start, stop, step) = context.pipelines, context.epilogue.delayed, bounds
        counter, acc = Value(self._counter.type, "counter"), Value(sums.type, sums.name)
        groups = dot.steps if dot.a_from_registers else 1
        late = indices.late_values()
        if delayed:
            delayed.write_before(start, stop, step)
        with builder.block(Value(start.type, self.loop.induction.name), acc, counter, *late) as body:
            iteration = body.arguments[0]
            builder.location = dot.op.location
            later = builder.value(Ne(x=iteration, y=start))
            pipelines.wait(0, counter)
            product = self._multiply(acc, counter, (later,) if fresh else ())
            if delayed:
                delayed.write_under(iteration, start, step)
            indices_found = indices.found(later, late, self.walk.tiles.number)
            builder.location = dot.op.location
            waited = context.add_in(ops.WgmmaWait(acc=product, pending=1, groups=groups), dot.accumulator)
            pipelines.release_before(0, counter, later)
            builder.yield_(waited, pipelines.after(counter), *indices_found)
        builder.location = self.loop.location
        carried = (sums, self._counter, *(builder.constant(0, value.tile.dtype) for value in late))
        done = context.add(For(start=start, stop=stop, step=step, carried=carried, body=body))
        self._set_counter(done.results[1])
        if self.walk.plan.pingpong:
            builder.add(ops.OrderBarrierArrive(self.walk.pipelines.more_barriers))
        settled = context.add_in(ops.WgmmaWait(acc=done.results[0], pending=0, groups=groups), dot.accumulator)
        ran = builder.value(Lt(x=start, y=stop))
        indices.settle(indices.found(ran, done.results[2:], self.walk.tiles.number))
        self.walk.pipelines.release_before(0, self._counter, ran)
        return settled

    def _multiply(self, acc: Value, counter: Value, added: tuple[Value, ...]) -> Value:
        dot, buffers = self._dot, self.walk.pipelines.buffers[0]
        a, b = (dot.op.b.tile, dot.op.a.tile) if dot.swap_ab else (dot.op.a.tile, dot.op.b.tile)
        dtypes = {"left_dtype": a.dtype, "right_dtype": b.dtype, "depth": dot.op.a.tile.shape[1]}
        how = {"promote_columns": dot.promote_columns, "a_from_registers": dot.a_from_registers, "swap_ab": dot.swap_ab}
        return self.walk.add_in(ops.Wgmma(acc, *buffers, counter, added, **dtypes, **how), dot.accumulator)

    def _promoted(self, sums: Value, bounds: Sequence[Value]) -> Value:
        """Some iterations at a time, whose products are added apart from the sums.

        The tensor cores add them.

        Of two warpgroups the second one has fewer iterations the first time, so that from there on the one multiplies
        while the other waits for its products and adds them. What the first product of some iterations replaces is what
        the last ones left: registers that nobody sets would be taken for used from the kernel's begin to its end.
        """
        context, builder, promote_interval = self.walk, self.walk.builder, self._dot.promote_interval
        start, stop, step = bounds
        many = builder.value(Mul(x=step, y=builder.constant(promote_interval)))
        fewer, begin = promote_interval // self.walk.plan.warpgroups, start
        if self.walk.plan.warpgroups > 1 and fewer:
            iterations = builder.value(Mul(x=builder.value(ops.WarpgroupIndex()), y=builder.constant(fewer)))
            earlier = builder.value(Sub(x=start, y=builder.value(Mul(x=iterations, y=step))))
            begin = builder.value(Select(condition=builder.value(Lt(x=start, y=stop)), x=earlier, y=start))
        before = self._counter
        first, acc, counter = Value(start.type, "first"), Value(sums.type, sums.name), Value(before.type, "counter")
        apart = Value(sums.type, "apart")
        self._set_counter(counter)
        with builder.block(first, acc, apart, counter) as body:
            beyond = builder.value(Min(x=builder.value(Add(x=first, y=many)), y=stop))
            within = first if begin is start else builder.value(Max(x=first, y=start))
            partial = self._iterations(apart, [within, beyond, step], fresh=True)
            added = context.add_in(Add(x=acc, y=partial), self._dot.accumulator)
            builder.yield_(added, partial, self._counter)
        builder.location = self.loop.location
        done = context.add(For(start=begin, stop=stop, step=many, carried=(sums, sums, before), body=body))
        self._set_counter(done.results[2])
        return done.results[0]

    def _simt(self, bounds: Sequence[Value]) -> Value:
        """Products by fused multiply-adds.

        Each warp gives up a stage as soon as it has read it.
        """
        context, builder, dot, loop = self.walk, self.walk.builder, self._dot, self.loop
        pipelines, (left, right), (start, stop, step) = context.pipelines, context.pipelines.buffers[0], bounds
        sums = context.converted(context.lowered[loop.carried[0]], context.layouts[loop.results[0]], dot.accumulator)
        counter = Value(self._counter.type, "counter")
        acc = context.copy(loop.body.arguments[1])
        with builder.block(context.copy(loop.induction), acc, counter) as body:
            builder.location = dot.op.location
            pipelines.wait(0, counter)
            product = ops.SimtMma(acc, left, right, counter, depth=dot.op.a.tile.shape[1])
            added = context.add_in(product, dot.accumulator)
            pipelines.release(0, counter)
            builder.yield_(added, pipelines.after(counter))
        builder.location = loop.location
        done = context.add(For(start=start, stop=stop, step=step, carried=(sums, self._counter), body=body))
        self._set_counter(done.results[1])
        done.results[0].name = loop.results[0].name
        return done.results[0]


@dataclass
class Nests:
    """The nests of one role.

    The producer has no `products`, and carries the numbers that it needs.
    """

    walk: WarpSpecialised
    products: Products | None

    def add(self, op: Op) -> None:
        """A loop or a branch."""
        if self.products is not None:
            self.products.enter_nest()
            self.products.read(reads(op))
        used = self._used(op)
        self.walk.builder.location = op.location
        if isinstance(op, For):
            self._loop(op, used)
        elif isinstance(op, While):
            self._while(op, used)
        else:
            assert isinstance(op, If)
            self._branch(op, used)

    def _used(self, op: Op) -> list[int]:
        """The pipelines whose stages are counted inside."""
        inside = {nested for block in op.regions for nested in block.walk()}
        used = {group.pipeline for load, group in self.walk.plan.groups.items() if load in inside}
        verdict = self.walk.plan.verdict
        if verdict is not None and any(isinstance(nested, StoreMut | StoreView) for nested in inside):
            used.add(verdict)
        return sorted(used)

    def _places(self, op: Op) -> Sequence[int]:
        """Which of a nest's values this role carries.

        Consumers all, the producer the numbers that it needs.
        """
        return self.walk.plan.slice.carried[op] if self.products is None else range(len(op.results))

    def _loop(self, op: For, used: Sequence[int]) -> None:
        context, builder, pipelines, products = self.walk, self.walk.builder, self.walk.pipelines, self.products
        places = self._places(op)
        carried = [self._initial(op, at) for at in places]
        before = [pipelines.counters[number] for number in used]
        arguments = [context.copy(op.body.arguments[1 + at]) for at in places]
        counters = [Value(value.type, "counter") for value in before]
        start, stop, step = context.bounds(op)
        deferred = products is not None and self._only_multiplies(op)
        multiplied = [number for number in used if number not in self.walk.plan.aside]
        context.loops += 1
        with builder.block(context.copy(op.induction), *arguments, *counters) as body:
            pipelines.set_counters(used, counters)
            self.walk.run_block(op.body, keep=deferred)
            if products is not None and deferred:
                later = builder.value(Ne(x=context.lowered[op.induction], y=start))
                held = [counters[used.index(number)] for number in multiplied]
                dots = sum(nested in context.plan.dots for nested in op.body.operations)
                products.settle_last_iteration(later, held, multiplied, dots)
            self._yield(op, op.body, used)
        context.loops -= 1
        done = builder.add(For(start=start, stop=stop, step=step, carried=(*carried, *before), body=body))
        self._finish(op, done, used)
        if products is not None and deferred:
            # Whether there was an iteration: each took a stage of every pipeline. A loop may also count down.
            number = multiplied[0]
            ran = builder.value(Ne(x=pipelines.counters[number], y=before[used.index(number)]))
            products.settle_loop(op, op.body.terminator.operands, multiplied, ran)

    def _only_multiplies(self, op: For) -> bool:
        """Whether a loop only adds products to what it carries."""
        plan = self.walk.plan
        skipped = {*plan.staged, *plan.passed}
        body = op.body.operations[:-1]
        dots = [nested for nested in body if nested in plan.dots]
        sums = {value for dot in dots for value in (dot.operands[2], *dot.results)}
        ours = {*op.body.arguments[1:], *(value for dot in dots for value in dot.results)}
        chained = all(dot.operands[2] in ours and plan.dots[dot].left is not None for dot in dots)
        aside = skipped | plan.guards | plan.slice.needed
        others = [nested for nested in body if nested not in plan.dots and nested not in aside]
        apart = not any(other.regions or sums.intersection(other.operands) for other in others)
        loads = loads_of(operand for dot in dots for operand in plan.dots[dot].operands)
        return bool(dots) and chained and apart and loads <= set(body)

    def _initial(self, op: For, at: int) -> Value:
        """What a loop begins with.

        Sums in registers that the compiler does not make anew in each iteration.
        """
        context, start = self.walk, op.carried[at]
        value, acc = context.lowered[start], op.body.arguments[1 + at]
        if not any(dot.op.acc is acc for dot in context.plan.dots.values()):
            return value
        return context.add_in(ops.OptimizationBarrier(x=value), context.layouts[start])

    def _while(self, op: While, used: Sequence[int]) -> None:
        context, builder, pipelines = self.walk, self.walk.builder, self.walk.pipelines
        places = self._places(op)
        carried = [context.lowered[op.carried[at]] for at in places]
        before = [pipelines.counters[number] for number in used]
        context.loops += 1
        blocks: list[Block] = []
        for source in (op.condition, op.body):
            arguments = [context.copy(source.arguments[at]) for at in places]
            counters = [Value(value.type, "counter") for value in before]
            with builder.block(*arguments, *counters) as block:
                pipelines.set_counters(used, counters)
                self.walk.run_block(source)
                if source is op.condition:
                    builder.yield_(context.lowered[source.terminator.operands[0]])
                else:
                    self._yield(op, source, used)
            blocks.append(block)
        context.loops -= 1
        done = builder.add(While(carried=(*carried, *before), condition=blocks[0], body=blocks[1]))
        self._finish(op, done, used)

    def _branch(self, op: If, used: Sequence[int]) -> None:
        builder, pipelines = self.walk.builder, self.walk.pipelines
        before = list(pipelines.counters)
        blocks: list[Block] = []
        for source in (op.then, op.orelse):
            pipelines.counters = list(before)
            with builder.block() as block:
                self.walk.run_block(source)
                self._yield(op, source, used)
            blocks.append(block)
        pipelines.counters = before
        done = builder.add(If(condition=self.walk.lowered[op.condition], then=blocks[0], orelse=blocks[1]))
        self._finish(op, done, used)

    def _yield(self, op: Op, source: Block, used: Sequence[int]) -> None:
        context = self.walk
        values = [context.lowered[source.terminator.operands[at]] for at in self._places(op)]
        context.builder.location = op.location
        context.builder.yield_(*values, *(self.walk.pipelines.counters[number] for number in used))

    def _finish(self, op: Op, done: Op, used: Sequence[int]) -> None:
        results = [op.results[at] for at in self._places(op)]
        for old, new in zip(results, done.results, strict=False):
            new.name = old.name
            self.walk.lowered[old] = new
        self.walk.pipelines.set_counters(used, done.results[len(results) :])
