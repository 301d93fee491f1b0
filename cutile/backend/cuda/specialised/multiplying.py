"""Lowering to specialised warps: the turns of the loop of products, by those that compute."""

from __future__ import annotations

from cutile.backend.cuda.ops import (
    Blank,
    GroupMma,
    GroupNumber,
    GroupWait,
    HandOver,
    Opaque,
    OuterMma,
    PipelineRelease,
    PipelineWait,
    ZeroUnless,
)
from cutile.backend.cuda.specialised.trailing_store import TrailingStore
from cutile.dtypes import bool_
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Op, Value
from cutile.ops.arith import Add, Max, Min, Mul, Sub
from cutile.ops.compare import Lt, Ne, Select

MOST_BLANK_ACROSS = 112
"""Sums of a thread that may have registers all the time where it reads the left operand, too."""


class Multiplying(TrailingStore):
    """The loop of products: by warp groups, at once or some turns apart from the sums; or by fused multiply-adds."""

    def _operation(self, op: Op) -> None:
        if op is self._plan.loop:
            for value in op.operands:
                self._hand_round(value)
            self._multiply(self._plan.loop)
        else:
            super()._operation(op)

    def _multiply(self, loop: For) -> None:
        """The loop of products."""
        builder, plan = self._builder, self._plan
        builder.location = loop.location
        bounds = self._bounds()
        if plan.by_fma:
            self._place(loop.results[0], self._added_up(self._outer_turns(loop, bounds)), plan.accumulator)
            return
        sums = self._first_sums(loop)
        sums.name = loop.results[0].name
        if plan.together:
            done = self._promoted_turns(sums, bounds)
        else:
            done = self._turns(sums, bounds, fresh=self._starts_blank)
            if self._starts_blank:
                ran = builder.value(Lt(x=bounds[0], y=bounds[1]))
                done = self._add(ZeroUnless(x=done, condition=ran), layout=self._name(plan.accumulator)).result
        self._place(loop.results[0], self._added_up(done), plan.accumulator)

    @property
    def _starts_blank(self) -> bool:
        """Whether the first product may take the place of the sums, since they start from zeros.

        Not where registers are few: those that nobody sets are taken for used from the kernel's begin to its end, also
        where the sums of one tile have been done with and those of the next have not begun.
        """
        start = self._definitions.get(self._plan.loop.carried[0])
        apart = self._plan.promoted or self._plan.together
        few = self._plan.narrow or (self._plan.crosswise and self._plan.accumulator.registers > MOST_BLANK_ACROSS)
        return isinstance(start, Constant) and start.value == 0 and not apart and not few

    def _first_sums(self, loop: For) -> Value:
        """What the sums start from, in registers that the compiler does not make anew within the loop."""
        layout = self._name(self._plan.accumulator)
        if self._starts_blank:
            acc = loop.carried[0].tile
            return self._add(Blank(dtype=acc.dtype, shape=acc.shape), layout=layout).result
        sums = self._converted(self._map[loop.carried[0]], self._placement[loop.results[0]], self._plan.accumulator)
        return self._add(Opaque(x=sums), layout=layout).result

    def _turns(self, sums: Value, bounds: list[Value], *, fresh: bool = False) -> Value:
        """Products added to sums, or to nothing where they are `fresh`; and all of them finished.

        A slot is given up once the product after its own has begun.
        """
        builder, plan, product, loop = self._builder, self._plan, self._plan.product, self._plan.loop
        layout = self._name(plan.accumulator)
        start, stop, step = bounds
        turn, acc = Value(self._current_turn.type, "turn"), Value(sums.type, sums.name)
        groups = plan.steps if plan.crosswise else 1
        late = [Value(each.type, each.name) for each in self._late_values()]
        if plan.trailing:
            self._write_before(start, stop, step)
        with builder.block(Value(start.type, loop.induction.name), acc, turn, *late) as body:
            builder.location = product.location
            later = builder.value(Ne(x=body.arguments[0], y=start))
            builder.add(PipelineWait(self._pipeline, turn, limited=plan.limited))
            made = GroupMma(
                acc=acc,
                left=self._left,
                right=self._right,
                counter=turn,
                added=(later,) if fresh else (),
                left_dtype=(product.b if plan.exchanged else product.a).tile.dtype,
                right_dtype=(product.a if plan.exchanged else product.b).tile.dtype,
                depth=product.a.tile.shape[1],
                promoted=plan.promoted,
                crosswise=plan.crosswise,
                exchanged=plan.exchanged,
            )
            self._add(made, layout=layout)
            if plan.trailing:
                self._write_under(body.arguments[0], start, step)
            found = self._found(later, late)
            builder.location = product.location
            waited = self._add(GroupWait(acc=made.result, pending=1, groups=groups), layout=layout).result
            builder.add(PipelineRelease(self._pipeline, self._turn_after(turn, -1), later, warps=plan.crosswise))
            builder.yield_(waited, self._turn_after(turn, 1), *found)
        builder.location = loop.location
        carried = (sums, self._current_turn, *(builder.constant(0, each.tile.dtype) for each in late))
        made = self._add(For(start=start, stop=stop, step=step, carried=carried, body=body))
        self._turn = made.results[1]
        if plan.alone:
            builder.add(HandOver(self._further))
        done = self._add(GroupWait(acc=made.results[0], pending=0, groups=groups), layout=layout).result
        ran = builder.value(Lt(x=start, y=stop))
        self._settle(self._found(ran, made.results[2:]))
        builder.add(PipelineRelease(self._pipeline, self._turn_after(self._turn, -1), ran, warps=plan.crosswise))
        return done

    def _promoted_turns(self, sums: Value, bounds: list[Value]) -> Value:
        """Some turns at a time, whose products the tensor cores add up apart from the sums.

        Of two groups the second one has fewer turns the first time, so that from there on the one multiplies while the
        other waits for its products and adds them. What the first product of some turns replaces is what the last ones
        left: registers that nobody sets would be taken for used from the kernel's begin to its end.
        """
        builder, plan = self._builder, self._plan
        start, stop, step = bounds
        layout = self._name(plan.accumulator)
        many = builder.value(Mul(x=step, y=builder.constant(plan.together)))
        fewer, begin = plan.together // plan.groups, start
        if plan.groups > 1 and fewer:
            turns = builder.value(Mul(x=builder.value(GroupNumber()), y=builder.constant(fewer)))
            earlier = builder.value(Sub(x=start, y=builder.value(Mul(x=turns, y=step))))
            begin = builder.value(Select(condition=builder.value(Lt(x=start, y=stop)), x=earlier, y=start))
        before = self._current_turn
        first, acc, turn = Value(start.type, "first"), Value(sums.type, sums.name), Value(before.type, "turn")
        apart = Value(sums.type, "apart")
        self._turn = turn
        with builder.block(first, acc, apart, turn) as body:
            beyond = builder.value(Min(x=builder.value(Add(x=first, y=many)), y=stop))
            within = first if begin is start else builder.value(Max(x=first, y=start))
            made = self._turns(apart, [within, beyond, step], fresh=True)
            added = self._add(Add(x=acc, y=made), layout=layout).result
            builder.yield_(added, made, self._current_turn)
        builder.location = plan.loop.location
        done = self._add(For(start=begin, stop=stop, step=many, carried=(sums, sums, before), body=body))
        self._turn = done.results[2]
        return done.results[0]

    def _outer_turns(self, loop: For, bounds: list[Value]) -> Value:
        """Turns of products by fused multiply-adds. Each warp gives up a slot as soon as it has read it."""
        builder, plan, product = self._builder, self._plan, self._plan.product
        sums = self._converted(self._map[loop.carried[0]], self._placement[loop.results[0]], plan.accumulator)
        turn = Value(self._current_turn.type, "turn")
        acc = self._copy(loop.body.arguments[1])
        with builder.block(self._copy(loop.induction), acc, turn) as body:
            builder.location = product.location
            builder.add(PipelineWait(self._pipeline, turn, limited=plan.limited))
            made = self._add(
                OuterMma(acc, self._left, self._right, turn, depth=product.a.tile.shape[1]),
                layout=self._name(plan.accumulator),
            )
            always = builder.constant(True, bool_)
            builder.add(PipelineRelease(self._pipeline, turn, always, warps=True))
            builder.yield_(made.result, self._turn_after(turn, 1))
        builder.location = loop.location
        start, stop, step = bounds
        run = self._add(For(start=start, stop=stop, step=step, carried=(sums, self._current_turn), body=body))
        self._turn = run.results[1]
        run.results[0].name = loop.results[0].name
        return run.results[0]
