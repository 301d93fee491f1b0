"""The products of the consumers: begun, waited for where their sums are read, their stages released.

Products end in the order in which they begin. A stage is waited for ahead of the first product that reads it, and
released when the last one is over.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cutile.backend.cuda import ops
from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.pipeline.operand import Operand, loads_of
from cutile.backend.cuda.pipeline.pipelines import Pipelines
from cutile.backend.cuda.pipeline.plan import Dot, Group, Plan, Written
from cutile.backend.cuda.pipeline.words import layout_of_words, packed
from cutile.dtypes import bool_
from cutile.ir.core import Op, Value
from cutile.ops.arith import Sub


@dataclass
class _Use:
    """A stage that consumers read.

    Attributes:
        group: what was loaded there.
        counter: of the stage.
        left: products that read it and have yet to begin, and tiles that threads have yet to read.
        unread: those tiles, by the value of the load.
        waited: whether consumers have waited for it.
    """

    group: Group
    counter: Value
    left: int
    unread: dict[Value, Operand]
    waited: bool = False


@dataclass
class _Begun:
    """A product under way.

    Attributes:
        result: of the product, in the source.
        value: its lowered sums.
        left: the registers that it reads; None where its left operand is in shared memory.
        source: its left operand, in the source.
        uses: the stages that it reads, and those that products read which it adds to.
    """

    result: Value
    value: Value
    left: Value | None
    source: Value
    uses: list[_Use] = field(default_factory=list[_Use])


class Products:
    """The products under way, and the stages that are held."""

    def __init__(self, context: LoweringContext, plan: Plan, pipelines: Pipelines, words: Mapping[Value, int]) -> None:
        self._context = context
        self._plan = plan
        self._pipelines = pipelines
        self._words = words
        self._layouts = {dot.op.result: dot.accumulator for dot in plan.dots.values()}
        self._uses: dict[Op, _Use] = {}
        self._under_way: list[_Begun] = []

    # Stages.

    def name_stage(self, group: Group) -> None:
        """Take the next stage of a group's pipeline for what its loads bring."""
        loads = loads_of(group.operands)
        dots = sum(any(operand.load in loads for operand in dot.operands) for dot in self._plan.dots.values())
        unread = {operand.load.result: operand for operand in group.operands if operand.load in self._plan.reads}
        use = _Use(group, self._pipelines.next_stage(group.pipeline), dots + len(unread), unread)
        self._uses.update((operand.load, use) for operand in group.operands)

    def read(self, values: Iterable[Value]) -> None:
        """Have threads read the tiles among these values that are in stages."""
        context = self._context
        for value in dict.fromkeys(values):
            use = next((use for use in self._uses.values() if value in use.unread), None)
            if use is None:
                continue
            operand = use.unread.pop(value)
            self._wait(use)
            axis = operand.lead + operand.axis
            tile = ops.ReadBuffer(self._pipelines.buffer_of(operand), use.counter, axis=axis)
            context.lowered[value] = context.add(tile, layout=context.layout_name(context.layouts[value])).result
            context.lowered[value].name = value.name
            use.left -= 1
            self._release_if_over(use)

    def _release_if_over(self, use: _Use) -> None:
        """Release a stage that nobody reads any more."""
        if (
            use.group.within
            and use.left == 0
            and not any(other is use for dot in self._under_way for other in dot.uses)
        ):
            self._release(use)

    @contextmanager
    def block(self, *, keep: bool = False) -> Generator[None]:
        """A block of the kernel. At its end its products are waited for, unless `keep`, and its stages released."""
        outer = self._uses
        self._uses = dict(outer)
        yield
        if not keep:
            self.settle_all()
        for use in {id(use): use for load, use in self._uses.items() if load not in outer}.values():
            if not use.group.within:
                self._release(use)
        self._uses = outer

    def enter_nest(self) -> None:
        """Ahead of a loop or branch: wait for all that is under way, and for stages that are read inside.

        A branch may not be taken where another is, so what it would wait for is waited for ahead of it.
        """
        self.settle_all()
        for use in self._uses.values():
            if not use.group.within:
                self._wait(use)

    def enter_region(self, op: Op) -> None:
        """Ahead of a loop or branch without loads: wait for all that is under way if it multiplies, and for the stages
        that its products read.

        It may have no turn, and what is released at the end has to have arrived even so.
        """
        inside = {nested for block in op.regions for nested in block.walk()} & self._plan.dots.keys()
        if inside:
            self.settle_all()
        loads = loads_of(operand for nested in inside for operand in self._plan.dots[nested].operands)
        for load, use in self._uses.items():
            if load in loads:
                self._wait(use)

    def _wait(self, use: _Use) -> None:
        """Wait for a stage, where nobody has."""
        if use.waited:
            return
        use.waited = True
        pipeline = self._pipelines.values[use.group.pipeline]
        self._context.builder.add(ops.PipelineWait(pipeline, use.counter, limited=self._plan.limited))

    def _release(self, use: _Use) -> None:
        builder = self._context.builder
        always = builder.constant(True, bool_)
        number = use.group.pipeline
        warps = number in self._plan.by_warps
        builder.add(ops.PipelineRelease(self._pipelines.values[number], use.counter, always, warps=warps))

    # Products.

    def begin(self, dot: Dot) -> None:
        """Begin a product."""
        op, context = dot.op, self._context
        uses: list[_Use] = []
        for operand in dot.operands:
            use = self._uses[operand.load]
            if use not in uses:
                uses.append(use)
        if dot.left is None:
            self.settle([op.a if dot.written is None else dot.written.value])
        acc = None if dot.fresh else self._sums(dot)
        context.builder.location = op.location
        for use in uses:
            self._wait(use)
        left = self._left(dot)
        begun = ops.Dot(
            self._pipelines.buffer_of(dot.right),
            self._counter_of(dot.right),
            (*left, *([] if acc is None else [acc])),
            left_dtype=op.a.tile.dtype,
            right_dtype=op.b.tile.dtype,
            acc_dtype=op.acc.tile.dtype,
            shape=dot.accumulator.shape,
            depth=op.a.tile.shape[1],
            from_registers=dot.in_registers,
            fresh=dot.fresh,
            left_k_major=_left_k_major(dot),
            right_k_major=dot.right.panels.k_major,
        )
        context.add(begun, layout=context.layout_name(dot.accumulator))
        if dot.in_registers:
            begun.attributes["source"] = context.layout_name(layout_of_words(op.a, self._plan.warpgroups))
        begun.result.name = op.result.name
        mine = [use for use in uses if use.group.within]
        for use in mine:
            use.left -= 1
        earlier = next((other for other in self._under_way if other.value is acc), None)
        if earlier is not None:  # this product is over when the earlier one is
            self._under_way.remove(earlier)
            mine += earlier.uses
        words = left[0] if dot.in_registers else None
        self._under_way.append(_Begun(op.result, begun.result, words, op.a, mine))
        context.lowered[op.result] = begun.result

    def _left(self, dot: Dot) -> list[Value]:
        """A product's left operand: a stage of a buffer, or words in registers."""
        if dot.left is not None:
            return [self._pipelines.buffer_of(dot.left), self._counter_of(dot.left)]
        if dot.written is not None:
            self._write(dot.written)
            return [self._pipelines.written[dot.written.panels], self._context.builder.constant(0)]
        left = self._context.lowered[dot.op.a]
        in_words = dot.op.a in self._words
        return [left if in_words else packed(self._context, dot.op.a, left, self._plan.warpgroups)]

    def _write(self, written: Written) -> None:
        """Write an operand to shared memory. Each warpgroup has some rows of it, and its product reads all of them."""
        context, builder = self._context, self._context.builder
        dots = self._plan.dots.values()
        readers = {dot.op.a for dot in dots if dot.written is not None and dot.written.panels == written.panels}
        self.settle([begun.result for begun in self._under_way if begun.source in readers])
        layout = context.layout_name(context.layouts[written.value])
        words = packed(context, written.value, context.lowered[written.value], self._plan.warpgroups)
        builder.add(ops.Barrier())  # what was written before, all warpgroups have read
        context.add(ops.WriteOperand(words, self._pipelines.written[written.panels]), layout=layout)
        builder.add(ops.Barrier())

    def _counter_of(self, operand: Operand) -> Value:
        return self._uses[operand.load].counter

    def _sums(self, dot: Dot) -> Value:
        """What a product adds to: sums that are under way too, or that may be read."""
        op, context = dot.op, self._context
        value = context.lowered[op.acc]
        if any(other.value is value for other in self._under_way):
            return value
        return context.converted(value, context.layouts[op.acc], dot.accumulator)

    def settle_all(self) -> None:
        """Wait for all products."""
        self.settle([begun.result for begun in self._under_way])

    def settle_registers(self, value: Value) -> None:
        """Wait for the products that read the registers in which the words of this value are going to be."""
        number = self._words[value]
        self.settle([begun.result for begun in self._under_way if self._words.get(begun.source) == number])

    def settle(self, values: Iterable[Value]) -> None:
        """Wait for the products whose sums these are, and so for all before them; release what they read."""
        sums = set(values)
        last = max((at for at, begun in enumerate(self._under_way) if begun.result in sums), default=-1)
        if last < 0:
            return
        over, self._under_way = self._under_way[: last + 1], self._under_way[last + 1 :]
        for begun in over:
            left = () if begun.left is None else (begun.left,)
            wait = ops.DotWait(begun.value, left, pending=len(self._under_way))
            self._settled(begun.result, wait)
        for use in {id(use): use for begun in over for use in begun.uses}.values():
            self._release_if_over(use)

    def _settled(self, result: Value, wait: ops.DotWait) -> None:
        context, layout = self._context, self._layouts[result]
        sums = context.add(wait, layout=context.layout_name(layout)).result
        context.place(result, sums, layout)

    # Loops that only multiply: an iteration's products go on in the next one.

    def settle_last_iteration(self, later: Value, counters: Sequence[Value], used: Sequence[int], dots: int) -> None:
        """Wait for the products of the iteration before, whose stages are released; this one's `dots` go on."""
        context = self._context
        under_way, self._under_way = self._under_way, []
        first = under_way[0]
        layout = context.layout_name(self._layouts[first.result])
        waited = context.add(ops.WgmmaWait(acc=first.value, pending=dots, groups=1), layout=layout).result
        context.lowered[first.result] = waited
        self._release_before(counters, used, later)

    def settle_loop(self, op: Op, yields: Sequence[Value], used: Sequence[int], ran: Value) -> None:
        """Wait for the products of a loop's last iteration, and release its stages."""
        for result, value in zip(op.results, yields, strict=True):
            if value in self._layouts:
                context, layout = self._context, self._layouts[value]
                wait = ops.DotWait(context.lowered[result], (), pending=0)
                sums = context.add(wait, layout=context.layout_name(layout)).result
                context.place(result, sums, layout)
        self._release_before([self._pipelines.counters[number] for number in used], used, ran)

    def _release_before(self, counters: Sequence[Value], used: Sequence[int], when: Value) -> None:
        """Release the stages before these."""
        builder = self._context.builder
        for number, counter in zip(used, counters, strict=True):
            before = builder.value(Sub(x=counter, y=builder.constant(1)))
            warps = number in self._plan.by_warps
            builder.add(ops.PipelineRelease(self._pipelines.values[number], before, when, warps=warps))


def _left_k_major(dot: Dot) -> bool:
    """Whether the axis of the left operand that is contiguous in shared memory is K."""
    panels = dot.written.panels if dot.written is not None else dot.left.panels if dot.left is not None else None
    return panels is None or panels.k_major
