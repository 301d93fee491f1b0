"""Loops whose operands one group of threads copies ahead of their product: the plan of `ring.py`, carried out."""

from __future__ import annotations

from cutile.backend.cuda.draft import Draft
from cutile.backend.cuda.ops import Barrier, StageCommit, StagedMma, StageTile, StageWait
from cutile.backend.cuda.ring import Ring, index_work, plan
from cutile.backend.cuda.shared import Span
from cutile.backend.cuda.staging import stages
from cutile.ir.control import For
from cutile.ir.core import Value
from cutile.ops.arith import Add
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile


class RunAhead(Draft):
    """The part of lowering that is about such loops."""

    def _ring(self, op: For) -> Ring | None:
        if self._unsafe:  # a raw pointer may write what would be read ahead
            return None
        products = [each for each in op.body.operations if isinstance(each, Mma)]
        accumulator = self._placement.accumulator(products[0]) if products else None
        if accumulator is not None and self._placement[products[0].acc] != accumulator:
            return None
        return plan(op, self._definitions, self._uses, accumulator, self._arch, self._most_slots)

    def _run_ahead(self, op: For, ring: Ring) -> None:
        """A loop whose operands are copied `slots - 1` turns ahead of their product."""
        self._rings.append(ring)
        place, used = self._arena.begin(ring.slots * ring.slot_bytes)
        if self._loops or used:  # the ring's last turn, or what had its place before, may still be under way elsewhere
            self._builder.add(Barrier())
        for turn in range(ring.slots - 1):
            self._stage(op, ring, place, self._builder.constant(turn))
        self._loops += 1
        with self._builder.block(*(self._copy(value) for value in op.body.arguments)) as body:
            self._builder.location = ring.product.location
            self._builder.add(StageWait(pending=ring.slots - 2))
            ahead = Add(x=self._map[op.induction], y=self._builder.constant(ring.slots - 1))
            self._stage(op, ring, place, self._builder.value(ahead, "ahead"))
            for each in op.body.operations:
                if each is ring.product:
                    self._staged_mma(op, ring, place)
                elif each not in (ring.left, ring.right, *ring.passed):
                    self._operation(each)
        self._loops -= 1
        self._builder.location = op.location
        made = op.copy_with([self._map[value] for value in op.operands], [body], ())
        self._finish(op, made)
        self._builder.add(StageWait(pending=0))
        self._arena.end()

    def _stage(self, loop: For, ring: Ring, place: Span, turn: Value) -> None:
        """Begin to copy both operands of a turn."""
        accumulator = self._placement.accumulator(ring.product)
        product = ring.product
        types = product.a.tile.dtype, product.b.tile.dtype
        where = stages(types[0], accumulator, product.a.tile.shape[1], right=types[1], swaps=ring.swaps)
        sides = (ring.left, "left"), (ring.right, "right")
        for (load, role), stage, turned in zip(sides, where, ring.turned, strict=True):
            self._builder.location = load.location
            index = self._index_of(loop, load, turn)
            made = StageTile(x=self._map[load.x], turn=turn, index=index, shape=load.shape, role=role)
            self._add(
                made,
                layout=self._name(self._placement[load.result]),
                axis=int(stage.swap == turned),
                slots=ring.slots,
                slot_bytes=ring.slot_bytes,
                pitch=stage.pitch,
                place=stage.offset,
            )
            self._arena.share(made, place)
        self._builder.add(StageCommit())

    def _index_of(self, loop: For, load: LoadTile, turn: Value) -> tuple[Value, ...]:
        """The index of a load in another iteration than this one."""
        inner = {value: op for op in loop.body.operations for value in op.results}
        now = dict(self._map)
        self._map[loop.induction] = turn
        for op in dict.fromkeys(op for value in load.index for op in index_work(value, inner)):
            self._operation(op)
        index = tuple(self._map[value] for value in load.index)
        self._map = now
        return index

    def _staged_mma(self, loop: For, ring: Ring, place: Span) -> None:
        product = ring.product
        self._builder.location = product.location
        made = StagedMma(
            acc=self._map[product.acc],
            turn=self._map[loop.induction],
            dtype=product.a.tile.dtype,
            other=product.b.tile.dtype,
            depth=product.a.tile.shape[1],
            swaps=ring.swaps,
            rounds=ring.rounds,
        )
        accumulator = self._placement.accumulator(product)
        self._add(made, layout=self._name(accumulator), slots=ring.slots)
        self._arena.share(made, place)
        self._place(product.result, made.result, accumulator)
