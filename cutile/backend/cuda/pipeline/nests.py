"""Loops and branches with loads, which both roles walk.

They carry the counters of their pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.op_facts import reads
from cutile.backend.cuda.ops import OptimizationBarrier
from cutile.backend.cuda.pipeline.operand import loads_of
from cutile.backend.cuda.pipeline.pipelines import Pipelines
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.backend.cuda.pipeline.products import Products
from cutile.backend.cuda.pipeline.split_k import DividedLoop
from cutile.ir.control import For, If, While
from cutile.ir.core import Block, Op, Value
from cutile.ops.compare import Ne
from cutile.ops.memory import StoreMut
from cutile.ops.view import StoreView


class RunBlock(Protocol):
    """What adds a role's share of a block's operations, but for its terminator.

    Products under way may `keep` so.
    """

    def __call__(self, block: Block, *, keep: bool = False) -> None: ...


@dataclass
class Nests:
    """The nests of one role.

    The producer has no `products`, and carries the numbers that it needs.
    """

    context: LoweringContext
    plan: Plan
    pipelines: Pipelines
    split: DividedLoop | None
    run_block: RunBlock
    products: Products | None

    def add(self, op: Op) -> None:
        """A loop or a branch."""
        if self.products is not None:
            self.products.enter_nest()
            self.products.read(reads(op))
        used = self._used(op)
        self.context.builder.location = op.location
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
        used = {group.pipeline for load, group in self.plan.groups.items() if load in inside}
        verdict = self.plan.verdict
        if verdict is not None and any(isinstance(nested, StoreMut | StoreView) for nested in inside):
            used.add(verdict)
        return sorted(used)

    def _places(self, op: Op) -> Sequence[int]:
        """Which of a nest's values this role carries.

        Consumers all, the producer the numbers that it needs.
        """
        return self.plan.slice.carried[op] if self.products is None else range(len(op.results))

    def _loop(self, op: For, used: Sequence[int]) -> None:
        context, builder, pipelines, products = self.context, self.context.builder, self.pipelines, self.products
        places = self._places(op)
        carried = [self._initial(op, at) for at in places]
        before = [pipelines.counters[number] for number in used]
        arguments = [context.copy(op.body.arguments[1 + at]) for at in places]
        counters = [Value(value.type, "counter") for value in before]
        start, stop, step = self._bounds(op)
        deferred = products is not None and self._only_multiplies(op)
        multiplied = [number for number in used if number not in self.plan.aside]
        context.loops += 1
        with builder.block(context.copy(op.induction), *arguments, *counters) as body:
            pipelines.set_counters(used, counters)
            self.run_block(op.body, keep=deferred)
            if products is not None and deferred:
                later = builder.value(Ne(x=context.lowered[op.induction], y=start))
                held = [counters[used.index(number)] for number in multiplied]
                products.settle_last_iteration(later, held, multiplied, self._dots_of(op.body))
            self._yield(op, op.body, used)
        context.loops -= 1
        done = builder.add(For(start=start, stop=stop, step=step, carried=(*carried, *before), body=body))
        self._finish(op, done, used)
        if products is not None and deferred:
            # Whether there was an iteration: each took a stage of every pipeline. A loop may also count down.
            number = multiplied[0]
            ran = builder.value(Ne(x=pipelines.counters[number], y=before[used.index(number)]))
            products.settle_loop(op, op.body.terminator.operands, multiplied, ran)

    def _bounds(self, op: For) -> Sequence[Value]:
        if self.split is not None and op is self.plan.mainloop:
            return self.split.bounds()
        return [self.context.lowered[value] for value in (op.start, op.stop, op.step)]

    def _only_multiplies(self, op: For) -> bool:
        """Whether a loop only adds products to what it carries."""
        plan = self.plan
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

    def _dots_of(self, block: Block) -> int:
        """The products that a block itself begins."""
        return sum(op in self.plan.dots for op in block.operations)

    def _initial(self, op: For, at: int) -> Value:
        """What a loop begins with.

        Sums in registers that the compiler does not make anew in each iteration.
        """
        context = self.context
        value = context.lowered[op.carried[at]]
        chained = any(dot.op.acc is op.body.arguments[1 + at] for dot in self.plan.dots.values())
        if not chained:
            return value
        return context.add(
            OptimizationBarrier(x=value), layout=context.layout_name(context.layouts[op.carried[at]])
        ).result

    def _while(self, op: While, used: Sequence[int]) -> None:
        context, builder, pipelines = self.context, self.context.builder, self.pipelines
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
                self.run_block(source)
                if source is op.condition:
                    builder.yield_(context.lowered[source.terminator.operands[0]])
                else:
                    self._yield(op, source, used)
            blocks.append(block)
        context.loops -= 1
        done = builder.add(While(carried=(*carried, *before), condition=blocks[0], body=blocks[1]))
        self._finish(op, done, used)

    def _branch(self, op: If, used: Sequence[int]) -> None:
        builder, pipelines = self.context.builder, self.pipelines
        before = list(pipelines.counters)
        blocks: list[Block] = []
        for source in (op.then, op.orelse):
            pipelines.counters = list(before)
            with builder.block() as block:
                self.run_block(source)
                self._yield(op, source, used)
            blocks.append(block)
        pipelines.counters = before
        done = builder.add(If(condition=self.context.lowered[op.condition], then=blocks[0], orelse=blocks[1]))
        self._finish(op, done, used)

    def _yield(self, op: Op, source: Block, used: Sequence[int]) -> None:
        context = self.context
        values = [context.lowered[source.terminator.operands[at]] for at in self._places(op)]
        context.builder.location = op.location
        context.builder.yield_(*values, *(self.pipelines.counters[number] for number in used))

    def _finish(self, op: Op, done: Op, used: Sequence[int]) -> None:
        results = [op.results[at] for at in self._places(op)]
        for old, new in zip(results, done.results, strict=False):
            new.name = old.name
            self.context.lowered[old] = new
        self.pipelines.set_counters(used, done.results[len(results) :])
