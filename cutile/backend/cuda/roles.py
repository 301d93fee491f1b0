"""Lowering to specialised warps: the plan of `specialise.py`, carried out.

cuda.ring_start() {slots = 4, readers = 2}
cuda.roles() {groups = 2} {
  cuda.registers() {count = 40}
  if elected: for tile in first..all by step: for k in 0..n: acquire(turn); load x, y; turn += 1
} {
  cuda.registers() {count = 232}
  for tile in first..all by step:
    for k in 0..n: wait(turn); acc = group_mma(acc, turn); release(turn - 1); turn += 1
    ... the rest of the kernel, with the sums in registers
}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cutile.backend.cuda.epilogue import cut
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.nearby import beside, loop_beside
from cutile.backend.cuda.operand import Operand
from cutile.backend.cuda.ops import (
    AddNearby,
    Blank,
    BulkDrain,
    BulkLoad,
    BulkPrefetch,
    BulkStore,
    ClusterEnd,
    ClusterStart,
    Elected,
    FollowOn,
    GroupMma,
    GroupNumber,
    GroupWait,
    HandOver,
    Opaque,
    OuterMma,
    Part,
    Registers,
    RingAcquire,
    RingRelease,
    RingStart,
    RingWait,
    Roles,
    Store,
    StorePart,
    TakeOver,
    ZeroUnless,
)
from cutile.backend.cuda.panels import GROUP, Panels
from cutile.backend.cuda.specialised import BARRIER_BYTES, Specialised
from cutile.backend.cuda.split import part_layout
from cutile.backend.cuda.target import Architecture
from cutile.backend.cuda.trailing_store import TrailingStore
from cutile.backend.interface import TensorMap
from cutile.dtypes import bool_
from cutile.ir.constant import Constant
from cutile.ir.control import For, If
from cutile.ir.core import Function, Op, Value
from cutile.ops.arith import Add, Max, Min, Mul, Sub
from cutile.ops.compare import Lt, Ne, Select
from cutile.ops.grid import NumTileBlocks
from cutile.ops.memory import StoreMut


class RoleLowering(TrailingStore):
    """One walk for the loading warps, over what they need, and one for those that compute, over everything."""

    def __init__(self, function: Function, plan: Specialised, arch: Architecture) -> None:
        nearby = loop_beside(function, plan.loop, plan.parts)
        if not plan.exchanged:  # then its columns are dealt to warps
            function = cut(function, plan.loop, plan.piece)
        if nearby is not None:
            function = beside(function, nearby)
        cuts = [op for op in function.walk() if isinstance(op, Part | AddNearby)]
        parts = [(op, part_layout(plan.accumulator, op.parts)) for op in cuts]
        super().__init__(function, plan, arch, ((plan.product, plan.accumulator), *parts))
        self._slots_at = self._arena.reserve(plan.slots * plan.slot_bytes)
        staged = self._warps * self._store_panels.nbytes if plan.store is not None else 0
        # A tile is stored whole, or in parts of what other thread blocks have sent: the two share a place.
        self._staging = self._arena.reserve(max(plan.buffers * staged, plan.nearby_bytes))
        self._barriers = self._arena.reserve((2 * plan.slots + self._more) * BARRIER_BYTES)
        self._maps: dict[tuple[Value, TensorMap], str] = {}

    @property
    def _more(self) -> int:
        """Barriers behind the ring's, by which groups with tile blocks of their own take turns; or one, on which the
        sums of a cluster's pieces arrive."""
        return self._plan.groups if self._plan.alone else int(self._plan.parts > 0)

    @property
    def _store_panels(self) -> Panels:
        """What one warp stores at a time, as a tile in panels: its 16 rows of the result."""
        columns = self._plan.product.acc.tile.shape[1]
        panels = Panels(columns, 16, 2, k_major=False)
        return Panels(panels.span, 16, 2, k_major=False)

    def run(self) -> Function:
        """The lowered function."""
        source, plan, builder = self._function, self._plan, self._builder
        shrunk, grown = plan.registers
        with builder.block(*(self._copy(value) for value in source.parameters)) as body:
            for tensor, name in self._name_maps():
                builder.add(BulkPrefetch(x=self._map[tensor], map=name))
            readers = plan.readers * plan.cluster
            start: dict[str, Any] = {"offset": self._barriers, "cluster": plan.cluster, "more": self._more}
            builder.add(RingStart(slots=plan.slots, readers=readers, nearby=plan.parts > 0, **start))
            builder.add(FollowOn())
            if plan.cluster > 1:
                builder.add(ClusterStart())
            with builder.block() as load:
                if shrunk:
                    builder.add(Registers(count=shrunk, grow=False))
                elected = builder.value(Elected(groups=plan.groups))
                with builder.block() as then:
                    self._tiles(self._load_tile)
                    builder.yield_()
                with builder.block() as orelse:
                    builder.yield_()
                builder.add(If(condition=elected, then=then, orelse=orelse))
                if plan.parts:
                    builder.add(ClusterStart())
                builder.yield_()
            with builder.block() as compute:
                if grown:
                    builder.add(Registers(count=grown, grow=True))
                if plan.parts:
                    builder.add(ClusterStart())
                kept = self._nothing_kept()
                self._tiles(self._compute_tile, alone=plan.groups if plan.alone else 1, kept=kept)
                if plan.store is not None:
                    builder.add(BulkDrain())
                builder.yield_()
            builder.add(Roles(load=load, compute=compute, groups=plan.groups))
            if plan.cluster > 1:
                builder.add(ClusterEnd())
        made = Function(source.name, body, source.source, source.file, "cuda")
        self._arena.place()
        made.facts = self._facts(
            threads=plan.threads,
            min_blocks=1,
            early=True,
            **self._divided_facts(),
            cluster=plan.pieces if plan.parts else plan.cluster,
            computing=GROUP * plan.groups,
            **({"speaks": True} if plan.limited else {}),  # where a wait lasts too long
            tensor_maps=tuple(
                (name, source.parameters.index(value), form.box, form.swizzle, form.order, form.rounded)
                for (value, form), name in self._maps.items()
            ),
        )
        return made

    def _name_maps(self) -> list[tuple[Value, str]]:
        """The maps of what is loaded and stored by the copy engine, in the order of their first use."""
        plan = self._plan
        found = [(each.load.x, self._map_name(each.load.x, each.map)) for each in (plan.left, plan.right)]
        if plan.store is not None:
            found.append((plan.store.x, self._map_name(plan.store.x, self._store_map)))
        return found

    # The loading warps.

    def _load_tile(self) -> None:
        self._tile_indices()
        for op in self._function.body.operations:
            if op is self._plan.loop:
                self._load_turns(self._plan.loop)
            elif op in self._loaders and op not in self._hoisted:
                self._operation(op)

    @property
    def _loaders(self) -> frozenset[Op]:
        """The operations of the kernel that the loading warps do."""
        return self._plan.needed | self._plan.asserts

    @property
    def _speaker(self) -> int:
        return GROUP * self._plan.groups

    def _load_turns(self, loop: For) -> None:
        turn = Value(self._current_turn.type, "turn")
        with self._builder.block(self._copy(loop.induction), turn) as body:
            for op in loop.body.operations:
                if op in self._loaders:
                    self._operation(op)
            self._builder.location = self._plan.product.location
            nbytes = self._plan.left.panels.nbytes + self._plan.right.panels.nbytes
            slots = self._plan.slots
            ring: dict[str, Any] = {"slots": slots, "offset": self._barriers, "limited": self._plan.limited}
            self._builder.add(RingAcquire(turn=turn, nbytes=nbytes, **ring))
            self._load_operand(self._plan.left, turn, self._slots_at)
            self._load_operand(self._plan.right, turn, self._slots_at + self._plan.left.panels.place_bytes)
            self._builder.yield_(self._after(turn, 1))
        self._builder.location = loop.location
        bounds = self._bounds()
        made = For(start=bounds[0], stop=bounds[1], step=bounds[2], carried=(self._current_turn,), body=body)
        self._builder.add(made)
        (self._turn,) = made.results

    def _after(self, turn: Value, count: int) -> Value:
        step = self._builder.constant(abs(count))
        return self._builder.value(Add(x=turn, y=step) if count > 0 else Sub(x=turn, y=step))

    def _load_operand(self, operand: Operand, turn: Value, place: int) -> None:
        load, panels = operand.load, operand.panels
        self._builder.location = load.location
        index = tuple(self._map[value] for value in load.index)
        name = self._map_name(load.x, operand.map)
        made = BulkLoad(x=self._map[load.x], turn=turn, index=index, shape=load.shape, map=name)
        self._add(
            made,
            panels=panels_fact(panels),
            axis=operand.axis,
            cluster=operand.shared,
            slots=self._plan.slots,
            slot_bytes=self._plan.slot_bytes,
            place=place,
            offset=self._barriers,
        )

    @property
    def _store_map(self) -> TensorMap:
        panels = self._store_panels
        return TensorMap((16, panels.span), panels.swizzle, (0, 1))

    def _map_name(self, tensor: Value, form: TensorMap) -> str:
        """The name of the parameter with a tensor's map."""
        key = (tensor, form)
        if key not in self._maps:
            taken = sum(each[0] is tensor for each in self._maps)
            self._maps[key] = f"{tensor.name}_map" + (f"_{taken}" if taken else "")
        return self._maps[key]

    # The computing warps.

    def _compute_tile(self) -> None:
        """Everything. Where the tile block is, is worked out under the first product, unless the loop needs it."""
        if self._plan.alone:
            assert self._number is not None
            assert self._step is not None
            over = TakeOver(number=self._number, step=self._step, offset=self._behind, limited=self._plan.limited)
            self._builder.add(over)
        if self._put_off is None:
            self._tile_indices()
        elsewhere = self._hoisted.union(self._put_off or (), self._plan.asserts)
        operations = self._function.body.operations
        after = operations.index(self._plan.loop) + 1
        operations = [op for op in operations if op is not self._parts]
        for op in operations[:after]:
            if op not in elsewhere:
                self._operation(op)
        self._store_tile([op for op in operations[after:] if op not in elsewhere])

    def _store_tile(self, operations: Sequence[Op]) -> None:
        """What follows the loop. The last block of a cluster may have no tile block: the tile there is not its own,
        where the tensor has one, since a launch may cover a part of it."""
        plan, builder = self._plan, self._builder
        if plan.cluster == 1:
            self._finish_tile(operations)
            return
        builder.location = None
        count = builder.value(NumTileBlocks(axis=plan.along))
        exists = builder.value(Lt(x=self._block_ids[plan.along], y=count))
        with builder.block() as then:
            self._finish_tile(operations)
            builder.location = None
            builder.yield_()
        with builder.block() as orelse:
            builder.yield_()
        builder.add(If(condition=exists, then=then, orelse=orelse))

    def _operation(self, op: Op) -> None:
        if op is self._plan.loop:
            self._multiply(self._plan.loop)
        elif isinstance(op, Part):
            self._part(op)
        elif isinstance(op, StoreMut) and op is self._plan.store:
            self._bulk_store(op, self._own_index(op.x.mut), piece=0)
        elif isinstance(op, AddNearby):
            self._add_nearby(op)
        elif isinstance(op, StorePart):
            self._store_part(op)
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

    def _promoted_turns(self, sums: Value, bounds: list[Value]) -> Value:
        """Some turns at a time, whose products the tensor cores add up apart from the sums.

        Of two groups the second one has fewer turns the first time, so that from there on the one multiplies while the
        other waits for its products and adds them.
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
        self._turn = turn
        with builder.block(first, acc, turn) as body:
            beyond = builder.value(Min(x=builder.value(Add(x=first, y=many)), y=stop))
            apart = self._add(Blank(dtype=sums.tile.dtype, shape=sums.tile.shape), layout=layout).result
            within = first if begin is start else builder.value(Max(x=first, y=start))
            apart = self._turns(apart, [within, beyond, step], fresh=True)
            added = self._add(Add(x=acc, y=apart), layout=layout).result
            builder.yield_(added, self._current_turn)
        builder.location = plan.loop.location
        made = self._add(For(start=begin, stop=stop, step=many, carried=(sums, before), body=body))
        self._turn = made.results[1]
        return made.results[0]

    def _turns(self, sums: Value, bounds: list[Value], *, fresh: bool = False) -> Value:
        """Products added to sums, or to nothing where they are `fresh`; and all of them finished.

        A slot is given up once the product after its own has begun.
        """
        builder, plan, product, loop = self._builder, self._plan, self._plan.product, self._plan.loop
        layout = self._name(plan.accumulator)
        start, stop, step = bounds
        turn, acc = Value(self._current_turn.type, "turn"), Value(sums.type, sums.name)
        ring = {"slots": plan.slots, "offset": self._barriers}
        given: dict[str, Any] = {**ring, "cluster": plan.cluster, "warps": plan.crosswise}
        groups = plan.steps if plan.crosswise else 1
        late = [Value(each.type, each.name) for each in self._late_values()]
        if plan.trailing:
            self._write_before(start, stop, step)
        with builder.block(Value(start.type, loop.induction.name), acc, turn, *late) as body:
            builder.location = product.location
            later = builder.value(Ne(x=body.arguments[0], y=start))
            builder.add(RingWait(turn=turn, limited=plan.limited, **ring))
            made = GroupMma(
                acc=acc,
                turn=turn,
                added=(later,) if fresh else (),
                left=(product.b if plan.exchanged else product.a).tile.dtype,
                right=(product.a if plan.exchanged else product.b).tile.dtype,
                depth=product.a.tile.shape[1],
                promoted=plan.promoted,
                crosswise=plan.crosswise,
                exchanged=plan.exchanged,
            )
            self._add(
                made,
                layout=layout,
                panels=(panels_fact(plan.left.panels), panels_fact(plan.right.panels)),
                slots=plan.slots,
                slot_bytes=plan.slot_bytes,
                place=self._slots_at,
            )
            if plan.trailing:
                self._write_under(body.arguments[0], start, step)
            found = self._found(later, late)
            builder.location = product.location
            waited = self._add(GroupWait(acc=made.result, pending=1, groups=groups), layout=layout).result
            builder.add(RingRelease(turn=self._after(turn, -1), condition=later, **given))
            builder.yield_(waited, self._after(turn, 1), *found)
        builder.location = loop.location
        carried = (sums, self._current_turn, *(builder.constant(0, each.tile.dtype) for each in late))
        made = self._add(For(start=start, stop=stop, step=step, carried=carried, body=body))
        self._turn = made.results[1]
        if plan.alone:
            builder.add(HandOver(offset=self._behind))
        done = self._add(GroupWait(acc=made.results[0], pending=0, groups=groups), layout=layout).result
        ran = builder.value(Lt(x=start, y=stop))
        self._settle(self._found(ran, made.results[2:]))
        builder.add(RingRelease(turn=self._after(self._turn, -1), condition=ran, **given))
        return done

    @property
    def _starts_blank(self) -> bool:
        """Whether the first product may take the place of the sums, since they start from zeros."""
        start = self._definitions.get(self._plan.loop.carried[0])
        apart = self._plan.promoted or self._plan.together
        return isinstance(start, Constant) and start.value == 0 and not apart

    def _first_sums(self, loop: For) -> Value:
        """What the sums start from, in registers that the compiler does not make anew within the loop."""
        layout = self._name(self._plan.accumulator)
        if self._starts_blank:
            acc = loop.carried[0].tile
            return self._add(Blank(dtype=acc.dtype, shape=acc.shape), layout=layout).result
        sums = self._converted(self._map[loop.carried[0]], self._placement[loop.results[0]], self._plan.accumulator)
        return self._add(Opaque(x=sums), layout=layout).result

    def _outer_turns(self, loop: For, bounds: list[Value]) -> Value:
        """Turns of products by fused multiply-adds. Each warp gives up a slot as soon as it has read it."""
        builder, plan, product = self._builder, self._plan, self._plan.product
        sums = self._converted(self._map[loop.carried[0]], self._placement[loop.results[0]], plan.accumulator)
        ring: dict[str, Any] = {"slots": plan.slots, "offset": self._barriers}
        turn = Value(self._current_turn.type, "turn")
        acc = self._copy(loop.body.arguments[1])
        with builder.block(self._copy(loop.induction), acc, turn) as body:
            builder.location = product.location
            builder.add(RingWait(turn=turn, limited=plan.limited, **ring))
            made = self._add(
                OuterMma(acc=acc, turn=turn, depth=product.a.tile.shape[1]),
                layout=self._name(plan.accumulator),
                panels=(panels_fact(plan.left.panels), panels_fact(plan.right.panels)),
                slots=plan.slots,
                slot_bytes=plan.slot_bytes,
                place=self._slots_at,
            )
            always = builder.constant(True, bool_)
            builder.add(RingRelease(turn=turn, condition=always, cluster=plan.cluster, warps=True, **ring))
            builder.yield_(made.result, self._after(turn, 1))
        builder.location = loop.location
        start, stop, step = bounds
        run = self._add(For(start=start, stop=stop, step=step, carried=(sums, self._current_turn), body=body))
        self._turn = run.results[1]
        run.results[0].name = loop.results[0].name
        return run.results[0]

    def _part(self, op: Part) -> None:
        layouts = {"source": self._name(self._plan.accumulator), "layout": self._name(self._placement[op.result])}
        x = self._converted(self._map[op.x], self._placement[op.x], self._plan.accumulator)
        made = self._add(Part(x=x, part=op.part, parts=op.parts), **layouts)
        self._map[op.result] = made.result

    def _add_nearby(self, op: AddNearby) -> None:
        """A part of the sums of all thread blocks of the cluster."""
        x = self._converted(self._map[op.x], self._placement[op.x], self._plan.accumulator)
        self._map[op.result] = self._nearby_sums(x, self._map[op.part])

    def _store_part(self, op: StorePart) -> None:
        """Some columns of the tile, as a tile of their own."""
        builder = self._builder
        *rows, columns = self._own_index(op.x.mut)
        scaled = builder.value(Mul(x=columns, y=builder.constant(op.parts)))
        number = self._map[op.number[0]] if op.number else builder.constant(op.part)
        index = (*rows, builder.value(Add(x=scaled, y=number)))
        store = self._plan.store
        if store is not None and store.x is op.x and not op.number:
            pieces = self._plan.accumulator.registers * 2 // self._store_panels.span // op.parts
            self._bulk_store(op, index, piece=op.part * pieces)
            return
        layout = self._layout(op.value)
        made = Store(x=self._map[op.x], value=self._map[op.value], index=index)
        self._add(made, **self._access(op.x.tensor, layout))

    def _bulk_store(self, op: StoreMut | StorePart, index: tuple[Value, ...], piece: int) -> None:
        self._builder.location = op.location
        source = self._placement[op.value]
        wanted = _cut_to(_two(op.value.tile.shape), self._plan.accumulator)
        value = self._converted(self._map[op.value], source, wanted)
        if self._plan.trailing and not self._at_once:
            self._keep(value, index)
        else:
            self._store_columns(op.x, value, index, piece)

    def _store_columns(
        self, x: Value, value: Value, index: tuple[Value, ...], piece: int, *, packed: bool = False
    ) -> None:
        plan, panels = self._plan, self._store_panels
        rows, columns = _two(value.tile.shape)
        wanted = _cut_to((rows, 2 * columns if packed else columns), plan.accumulator)
        apart = (plan.slot_bytes, panels.nbytes) if self._at_once and plan.ends_in_ring else None
        buffers, place = (plan.buffers, self._staging) if apart is None else (plan.slots, self._slots_at)
        made = BulkStore(
            x=self._map[x],
            value=value,
            index=index,
            map=self._map_name(x, self._store_map),
            packed=packed,
            apart=apart,
        )
        self._add(
            made,
            layout=self._name(wanted),
            piece=piece,
            first=piece % buffers,
            begins=piece == 0,
            span=panels.span,
            buffers=buffers,
            place=place,
        )


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return rows, columns


def _cut_to(shape: tuple[int, int], accumulator: Layout) -> Layout:
    """The layout of sums, of a tile with as many rows."""
    counts = [(axis, -(-shape[axis] // accumulator.core[axis])) for axis in (1, 0)]
    return replace(accumulator, shape=shape, repeat=tuple((axis, count) for axis, count in counts if count > 1))


def panels_fact(panels: Panels) -> tuple[Any, ...]:
    """Panels as plain data, which IR prints and parses."""
    return (panels.width, panels.length, panels.size, panels.k_major)
