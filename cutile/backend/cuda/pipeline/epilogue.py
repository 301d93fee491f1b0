"""The epilogue: subtiles, wide loads, and results that TMA stores.

A result may be stored while the products of the next tile block run (a delayed epilogue):

    for tile in first..all by step:                    result = nothing
        acc = products of the tile               -->   for tile in first..all by step:
        store(convert(acc))                                for k: begin its product; store a subtile of result
                                                           if this tile is the last: store(convert(acc))
                                                           else: result = packed(convert(acc))

Rounded to 16 bits, a result takes half the registers of its accumulator. So it waits in registers, and the next tile's
products begin as soon as it is rounded. Each of their first iterations begins its product and then stores one subtile,
through shared memory and TMA, while the tensor cores run. A result is stored whole ahead of a loop with too few
iterations. The last tile's result is stored at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cutile.backend.cuda import ops
from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.pipeline.accumulators import vector_load_layout, with_columns
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.plan import WARP_ROWS, Dot, TmaStore
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, SmemLayout
from cutile.backend.cuda.tensor_map import MAX_TMA_AXES
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import LayoutAssignment, vector_width
from cutile.dtypes import bf16, f16, f32, i32
from cutile.ir import For, Op, Value
from cutile.ops.arith import Add, And, Mul
from cutile.ops.compare import Ge, Lt, Ne
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.shape import Cat, Reshape
from cutile.ops.view import LoadView, StoreView

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


# The results that TMA stores through shared memory, and their pieces.

STORE_BUFFERS = 2
"""Buffers of a warp in shared memory for its stores: it writes one while TMA reads the other."""
ADDED_BYTES = 128
"""Bytes of a row that a warp adds at a time: the widest swizzle."""

Stored = StoreMut | StoreView | ops.AddTile
"""Operations that TMA may carry out."""


def tma_stores_of(
    kernel: Kernel, dots: Mapping[Op, Dot], layouts: LayoutAssignment, warpgroups: int
) -> dict[Op, TmaStore]:
    """The stores that TMA can carry out.

    These are stores of 16-bit tiles with the shape of an accumulator, to tensors that the kernel does not read, and
    additions of whole accumulators. All stores go through the same buffers, and so have the first one's shape there.
    """
    sums = {dot.op.result: dot.accumulator for dot in dots.values()}
    joined = [op.result for op in kernel.order if isinstance(op, Cat) and len(op.result.tile.shape) == 2]
    as_sums = {value: group_accumulator((value.tile.shape[0], value.tile.shape[1]), warpgroups) for value in joined}
    # A joined tile counts as an accumulator if it has the layout of one: each thread joins its own columns.
    sums |= {value: layout for value, layout in as_sums.items() if layouts[value] == layout}
    stores: dict[Op, TmaStore] = {}
    for op in kernel.order:
        if not isinstance(op, Stored) or _is_unfit(kernel, op):
            continue
        store = None if isinstance(op, ops.AddTile) else _transposed_store(op, layouts, warpgroups)
        store = store or _store_of_rows(kernel, op, sums, warpgroups)
        # An addition waits until all buffers are free, and takes no part in their turns (`intrinsics/tma.py`, `add`).
        # So stores have to be like stores, and additions like additions.
        alike = (other.smem_layout for other in stores.values() if store is not None and other.adds == store.adds)
        if store is not None and all(other == store.smem_layout for other in alike):
            stores[op] = store
    return stores


def only_store_of(kernel: Kernel, loop: For, warpgroups: int) -> TmaStore | None:
    """The one store of a kernel, if TMA can carry it out in the accumulator's layout.

    It stores the tile block's own tile, after the main loop. None for any other kernel.
    """
    stores = [op for op in kernel.order if isinstance(op, StoreMut)]
    if len(stores) != 1 or stores[0] not in kernel.function.body.operations or _is_unfit(kernel, stores[0]):
        return None
    sums = loop.results[0]
    rows, columns = sums.tile.shape
    store = _store_of_rows(kernel, stores[0], {sums: group_accumulator((rows, columns), warpgroups)}, warpgroups)
    return None if store is None or store.passed else store


def _is_unfit(kernel: Kernel, op: Stored) -> bool:
    """Whether TMA may not carry out a store.

    The kernel reads the tensor, stores a part of a tile, or says `tma=ct.tma.DISABLED`. Of a view with limits only
    the part within them is stored.
    """
    loads = (load for load in kernel.order if isinstance(load, LoadMut | LoadTile | LoadView))
    partly = isinstance(op, StoreView) and (op.steps != op.value.tile.shape or bool(op.limited) or not op.bulk)
    return partly or any(load.operands[0] is op.x for load in loads)


def _store_of_rows(kernel: Kernel, op: Stored, sums: Mapping[Value, Layout], warpgroups: int) -> TmaStore | None:
    """The store of a matrix by TMA, or the addition of an accumulator.

    None where TMA cannot do it.
    """
    tensor, shape, adds = op.x.tensor, op.value.tile.shape, isinstance(op, ops.AddTile)
    shapes = {layout.shape for layout in sums.values()}
    dtypes = (f32,) if adds else (f16, bf16)  # `stmatrix` writes elements of 16 bits
    # TMA needs addresses at multiples of 16 bytes, and has up to 5 axes.
    if tensor.dtype not in dtypes or tensor.alignment != 16 or not 2 <= tensor.rank <= MAX_TMA_AXES:
        return None
    lead, columns = shape[:-1], shape[-1]
    value, passed = op.value, list[Op]()
    reshape = kernel.definitions.get(value)
    # The tensor's tile may have the matrix's rows in several axes. The reshape needs no instruction, as its only user
    # is the store.
    if len(shape) > 2 or shape not in shapes:
        if not isinstance(reshape, Reshape) or len(kernel.users[value]) > 1:
            return None
        passed.append(reshape)
        value = reshape.x
    # `stmatrix` writes 16 rows of 16 columns.
    if value.tile.shape not in shapes or value.tile.shape[1] != columns or columns % 16:
        return None
    rows = box_of_rows(lead)
    layout = sums.get(value) if adds else group_accumulator((value.tile.shape[0], columns), warpgroups)
    if tensor.unit_axis != tensor.rank - 1 or rows is None or layout is None:
        return None
    warp_columns = columns >> sum(bool(basis[1]) for basis in layout.warp)  # each warp bit along columns halves them
    # For the swizzle and the span, which do not depend on the number of rows.
    row = SmemLayout(warp_columns, 1, tensor.dtype.bits // 8, k_major=False)
    if adds and row.swizzle != ADDED_BYTES:
        return None
    return TmaStore(op, value, (*rows, row.span), tuple(passed), layout, STORE_BUFFERS)


def _transposed_store(op: StoreMut | StoreView, layouts: LayoutAssignment, warpgroups: int) -> TmaStore | None:
    """The store of a transposed accumulator by TMA; None where TMA cannot do it."""
    tensor, shape = op.x.tensor, op.value.tile.shape
    if tensor.dtype not in (f16, bf16) or tensor.alignment != 16 or len(shape) != 2 or tensor.unit_axis != 1:
        return None
    rows, columns = shape
    if columns % WGMMA_ROWS or rows % 8:  # `stmatrix` writes 8 x 8 elements
        return None
    layout = group_accumulator((columns, rows), warpgroups).permute((1, 0))
    if layouts[op.value] != layout:
        return None
    span = next(count for count in (64, 32, 16, 8) if rows % count == 0)  # rows at a time: 128 bytes at most, a swizzle
    return TmaStore(op, op.value, (span, WARP_ROWS), (), layout, STORE_BUFFERS, transposed=True)


def box_of_rows(extents: Sequence[int]) -> tuple[int, ...] | None:
    """The box of 16 consecutive rows of a tile whose rows have these extents.

    The first row is any multiple of 16. None where the rows are not a box.

    Example:
        >>> box_of_rows((2, 32)), box_of_rows((8, 4)), box_of_rows((4, 24))
        ((1, 16), (4, 4), None)
    """
    left, box = WARP_ROWS, list[int]()
    for extent in reversed(extents):  # the innermost axis is filled first
        if extent % left and left % extent:
            return None
        box.append(min(left, extent))
        left //= box[-1]
    return tuple(reversed(box)) if math.prod(box) == WARP_ROWS else None


class Epilogue:
    """The loads and stores of consumers besides their products.

    Attributes:
        delayed: the delayed store of results; None where results are stored at once.
        under_fence: lowers work between the writes of a tile to shared memory and the fence ahead of TMA; None: none.
    """

    def __init__(self, walk: WarpSpecialised) -> None:
        self._walk = walk
        self._as_loaded: dict[Value, Layout] = {}
        self.delayed = DelayedStore(walk) if walk.plan.delayed else None
        self.under_fence: Callable[[], None] | None = None

    # Loads.

    def vector_load(self, op: LoadTile | LoadMut) -> Layout | None:
        """The layout of wide loads of a tile that has an accumulator's layout.

        There the four lanes of a quad have neighbours of a row. The tile is loaded in wide accesses, and lanes exchange
        the elements where it is used (`shuffle_back`). None where it is loaded in its own layout.
        """
        context, tensor, layout = self._walk, op.operands[0].tensor, self._walk.layout(op.result)
        widest = vector_width(tensor, layout.shape)  # the axis, and elements of one access
        # A narrow epilogue has no registers for it.
        if widest is None or layout.rank != 2 or len(context.users[op.result]) != 1 or context.plan.narrow:
            return None
        vector_load = vector_load_layout(layout, widest[0], tensor.dtype.bits // 8)
        # Its accesses may be wider than the tensor's alignment allows.
        if vector_load is None or vector_load.vector(widest[0]) > widest[1]:
            return None
        self._as_loaded[op.result] = vector_load
        return vector_load

    def shuffle_back(self, values: Sequence[Value]) -> None:
        """Bring tiles that were loaded in wide accesses to their own layouts."""
        context = self._walk
        for value in values:
            vector_load = self._as_loaded.pop(value, None)
            if vector_load is not None:
                names = context.names(vector_load, context.layouts[value])
                convert = ops.ConvertLayout(x=context.lowered[value])
                context.lowered[value] = context.add(convert, **names, how="exchange").result

    # Parts.

    def part(self, op: ops.Subtile) -> None:
        """Lower a subtile: some columns of the accumulator."""
        context, accumulator, layout = self._walk, self._walk.plan.dot.accumulator, self._walk.layouts[op.result]
        part = ops.Subtile(x=context.lowered[op.x], part=op.part, parts=op.parts)
        columns = context.add(part, **context.names(accumulator, layout)).result
        if context.plan.narrow:  # without the barrier the compiler begins with later subtiles too early
            columns = context.add_in(ops.OptimizationBarrier(x=columns), layout)
        context.lowered[op.result] = columns

    def store_part(self, op: ops.StoreSubtile) -> None:
        """Store a subtile, whose index counts subtiles along its axis."""
        context, builder = self._walk, self._walk.builder
        index = list(context.allowed_index(context.own_index(op.x.mut)))
        scaled = builder.value(Mul(x=index[op.axis], y=builder.constant(op.parts)))
        number = context.lowered[op.number[0]] if op.number else builder.constant(op.part)
        index[op.axis] = builder.value(Add(x=scaled, y=number))
        store = context.plan.store
        if store is not None and store.op.x is op.x and not op.number:
            # A warp has 16 rows in 32 lanes, so that a lane has half as many elements as the warp has columns. TMA
            # stores `span` columns at a time: a piece.
            pieces = store.layout.registers * 2 // store.span // op.parts
            builder.location = op.location
            self._store_tile(store, op.value, index, piece=op.part * pieces)
        else:
            part = ops.Store(x=context.lowered[op.x], value=context.lowered[op.value], index=tuple(index))
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
        """Have TMA store a matrix, or carry it into the next tile (a delayed epilogue).

        `piece` is the number of its first piece within the tile.
        """
        context = self._walk
        layout = store.layout if store.transposed else with_columns(store.layout, matrix.tile.shape[1])
        value = context.converted(context.lowered[matrix], context.layouts[matrix], layout)
        if self.delayed is None or self.delayed.at_once:
            self.store_columns(store, value, index, piece, layout)
        else:
            self.delayed.delay(value, index)

    def store_columns(
        self, store: TmaStore, value: Value, index: Sequence[Value], piece: int, layout: Layout, *, packed: bool = False
    ) -> None:
        """Have TMA store columns, in pieces that are numbered from `piece` on.

        `packed`: the value is in words of two elements of 16 bits.
        """
        context, pipelines, buffers, under = self._walk, self._walk.pipelines, store.buffers, self.under_fence
        # `first`: the buffer of the first piece. `begins`: whether this is a tile's first piece, ahead of which the
        # warp waits for all buffers.
        facts = {"layout": context.layout_name(layout), "piece": piece, "first": piece % buffers, "begins": piece == 0}
        # With work under the fence, the store is cut in two: writes to shared memory, then the fence and TMA's part.
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
                dropped=pipelines.flag is not None,  # kernels with assertions: a failed one makes the index negative
                part=part,
            )
            context.add(bulk, **facts, span=store.span, buffers=buffers)


# The product of iteration 0 is under way in iteration 1, too. So the tensor cores have work while a warpgroup that
# writes a piece is late with its next product.
FIRST_ITERATION = 1
"""The iteration under whose product the first piece is written."""


class DelayedStore:
    """The delayed result, as the loop over tiles carries it.

    It is a tile of words of two elements each, and the row and the column of the result's tile.

    Attributes:
        at_once: whether the last tile's epilogue is being lowered, whose result is stored at once.
    """

    def __init__(self, walk: WarpSpecialised) -> None:
        plan = walk.plan
        assert plan.store is not None
        assert plan.mainloop is not None
        self._walk = walk
        self._store = plan.store
        self._sums = plan.mainloop.results[0]
        self._accumulator = plan.dot.accumulator
        rows, columns = self._accumulator.shape
        self._packed = group_accumulator((rows, columns // 2), plan.warpgroups)
        self._pieces = columns // plan.store.span
        self._owed: Value | None = None  # whether the loop's iterations have to store a result
        self.at_once = False

    def nothing(self) -> list[Value]:
        """The carried values while no result waits."""
        context = self._walk
        words = context.add_in(ops.Undef(dtype=i32, shape=self._packed.shape), self._packed)
        values = [words, context.builder.constant(0), context.builder.constant(0)]
        for value, name in zip(values, ("result", "row", "column"), strict=True):
            value.name = name
        return values

    def finish(self, operations: Sequence[Op]) -> None:
        """Lower the epilogue twice: for the last tile, and for tiles that another follows.

        The last tile's result is stored at once. Other results are delayed.
        """
        context, builder, tiles = self._walk, self._walk.builder, self._walk.tiles
        builder.location = None
        following = builder.value(Add(x=tiles.number, y=tiles.step))
        last = builder.value(Ge(x=following, y=tiles.total))
        sums = context.lowered[self._sums]

        def store_at_once() -> list[Value]:
            self.at_once = True
            # Without the barrier the compiler rounds all sums ahead of the branch, since both sides do. Here each piece
            # is to be rounded while the one before it is on its way.
            context.lowered[self._sums] = context.add_in(ops.OptimizationBarrier(x=sums), self._accumulator)
            context.operations(operations)
            builder.location = None
            self.at_once, context.lowered[self._sums] = False, sums
            return self.nothing()

        def delay() -> Sequence[Value]:
            context.operations(operations)
            builder.location = None
            return tiles.carried

        tiles.carried = builder.branch(last, store_at_once, delay)

    def delay(self, value: Value, index: Sequence[Value]) -> None:
        """Carry a result, and its tile index, into the next tile."""
        words = self._walk.add_in(ops.PackPairs(x=value), self._packed)
        self._walk.tiles.carried = (words, *index)

    def _write(self, piece: int) -> None:
        """Store a piece of the delayed result: `_store.span` columns."""
        words, row, column = self._walk.tiles.carried
        context, builder, pieces = self._walk, self._walk.builder, self._pieces
        rows, columns = self._packed.shape
        # The core has 64 rows for each warpgroup.
        layout = group_accumulator((rows, columns // pieces), self._packed.core[0] // WGMMA_ROWS)
        # Stores of a warp: one for each 16 rows. A word has 2 elements, and a lane has half as many elements of 16 rows
        # as its warp has columns: 4 columns for each word.
        stores = self._packed.registers // pieces * 4 // self._store.span
        subtile = context.add(
            ops.Subtile(x=words, part=piece, parts=pieces), **context.names(self._packed, layout)
        ).result
        scaled = builder.value(Mul(x=column, y=builder.constant(pieces)))
        index = (row, builder.value(Add(x=scaled, y=builder.constant(piece))))
        span_layout = with_columns(self._store.layout, self._store.span)
        context.epilogue.store_columns(self._store, subtile, index, stores * piece, span_layout, packed=True)

    def write_before(self, start: Value, stop: Value, step: Value) -> None:
        """Store the whole result ahead of a loop with too few iterations.

        Else the iterations store it, and `_owed` is true.
        """
        builder, tiles = self._walk.builder, self._walk.tiles
        # Ahead of a thread block's first tile no result waits.
        waits = builder.value(Ne(x=tiles.number, y=tiles.first))
        last = self._iteration_of(self._pieces - 1, start, step)
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
            return builder.value(Lt(x=iteration, y=self._iteration_of(piece, start, step)))

        def write_from(piece: int) -> None:
            """Write the iteration's piece, which is this one or a later one."""
            if piece == pieces - 1:
                self._write(piece)
            else:
                builder.branch(before(piece + 1), lambda: self._write(piece), lambda: write_from(piece + 1))

        def write_if_owed() -> None:
            builder.branch(owed, lambda: write_from(0))

        # Iterations before that of the first piece store nothing, and neither do iterations after that of the last.
        builder.branch(before(0), None, lambda: builder.branch(before(pieces), write_if_owed))

    def _iteration_of(self, piece: int, start: Value, step: Value) -> Value:
        """The value of the loop's variable in the iteration that writes a piece."""
        builder = self._walk.builder
        return builder.value(Add(x=start, y=builder.value(Mul(x=step, y=builder.constant(FIRST_ITERATION + piece)))))
