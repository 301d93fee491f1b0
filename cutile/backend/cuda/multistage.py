"""Lowering of loops that load ahead, by one group of warps.

`multistage_rules.py` plans them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.multistage_rules import LoadAhead, Loop, MultistagePlan, is_padded, plan_multistage
from cutile.backend.cuda.ops import Barrier, PadEdges, StageCommit, StagedMma, StagePut, StageRead, StageTile, StageWait
from cutile.backend.cuda.staged_operands import Load, Side
from cutile.backend.gpu.op_facts import constant_of, work_of
from cutile.backend.gpu.smem_allocator import Span
from cutile.ir import For, Op, Value, Yield
from cutile.ops.arith import Add, Mul
from cutile.ops.compare import Gt, Lt
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.view import LoadView, StoreView


def begin(context: LoweringContext, op: For, max_stages: int) -> RunningLoop | None:
    """The lowering of a loop that loads ahead; None where it loads nothing ahead."""
    # A raw pointer may write a tensor that is loaded ahead. Rows in shared memory (`held_rows.py`) take all its room.
    if context.unsafe or context.held:
        return None
    # Tiles are padded as threads read them from stages, which adds instructions. A kernel that only reads is bound by
    # these, and is faster without loads ahead of padded tiles (on an H200, cross entropy of 32000 runs at 0.62 of the
    # bandwidth of reading with them, at 0.72 without; softmax in pieces, which writes too, at 0.58 of a copy's with
    # them, at 0.46 without). Products read stages as they were copied, without padding.
    pads = not context.products and any(isinstance(each, StoreView) for each in context.function.walk())
    loop = Loop(op, context.layouts, context.definitions, context.is_constant, context.arch, max_stages, pads)
    plan = plan_multistage(loop)
    return None if plan is None else RunningLoop(context, loop, plan)


class RunningLoop:
    """The loop that is being lowered.

    Attributes:
        place: the shared memory of its stages.
        iteration: the number of the iteration, from 0 on.
        blocks: thread blocks on a multiprocessor that its shared memory is planned for; 0 leaves it open.
        met: whether threads have met in this iteration.
        registers: the tiles that were loaded ahead into registers, for this iteration.
        elsewhere: whether operations are lowered for another iteration (`_at`). `lower` then leaves all of them to its
            caller, like operations outside of the loop.
    """

    place: Span
    iteration: Value

    def __init__(self, context: LoweringContext, loop: Loop, plan: MultistagePlan) -> None:
        self._context = context
        self._loop = loop
        self._plan = plan
        self.blocks = plan.blocks
        self._step: int | None = constant_of(loop.op.step, context.definitions)
        self._by_registers = [load for load, ahead in plan.loads.items() if ahead.vector is None]
        self.met = False
        self.registers: dict[Load, Value] = {}
        self.elsewhere = False

    def run(self) -> None:
        """Add the loop, with its loads begun iterations ahead."""
        context, builder, loop, plan, op = self._context, self._context.builder, self._loop, self._plan, self._loop.op
        if plan.stages:
            self.place, used = context.smem.begin(plan.nbytes)
            # Other warps may still use this shared memory for an earlier loop, or for the outer loop's last iteration.
            if context.loops or used:
                builder.add(Barrier())
        start, zero = context.lowered[op.start], builder.constant(0)
        # The number of an iteration selects its stage. In a loop over 0, 1, 2, ... the variable is that number.
        counted = loop.counts and start.type == zero.type
        self.iteration = first = start if counted else zero
        # No barrier follows these writes: threads meet in each iteration before its first product.
        for product, sides in plan.products.items():
            self._put(product, [side for side in sides if side.outside], zero)
        # The copies that further iterations ahead of the first one would have begun, one group for each.
        for lead in range(plan.stages - 1, 0, -1):
            self._copies(start, first, lead)
        first_tiles = [self._loaded(load, start) for load in self._by_registers]
        counter = [] if counted or not plan.stages else [zero]
        context.loops += 1
        arguments = [context.copy(value) for value in op.body.arguments]
        carried = [Value(value.type, value.name) for value in (*first_tiles, *counter)]
        with builder.block(*arguments, *carried) as body:
            self.iteration = carried[-1] if counter else arguments[0]
            self.registers = dict(zip(self._by_registers, carried, strict=False))
            builder.location = op.location
            if plan.stages:
                # The wait stands at the line of the first product, or else of the first load. `meets` is True for a
                # barrier here, False for none in an iteration, or the product at which threads meet.
                builder.location = next(iter(plan.products or plan.loads)).location
                builder.add(StageWait(pending=plan.pending, meet=plan.meets is True))
            if not isinstance(plan.meets, Mma):  # otherwise threads meet at that product (`_staged_mma`)
                self._meet()
            # These loads stand at the top, so that the iteration's work hides their latency. In the last iteration
            # their index is past the loop's end. A load outside of the tensor gives zeros, and nobody reads the tiles.
            following = [self._loaded(load, self._later(arguments[0], 1)) for load in self.registers]
            context.operations(op.body.operations[:-1])
            if counter:
                following.append(builder.value(Add(x=self.iteration, y=builder.constant(1))))
            yields = op.body.terminator.operands
            builder.add(Yield(values=(*(context.lowered[value] for value in yields), *following)))
        context.loops -= 1
        builder.location = op.location
        operands = [*(context.lowered[value] for value in op.operands), *first_tiles, *counter]
        context.finish(op, op.copy_with(operands, [body], ()))
        if plan.stages:
            # The operations after the loop may use the same shared memory: no copy may be under way there, and no
            # thread may still read a stage.
            builder.add(StageWait(pending=0, meet=plan.meets is not False))
            context.smem.end()

    def lower(self, op: Op) -> bool:
        """Lower an operation whose lowering the plan decides.

        Returns:
            False for any other operation, which the caller lowers.
        """
        plan = self._plan
        self._context.builder.location = op.location
        if self.elsewhere:
            return False
        if isinstance(op, LoadTile | LoadView) and op in plan.loads:
            self._arrived(op, plan.loads[op])
        elif isinstance(op, Mma) and op in plan.products:
            self._staged_mma(op)
        else:
            return op in plan.passed
        return True

    # Loads for another iteration.

    def _later(self, induction: Value, distance: int) -> Value:
        """The loop's variable `distance` iterations later."""
        builder, dtype = self._context.builder, induction.tile.dtype
        if self._step is not None:
            ahead = builder.constant(distance * self._step, dtype)
        else:
            step = self._context.lowered[self._loop.op.step]
            ahead = builder.value(Mul(x=step, y=builder.constant(distance, dtype)))
        return builder.value(Add(x=induction, y=ahead), "ahead")

    @contextmanager
    def _at(self, induction: Value, values: Sequence[Value]) -> Generator[None]:
        """Compute numbers for the iteration in which the loop's variable is `induction`.

        Within the context, `lowered` has these numbers in place of this iteration's.

        Args:
            induction: the loop's variable in that iteration.
            values: the numbers.
        """
        context = self._context
        this_iteration = dict(context.lowered)
        context.lowered[self._loop.op.induction] = induction
        self.elsewhere = True
        work = work_of(values, self._loop.inside.definitions)
        context.operations([op for op in self._loop.operations if op in work])
        yield
        self.elsewhere = False
        context.lowered = this_iteration

    def _loaded(self, load: Load, induction: Value) -> Value:
        """A tile for the iteration of `induction`, into registers."""
        with self._at(induction, load.index):
            self._context.operation(load)
            return self._context.lowered[load.result]

    def _copies(self, induction: Value, iteration: Value, lead: int = 0) -> None:
        """Begin the copies that an iteration begins, and commit them as one group.

        A group may be empty: `StageWait` counts groups.

        Args:
            induction: the loop's variable in that iteration; ahead of the loop, its variable in the first one.
            iteration: the number of the same iteration.
            lead: ahead of the loop, the distance to the first iteration: the copies are those of iteration `-lead`.
        """
        builder = self._context.builder
        for ahead in self._plan.loads.values():
            distance = ahead.distance - lead
            if ahead.vector is not None and distance >= 0:
                at = self._later(induction, distance) if distance else induction
                number = at
                if iteration is not induction:
                    number = builder.value(Add(x=iteration, y=builder.constant(distance)))
                self._stage(ahead, at, number)
        builder.add(StageCommit())

    def _stage(self, ahead: LoadAhead, induction: Value, iteration: Value) -> None:
        """Begin to copy a tile, if the loop runs its iteration and loads it there."""
        context, load, plan, loop = self._context, ahead.load, self._plan, self._loop
        context.builder.location = load.location
        with self._at(induction, [*load.index, *(op.condition for op, _ in ahead.guards)]):
            conditions = [(context.lowered[op.condition], first) for op, first in ahead.guards]
            # If the step is no constant, its sign is not known, and so not the comparison either. Copies past the
            # loop's end are then made too, and nobody reads them.
            if self._step and not loop.is_whole:
                compare = Lt if self._step > 0 else Gt
                within = context.builder.value(compare(x=induction, y=context.lowered[loop.op.stop]))
                conditions.append((within, True))
            index = tuple(context.lowered[value] for value in load.index)
            copy = StageTile(
                context.lowered[load.x],
                iteration,
                index,
                shape=load.shape,
                strides=ahead.strides,
                stage=plan.stage_of(ahead),
                steps=load.steps if isinstance(load, LoadView) else (),
                limited=load.limited if isinstance(load, LoadView) else (),
            )

        def stage() -> None:
            context.add(copy, layout=context.layout_name(ahead.layout), vector=ahead.vector)

        self._under(conditions, stage)
        self._share(copy)

    def _under(self, conditions: Sequence[tuple[Value, bool]], do: Callable[[], None]) -> None:
        """Add operations (`do`) that run where each condition has its value."""
        if not conditions:
            do()
            return
        (condition, first), *rest = conditions

        def inside() -> None:
            self._under(rest, do)

        # The branch has nothing in its other block.
        self._context.builder.branch(condition, inside if first else None, None if first else inside)

    # Tiles that have arrived.

    def _meet(self) -> None:
        """Begin further copies, after the barrier of the iteration.

        There, other threads' copies and writes are visible, and the stage to be filled has been read by all threads.
        """
        self.met = True
        if self._plan.stages:
            self._copies(self._context.lowered[self._loop.op.induction], self.iteration)

    def _arrived(self, load: Load, ahead: LoadAhead) -> None:
        """Bring a tile that was loaded ahead to registers, if threads read it there."""
        context, plan = self._context, self._plan
        if ahead.vector is None:
            context.lowered[load.result] = self.registers[load]
            return
        if not ahead.read:
            return
        tile = StageRead(
            self.iteration,
            dtype=load.x.tensor.dtype,
            shape=load.shape,
            strides=ahead.strides,
            stage=plan.stage_of(ahead),
            own=ahead.own,
            of=load.x.name,
        )
        context.add(tile, layout=context.name_of(load.result), vector=ahead.vector)
        self._share(tile)
        if isinstance(load, LoadView) and is_padded(load):
            index = tuple(context.lowered[value] for value in load.index)
            tile = PadEdges(tile.result, context.lowered[load.x], index, load.steps, load.limited, load.padding)
            context.add(tile, layout=context.name_of(load.result))
        context.map(load, tile)

    def _put(self, product: Mma, sides: Sequence[Side], iteration: Value) -> None:
        """Write operands from registers to where their product reads them."""
        context, plan = self._context, self._plan
        accumulator = context.layout_name(context.layouts.accumulator(product))
        left, right = plan.products[product]
        for side in sides:
            put = StagePut(
                context.lowered[side.value],
                iteration,
                right=side is right,
                dtype=product.a.tile.dtype,
                other=product.b.tile.dtype,
                swaps=(left.stage.swap, right.stage.swap),
                stage=plan.stage_of(side),
            )
            context.add(put, source=context.name_of(side.value), accumulator=accumulator)
            self._share(put)

    def _share(self, op: Op) -> None:
        """Let an operation work on the loop's stages."""
        self._context.smem.share(op, self.place)

    def _staged_mma(self, product: Mma) -> None:
        """A product whose operands are in stages, or are written there for it."""
        context, plan, sides = self._context, self._plan, self._plan.products[product]
        if written := [side for side in sides if side.written]:
            self._put(product, written, self.iteration)
            # Each thread reads elements that others have written. Operands of the iteration before, which others may
            # still read, lie in another stage, or were read ahead of this iteration's barrier
            # (`multistage_rules._placed_sides`).
            context.builder.add(Barrier())
        if not self.met:
            self._meet()
        context.builder.location = product.location
        accumulator = context.layouts.accumulator(product)
        acc = context.converted(context.lowered[product.acc], context.layouts[product.acc], accumulator)
        a, b, (left, right) = product.a.tile, product.b.tile, sides
        dot = StagedMma(
            acc,
            self.iteration,
            dtype=a.dtype,
            other=b.dtype,
            depth=a.shape[1],
            swaps=(left.stage.swap, right.stage.swap),
            left=plan.stage_of(left),
            right=plan.stage_of(right),
            rounds=left.rounds or right.rounds,  # of both operands: rounding changes no tf32
        )
        context.add(dot, layout=context.layout_name(accumulator))
        self._share(dot)
        context.place(product.result, dot.result, accumulator)
