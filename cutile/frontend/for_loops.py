"""`for` and `while`: a loop on the device, or an unrolled loop over a tuple."""

from __future__ import annotations

import ast
from typing import Any

from cutile.dtypes import bool_, i32, i64, u8, u16, u32, u64
from cutile.frontend.branches import exited, guarded
from cutile.frontend.families.mapped import MintedRange, OwnedRange
from cutile.frontend.flow import Exit
from cutile.frontend.frame import Frame, LoopState
from cutile.frontend.logic import changed, conjunction, has_effects, settled
from cutile.frontend.loops import Loop
from cutile.frontend.operators import binary, comparison, materialize, truth, unify, widened
from cutile.frontend.plain_numbers import I64, counted, dtype_of_weak, interval_of, length_of, weak
from cutile.frontend.simple_statements import assign
from cutile.frontend.structure import gone_through
from cutile.frontend.values import (
    MutRef,
    PartitionRef,
    Range,
    Table,
    TensorRef,
    converted,
    describe,
    is_tile,
    items_of,
    noun,
    to_tile,
)
from cutile.ir import Constant, For, Value, While
from cutile.ops.arith import Add, And, Not, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Ne, Select

UNSIGNED = {8: u8, 16: u16, 32: u32, 64: u64}
"""By the number of bits."""


def for_loop(frame: Frame, node: ast.For) -> None:
    """`for i in range(...)` is a loop, `for x in <tuple>` its body once per item.

    `ct.static_range` gives a tuple.
    """
    iterable = frame.evaluate(node.iter)
    if isinstance(iterable, Table | str):
        iterable = tuple(iterable.items if isinstance(iterable, Table) else iterable)
    if isinstance(iterable, tuple):
        _unrolled(frame, node, items_of(gone_through(frame, iterable)))
    elif isinstance(iterable, Range):
        _RangeLoop(frame, node, iterable).compile()
    else:
        frame.type_error(
            f"cannot loop over {describe(iterable)}",
            node.iter,
            "Loop over tiles by number: for i in range(ct.num_tiles(part, axis)): part.load(i)."
            if isinstance(iterable, TensorRef | MutRef | PartitionRef)
            else "Loop over range(...), ct.static_range(...) or a tuple.",
        )


def _unrolled(frame: Frame, node: ast.For, items: tuple[Any, ...]) -> None:
    """The body once per item.

    After a `break` that is decided at run time, the other iterations are compiled under a condition.
    """
    outer = frame.loop
    frame.loop = LoopState(None)  # None: all variables pass from one copy of the body to the next

    def iteration(item: Any) -> None:
        assign(frame, node.target, item)
        frame.execute(node.body)
        frame.flow.rejoin(Exit.CONTINUE)

    try:
        for item in items:
            guarded(frame, lambda item=item: iteration(item), node)
    finally:
        frame.loop = outer
    broken = frame.flow.taken.pop(Exit.BREAK, None)
    if broken is not None:  # to code after this loop, its `break` only means that its `else` does not run
        frame.flow.taken[Exit.SKIP_ELSE] = broken
    if node.orelse:
        guarded(frame, lambda: frame.execute(node.orelse), node)
    frame.flow.rejoin(Exit.SKIP_ELSE)


def _integers(values: list[Any]) -> bool:
    return all(each.tile.dtype.is_integer if is_tile(each) else True for each in values)


def _is_integer_scalar(value: Value) -> bool:
    return value.tile.is_scalar and value.tile.dtype.is_integer


