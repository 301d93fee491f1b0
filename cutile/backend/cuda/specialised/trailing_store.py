"""Lowering of a result that is written while the next tile's products run (`trailing.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cutile.backend.cuda.layout import Layout, group_accumulator
from cutile.backend.cuda.ops import Blank, Opaque, Pack, Part
from cutile.backend.cuda.specialised.storing import Storing
from cutile.backend.cuda.specialised.trailing import FIRST
from cutile.dtypes import i32
from cutile.ir.control import If
from cutile.ir.core import Op, Value
from cutile.ops.arith import Add, And, Mul
from cutile.ops.compare import Ge, Lt, Ne


class TrailingStore(Storing):
    """What becomes of the result of a tile block, where it is written during the next."""

    _at_once = False
    """Whether what is being lowered is the last result."""
    _owed: Value | None = None
    """Whether a result is yet to be written, under the products."""

    @property
    def _pieces_kept(self) -> int:
        """The pieces of so many columns that a result is written in."""
        return self._plan.product.acc.tile.shape[1] // self._plan.piece

    @property
    def _packed(self) -> Layout:
        """Where the words of a result are: as the sums of a tile with half its columns would be."""
        rows, columns = self._plan.accumulator.shape
        return group_accumulator((rows, columns // 2), self._plan.groups)

    def _nothing_kept(self) -> list[Value]:
        """What stands for a result, and the place where it belongs, before there is one."""
        if not self._plan.trailing:
            return []
        words = self._add(Blank(dtype=i32, shape=self._packed.shape), layout=self._name(self._packed)).result
        kept = [words, *(self._builder.constant(0) for _ in range(2))]
        for value, name in zip(kept, ("result", "row", "column"), strict=True):
            value.name = name
        return kept

    def _finish_tile(self, operations: Sequence[Op]) -> None:
        """What follows the loop: the result is put off, but for the last one, which nothing follows."""
        if not self._plan.trailing:
            super()._finish_tile(operations)
            return
        assert self._number is not None
        assert self._step is not None
        builder = self._builder
        builder.location = None
        following = builder.value(Add(x=self._number, y=self._step))
        last = builder.value(Ge(x=following, y=self._total))
        found = self._plan.loop.results[0]
        sums = self._map[found]
        self._at_once = True
        with builder.block() as then:
            # Else the compiler rounds all sums ahead of the branch, and not each piece while another is on its way.
            self._map[found] = self._add(Opaque(x=sums), layout=self._name(self._plan.accumulator)).result
            super()._finish_tile(operations)
            builder.location = None
            builder.yield_(*self._nothing_kept())
        self._at_once, self._map[found] = False, sums
        with builder.block() as orelse:
            super()._finish_tile(operations)
            builder.location = None
            builder.yield_(*self._kept)
        self._kept = builder.add(If(condition=last, then=then, orelse=orelse)).results

    def _store_result(self, x: Value, value: Value, index: tuple[Value, ...], piece: int) -> None:
        """Put a result off, which belongs to a tile index; but for the last."""
        if self._at_once or not self._plan.trailing:
            super()._store_result(x, value, index, piece)
            return
        words = self._add(Pack(x=value), layout=self._name(self._packed)).result
        self._kept = (words, *index)

    def _ends_in_stages(self) -> bool:
        """The last result does, if it may."""
        return self._at_once and self._plan.ends_in_ring

    def _write_kept(self, piece: int) -> None:
        """Write some columns of the result that was put off."""
        words, row, column = self._kept
        builder, parts, store = self._builder, self._pieces_kept, self._plan.store
        assert store is not None
        rows, columns = self._packed.shape
        layout = group_accumulator((rows, columns // parts), self._plan.groups)
        names = {"source": self._name(self._packed), "layout": self._name(layout)}
        tall = self._packed.registers // parts * 4 // self._plan.piece  # a warp's 16 rows are stored at a time
        some = self._add(Part(x=words, part=piece, parts=parts), **names).result
        scaled = builder.value(Mul(x=column, y=builder.constant(parts)))
        index = (row, builder.value(Add(x=scaled, y=builder.constant(piece))))
        self._store_columns(store.x, some, index, tall * piece, packed=True)

    def _write_before(self, start: Value, stop: Value, step: Value) -> None:
        """Ahead of a loop with too few turns: the whole result. Whether it is left to the loop, `_owed` says."""
        assert self._number is not None
        builder, pieces = self._builder, self._pieces_kept
        kept = builder.value(Ne(x=self._number, y=self._first))
        last = self._place_of(pieces - 1, start, step)
        few, enough = (builder.value(each(x=last, y=stop)) for each in (Ge, Lt))

        def write() -> None:
            for piece in range(pieces):
                self._write_kept(piece)

        self._when(builder.value(And(x=kept, y=few)), write)
        self._owed = builder.value(And(x=kept, y=enough))

    def _write_under(self, turn: Value, start: Value, step: Value) -> None:
        """Under the product of `turn`, counted from `start` by `step`: the piece that belongs there, if one does."""
        assert self._owed is not None
        owed, builder, pieces = self._owed, self._builder, self._pieces_kept

        def before(piece: int) -> Value:
            return builder.value(Lt(x=turn, y=self._place_of(piece, start, step)))

        def one_of(piece: int) -> None:
            if piece == pieces - 1:
                self._write_kept(piece)
            else:
                self._when(before(piece + 1), lambda: self._write_kept(piece), lambda: one_of(piece + 1))

        def if_any() -> None:
            self._when(owed, lambda: one_of(0))

        self._when(before(0), lambda: None, lambda: self._when(before(pieces), if_any))

    def _place_of(self, piece: int, start: Value, step: Value) -> Value:
        """The turn under whose product a piece is written."""
        builder = self._builder
        return builder.value(Add(x=start, y=builder.value(Mul(x=step, y=builder.constant(FIRST + piece)))))

    def _when(self, condition: Value, then_do: Callable[[], None], else_do: Callable[[], None] = lambda: None) -> None:
        """Do the one thing or the other."""
        builder = self._builder
        with builder.block() as then:
            then_do()
            builder.yield_()
        with builder.block() as orelse:
            else_do()
            builder.yield_()
        builder.add(If(condition=condition, then=then, orelse=orelse))
