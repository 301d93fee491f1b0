"""The epilogue: subtiles, wide loads, and results that TMA stores.

A result may be stored while the products of the next tile block run (a delayed epilogue):

    for tile in first..all by step:                    result = nothing
        acc = products of the tile               -->   for tile in first..all by step:
        store(convert(acc))                                for k: begin its product; store a subtile of result
                                                           if this tile is the last: store(convert(acc))
                                                           else: result = packed(convert(acc))

Rounded to 16 bits, a result takes half the registers that its sums took. So it waits there: the next tile's products
begin as soon as the sums are rounded, and one subtile after the other goes through shared memory to TMA, each under one
of the first products, which the tensor cores need nobody for. Ahead of a loop with too few iterations all of it is
written, and the last tile's result at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cutile.backend.cuda import ops
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.ops import (
    AddTile,
    ConvertLayout,
    OptimizationBarrier,
    PackPairs,
    Store,
    StoreSubtile,
    Subtile,
    Undef,
)
from cutile.backend.cuda.pipeline.accumulators import vector_load_layout, with_columns
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.plan import WARP_ROWS, Dot, TmaStore
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, SmemLayout
from cutile.backend.cuda.tensor_map import MAX_TMA_AXES
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import LayoutAssignment, vector_width
from cutile.dtypes import bf16, f16, f32, i32
from cutile.ir import For, If, Op, Value
from cutile.ops.arith import Add, And, Mul
from cutile.ops.compare import Ge, Lt, Ne
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.shape import Cat, Reshape
from cutile.ops.view import LoadView, StoreView

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


# Results that TMA stores, by way of shared memory: which, and how they are cut.

STORE_BUFFERS = 2
"""Places of a warp by way of which it stores: it writes one while TMA reads the other."""
ADDED_BYTES = 128
"""Of a row that a warp adds at a time: the widest swizzle."""

Stored = StoreMut | StoreView | AddTile
"""What TMA may do."""


def tma_stores_of(
    kernel: Kernel, dots: Mapping[Op, Dot], layouts: LayoutAssignment, warpgroups: int
) -> dict[Op, TmaStore]:
    """The stores that TMA can do.

    Of 16-bit rows of a tile like a product's sums, to a tensor that is not read; and additions of whole sums.

    They go by way of the same places, so that all are like the first.
    """
    sums = {dot.op.result: dot.accumulator for dot in dots.values()}
    joined = [op.result for op in kernel.order if isinstance(op, Cat) and len(op.result.tile.shape) == 2]
    lie = {value: group_accumulator((value.tile.shape[0], value.tile.shape[1]), warpgroups) for value in joined}
    # Of columns that each thread has of its own.
    sums |= {value: layout for value, layout in lie.items() if layouts[value] == layout}
    stores: dict[Op, TmaStore] = {}
    for op in kernel.order:
        if not isinstance(op, Stored) or _is_unfit(kernel, op):
            continue
        store = None if isinstance(op, AddTile) else _transposed_store(op, layouts, warpgroups)
        store = store or _store_of_rows(kernel, op, sums, warpgroups)
        # Additions wait for all places by themselves, and have no part in the order of a tile's places.
        alike = (other.smem_layout for other in stores.values() if store is not None and other.adds == store.adds)
        if store is not None and all(other == store.smem_layout for other in alike):
            stores[op] = store
    return stores


def only_store_of(kernel: Kernel, loop: For, warpgroups: int) -> TmaStore | None:
    """The one store of a kernel's own tile that TMA does in the accumulators' layout.

    Behind its main loop; None else.
    """
    stores = [op for op in kernel.order if isinstance(op, StoreMut)]
    if len(stores) != 1 or stores[0] not in kernel.function.body.operations or _is_unfit(kernel, stores[0]):
        return None
    sums = loop.results[0]
    rows, columns = sums.tile.shape
    store = _store_of_rows(kernel, stores[0], {sums: group_accumulator((rows, columns), warpgroups)}, warpgroups)
    return None if store is None or store.passed else store


def _is_unfit(kernel: Kernel, op: Stored) -> bool:
    """Whether a kernel reads the tensor that it stores to, or stores a part of a tile."""
    loads = (load for load in kernel.order if isinstance(load, LoadMut | LoadTile | LoadView))
    partly = isinstance(op, StoreView) and (op.steps != op.value.tile.shape or bool(op.limited))
    return partly or any(load.operands[0] is op.x for load in loads)


def _store_of_rows(kernel: Kernel, op: Stored, sums: Mapping[Value, Layout], warpgroups: int) -> TmaStore | None:
    """How TMA stores a matrix whose rows lie as those of sums do, or adds sums.

    None where it cannot.
    """
    tensor, shape, adds = op.x.tensor, op.value.tile.shape, isinstance(op, AddTile)
    shapes = {layout.shape for layout in sums.values()}
    dtypes = (f32,) if adds else (f16, bf16)
    if tensor.dtype not in dtypes or tensor.alignment != 16 or not 2 <= tensor.rank <= MAX_TMA_AXES:
        return None
    lead, columns = shape[:-1], shape[-1]
    value, passed = op.value, list[Op]()
    reshape = kernel.definitions.get(value)
    if len(shape) > 2 or shape not in shapes:
        if not isinstance(reshape, Reshape) or kernel.uses[value] > 1:
            return None
        passed.append(reshape)
        value = reshape.x
    if value.tile.shape not in shapes or value.tile.shape[1] != columns or columns % 16:
        return None
    rows = box_of_rows(lead)
    layout = sums.get(value) if adds else group_accumulator((value.tile.shape[0], columns), warpgroups)
    if tensor.unit_axis != tensor.rank - 1 or rows is None or layout is None:
        return None
    own = columns >> sum(bool(basis[1]) for basis in layout.warp)  # columns of a warpgroup
    part = SmemLayout(own, 1, tensor.dtype.bits // 8, k_major=False)
    if adds and part.swizzle != ADDED_BYTES:
        return None
    return TmaStore(op, value, (*rows, part.span), tuple(passed), layout, STORE_BUFFERS)


def _transposed_store(op: StoreMut | StoreView, layouts: LayoutAssignment, warpgroups: int) -> TmaStore | None:
    """How TMA stores a matrix whose columns lie as the rows of sums do.

    None where they do not.
    """
    tensor, shape = op.x.tensor, op.value.tile.shape
    if tensor.dtype not in (f16, bf16) or tensor.alignment != 16 or len(shape) != 2 or tensor.unit_axis != 1:
        return None
    rows, columns = shape
    if columns % WGMMA_ROWS or rows % 8:
        return None
    layout = group_accumulator((columns, rows), warpgroups).permute((1, 0))
    if layouts[op.value] != layout:
        return None
    together = next(span for span in (64, 32, 16, 8) if rows % span == 0)
    return TmaStore(op, op.value, (together, WARP_ROWS), (), layout, STORE_BUFFERS, transposed=True)


def box_of_rows(extents: Sequence[int]) -> tuple[int, ...] | None:
    """The box that 16 rows, from a multiple of 16 on, are of a tile of these extents.

    None where they are none.
    """
    left, box = WARP_ROWS, list[int]()
    for extent in reversed(extents):
        if extent % left and left % extent:
            return None
        box.append(min(left, extent))
        left //= box[-1]
    return tuple(reversed(box)) if math.prod(box) == WARP_ROWS else None


class Epilogue:
    """What consumers load and store besides their products.

    Attributes:
        delayed: the store of a result that waits; None where it is stored at once.
        under_fence: what is done between the writing of a tile to shared memory and the fence for TMA; None is nothing.
    """

    def __init__(self, walk: WarpSpecialised) -> None:
        self._walk = walk
        self._as_loaded: dict[Value, Layout] = {}
        self.delayed = DelayedStore(walk) if walk.plan.delayed else None
        self.under_fence: Callable[[], None] | None = None

    # Loads.

    def vector_load(self, op: LoadTile | LoadMut) -> Layout | None:
        """The layout in which a tile is loaded that lies as sums do, in quads.

        None where it is that of its group.

        It is loaded in wide accesses, and handed round where it is used.
        """
        context, tensor, layout = self._walk, op.operands[0].tensor, self._walk.layout(op.result)
        widest = vector_width(tensor, layout.shape)
        # A narrow epilogue has no registers for it.
        if widest is None or layout.rank != 2 or context.uses[op.result] != 1 or context.plan.narrow:
            return None
        vector_load = vector_load_layout(layout, widest[0], tensor.dtype.bits // 8)
        if vector_load is None or vector_load.vector(widest[0]) > widest[1]:
            return None
        self._as_loaded[op.result] = vector_load
        return vector_load

    def shuffle_back(self, values: Sequence[Value]) -> None:
        """Tiles that were loaded in wide accesses, as their groups have them."""
        context = self._walk
        for value in values:
            vector_load = self._as_loaded.pop(value, None)
            if vector_load is not None:
                names = context.names(vector_load, context.layouts[value])
                convert = ConvertLayout(x=context.lowered[value])
                context.lowered[value] = context.add(convert, **names, how="exchange").result

    # Parts.

    def part(self, op: Subtile) -> None:
        """Some columns of the sums."""
        context, accumulator, layout = self._walk, self._walk.plan.dot.accumulator, self._walk.layouts[op.result]
        part = Subtile(x=context.lowered[op.x], part=op.part, parts=op.parts)
        columns = context.add(part, **context.names(accumulator, layout)).result
        if context.plan.narrow:  # else the compiler begins with subtiles whose turn has not come
            columns = context.add_in(OptimizationBarrier(x=columns), layout)
        context.lowered[op.result] = columns

    def store_part(self, op: StoreSubtile) -> None:
        """Some columns of the tile, as a tile of their own."""
        context, builder = self._walk, self._walk.builder
        index = list(context.allowed_index(context.own_index(op.x.mut)))
        scaled = builder.value(Mul(x=index[op.axis], y=builder.constant(op.parts)))
        number = context.lowered[op.number[0]] if op.number else builder.constant(op.part)
        index[op.axis] = builder.value(Add(x=scaled, y=number))
        store = context.plan.store
        if store is not None and store.op.x is op.x and not op.number:
            pieces = store.layout.registers * 2 // store.span // op.parts
            builder.location = op.location
            self._store_tile(store, op.value, index, piece=op.part * pieces)
        else:
            part = Store(x=context.lowered[op.x], value=context.lowered[op.value], index=tuple(index))
            context.add(part, **context.access(op.x.tensor, context.layout(op.value)))

    # Stores by TMA.

    def store(self, store: TmaStore) -> None:
        """Have TMA store a tile."""
        context, op = self._walk, store.op
        own = isinstance(op, StoreMut)
        index = context.own_index(op.x.mut) if own else tuple(context.lowered[start] for start in op.starts)
        context.builder.location = op.location
        self._store_tile(store, store.value, context.allowed_index(index), piece=0)

    def _store_tile(self, store: TmaStore, matrix: Value, index: Sequence[Value], piece: int) -> None:
        """Have TMA store columns of a matrix that begin with a piece; or have them wait."""
        context = self._walk
        layout = store.layout if store.transposed else with_columns(store.layout, matrix.tile.shape[1])
        value = context.converted(context.lowered[matrix], context.layouts[matrix], layout)
        if self.delayed is None or self.delayed.at_once:
            self._store_columns(store, value, index, piece, layout)
        else:
            self.delayed.delay(value, index)

    def store_words(self, words: Value, index: Sequence[Value], piece: int) -> None:
        store = self._walk.plan.store
        assert store is not None
        layout = with_columns(store.layout, 2 * words.tile.shape[1])
        self._store_columns(store, words, index, piece, layout, packed=True)

    def _store_columns(
        self, store: TmaStore, value: Value, index: Sequence[Value], piece: int, layout: Layout, *, packed: bool = False
    ) -> None:
        context, pipelines, buffers, under = self._walk, self._walk.pipelines, store.buffers, self.under_fence
        facts = {"layout": context.layout_name(layout), "piece": piece, "first": piece % buffers, "begins": piece == 0}
        for part in ("",) if under is None else ("write", "begin"):
            if under is not None and part == "begin":
                under()
                context.builder.location = store.op.location
            bulk = ops.TmaStore(
                *(context.lowered[store.op.x], value, pipelines.staging, tuple(index)),
                map=context.maps.name(store.op.x, store.map),
                shape=store.shape,
                transposed=store.transposed,
                packed=packed,
                adds=store.adds,
                dropped=pipelines.flag is not None,
                part=part,
            )
            context.add(bulk, **facts, span=store.span, buffers=buffers)


FIRST_ITERATION = 1
"""The iteration under whose product the first piece is written: with another before it under way, a warpgroup that is
late with the next leaves the tensor cores no gap."""


class DelayedStore:
    """The result that waits, as the tile loop carries it.

    Its words, and the row and column where it belongs.

    Attributes:
        at_once: whether what is being lowered is the last result.
    """

    def __init__(self, walk: WarpSpecialised) -> None:
        plan = walk.plan
        assert plan.store is not None
        assert plan.mainloop is not None
        self._walk = walk
        self._sums = plan.mainloop.results[0]
        self._accumulator = plan.dot.accumulator
        rows, columns = self._accumulator.shape
        self._packed = group_accumulator((rows, columns // 2), plan.warpgroups)
        self._span = plan.store.span
        self._pieces = columns // self._span
        self._owed: Value | None = None
        self.at_once = False

    def nothing(self) -> list[Value]:
        """What stands for a result before there is one."""
        context = self._walk
        words = context.add_in(Undef(dtype=i32, shape=self._packed.shape), self._packed)
        values = [words, *(context.builder.constant(0) for _ in range(2))]
        for value, name in zip(values, ("result", "row", "column"), strict=True):
            value.name = name
        return values

    def finish(self, operations: Sequence[Op]) -> None:
        """What follows the main loop.

        The result waits, but for the last one, which nothing follows.
        """
        context, builder, tiles = self._walk, self._walk.builder, self._walk.tiles
        builder.location = None
        following = builder.value(Add(x=tiles.number, y=tiles.step))
        last = builder.value(Ge(x=following, y=tiles.total))
        sums = context.lowered[self._sums]
        self.at_once = True
        with builder.block() as then:
            # Else the compiler rounds all sums ahead of the branch, and not each piece while another is on its way.
            context.lowered[self._sums] = context.add_in(OptimizationBarrier(x=sums), self._accumulator)
            context.operations(operations)
            builder.location = None
            builder.yield_(*self.nothing())
        self.at_once, context.lowered[self._sums] = False, sums
        with builder.block() as orelse:
            context.operations(operations)
            builder.location = None
            builder.yield_(*tiles.carried)
        tiles.carried = builder.add(If(condition=last, then=then, orelse=orelse)).results

    def delay(self, value: Value, index: Sequence[Value]) -> None:
        """Have a result wait, which belongs to a tile index."""
        words = self._walk.add_in(PackPairs(x=value), self._packed)
        self._walk.tiles.carried = (words, *index)

    def _write(self, piece: int) -> None:
        """Write some columns of the result that waits."""
        words, row, column = self._walk.tiles.carried
        context, builder, pieces = self._walk, self._walk.builder, self._pieces
        rows, columns = self._packed.shape
        layout = group_accumulator((rows, columns // pieces), self._packed.core[0] // 64)
        tall = self._packed.registers // pieces * 4 // self._span  # a warp's 16 rows are stored at a time
        subtile = context.add(Subtile(x=words, part=piece, parts=pieces), **context.names(self._packed, layout)).result
        scaled = builder.value(Mul(x=column, y=builder.constant(pieces)))
        index = (row, builder.value(Add(x=scaled, y=builder.constant(piece))))
        context.epilogue.store_words(subtile, index, tall * piece)

    def write_before(self, start: Value, stop: Value, step: Value) -> None:
        """Store the whole result ahead of a loop with too few iterations.

        `_owed` says whether it is left to the loop.
        """
        builder, tiles = self._walk.builder, self._walk.tiles
        waits = builder.value(Ne(x=tiles.number, y=tiles.first))
        last = self._place_of(self._pieces - 1, start, step)
        few, enough = (builder.value(compare(x=last, y=stop)) for compare in (Ge, Lt))

        def write() -> None:
            for piece in range(self._pieces):
                self._write(piece)

        builder.branch(builder.value(And(x=waits, y=few)), write)
        self._owed = builder.value(And(x=waits, y=enough))

    def write_under(self, iteration: Value, start: Value, step: Value) -> None:
        """Store the piece that belongs under the product of an iteration, if any.

        Iterations count from `start` by `step`.
        """
        assert self._owed is not None
        owed, builder, pieces = self._owed, self._walk.builder, self._pieces

        def before(piece: int) -> Value:
            return builder.value(Lt(x=iteration, y=self._place_of(piece, start, step)))

        def one_of(piece: int) -> None:
            if piece == pieces - 1:
                self._write(piece)
            else:
                builder.branch(before(piece + 1), lambda: self._write(piece), lambda: one_of(piece + 1))

        # not under the first iteration; in time; and if there is any
        builder.branch(
            before(0), None, lambda: builder.branch(before(pieces), lambda: builder.branch(owed, lambda: one_of(0)))
        )

    def _place_of(self, piece: int, start: Value, step: Value) -> Value:
        """The iteration under whose product a piece is written."""
        builder = self._walk.builder
        return builder.value(Add(x=start, y=builder.value(Mul(x=step, y=builder.constant(FIRST_ITERATION + piece)))))
