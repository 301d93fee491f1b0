"""Lowering to specialised warps: parts of a tile, and how the copy engine stores what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.ops import AddNearby, BulkStore, ConvertLayout, Opaque, Part, Store, StorePart
from cutile.backend.cuda.placement import vector_width
from cutile.backend.cuda.specialised.divided import DividedLoop
from cutile.backend.cuda.specialised.quads import widened
from cutile.backend.cuda.specialised.record import Specialised
from cutile.backend.cuda.target import Architecture
from cutile.ir.core import Function, Op, Value
from cutile.ops.arith import Add, Mul
from cutile.ops.memory import LoadMut, LoadTile, StoreMut


class Storing(DividedLoop):
    """What follows the loop of products, where it is cut into parts or stored by the copy engine."""

    def __init__(
        self, function: Function, plan: Specialised, arch: Architecture, accumulators: Sequence[tuple[Op, Layout]]
    ) -> None:
        super().__init__(function, plan, arch, accumulators)
        self._used = Counter(value for op in function.walk() for value in op.operands)
        self._as_loaded: dict[Value, Layout] = {}

    def _operation(self, op: Op) -> None:
        for value in op.operands:
            self._hand_round(value)
        if isinstance(op, Part):
            self._part(op)
        elif isinstance(op, StoreMut) and op is self._plan.store:
            self._bulk_store(op, self._allowed(self._own_index(op.x.mut)), piece=0)
        elif isinstance(op, AddNearby):
            self._add_nearby(op)
        elif isinstance(op, StorePart):
            self._store_part(op)
        else:
            super()._operation(op)

    def _load(self, op: LoadTile | LoadMut) -> None:
        """A tile that lies as the sums do, in quads, is loaded in wide accesses, and handed round where it is used; but
        where groups are alone, since these have no registers for it, and time."""
        wide = None if self._plan.narrow else self._wide(op)
        if wide is None:
            super()._load(op)
            return
        self._load_in(op, wide)
        self._as_loaded[op.result] = wide

    def _wide(self, op: LoadTile | LoadMut) -> Layout | None:
        """The layout in which a tile is loaded; None where it is that of its group."""
        tensor, layout = op.operands[0].tensor, self._layout(op.result)
        axis, widest = tensor.unit_axis, vector_width(tensor, layout.shape)
        if axis is None or widest is None or layout.rank != 2 or self._used[op.result] != 1:
            return None
        wide = widened(layout, axis, tensor.dtype.bits // 8)
        return wide if wide is not None and wide.vector(axis) <= widest[1] else None

    def _hand_round(self, value: Value) -> None:
        """A tile that was loaded in wide accesses, as its group has it."""
        wide = self._as_loaded.pop(value, None)
        if wide is not None:
            names = {"source": self._name(wide), "layout": self._name(self._placement[value])}
            self._map[value] = self._add(ConvertLayout(x=self._map[value]), **names, how="exchange").result

    def _part(self, op: Part) -> None:
        layouts = {"source": self._name(self._plan.accumulator), "layout": self._name(self._placement[op.result])}
        x = self._converted(self._map[op.x], self._placement[op.x], self._plan.accumulator)
        made = self._add(Part(x=x, part=op.part, parts=op.parts), **layouts)
        self._map[op.result] = made.result
        if self._plan.narrow:  # else the compiler begins with pieces whose turn has not come
            self._map[op.result] = self._add(Opaque(x=made.result), layout=layouts["layout"]).result

    def _add_nearby(self, op: AddNearby) -> None:
        """A part of the sums of all thread blocks of the cluster."""
        x = self._converted(self._map[op.x], self._placement[op.x], self._plan.accumulator)
        self._map[op.result] = self._nearby_sums(x, self._map[op.part])

    def _store_part(self, op: StorePart) -> None:
        """Some columns of the tile, as a tile of their own."""
        builder = self._builder
        *rows, columns = self._allowed(self._own_index(op.x.mut))
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
        in_stages = self._ends_in_stages()
        buffers, through = (plan.slots, self._left) if in_stages else (plan.buffers, self._staging)
        made = BulkStore(
            x=self._map[x],
            value=value,
            through=through,
            index=index,
            map=self._map_name(x, plan.store_map),
            packed=packed,
            warp_bytes=plan.store_panels.nbytes if in_stages else 0,
            dropped=self._flag is not None,
        )
        self._add(
            made,
            layout=self._name(wanted),
            piece=piece,
            first=piece % buffers,
            begins=piece == 0,
            span=plan.store_panels.span,
            buffers=buffers,
        )

    def _ends_in_stages(self) -> bool:
        """Whether what is stored goes by way of the pipeline's stages."""
        return False


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return rows, columns


def _cut_to(shape: tuple[int, int], accumulator: Layout) -> Layout:
    """The layout of sums, of a tile with as many rows."""
    counts = [(axis, -(-shape[axis] // accumulator.core[axis])) for axis in (1, 0)]
    return replace(accumulator, shape=shape, repeat=tuple((axis, count) for axis, count in counts if count > 1))
