"""What follows the products: parts of a tile, loads in wide accesses, results that TMA stores through shared memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cutile.backend.cuda import ops
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.layout_assignment import vector_width
from cutile.backend.cuda.lower import Lowering
from cutile.backend.cuda.ops import ConvertLayout, OptimizationBarrier, Store, StoreSubtile, Subtile
from cutile.backend.cuda.pipeline.delayed_epilogue import DelayedStore
from cutile.backend.cuda.pipeline.pipelines import Pipelines
from cutile.backend.cuda.pipeline.plan import Plan, TmaStore
from cutile.backend.cuda.pipeline.split_k_sums import with_columns
from cutile.backend.cuda.pipeline.tensor_maps import TensorMaps
from cutile.backend.cuda.pipeline.tile_scheduler import TileLoop
from cutile.backend.cuda.pipeline.vector_epilogue_load import widened
from cutile.ir.core import Function, Value
from cutile.ops.arith import Add, Mul
from cutile.ops.memory import LoadMut, LoadTile, StoreMut


class Epilogue:
    """What consumers load and store besides their products.

    Attributes:
        delayed: the store of a result that waits; None where it is stored at once.
    """

    def __init__(
        self, draft: Lowering, source: Function, plan: Plan, pipelines: Pipelines, tiles: TileLoop, maps: TensorMaps
    ) -> None:
        self._draft = draft
        self._plan = plan
        self._pipelines = pipelines
        self._maps = maps
        self._used = Counter(value for op in source.walk() for value in op.operands)
        self._as_loaded: dict[Value, Layout] = {}
        self.delayed = DelayedStore(draft, plan, tiles, self._store_words) if plan.delayed else None

    # Loads.

    def wide(self, op: LoadTile | LoadMut) -> Layout | None:
        """The layout in which a tile is loaded that lies as sums do, in quads; None where it is that of its group.

        It is loaded in wide accesses, and handed round where it is used.
        """
        draft = self._draft
        tensor, layout = op.operands[0].tensor, draft.layout(op.result)
        axis, widest = tensor.unit_axis, vector_width(tensor, layout.shape)
        if axis is None or widest is None or layout.rank != 2 or self._used[op.result] != 1:
            return None
        wide = widened(layout, axis, tensor.dtype.bits // 8)
        if self._plan.narrow or wide is None or wide.vector(axis) > widest[1]:  # or there are no registers for it
            return None
        self._as_loaded[op.result] = wide
        return wide

    def hand_round(self, values: Sequence[Value]) -> None:
        """Tiles that were loaded in wide accesses, as their groups have them."""
        draft = self._draft
        for value in values:
            wide = self._as_loaded.pop(value, None)
            if wide is not None:
                names = {"source": draft.layout_name(wide), "layout": draft.layout_name(draft.placement[value])}
                draft.lowered[value] = draft.add(ConvertLayout(x=draft.lowered[value]), **names, how="exchange").result

    # Parts.

    def part(self, op: Subtile) -> None:
        """Some columns of the sums."""
        draft, accumulator = self._draft, self._plan.dot.accumulator
        layout = draft.layout_name(draft.placement[op.result])
        x = draft.converted(draft.lowered[op.x], draft.placement[op.x], accumulator)
        part = Subtile(x=x, part=op.part, parts=op.parts)
        columns = draft.add(part, source=draft.layout_name(accumulator), layout=layout).result
        if self._plan.narrow:  # else the compiler begins with pieces whose turn has not come
            columns = draft.add(OptimizationBarrier(x=columns), layout=layout).result
        draft.lowered[op.result] = columns

    def store_part(self, op: StoreSubtile) -> None:
        """Some columns of the tile, as a tile of their own."""
        draft, builder = self._draft, self._draft.builder
        *rows, columns = draft.allowed_index(draft.own_index(op.x.mut))
        scaled = builder.value(Mul(x=columns, y=builder.constant(op.parts)))
        number = draft.lowered[op.number[0]] if op.number else builder.constant(op.part)
        index = (*rows, builder.value(Add(x=scaled, y=number)))
        store = self._plan.store
        if store is not None and store.op.x is op.x and not op.number:
            pieces = store.layout.registers * 2 // store.span // op.parts
            draft.builder.location = op.location
            self._store_tile(store, op.value, index, piece=op.part * pieces)
            return
        layout = draft.layout(op.value)
        part = Store(x=draft.lowered[op.x], value=draft.lowered[op.value], index=index)
        draft.add(part, **draft.access(op.x.tensor, layout))

    # Stores by TMA.

    def store(self, store: TmaStore) -> None:
        """Have TMA store a tile."""
        draft, op = self._draft, store.op
        own = isinstance(op, StoreMut)
        index = draft.own_index(op.x.mut) if own else tuple(draft.lowered[start] for start in op.starts)
        draft.builder.location = op.location
        self._store_tile(store, store.value, draft.allowed_index(index), piece=0)

    def _store_tile(self, store: TmaStore, matrix: Value, index: Sequence[Value], piece: int) -> None:
        """Have TMA store columns of a matrix that begin with a piece; or have them wait."""
        draft = self._draft
        wanted = store.layout if store.transposed else with_columns(store.layout, matrix.tile.shape[1])
        value = draft.converted(draft.lowered[matrix], draft.placement[matrix], wanted)
        if self.delayed is None or self.delayed.at_once:
            self._store_columns(store, value, index, piece, wanted)
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
        draft, plan, pipelines = self._draft, self._plan, self._pipelines
        in_stages = self.delayed is not None and self.delayed.at_once and plan.ends_in_stages
        buffers, through = (
            (plan.stages[0], pipelines.buffers[0][0]) if in_stages else (store.buffers, pipelines.staging)
        )
        bulk = ops.TmaStore(
            x=draft.lowered[store.op.x],
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
        draft.add(
            bulk,
            layout=draft.layout_name(layout),
            piece=piece,
            first=piece % buffers,
            begins=piece == 0,
            span=store.span,
            buffers=buffers,
        )
