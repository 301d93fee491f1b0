"""Loops whose loads one group of threads begins ahead: the plan of `multistage_rules.py`, carried out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.multistage_rules import Ahead, Loop, Ring, index_work, plan
from cutile.backend.cuda.ops import Barrier, StageCommit, StagedMma, StagePut, StageRead, StageTile, StageWait
from cutile.backend.cuda.smem_allocator import Span
from cutile.backend.cuda.staged_operands import Load, Side
from cutile.ir.constant import Constant
from cutile.ir.control import For, If, Yield
from cutile.ir.core import Op, Value
from cutile.ops.arith import Add, Mul
from cutile.ops.compare import Gt, Lt
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.view import LoadView


@dataclass
class _Running:
    """The loop that is being lowered.

    Attributes:
        loop: what is known of it.
        ring: its plan.
        place: of its stages.
        turn: the number of the iteration.
        step: of the loop, where it is a constant.
        met: whether threads have met in this iteration.
        registers: what was loaded for this iteration into registers.
        elsewhere: whether operations are lowered for another iteration.
    """

    loop: Loop
    ring: Ring
    place: Span | None
    turn: Value
    step: int | None
    met: bool = False
    registers: dict[Load, Value] = field(default_factory=dict[Load, Value])
    elsewhere: bool = False


class Multistage:
    """The part of lowering that is about such loops.

    Attributes:
        blocks: per multiprocessor that their shared memory is planned for; 0 leaves it open.
    """

    def __init__(self, context: LoweringContext, max_stages: int) -> None:
        self._context = context
        self._max_stages = max_stages
        self._running: _Running | None = None
        self.blocks = 0

    def lower(self, op: Op) -> bool:
        """Lower an operation, if it is such a loop, or one of its operations that is about that."""
        self._context.builder.location = op.location
        if self._taken_ahead(op):
            return True
        ring = self._ring(op) if isinstance(op, For) else None
        if not isinstance(op, For) or ring is None:
            return False
        self._run_ahead(op, ring)
        return True

    def _ring(self, op: For) -> Ring | None:
        # A raw pointer may write what is loaded ahead.
        return None if self._context.unsafe or self._running is not None else plan(self._loop_of(op))

    def _loop_of(self, op: For) -> Loop:
        context = self._context

        def stable(tensor: Value) -> bool:
            return context.is_constant(tensor) and tensor not in context.shared_tensors

        return Loop(op, context.layouts, context.definitions, stable, context.arch, self._max_stages)

    def _run_ahead(self, op: For, ring: Ring) -> None:
        """A loop whose loads are begun iterations ahead."""
        self.blocks = max(self.blocks, ring.blocks)
        place, builder = None, self._context.builder
        if ring.slots:
            place, used = self._context.smem.begin(ring.nbytes)
            if (
                self._context.loops or used
            ):  # the last iteration, or what had its place before, may be under way elsewhere
                builder.add(Barrier())
        loop, step = self._loop_of(op), self._context.definitions.get(op.step)
        start, zero = self._context.lowered[op.start], builder.constant(0)
        counted = loop.is_number(op.start, 0) and loop.is_number(op.step, 1) and start.type == zero.type
        first = start if counted else zero
        running = _Running(loop, ring, place, first, step.value if isinstance(step, Constant) else None)
        self._running = running
        for product, sides in ring.products.items():
            self._put(product, [side for side in sides if side.outside], zero)
        for lead in range(ring.slots - 1, 0, -1):
            self._copies(start, first, lead)
        firsts = [self._loaded(load, start) for load in self._by_registers(ring)]
        counter = [] if counted or not ring.slots else [zero]
        self._context.loops += 1
        arguments = [self._context.copy(value) for value in op.body.arguments]
        extra = [Value(value.type, value.name) for value in (*firsts, *counter)]
        with builder.block(*arguments, *extra) as body:
            induction = arguments[0]
            running.turn = extra[-1] if counter else induction
            running.registers = dict(zip(self._by_registers(ring), extra, strict=False))
            builder.location = op.location
            if ring.slots:
                builder.location = next(iter(ring.products or ring.loads)).location
                builder.add(StageWait(pending=ring.pending, meet=ring.meets is True))
            if not isinstance(ring.meets, Mma):
                self._meet()
            # At the top: behind the iteration's work there would be nothing left to hide what they wait for.
            following = [self._loaded(load, self._later(induction, 1)) for load in running.registers]
            for each in op.body.operations:
                if isinstance(each, Yield):
                    if counter:
                        following.append(builder.value(Add(x=running.turn, y=builder.constant(1))))
                    builder.add(Yield(values=(*(self._context.lowered[value] for value in each.values), *following)))
                else:
                    self._context.operation(each)
        self._context.loops -= 1
        self._running = None
        builder.location = op.location
        operands = [*(self._context.lowered[value] for value in op.operands), *firsts, *counter]
        self._context.finish(op, op.copy_with(operands, [body], ()))
        if ring.slots:
            builder.add(StageWait(pending=0, meet=ring.meets is not False))
            self._context.smem.end()

    @staticmethod
    def _by_registers(ring: Ring) -> list[Load]:
        return [load for load, each in ring.loads.items() if each.vector is None]

    def _taken_ahead(self, op: Op) -> bool:
        """Lower an operation of a loop that loads ahead, if it is one that is about that."""
        running = self._running
        if running is None or running.elsewhere:
            return False
        ring = running.ring
        if op in ring.passed:
            return True
        if isinstance(op, LoadTile | LoadView) and op in ring.loads:
            self._arrived(op, ring.loads[op])
            return True
        if isinstance(op, Mma) and op in ring.products:
            self._staged_mma(op)
            return True
        return False

    # What is loaded for another iteration.

    def _later(self, induction: Value, distance: int) -> Value:
        """The loop's variable, iterations later."""
        running, builder = self._running, self._context.builder
        assert running is not None
        dtype = induction.tile.dtype
        if running.step is not None:
            by = builder.constant(distance * running.step, dtype)
        else:
            step = self._context.lowered[running.loop.op.step]
            by = builder.value(Mul(x=step, y=builder.constant(distance, dtype)))
        return builder.value(Add(x=induction, y=by), "ahead")

    @contextmanager
    def _at(self, induction: Value, values: Sequence[Value]) -> Generator[None]:
        """Numbers as they are in the iteration of `induction`, while this lasts."""
        running = self._running
        assert running is not None
        now = dict(self._context.lowered)
        self._context.lowered[running.loop.op.induction] = induction
        running.elsewhere = True
        for op in dict.fromkeys(op for value in values for op in index_work(value, running.loop.inner)):
            self._context.operation(op)
        yield
        running.elsewhere = False
        self._context.lowered = now

    def _loaded(self, load: Load, induction: Value) -> Value:
        """A tile for the iteration of `induction`, into registers."""
        with self._at(induction, load.index):
            self._context.operation(load)
            return self._context.lowered[load.result]

    def _copies(self, induction: Value, turn: Value, lead: int = 0) -> None:
        """Begin the copies that are due in an iteration; ahead of the loop, `lead` iterations before its first."""
        running, builder = self._running, self._context.builder
        assert running is not None
        for each in running.ring.loads.values():
            distance = each.distance - lead
            if each.vector is not None and distance >= 0:
                at = self._later(induction, distance) if distance else induction
                number = at if turn is induction else builder.value(Add(x=turn, y=builder.constant(distance)))
                self._stage(each, at, number)
        builder.add(StageCommit())

    def _stage(self, each: Ahead, induction: Value, turn: Value) -> None:
        """Begin to copy a tile, if its iteration comes and loads it."""
        running, builder = self._running, self._context.builder
        assert running is not None
        load, ring = each.load, running.ring
        builder.location = load.location
        with self._at(induction, [*load.index, *(op.condition for op, _ in each.guards)]):
            conditions = [(self._context.lowered[op.condition], first) for op, first in each.guards]
            if running.step and not running.loop.is_whole:
                compare = Lt if running.step > 0 else Gt
                conditions.append(
                    (builder.value(compare(x=induction, y=self._context.lowered[running.loop.op.stop])), True)
                )
            view = isinstance(load, LoadView)
            made = StageTile(
                x=self._context.lowered[load.x],
                turn=turn,
                index=tuple(self._context.lowered[value] for value in load.index),
                shape=load.shape,
                strides=each.strides,
                stage=(each.place, ring.slots, ring.slot_bytes),
                steps=load.steps if view else (),
                limited=load.limited if view else (),
            )

        def stage() -> None:
            self._context.add(made, layout=self._context.layout_name(each.layout), vector=each.vector)

        self._under(conditions, stage)
        self._share(made)

    def _under(self, conditions: Sequence[tuple[Value, bool]], do: Callable[[], None]) -> None:
        """Do something where all conditions hold, or do not hold, as they say."""
        if not conditions:
            do()
            return
        builder = self._context.builder
        (condition, first), *rest = conditions
        with builder.block() as inside:
            self._under(rest, do)
            builder.yield_()
        with builder.block() as outside:
            builder.yield_()
        then, orelse = (inside, outside) if first else (outside, inside)
        builder.add(If(condition=condition, then=then, orelse=orelse))

    # What has arrived.

    def _meet(self) -> None:
        """What others have copied and written is here, and what they have read may be written over."""
        running = self._running
        assert running is not None
        running.met = True
        if running.ring.slots:
            self._copies(self._context.lowered[running.loop.op.induction], running.turn)

    def _arrived(self, load: Load, each: Ahead) -> None:
        """A tile that was loaded ahead, in registers."""
        running = self._running
        assert running is not None
        if each.vector is None:
            self._context.lowered[load.result] = running.registers[load]
            return
        if not each.read:
            return
        layout, ring = self._context.layouts[load.result], running.ring
        made = StageRead(
            turn=running.turn,
            dtype=load.x.tensor.dtype,
            shape=load.shape,
            strides=each.strides,
            stage=(each.place, ring.slots, ring.slot_bytes),
            own=each.own,
            of=load.x.name,
        )
        self._context.add(made, layout=self._context.layout_name(layout), vector=each.vector)
        self._share(made)
        made.result.name = load.result.name
        self._context.lowered[load.result] = made.result

    def _put(self, product: Mma, sides: Sequence[Side], turn: Value) -> None:
        """Write operands to where their product reads them."""
        running = self._running
        assert running is not None
        accumulator = self._context.layout_name(self._context.layouts.accumulator(product))
        left, right = running.ring.products[product]
        for side in sides:
            made = StagePut(
                value=self._context.lowered[side.value],
                turn=turn,
                right=side is right,
                dtype=product.a.tile.dtype,
                other=product.b.tile.dtype,
                swaps=(left.stage.swap, right.stage.swap),
                stage=(side.place, side.copies, side.stage.bytes),
            )
            self._context.add(
                made, source=self._context.layout_name(self._context.layouts[side.value]), accumulator=accumulator
            )
            self._share(made)

    def _share(self, op: Op) -> None:
        """The operation works on the loop's stages."""
        running = self._running
        assert running is not None
        assert running.place is not None
        self._context.smem.share(op, running.place)

    def _staged_mma(self, product: Mma) -> None:
        """A product whose operands are in stages, or are written there for it."""
        running, builder = self._running, self._context.builder
        assert running is not None
        ring, sides = running.ring, running.ring.products[product]
        if written := [side for side in sides if side.written]:
            self._put(product, written, running.turn)
            builder.add(Barrier())  # each thread reads what others have written
        if not running.met:
            self._meet()
        builder.location = product.location
        accumulator = self._context.layouts.accumulator(product)
        left, right = (
            (side.place, ring.slots, ring.slot_bytes) if side.load else (side.place, side.copies, side.stage.bytes)
            for side in sides
        )
        made = StagedMma(
            acc=self._context.converted(
                self._context.lowered[product.acc], self._context.layouts[product.acc], accumulator
            ),
            turn=running.turn,
            dtype=product.a.tile.dtype,
            other=product.b.tile.dtype,
            depth=product.a.tile.shape[1],
            swaps=(sides[0].stage.swap, sides[1].stage.swap),
            left=left,
            right=right,
            rounds=any(side.rounds for side in sides),
        )
        self._context.add(made, layout=self._context.layout_name(accumulator))
        self._share(made)
        self._context.place(product.result, made.result, accumulator)