class _RangeLoop:
    """A loop over `range(start, stop, step)`."""

    def __init__(self, frame: Frame, node: ast.For, bounds: Range) -> None:
        if not isinstance(node.target, ast.Name):
            frame.syntax_error(
                node.target, "the target of a loop over range must be a name", "Write `for i in range(n)`."
            )
        self.frame = frame
        self.node = node
        self.target = node.target.id
        self.minted = bounds if isinstance(bounds, MintedRange | OwnedRange) else None
        limits = [bounds.start, bounds.stop, bounds.step]
        for limit in limits:
            if not is_tile(limit) and (not isinstance(limit, int) or isinstance(limit, bool)):
                remedy = "Round and convert it: int(x) for numbers, ct.i32(x) for scalars."
                if isinstance(limit, tuple):
                    remedy = to_tile(limit)
                frame.type_error(f"range: the bounds must be integers, got {describe(limit)}", node.iter, remedy)
        constant = not any(map(is_tile, limits))
        if any(isinstance(each, int) and not -(2**63) <= each < 2**63 for each in limits):
            frame.type_error("range: a bound does not fit i64", node.iter, "No loop of so many iterations would end.")
        self.trip_count = length_of(*limits) if constant else None
        self.bounds = limits
        self.counted = counted(*(interval_of(frame, each) for each in limits)) if _integers(limits) else I64
        # `unify` would give each constant the dtype that it needs by itself. All three need a common one.
        dtype = dtype_of_weak(limits) if constant else None
        self.start, self.stop, self.step = unify(frame, widened(frame, limits), "range", dtype)
        type = self.start.tile
        if not type.is_scalar or not type.dtype.is_integer:
            bad = next(each for each in limits if is_tile(each) and not _is_integer_scalar(each))
            remedy = "Reduce it to a scalar first, as with ct.reduce_max(tile, axis)."
            if bad.tile.is_scalar:
                remedy = f"Convert it: {converted(bad, 'i32')}."
            got = f"{noun(bad)} of {bad.tile.dtype}" if bad.tile.is_scalar else str(bad.type)
            frame.type_error(f"range: the bounds must be integer scalars, got {got}", node.iter, remedy)
        # A range whose step is 0 is an error in Python; here it is empty. The step of a stream, which is the number of
        # tile blocks, is never 0.
        if is_tile(bounds.step) and self.minted is None:
            zero = comparison(frame, ast.Eq, self.step, 0)
            self.stop = frame.emit(Select(condition=zero, x=self.start, y=self.stop))
            self.step = frame.emit(Select(condition=zero, x=materialize(frame, 1, type.dtype), y=self.step))

    def compile(self) -> None:
        """Emit the loop; a range that is empty for certain leaves nothing but its `else`."""
        if self.trip_count == 0:
            self.frame.execute(self.node.orelse)
            return
        self.loop = Loop(self.frame, self.node, runs_at_least_once=bool(self.trip_count))
        loop = self.loop.build(self._build, self._iteration)
        if loop is None:
            return
        # The first results of a `While` of `_early` are those of its flags, the loop variable and the count.
        skipped = len(loop.results) - len(self.loop.carried)
        self.loop.leave(loop.results[skipped:], loop.results[: len(self.loop.exits)], endless=False)

    def _iteration(self, induction: Value | None = None) -> None:
        """One iteration, with the loop variable set.

        `induction` is None where an iteration is compiled only to learn types (`Loop.build`).
        """
        value = induction or Value(self.start.type, self.target)
        if value.tile.dtype in (i32, i64):  # the loop variable is weak, even if the bounds are strong
            weak(self.frame, value, self.counted)

        def prepare() -> None:
            self.frame.variables[self.target] = self.minted.mint(self.frame, value) if self.minted else value
            self.frame.places[self.target] = self.node.target

        self.loop.iteration(prepare)

    def _build(self, initial: list[Value]) -> For | While | None:
        return self._early(initial) if self.loop.exits else self._plain(initial)

    def _plain(self, initial: list[Value]) -> For | None:
        """A loop that runs to its end."""
        frame, loop = self.frame, self.loop
        induction = Value(self.start.type, self.target)
        arguments = loop.arguments()
        with frame.builder.block(induction, *arguments) as body, frame.dynamic():
            loop.bind(arguments, inside=True)
            self._iteration(induction)
            values = loop.finish()
            if values is None:
                return None
            frame.builder.yield_(*values)
        loop_op = For(start=self.start, stop=self.stop, step=self.step, carried=tuple(initial), body=body)
        frame.builder.add(loop_op)
        return loop_op

    def _early(self, initial: list[Value]) -> While | None:
        """A loop that may be left early, as a `While`.

        Besides the variables, it carries its own state: a flag for each exit, the loop variable, and the number of
        iterations that remain.
        """
        frame, loop = self.frame, self.loop
        flags = [frame.emit(Constant(value=False, dtype=bool_, shape=())) for _ in loop.exits]
        own = [*flags, self.start, self._count()]
        one = materialize(frame, 1, own[-1].tile.dtype)
        zero = materialize(frame, 0, own[-1].tile.dtype)
        tested = [Value(value.type) for value in own] + loop.arguments()
        with frame.builder.block(*tested) as condition:
            left = frame.emit(Ne(x=tested[len(flags) + 1], y=zero))
            go_on = frame.emit(Not(x=exited(frame, tested[: len(flags)])))
            frame.builder.yield_(frame.emit(And(x=left, y=go_on)))
        state = [*(Value(flag.type) for flag in flags), Value(self.start.type, self.target), Value(own[-1].type)]
        arguments = loop.arguments()
        with frame.builder.block(*state, *arguments) as body, frame.dynamic():
            loop.bind(arguments, inside=True)
            self._iteration(state[-2])
            values = loop.finish()
            if values is None:
                return None
            following = frame.emit(Add(x=state[-2], y=self.step))
            remaining = frame.emit(Sub(x=state[-1], y=one))
            frame.builder.yield_(*loop.flags(), following, remaining, *values)
        loop_op = While(carried=(*own, *initial), condition=condition, body=body)
        frame.builder.add(loop_op)
        return loop_op

    def _count(self) -> Value:
        """The number of iterations, as an unsigned scalar of the bounds' width.

        It is exact for every range. A signed scalar of that width could not hold the length of the widest range.
        """
        frame = self.frame
        dtype = self.start.tile.dtype
        wide = UNSIGNED[dtype.bits]
        if self.trip_count is not None:
            return materialize(frame, self.trip_count, wide)
        step = self.bounds[2]
        if is_tile(step):
            up = comparison(frame, ast.Gt, self.step, 0)
            rising, falling = self._between(self.start, self.stop), self._between(self.stop, self.start)
            distance = frame.emit(Select(condition=up, x=rising, y=falling))
            unsigned = self._unsigned(self.step)
            size = frame.emit(
                Select(condition=up, x=unsigned, y=frame.emit(Sub(x=materialize(frame, 0, wide), y=unsigned)))
            )
        else:
            distance = self._between(self.start, self.stop) if step > 0 else self._between(self.stop, self.start)
            size = abs(step)
            if size == 1:
                return distance
        # (distance - 1) // size + 1 cannot overflow, where (distance + size - 1) // size can. Of an empty range
        # distance - 1 wraps, so the select below replaces that count by 0.
        whole = binary(frame, ast.FloorDiv, binary(frame, ast.Sub, distance, 1), size)
        count = binary(frame, ast.Add, whole, 1)
        empty = comparison(frame, ast.Eq, distance, 0)
        return frame.emit(Select(condition=empty, x=distance, y=count))

    def _unsigned(self, value: Value) -> Value:
        wide = UNSIGNED[value.tile.dtype.bits]
        return value if value.tile.dtype is wide else self.frame.emit(Convert(x=value, dtype=wide))

    def _between(self, low: Value, high: Value) -> Value:
        """`high - low` as an unsigned scalar, 0 where it is negative."""
        frame = self.frame
        difference = frame.emit(Sub(x=self._unsigned(high), y=self._unsigned(low)))
        ordered = comparison(frame, ast.Lt, low, high)
        return frame.emit(Select(condition=ordered, x=difference, y=materialize(frame, 0, difference.tile.dtype)))


