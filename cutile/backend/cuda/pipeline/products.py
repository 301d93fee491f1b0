"""The products of the consumers, and the stages that they read.

Products end in the order in which they begin. Consumers wait for a product where its sums are read. They wait for a
stage ahead of the first product that reads it, and release the stage when the last one is over.

A computed left operand is packed into 32-bit words until its product: two elements of 16 bits to a word, or four of 8
bits. As elements, which a loop may carry, each would have a register of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from cutile.backend.cuda import ops
from cutile.backend.cuda.mma_layouts import across_accumulator, group_accumulator
from cutile.backend.cuda.pipeline.operand import Operand, loads_of
from cutile.backend.cuda.pipeline.plan import Dot, Group, Plan, Written
from cutile.backend.cuda.smem_layout import WGMMA_ROWS
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import carried_groups
from cutile.backend.gpu.op_facts import inside
from cutile.ir import For, Function, Op, Value
from cutile.ops.compare import Lt
from cutile.ops.reduce import Reduce

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


@dataclass(eq=False)
class _Use:
    """A stage that consumers read.

    Attributes:
        group: the loads that fill it.
        counter: the counter of the stage.
        pending: the number of products that have yet to begin to read it, and of tiles that threads have yet to read.
        unread: the tiles that threads have yet to read, by the value of the load.
        waited: whether consumers have waited for it.
        released: whether consumers have released it.
    """

    group: Group
    counter: Value
    pending: int
    unread: dict[Value, Operand]
    waited: bool = False
    released: bool = False


@dataclass
class _Begun:
    """A product under way.

    Attributes:
        result: the product's result, in the source.
        value: its lowered sums.
        words: the words of its left operand in registers; None where the operand is in shared memory.
        source: its left operand, in the source.
        uses: the stages that it reads, and the stages of the products under way that it adds to.
    """

    result: Value
    value: Value
    words: Value | None
    source: Value
    uses: list[_Use] = field(default_factory=list[_Use])


@dataclass
class Products:
    """The products under way, and the stages that are held.

    Attributes:
        walk: the lowering of the kernel.
        uses: the stages that are held, by load.
        under_way: the products that have begun, in their order.
        added: a predicate, by which the next product adds to its accumulator (true) or replaces it; empty where it
            always adds.
        counts: whether a stage is counted where consumers take it; else a loop counts it at the end of its iteration.
        ahead: the product that the previous iteration has begun and waited for; None once the next iteration's product
            is begun.
        kept: the stages of `ahead`.
    """

    walk: WarpSpecialised
    uses: dict[Op, _Use] = field(default_factory=dict[Op, _Use])
    under_way: list[_Begun] = field(default_factory=list[_Begun])
    added: tuple[Value, ...] = ()
    counts: bool = True
    ahead: Dot | None = None
    kept: Sequence[_Use] = ()

    @cached_property
    def _dots(self) -> dict[Value, Dot]:
        """The products, by their sums."""
        return {dot.op.result: dot for dot in self.walk.plan.dots.values()}

    # Stages.

    def name_stage(self, group: Group) -> None:
        """Take the next stage of a group's pipeline for the tiles that its loads bring."""
        loads = loads_of(group.operands)
        dots = sum(any(operand.load in loads for operand in dot.operands) for dot in self.walk.plan.dots.values())
        unread = {operand.load.result: operand for operand in group.operands if operand.load in self.walk.plan.reads}
        pipelines, number = self.walk.pipelines, group.pipeline
        counter = pipelines.next_stage(number) if self.counts else pipelines.counters[number]
        use = _Use(group, counter, dots + len(unread), unread)
        self.uses.update((operand.load, use) for operand in group.operands)

    def read(self, values: Iterable[Value]) -> None:
        """Have threads read the tiles among these values that are in stages."""
        context = self.walk
        for value in dict.fromkeys(values):
            use = next((use for use in self.uses.values() if value in use.unread), None)
            if use is None:
                continue
            operand = use.unread.pop(value)
            self._wait(use)
            axis = operand.lead + operand.axis
            place = tuple(context.lowered[index] for index in operand.place)
            tile = ops.ReadBuffer(self.walk.pipelines.buffer_of(operand), use.counter, place, axis=axis)
            context.lowered[value] = context.add_in(tile, context.layouts[value])
            context.lowered[value].name = value.name
            use.pending -= 1
            self.release_if_over(use)

    def release_if_over(self, use: _Use) -> None:
        """Release a stage that nobody reads any more.

        The stage of a product that was begun ahead is kept until the next one is begun. In the last iteration there is
        no next stage, and the product reads this one once more.
        """
        if use.group.within and self._is_over(use) and not (use.released or (self.ahead and use in self.kept)):
            use.released = True
            self.walk.pipelines.release(use.group.pipeline, use.counter)

    def _is_over(self, use: _Use) -> bool:
        return use.pending == 0 and not any(use in begun.uses for begun in self.under_way)

    def release_all(self) -> None:
        """Release the stages that loops and branches have finished reading.

        Then the next tile block's loads arrive while the epilogue runs.
        """
        over = dict.fromkeys(use for use in self.uses.values() if not use.group.within and self._is_over(use))
        self.uses = {load: use for load, use in self.uses.items() if use not in over}
        for use in over:
            self.walk.pipelines.release(use.group.pipeline, use.counter)

    @contextmanager
    def block(self, *, keep: bool = False) -> Generator[None]:
        """Enter a block of the kernel.

        At its end, wait for its products, unless `keep`, and release its stages.
        """
        outer = self.uses
        self.uses = dict(outer)
        yield
        if not keep:
            self.settle_all()
        for use in dict.fromkeys(use for load, use in self.uses.items() if load not in outer):
            if not use.group.within:
                self.walk.pipelines.release(use.group.pipeline, use.counter)
        self.uses = outer

    def enter_nest(self) -> None:
        """Wait, ahead of a loop or branch, for all products and for its stages.

        Its stages are those that are read inside. Where the branch is not taken, a wait inside would be skipped, and
        the release after the branch would not.
        """
        self.settle_all()
        for use in self.uses.values():
            if not use.group.within:
                self._wait(use)

    def enter_region(self, op: Op) -> None:
        """Wait, ahead of a loop or branch without loads, for the stages of its products.

        If it multiplies, wait for all products under way too.

        A loop may run no iteration. Its stages are released after it all the same, and have to be full by then.
        """
        multiplied = self.walk.plan.dots.keys() & {*inside(op)}
        if multiplied:
            self.settle_all()
        loads = loads_of(operand for nested in multiplied for operand in self.walk.plan.dots[nested].operands)
        for load, use in self.uses.items():
            if load in loads:
                self._wait(use)

    def _wait(self, use: _Use) -> None:
        """Wait for a stage, unless consumers have waited for it already."""
        if not use.waited:
            use.waited = True
            self.walk.pipelines.wait(use.group.pipeline, use.counter)

    # Products.

    def begin_ahead(self, dot: Dot, counter: Value) -> None:
        """Begin a product of the next iteration.

        Its right operand is in the stage of this counter, which has been waited for.
        """
        outer, self.ahead = self.uses, None
        use = _Use(self.walk.plan.groups[dot.right.load], counter, 1, {}, waited=True)
        self.uses = {**outer, dot.right.load: use}
        self.begin(dot)
        for operand in dot.operands:  # `begin` has counted this read, and counts it again where the product stands
            self.uses[operand.load].pending += 1
        self.uses = outer

    def begin(self, dot: Dot) -> None:
        """Begin a product."""
        op, context = dot.op, self.walk
        uses = list(dict.fromkeys(self.uses[operand.load] for operand in dot.operands))
        if dot is self.ahead:  # it was begun in the iteration before, which waited for it at its end
            for use in uses:
                use.waited, use.pending = True, use.pending - 1
            self.kept = uses
            return
        if dot.left is None:
            self.settle([op.a if dot.written is None else dot.written.value])
        over = dot.over and context.lowered[dot.over]
        acc, added = over if dot.fresh else self._sums(dot), self.added
        context.builder.location = op.location
        for use in uses:
            self._wait(use)
        left = self._left(dot)
        # Counted only now: `_left` may wait for products that read these stages too, and must not release them.
        for use in uses:
            use.pending -= 1
        a, right = op.a.tile, self.walk.pipelines.buffer_of(dot.right)
        if dot.simt:
            assert acc is not None
            product = ops.SimtMma(acc, left[0], right, self._counter_of(dot.right), depth=a.shape[1])
            context.place(op.result, context.add_in(product, dot.accumulator), dot.accumulator)
            for use in uses:
                self.release_if_over(use)
            return
        # The accumulator takes over registers, and always replaces their values. So the predicate is always false. It
        # is computed (a stage's counter is never below 0): if the linker knew that, it would choose other registers.
        if over is not None:
            added = (context.builder.value(Lt(x=self._counter_of(dot.right), y=context.builder.constant(0))),)
        begun = ops.Dot(
            *(right, self._counter_of(dot.right), (*left, *([] if acc is None else [acc]), *added)),
            left_dtype=a.dtype,
            right_dtype=op.b.tile.dtype,
            acc_dtype=op.acc.tile.dtype,
            shape=dot.accumulator.shape,
            depth=a.shape[1],
            from_registers=dot.in_registers,
            fresh=acc is None,
            replaces=bool(added),
            left_k_major=dot.left_k_major,
            right_k_major=dot.right.smem_layout.k_major,
            left_first=0 if dot.left is None else dot.left.first,
            right_first=dot.right.first,
            promote_columns=dot.promote_columns,
            a_from_registers=dot.a_from_registers,
        )
        context.add(begun, layout=context.layout_name(dot.accumulator))
        if dot.in_registers:
            begun.attributes["source"] = context.layout_name(self._layout_of_words(op.a))
        begun.result.name = op.result.name
        self._follow(dot, begun.result, acc, left[0] if dot.in_registers else None, uses)

    def _follow(self, dot: Dot, value: Value, acc: Value | None, words: Value | None, uses: list[_Use]) -> None:
        """Note that a product is under way.

        An earlier one may still add to the same accumulator.
        """
        context, earlier = self.walk, next((other for other in self.under_way if other.value is acc), None)
        if earlier is not None:
            self.under_way.remove(earlier)
        if earlier is not None and earlier.words is not None and not self.under_way:
            # Wait for the earlier product: while this one runs, the next left operand is computed into the registers of
            # the earlier left operand.
            value = context.add_in(ops.DotWait(value, (earlier.words,), pending=1), dot.accumulator)
            for use in earlier.uses:
                if use not in uses:
                    self.release_if_over(use)
        elif earlier is not None:  # a wait for this product is one for the earlier product, too
            uses += earlier.uses
        self.under_way.append(_Begun(dot.op.result, value, words, dot.op.a, uses))
        context.lowered[dot.op.result] = value

    def _left(self, dot: Dot) -> list[Value]:
        """A product's left operand: a buffer and a counter, or words in registers."""
        if dot.left is not None:
            return [self.walk.pipelines.buffer_of(dot.left), self._counter_of(dot.left)]
        if dot.written is not None:
            return self._write(dot, dot.written)
        return [self._words(dot.op.a)]

    def _write(self, dot: Dot, written: Written) -> list[Value]:
        """Write an operand to the next stage; return its buffer and its counter.

        Each warpgroup writes a part, and its product reads all of it, so that warpgroups meet at a barrier after the
        writes. With two stages, all warpgroups have read the one when they meet after the writes of the other.
        """
        context, builder, numbers = self.walk, self.walk.builder, self.walk.plan.written_counters
        readers = {other.op.a for op, other in context.plan.dots.items() if numbers.get(op) == numbers[dot.op]}
        self.settle([begun.result for begun in self.under_way if begun.source in readers])
        counter, buffer = context.pipelines.next_stage(numbers[dot.op]), context.pipelines.written[written.smem_layout]
        write = ops.WriteOperand(self._words(written.value), buffer, counter)
        # With one stage, all warpgroups must have read the previous operand. They meet ahead of the writes, unless a
        # reduction since the last product has a barrier already: a reduction with a fence has (`SmemAllocator.use`).
        events = [op for op in builder.current.operations if isinstance(op, ops.Dot | ops.DotWait | Reduce)]
        last = [op for op in events if op.attributes.get("fence", True)][-1:]
        if context.plan.written_stages == 1 and not any(isinstance(op, Reduce) for op in last):
            builder.add(ops.Barrier())
        context.add(write, layout=context.layout_name(context.layouts[written.value]))
        builder.add(ops.Barrier())  # all warpgroups have written their parts before one of them reads the whole
        return [buffer, counter]

    def _counter_of(self, operand: Operand) -> Value:
        return self.uses[operand.load].counter

    def _sums(self, dot: Dot) -> Value:
        """The accumulator that a product adds to, in its layout.

        The product before may still be under way. If its sums have another reader, it must be over: this product writes
        to their registers.
        """
        op, context = dot.op, self.walk
        self.settle([op.acc] if len(context.users[op.acc]) > 1 else [])
        if any(other.value is context.lowered[op.acc] for other in self.under_way):
            return context.lowered[op.acc]
        return context.converted(context.lowered[op.acc], context.layouts[op.acc], dot.accumulator)

    def settle_all(self) -> None:
        """Wait for all products."""
        self.settle([begun.result for begun in self.under_way])

    def settle_registers(self, value: Value) -> None:
        """Wait for products that read the registers into which this value's words will go."""
        words = self.walk.words
        self.settle([begun.result for begun in self.under_way if words.get(begun.source) == words[value]])

    def settle(self, values: Iterable[Value]) -> None:
        """Wait for the products with these sums and all before; release their stages."""
        sums = set(values)
        last = max((at for at, begun in enumerate(self.under_way) if begun.result in sums), default=-1)
        over, self.under_way = self.under_way[: last + 1], self.under_way[last + 1 :]
        # Where consumers write operands, they wait for the products one by one, which saves registers: at each wait the
        # later ones of `over` may go on. Otherwise the first wait is for all products.
        for number, begun in enumerate(over, 1):
            later = len(self.under_way) + (len(over) - number) * bool(self.walk.plan.written)
            wait = ops.DotWait(begun.value, () if begun.words is None else (begun.words,), pending=later)
            self._settled(begun.result, wait, self._dots[begun.result])
        for use in dict.fromkeys(use for begun in over for use in begun.uses):
            self.release_if_over(use)

    def _settled(self, result: Value, wait: ops.DotWait, dot: Dot) -> None:
        self.walk.place(result, self.walk.add_in(wait, dot.accumulator), dot.accumulator)

    # Left operands in registers.

    def _words(self, value: Value) -> Value:
        """The words of a value, which are packed here unless the value is kept in words."""
        lowered = self.walk.lowered[value]
        return lowered if value in self.walk.words else self.packed(value, lowered)

    def packed(self, value: Value, lowered: Value) -> Value:
        """Pack a value into words."""
        pack = (ops.PackQuads if value.tile.dtype.bits == 8 else ops.PackPairs)(x=lowered)
        if isinstance(pack, ops.PackQuads):
            pack.attributes["source"] = self.walk.layout_name(self.walk.layouts[value])
        words = self.walk.add_in(pack, self._layout_of_words(value))
        words.name = lowered.name
        return words

    def _layout_of_words(self, value: Value) -> Layout:
        rows, columns = value.tile.shape
        warpgroups = self.walk.plan.warpgroups
        accumulator = across_accumulator if rows < WGMMA_ROWS * warpgroups else group_accumulator
        return accumulator((rows, columns * value.tile.dtype.bits // 32), warpgroups)

    # Loops that only multiply: an iteration's products go on in the next one.

    def settle_last_iteration(self, later: Value, counters: Sequence[Value], used: Sequence[int], dots: int) -> None:
        """Wait for the products of the iteration before, and release their stages.

        The `dots` products of this iteration stay under way.

        Args:
            later: whether there is an iteration before.
            counters: the counters of this iteration.
            used: the pipelines, in the order of `counters`.
            dots: the number of products of an iteration.
        """
        first, self.under_way = self.under_way[0], []
        dot = self._dots[first.result]
        groups = dot.steps if dot.a_from_registers else 1
        wait = ops.DotWait(first.value, (), pending=dots, groups=groups, goes_on=True)
        self.walk.lowered[first.result] = self.walk.add_in(wait, dot.accumulator)
        for number, counter in zip(used, counters, strict=True):
            self.walk.pipelines.release_before(number, counter, later)

    def settle_loop(self, op: Op, yields: Sequence[Value]) -> None:
        """Wait for the products of a loop's last iteration."""
        for result, value in zip(op.results, yields, strict=True):
            if value in self._dots:
                self._settled(result, ops.DotWait(self.walk.lowered[result], (), pending=0), self._dots[value])


def in_words(function: Function, plan: Plan) -> dict[Value, int]:
    """The values that are kept in words, each with a number for its registers.

    These are left operands in registers that only products and loops read, and the variables of loops that carry them.
    Values that a loop makes one variable have one number: their words are in the same registers.
    """
    lefts = [dot.op.a for dot in plan.dots.values() if dot.in_registers]
    carried = [group for op in function.walk() for group in carried_groups(op)]
    words: dict[Value, int] = {}
    for number, value in enumerate(lefts):
        chain = {value}  # and all values that loops make one variable with it
        size = 0
        while size != len(chain):
            size = len(chain)
            chain.update(*(group for group in carried if chain.intersection(group)))
        readers = [op for op in function.walk() if chain.intersection(op.operands)]
        products = {op for op, dot in plan.dots.items() if dot.in_registers and dot.op.a in chain}
        products.update(op for dot in plan.dots.values() if dot.written for op in (dot.op, *dot.written.passed))
        if all(op in products or op.terminates or isinstance(op, For) for op in readers):
            words.update(dict.fromkeys(chain, number))
    return words
