"""What follows the products.

Parts of a tile, loads in wide accesses, results that TMA stores through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.cuda import ops
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.layout_assignment import vector_width
from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.ops import ConvertLayout, OptimizationBarrier, Store, StoreSubtile, Subtile
from cutile.backend.cuda.pipeline.delayed_epilogue import DelayedStore
from cutile.backend.cuda.pipeline.pipelines import Pipelines
from cutile.backend.cuda.pipeline.plan import Plan, TmaStore
from cutile.backend.cuda.pipeline.split_k_sums import with_columns
from cutile.backend.cuda.pipeline.tensor_maps import TensorMaps
from cutile.backend.cuda.pipeline.tile_scheduler import TileScheduler
from cutile.backend.cuda.pipeline.vector_epilogue_load import vector_load_layout
from cutile.ir.core import Value
from cutile.ops.arith import Add, Mul
from cutile.ops.memory import LoadMut, LoadTile, StoreMut


class Epilogue:
    """What consumers load and store besides their products.

    Attributes:
        delayed: the store of a result that waits; None where it is stored at once.
    """

    def __init__(
        self, context: LoweringContext, plan: Plan, pipelines: Pipelines, tiles: TileScheduler, maps: TensorMaps
    ) -> None:
        self._context = context
        self._plan = plan
        self._pipelines = pipelines
        self._maps = maps
        self._as_loaded: dict[Value, Layout] = {}
        self.delayed = DelayedStore(context, plan, tiles, self._store_words) if plan.delayed else None

    # Loads.

    def vector_load(self, op: LoadTile | LoadMut) -> Layout | None:
        """The layout in which a tile is loaded that lies as sums do, in quads.

        None where it is that of its group.

        It is loaded in wide accesses, and handed round where it is used.
        """
        context = self._context
        tensor, layout = op.operands[0].tensor, context.layout(op.result)
        axis, widest = tensor.unit_axis, vector_width(tensor, layout.shape)
        if axis is None or widest is None or layout.rank != 2 or context.uses[op.result] != 1:
            return None
        vector_load = vector_load_layout(layout, axis, tensor.dtype.bits // 8)
        if (
            self._plan.narrow or vector_load is None or vector_load.vector(axis) > widest[1]
        ):  # or there are no registers for it
            return None
        self._as_loaded[op.result] = vector_load
        return vector_load

    def shuffle_back(self, values: Sequence[Value]) -> None:
        """Tiles that were loaded in wide accesses, as their groups have them."""
        context = self._context
        for value in values:
            vector_load = self._as_loaded.pop(value, None)
            if vector_load is not None:
                names = {
                    "source": context.layout_name(vector_load),
                    "layout": context.layout_name(context.layouts[value]),
                }
                context.lowered[value] = context.add(
                    ConvertLayout(x=context.lowered[value]), **names, how="exchange"
                ).result

    # Parts.

    def part(self, op: Subtile) -> None:
        """Some columns of the sums."""
        context, accumulator = self._context, self._plan.dot.accumulator
        layout = context.layout_name(context.layouts[op.result])
        x = context.converted(context.lowered[op.x], context.layouts[op.x], accumulator)
        part = Subtile(x=x, part=op.part, parts=op.parts)
        columns = context.add(part, source=context.layout_name(accumulator), layout=layout).result
        if self._plan.narrow:  # else the compiler begins with pieces whose turn has not come
            columns = context.add(OptimizationBarrier(x=columns), layout=layout).result
        context.lowered[op.result] = columns

    def store_part(self, op: StoreSubtile) -> None:
        """Some columns of the tile, as a tile of their own."""
        context, builder = self._context, self._context.builder
        *rows, columns = context.allowed_index(context.own_index(op.x.mut))
        scaled = builder.value(Mul(x=columns, y=builder.constant(op.parts)))
        number = context.lowered[op.number[0]] if op.number else builder.constant(op.part)
        index = (*rows, builder.value(Add(x=scaled, y=number)))
        store = self._plan.store
        if store is not None and store.op.x is op.x and not op.number:
            pieces = store.layout.registers * 2 // store.span // op.parts
            context.builder.location = op.location
            self._store_tile(store, op.value, index, piece=op.part * pieces)
            return
        layout = context.layout(op.value)
        part = Store(x=context.lowered[op.x], value=context.lowered[op.value], index=index)
        context.add(part, **context.access(op.x.tensor, layout))

    # Stores by TMA.

    def store(self, store: TmaStore) -> None:
        """Have TMA store a tile."""
        context, op = self._context, store.op
        own = isinstance(op, StoreMut)
        index = context.own_index(op.x.mut) if own else tuple(context.lowered[start] for start in op.starts)
        context.builder.location = op.location
        self._store_tile(store, store.value, context.allowed_index(index), piece=0)

    def _store_tile(self, store: TmaStore, matrix: Value, index: Sequence[Value], piece: int) -> None:
        """Have TMA store columns of a matrix that begin with a piece; or have them wait."""
        context = self._context
        layout = store.layout if store.transposed else with_columns(store.layout, matrix.tile.shape[1])
        value = context.converted(context.lowered[matrix], context.layouts[matrix], layout)
        if self.delayed is None or self.delayed.at_once:
            self._store_columns(store, value, index, piece, layout)
        else:
            self.delayed.delay(value, index)

    def _store_words(self, words: Value, index: Sequence[Value], piece: int) -> None:
        store = self._plan.store
        assert store is not None
        layout = with_columns(store.layout, 2 * words.tile.shape[1])
        self._store_columns(store, words, index, piece, layout, packed=True)

    def _store_columns(
        self,
        store: TmaStore,
        value: Value,
        index: Sequence[Value],
        piece: int,
        layout: Layout,
        *,
        packed: bool = False,
    ) -> None:
        context, plan, pipelines = self._context, self._plan, self._pipelines
        in_stages = self.delayed is not None and self.delayed.at_once and plan.ends_in_stages
        buffers, through = (
            (plan.stages[0], pipelines.buffers[0][0]) if in_stages else (store.buffers, pipelines.staging)
        )
        bulk = ops.TmaStore(
            x=context.lowered[store.op.x],
            value=value,
            through=through,
            index=tuple(index),
            map=self._maps.name(store.op.x, store.map),
            packed=packed,
            warp_bytes=store.panels.nbytes if in_stages else 0,
            dropped=pipelines.flag is not None,
            shape=store.shape,
            transposed=store.transposed,
        )
        context.add(
            bulk,
            layout=context.layout_name(layout),
            piece=piece,
            first=piece % buffers,
            begins=piece == 0,
            span=store.span,
            buffers=buffers,
        )