def while_loop(frame: Frame, node: ast.While) -> None:
    """`while condition:` with a scalar condition; `while True:` ends by an exit."""
    _WhileLoop(frame, node).compile()


class _Never(Exception):
    """Raised where the condition is the constant False: the loop never runs.

    Args:
        has_effects: whether computing the condition has effects.
    """

    def __init__(self, has_effects: bool) -> None:
        self.has_effects = has_effects


class _WhileLoop:
    def __init__(self, frame: Frame, node: ast.While) -> None:
        self.frame = frame
        self.node = node
        self.endless = False
        self.loop = Loop(frame, node, runs_at_least_once=False)

    def compile(self) -> None:
        """Emit the loop."""
        length = len(self.frame.builder.current.operations)
        try:
            loop: While | None = self.loop.build(self._build, self._iteration)
        except _Never as never:
            del self.frame.builder.current.operations[length:]
            self.loop.reset()
            if never.has_effects:  # they happen once
                truth(self.frame, self.frame.evaluate(self.node.test), self.node.test)
            self.frame.execute(self.node.orelse)
            return
        if loop is not None:
            count = len(self.loop.exits)
            self.loop.leave(loop.results[count:], loop.results[:count], self.endless)

    def _iteration(self) -> None:
        self.loop.iteration(lambda: None)

    def _build(self, initial: list[Value]) -> While | None:
        frame, loop = self.frame, self.loop
        flags = [frame.emit(Constant(value=False, dtype=bool_, shape=())) for _ in loop.exits]
        tested, state = ([Value(flag.type) for flag in flags] for _ in range(2))
        arguments = loop.arguments()
        with frame.builder.block(*tested, *arguments) as condition, frame.dynamic():
            loop.bind(arguments, inside=True)
            frame.builder.yield_(self._go_on(tested))
        arguments = loop.arguments()
        report = frame.report
        before = report.added, report.suppressed
        with frame.builder.block(*state, *arguments) as body, frame.dynamic():
            loop.bind(arguments, inside=True)
            self._iteration()
            values = loop.finish()
            if values is None:
                return None
            # A statement that failed, or that uses what failed, may be the one that leaves the loop.
            is_whole = before == (report.added, report.suppressed)
            if self.endless and not loop.body_flow.taken and is_whole:
                frame.type_error(
                    "the condition of this loop is always true, and nothing leaves it",
                    self.node.test,
                    "It would never end: leave it with `break` or `return`.",
                )
            frame.builder.yield_(*loop.flags(), *values)
        loop_op = While(carried=(*flags, *initial), condition=condition, body=body)
        frame.builder.add(loop_op)
        return loop_op

    def _go_on(self, flags: list[Value]) -> Value:
        """Whether there is another iteration.

        As in Python, the condition is not computed after an exit.
        """
        frame, node = self.frame, self.node
        before = dict(frame.variables)
        with frame.builder.block() as block:
            value = truth(frame, frame.evaluate(node.test), node.test)
        if changed(frame, before):
            frame.syntax_error(
                node.test,
                "the condition of this loop assigns a variable, which its body could not see",
                "Write `while True:`, assign in the body, and leave with `if not ...: break`.",
            )
        if value is False:
            raise _Never(has_effects(block))
        if value is True:
            self.endless = self.loop.runs_at_least_once = True
        remaining = frame.emit(Not(x=exited(frame, flags))) if flags else None
        value = settled(frame, block, value)
        if value is True:
            return remaining if remaining is not None else frame.emit(Constant(value=True, dtype=bool_, shape=()))
        return conjunction(frame, remaining, block, value)
