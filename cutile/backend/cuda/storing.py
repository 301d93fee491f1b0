"""Lowering to specialised warps: parts of a tile, and how the copy engine stores what becomes of them."""

from __future__ import annotations

from dataclasses import replace

from cutile.backend.cuda.divided import DividedLoop
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.ops import AddNearby, BulkStore, Part, Store, StorePart
from cutile.ir.core import Op, Value
from cutile.ops.arith import Add, Mul
from cutile.ops.memory import StoreMut


class Storing(DividedLoop):
    """What follows the loop of products, where it is cut into parts or stored by the copy engine."""

    def _operation(self, op: Op) -> None:
        if isinstance(op, Part):
            self._part(op)
        elif isinstance(op, StoreMut) and op is self._plan.store:
            self._bulk_store(op, self._own_index(op.x.mut), piece=0)
        elif isinstance(op, AddNearby):
            self._add_nearby(op)
        elif isinstance(op, StorePart):
            self._store_part(op)
        else:
            super()._operation(op)

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
            pieces = self._plan.accumulator.registers * 2 // self._plan.store_panels.span // op.parts
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
        self._store_result(op.x, value, index, piece)

    def _store_result(self, x: Value, value: Value, index: tuple[Value, ...], piece: int) -> None:
        """What becomes of columns of a tile that begin with a piece."""
        self._store_columns(x, value, index, piece)

    def _store_columns(
        self, x: Value, value: Value, index: tuple[Value, ...], piece: int, *, packed: bool = False
    ) -> None:
        """Have the copy engine store the columns of a tile that begin with a piece."""
        plan = self._plan
        rows, columns = _two(value.tile.shape)
        wanted = _cut_to((rows, 2 * columns if packed else columns), plan.accumulator)
        apart = self._apart()
        buffers, place = (plan.buffers, self._staging) if apart is None else (plan.slots, self._slots_at)
        made = BulkStore(
            x=self._map[x],
            value=value,
            index=index,
            map=self._map_name(x, plan.store_map),
            packed=packed,
            apart=apart,
        )
        self._add(
            made,
            layout=self._name(wanted),
            piece=piece,
            first=piece % buffers,
            begins=piece == 0,
            span=plan.store_panels.span,
            buffers=buffers,
            place=place,
        )

    def _apart(self) -> tuple[int, int] | None:
        """From place to place and from warp to warp, where what is stored goes by way of the ring's slots."""
        return None


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return rows, columns


def _cut_to(shape: tuple[int, int], accumulator: Layout) -> Layout:
    """The layout of sums, of a tile with as many rows."""
    counts = [(axis, -(-shape[axis] // accumulator.core[axis])) for axis in (1, 0)]
    return replace(accumulator, shape=shape, repeat=tuple((axis, count) for axis, count in counts if count > 1))
