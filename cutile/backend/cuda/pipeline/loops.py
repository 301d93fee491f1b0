"""Loops and branches of producer and consumers, with the counters of pipelines.

Producer and consumers have the same loops and branches wherever there are loads, since both count the stages: a counter
is carried through each loop and out of each branch. If consumers do nothing in a loop but add products to accumulators,
the tensor cores still work on the products of one iteration while the next one waits for its loads:

    for k in a..b:
        wait for the stage of k; begin its product; wait for the product before; release the stage of k - 1

A kernel's main loop may do three things more. Its first product may replace the accumulator, in place of zeros. The
tensor cores may add some iterations to a partial accumulator, which is then added in f32. The delayed epilogue of the
tile before may run under its products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutile.backend.cuda import ops
from cutile.backend.cuda.pipeline.operand import loads_of
from cutile.backend.cuda.pipeline.plan import Dot
from cutile.backend.cuda.pipeline.products import Products
from cutile.backend.gpu.op_facts import constant_of, reads
from cutile.ir import Block, For, If, Op, Value, While
from cutile.ops.arith import Add, Max, Min, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Lt, Ne, Select
from cutile.ops.memory import StoreMut
from cutile.ops.view import StoreView

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


Values = Sequence[Value]
# A function that adds the operations of a block, and returns the further values that the block carries
# (`Nests._block`).
Inside = Callable[[], Values] | None
NOTHING: Mapping[Value, Value] = {}  # a default of parameters, never changed
MAX_AHEAD_DEPTH = 64
"""Depth of a first product that is begun an iteration ahead. With a greater depth it gains nothing, and spills."""
MAX_UNDEF_SUMS = 112
"""Accumulator registers of a thread that may be live throughout, beside a left operand or an epilogue in one piece."""


@dataclass
class Nests:
    """Lowers the nests of one role: its loops and branches.

    Attributes:
        walk: the lowering of the role.
        products: the products of the consumers; None for the producer, whose loops carry only the scalars that it
            needs.
    """

    walk: WarpSpecialised
    products: Products | None

    def add(self, op: Op) -> None:
        """Lower a loop or a branch."""
        context, used = self.walk, self._used(op)
        if self.products is not None:
            self.products.enter_nest()
            self.products.read(reads(op))
        context.builder.location = op.location
        before = [context.pipelines.counters[number] for number in used]
        if isinstance(op, For):
            self._loop(op, context.bounds(op))
        elif isinstance(op, While):
            carried = [context.lowered[op.carried[at]] for at in self._places(op)]
            condition, body = (self._block(op, source) for source in op.regions)
            self._finish(op, While(carried=(*carried, *before), condition=condition, body=body))
        else:
            assert isinstance(op, If)
            then, orelse = (self._block(op, source) for source in op.regions)
            self._finish(op, If(condition=context.lowered[op.condition], then=then, orelse=orelse))

    def _used(self, op: Op) -> list[int]:
        """The pipelines whose stages are counted inside a nest, by number."""
        plan, nested = self.walk.plan, {inner for block in op.regions for inner in block.walk()}
        used = {group.pipeline for load, group in plan.groups.items() if load in nested}
        if plan.verdict is not None and any(isinstance(inner, StoreMut | StoreView) for inner in nested):
            used.add(plan.verdict)
        if self.products is not None:
            used.update(number for product, number in plan.written_counters.items() if product in nested)
        return sorted(used)

    def _places(self, op: Op) -> Sequence[int]:
        """The positions of a nest's results that this role carries.

        Consumers carry all, the producer the scalars that it needs.
        """
        return self.walk.plan.slice.carried[op] if self.products is None else range(len(op.results))

    def _block(self, op: Op, source: Block, late: Values = (), inside: Inside = None) -> Block:
        """A block of a nest, with the counters of its pipelines.

        Args:
            op: the nest.
            source: its block, in the kernel.
            late: placeholders for further values that the block carries, beside those of the kernel and the counters.
            inside: adds the operations, and returns the further values at the end; None adds the operations of `source`
                and no further values.
        """
        context, pipelines, used, places = self.walk, self.walk.pipelines, self._used(op), self._places(op)
        # 1 for the variable of a `For`, 0 for a `While`. The blocks of an `If` have no arguments.
        own = len(source.arguments) - len(op.results)
        arguments = [context.copy(value) for value in source.arguments[: max(own, 0)]]
        arguments += [context.copy(source.arguments[own + at]) for at in places if source.arguments]
        before, loops = [pipelines.counters[number] for number in used], not isinstance(op, If)
        counters = [Value(value.type, "counter") for value in before] if loops else before
        # `context.loops` counts the loops around. Inside one, operations that use shared memory begin with a barrier:
        # an iteration must not overwrite what other warps still read for the iteration before.
        context.loops += loops
        with context.builder.block(*arguments, *(counters if loops else ()), *late) as block:
            pipelines.set_counters(used, counters)
            if inside is None:
                context.run_block(source)
            more = inside() if inside is not None else ()
            if isinstance(op, While) and source is op.condition:
                context.builder.yield_(context.lowered[source.terminator.operands[0]])
            else:
                values = [context.lowered[source.terminator.operands[at]] for at in places]
                context.builder.location = op.location
                context.builder.yield_(*values, *(pipelines.counters[number] for number in used), *more)
        context.loops -= loops
        pipelines.set_counters(used, before)
        return block

    def _finish(self, op: Op, done: Op) -> Values:
        """Add a lowered nest for a nest of the kernel; return its further values."""
        context, used, results = self.walk, self._used(op), [op.results[at] for at in self._places(op)]
        context.builder.add(done)
        for old, new in zip(results, done.results, strict=False):  # counters and further values follow
            new.name = old.name
            context.lowered[old] = new
        counted = len(results) + len(used)
        context.pipelines.set_counters(used, done.results[len(results) : counted])
        return done.results[counted:]

    def _loop(self, op: For, bounds: Values) -> None:
        """Lower a loop, in one of five ways.

        - `_ahead`: each iteration begins the first product of the next one.
        - `_iterations`: one iteration after the other. The producer's loops are all of this kind.
        - `_promoted`: products add to partial accumulators.
        - `_overlapped`: products are under way in the next iteration. The first one replaces undefined registers.
        - `_overlapped`: the same, but the first product adds to the accumulator that the loop begins with.
        """
        ahead = None if self.products is None else self._first_ahead(op)
        if self.products is not None and ahead is not None:
            self._ahead(op, bounds, ahead, self.products)
        elif self.products is None or not self._only_multiplies(op):
            self._iterations(op, bounds, [self._initial(op, at) for at in self._places(op)])
        elif self.walk.plan.dot.promote_interval:
            self._promoted(op, bounds, self.products)
        elif self._starts_undefined(op):
            sums, accumulator = op.results[0], self.walk.plan.dot.accumulator
            undefined = self.walk.add_in(ops.Undef(dtype=sums.tile.dtype, shape=sums.tile.shape), accumulator)
            undefined.name = sums.name
            ran = self._overlapped(op, bounds, [undefined], self.products, replaces=True)
            # Without an iteration nothing has replaced the registers.
            zeros = ops.ZeroUnless(x=self.walk.lowered[sums], condition=ran)
            self.walk.place(sums, self.walk.add_in(zeros, accumulator), accumulator)
        else:
            carried = [self._initial(op, at) for at in self._places(op)]
            self._overlapped(op, bounds, carried, self.products, replaces=False)

    def _iterations(
        self, op: For, bounds: Values, carried: Values, more: Mapping[Value, Value] = NOTHING, inside: Inside = None
    ) -> Values:
        """Add the loop, iteration after iteration.

        Args:
            op: the loop.
            bounds: its lowered start, stop and step.
            carried: the initial values that it carries.
            more: the initial values of further carried values, by placeholder.
            inside: adds the operations of an iteration; see `_block`.

        Returns:
            The further values after the loop.
        """
        context, (start, stop, step) = self.walk, bounds
        before = [context.pipelines.counters[number] for number in self._used(op)]
        body = self._block(op, op.body, tuple(more), inside)
        begin = (*carried, *before, *more.values())
        return self._finish(op, For(start=start, stop=stop, step=step, carried=begin, body=body))

    # Loops that end in an addition to memory. The addition waits at a fence until its tile is in shared memory. The
    # tensor cores would be idle meanwhile. So the next iteration's first product begins ahead of the fence.

    def _first_ahead(self, op: For) -> Dot | None:
        """The product that an iteration may begin for the next one.

        It is the first product of the body. None where an iteration does not end in an addition by TMA, or where the
        product cannot be begun earlier.
        """
        plan, inside = self.walk.plan, set(op.body.operations)
        dots = [dot for nested, dot in plan.dots.items() if nested in inside]
        store = plan.stores.get(op.body.operations[-2]) if len(inside) > 1 else None  # -1 is the yield
        # All columns of a warp have to be in its buffers at once, since the product begins between the writes to shared
        # memory and the fence. A warp has 16 rows in 32 lanes: 2 columns for each register.
        if store is None or not store.adds or store.layout.registers * 2 > store.span * store.buffers or not dots:
            return None
        first, group = dots[0], plan.groups[dots[0].right.load]
        # The right operand arrives without other products' operands.
        alone = all(operand == first.right or operand.beside for operand in group.operands)
        # The next iteration's right operand has a stage of its own.
        follows = group.within and plan.stages[group.pipeline] > 1 and constant_of(op.step, self.walk.definitions) == 1
        # The product adds to nothing, and its left operand is loaded ahead of the loop.
        outer = first.fresh and first.left is not None and first.left.load not in inside
        return first if alone and follows and outer and first.op.a.tile.shape[1] <= MAX_AHEAD_DEPTH else None

    def _ahead(self, op: For, bounds: Values, dot: Dot, products: Products) -> None:
        """Add the loop, each iteration of which begins the first product of the next one.

        The last iteration begins its own first product once more, and nobody reads the result. A loop without
        iterations multiplies whatever lies in shared memory, and nobody reads that either. A branch around the product
        would cost more: ptxas then takes registers for its accumulator on both paths.
        """
        context, builder, pipelines, (start, stop, step) = self.walk, self.walk.builder, self.walk.pipelines, bounds
        number, sums = context.plan.groups[dot.right.load].pipeline, dot.op.result
        runs, counter = builder.value(Lt(x=start, y=stop)), pipelines.counters[number]
        carried = [self._initial(op, at) for at in self._places(op)]
        builder.branch(runs, lambda: pipelines.wait(number, counter))
        # Without an iteration the counter is -1: no stage was waited for, and the operands are any bytes in the stages.
        products.begin_ahead(dot, builder.value(Select(condition=runs, x=counter, y=builder.constant(-1))))
        products.settle_all()
        first = context.lowered[sums]
        begun = Value(first.type, sums.name)

        def iteration() -> Values:
            counter, context.lowered[sums] = pipelines.counters[number], begun

            def begin_next() -> None:
                following = builder.value(Add(x=context.lowered[op.induction], y=step))
                goes_on = builder.value(Lt(x=following, y=stop))
                # The last iteration's own stage is not released yet, so its phase is the one that was waited for.
                stage = builder.value(Select(condition=goes_on, x=pipelines.counters[number], y=counter))
                pipelines.wait(number, stage)
                products.begin_ahead(dot, stage)

            products.ahead, context.epilogue.under_fence = dot, begin_next
            context.run_block(op.body, keep=True)
            products.ahead = context.epilogue.under_fence = None
            products.settle_all()
            for use in products.kept:
                products.release_if_over(use)
            return [context.lowered[sums]]

        self._iterations(op, bounds, carried, {begun: first}, iteration)

    # Loops that only multiply: an iteration's products are under way in the next one.

    def _overlapped(self, op: For, bounds: Values, carried: Values, products: Products, *, replaces: bool) -> Value:
        """Add the loop, and return whether it had an iteration.

        The first product is added to the accumulator that the loop begins with, or `replaces` it.
        """
        context, builder, pipelines, indices = self.walk, self.walk.builder, self.walk.pipelines, self.walk.indices
        delayed, late, (start, stop, step) = context.epilogue.delayed, indices.late_values(), bounds
        used = self._used(op)
        multiplied = [number for number in used if number in context.plan.multiplied]
        dots = sum(nested in context.plan.dots for nested in op.body.operations)
        if delayed:
            delayed.write_before(start, stop, step)

        def iteration() -> Values:
            counters = [pipelines.counters[number] for number in multiplied]
            induction = context.lowered[op.induction]
            later = builder.value(Ne(x=induction, y=start))  # not the first iteration
            # `later` predicates the addition: the first iteration's products replace the accumulator. The products do
            # not count stages, which is done once below, after all of them.
            products.added, products.counts = (later,) if replaces else (), False
            context.run_block(op.body, keep=True)
            products.added, products.counts = (), True
            if delayed:
                delayed.write_under(induction, start, step)
            numbers = indices.computed(later, late, context.tiles.number)  # computed in the first iteration
            products.settle_last_iteration(later, counters, multiplied, dots)
            for number in used:
                pipelines.next_stage(number)
            return numbers

        zeros = {value: builder.constant(0, value.tile.dtype) for value in late}
        numbers = self._iterations(op, bounds, carried, zeros, iteration)
        if context.plan.pingpong:  # the other warpgroup may begin its main loop: all products of this one are issued
            builder.add(ops.OrderBarrierArrive(pipelines.more_barriers))
        products.settle_loop(op, op.body.terminator.operands)
        ran = builder.value(Lt(x=start, y=stop))
        # Without an iteration, the late values are computed here. Otherwise the last iteration's stages are released.
        indices.settle(indices.computed(ran, numbers, context.tiles.number))
        for number in multiplied:
            pipelines.release_before(number, pipelines.counters[number], ran)
        return ran

    def _starts_undefined(self, op: For) -> bool:
        """Whether the first product of a main loop may replace its accumulator.

        It does if the accumulator starts from zeros, and there are registers enough. ptxas keeps an undef register live
        for the whole kernel: not only in the main loop, but also in the epilogue.
        """
        context, plan = self.walk, self.walk.plan
        if op is not plan.mainloop or plan.narrow or plan.dot.promote_columns:
            return False
        # An epilogue with tiles as large as the accumulator, such as a softmax of rows, has no subtiles.
        operations, sums = context.function.body.operations, op.results[0].tile
        behind = [other for other in operations[operations.index(op) + 1 :] if not isinstance(other, Convert)]
        beside = plan.dot.a_from_registers or any(other.results and other.result.tile == sums for other in behind)
        few = beside and plan.dot.accumulator.registers > MAX_UNDEF_SUMS
        return constant_of(op.carried[0], context.definitions) == 0 and not few

    def _promoted(self, op: For, bounds: Values, products: Products) -> None:
        """Add the loop with partial accumulators.

        The tensor cores add `promote_interval` iterations to a partial accumulator, which is then added to the
        accumulator in f32. Of two warpgroups, the second one has half as many iterations in its first interval. From
        there on, one warpgroup multiplies while the other one waits for its products and adds them.

        The first product of an interval replaces the partial accumulator of the interval before. Undef registers in its
        place would be live for the whole kernel: ptxas keeps them so.
        """
        context, builder, pipelines, (start, stop, step) = self.walk, self.walk.builder, self.walk.pipelines, bounds
        interval, sums = context.plan.dot.promote_interval, self._initial(op, 0)
        interval_step = builder.value(Mul(x=step, y=builder.constant(interval)))
        fewer, begin = interval // context.plan.warpgroups, start
        # The second warpgroup's first interval begins `fewer` iterations ahead of the loop. These iterations are left
        # out below (`within`). A loop without iterations begins at its start, so that it has no interval.
        if context.plan.warpgroups > 1 and fewer:
            iterations = builder.value(Mul(x=builder.value(ops.WarpgroupIndex()), y=builder.constant(fewer)))
            earlier = builder.value(Sub(x=start, y=builder.value(Mul(x=iterations, y=step))))
            begin = builder.value(Select(condition=builder.value(Lt(x=start, y=stop)), x=earlier, y=start))
        before = pipelines.counters[0]
        first, acc, counter = Value(start.type, "first"), Value(sums.type, sums.name), Value(before.type, "counter")
        partial = Value(sums.type, "apart")
        with builder.block(first, acc, partial, counter) as body:
            pipelines.set_counters([0], [counter])
            beyond = builder.value(Min(x=builder.value(Add(x=first, y=interval_step)), y=stop))
            within = first if begin is start else builder.value(Max(x=first, y=start))
            self._overlapped(op, [within, beyond, step], [partial], products, replaces=True)
            new_partial = context.lowered[op.results[0]]
            added = context.add_in(Add(x=acc, y=new_partial), context.plan.dot.accumulator)
            builder.yield_(added, new_partial, pipelines.counters[0])
        builder.location = op.location
        # Any value will do for the first partial accumulator, which is replaced.
        loop = builder.add(For(start=begin, stop=stop, step=interval_step, carried=(sums, sums, before), body=body))
        context.lowered[op.results[0]] = loop.results[0]
        pipelines.set_counters([0], loop.results[2:])

    def _only_multiplies(self, op: For) -> bool:
        """Whether a loop only adds products of warpgroups to accumulators.

        Each product adds to a carried value or to another product, and its operands are loaded in the body. Nothing
        else in the body reads the accumulators or has a body of its own, and the loop counts up.
        """
        plan, step = self.walk.plan, constant_of(op.step, self.walk.definitions)
        body = op.body.operations[:-1]
        dots = [nested for nested in body if nested in plan.dots]
        sums = {value for dot in dots for value in (dot.operands[2], *dot.results)}
        ours = {*op.body.arguments[1:], *(value for dot in dots for value in dot.results)}
        chained = all(dot.operands[2] in ours and plan.dots[dot].left is not None for dot in dots)
        aside = plan.skipped | plan.guards | plan.slice.needed  # operations that consumers do not carry out
        others = [nested for nested in body if nested not in plan.dots and nested not in aside]
        apart = not any(other.regions or sums.intersection(other.operands) for other in others)
        loads = loads_of(operand for dot in dots for operand in plan.dots[dot].operands)
        counts_up = step is not None and step > 0
        by_warpgroups = counts_up and not any(plan.dots[dot].simt for dot in dots)
        return bool(dots) and by_warpgroups and chained and apart and loads <= set(body)

    def _initial(self, op: For, at: int) -> Value:
        """The initial value of a variable that a loop carries, by its position.

        An accumulator of products passes an optimisation barrier. Without it, LLVM sees that the accumulator starts as
        a constant, and computes the constant anew where it could have kept the registers that wgmma adds to.
        """
        context, start = self.walk, op.carried[at]
        value, acc = context.lowered[start], op.body.arguments[1 + at]
        if not any(dot.op.acc is acc and not dot.simt for dot in context.plan.dots.values()):
            return value
        return context.add_in(ops.OptimizationBarrier(x=value), context.layouts[start])
