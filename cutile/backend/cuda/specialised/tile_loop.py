"""The loop of a specialised kernel over its tile blocks, and where in it their indices are worked out.

A thread block goes through tile blocks `first, first + step, ...`. Which place of the grid a number stands for takes a
few divisions: some 300 cycles, which the tensor cores would be idle for between two tiles. Who multiplies needs the
place only for what follows the loop of products, so it is found while the first product is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.ops import FirstTile, FirstTurn, StorePart, TileIndex, TileStep, Turns
from cutile.backend.cuda.specialised.cluster import block_axes
from cutile.backend.cuda.specialised.guards import is_scalar_work
from cutile.backend.cuda.specialised.places import Places
from cutile.backend.cuda.specialised.reads import inside, reads
from cutile.backend.cuda.specialised.record import Specialised
from cutile.backend.cuda.target import Architecture
from cutile.dtypes import i32
from cutile.ir.control import For, If
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TileType
from cutile.ops.arith import Add, FloorDiv, Mul, Sub
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.memory import LoadMut, StoreMut


class TileLoop(Places):
    """What the loading and the computing warps have in common: the loop over tile blocks, and the turns of the ring."""

    def __init__(
        self, function: Function, plan: Specialised, arch: Architecture, accumulators: Sequence[tuple[Op, Layout]]
    ) -> None:
        super().__init__(function, plan, arch, accumulators)
        self._turn: Value | None = None
        self._number: Value | None = None
        self._step: Value | None = None
        self._span: tuple[Value, Value] | None = None
        self._kept: tuple[Value, ...] = ()
        at_once = plan.together or plan.by_fma  # there are several first products, or none that goes on by itself
        self._put_off = None if at_once else put_off(function, plan)
        self._asked = {op.axis: op for op in reversed(list(function.walk())) if isinstance(op, TileBlockId)}

    @property
    def _current_turn(self) -> Value:
        assert self._turn is not None
        return self._turn

    @property
    def _first(self) -> Value:
        """The number of this thread block's first tile block."""
        assert self._span is not None
        return self._span[0]

    @property
    def _total(self) -> Value:
        """How many tile blocks there are."""
        assert self._span is not None
        return self._span[1]

    def _turn_after(self, turn: Value, count: int) -> Value:
        """The turn so many later, or earlier."""
        step = self._builder.constant(abs(count))
        return self._builder.value(Add(x=turn, y=step) if count > 0 else Sub(x=turn, y=step))

    def _tiles(self, one: Callable[[], None], *, alone: int = 1, kept: Sequence[Value] = ()) -> Value:
        """`for tile in first..all by step`, carrying the number of turns so far, which is returned in the end.

        Args:
            one: does what is to be done for a tile block.
            alone: groups that have tile blocks of their own: the turns of the others' are skipped.
            kept: what else is carried: `_kept`, within the loop and behind it.
        """
        builder = self._builder
        total = self._units(self._tile_count())
        along = {"cluster": self._plan.cluster, "alone": alone}
        first, step = (builder.value(kind(**along)) for kind in (FirstTile, TileStep))
        each = self._turns_of_a_tile() if alone > 1 else None
        turns = builder.constant(0) if each is None else builder.value(FirstTurn(turns=each))
        self._span = first, total
        number, turn = Value(turns.type, "tile"), Value(turns.type, "turn")
        before = tuple(Value(each.type, each.name) for each in kept)
        with builder.block(number, turn, *before) as body:
            self._kept = before
            self._turn, self._number, self._step = turn, self._tile_of(number), step
            self._loops += 1  # what one tile block left in shared memory, other warps may still read in the next
            one()
            self._loops -= 1
            builder.location = None
            assert self._turn is not None
            turn = self._turn if each is None else builder.value(Add(x=self._turn, y=each))
            builder.yield_(turn, *self._kept)
        made = builder.add(For(start=first, stop=total, step=step, carried=(turns, *kept), body=body))
        self._kept = made.results[1:]
        return made.results[0]

    def _tile_count(self) -> Value:
        """All tile blocks, or clusters of them."""
        builder = self._builder
        counts = [builder.value(NumTileBlocks(axis=axis)) for axis in range(3)]
        if self._plan.cluster > 1:
            along, blocks = self._plan.along, builder.constant(self._plan.cluster)
            rounded = builder.value(Add(x=counts[along], y=builder.constant(self._plan.cluster - 1)))
            counts[along] = builder.value(FloorDiv(x=rounded, y=blocks))
        return builder.value(Mul(x=counts[0], y=builder.value(Mul(x=counts[1], y=counts[2]))))

    def _units(self, tiles: Value) -> Value:
        """How many units of work so many tile blocks are."""
        return tiles

    def _tile_of(self, unit: Value) -> Value:
        """The tile block of a unit of work."""
        return unit

    def _turns_of_a_tile(self) -> Value:
        """The turns of the loop of products, which are the same for all tile blocks."""
        loop = self._plan.loop
        bounds = (loop.start, loop.stop, loop.step)
        for op in self._function.body.operations:
            if op is loop:
                break
            if op in self._plan.needed and not block_axes(op.results, self._definitions):
                self._operation(op)
        self._builder.location = None
        start, stop, step = (self._map[each] for each in bounds)
        return self._builder.value(Turns(start=start, stop=stop, step=step))

    def _tile_indices(self) -> None:
        """The index of the tile block, by the user's names."""
        assert self._number is not None
        self._block_ids = {}
        lead = min(1, max(self._plan.left.lead, self._plan.right.lead))  # tile blocks of one matrix are neighbours
        for axis in self._index_axes():
            self._builder.location = self._asked[axis].location if axis in self._asked else None
            index = TileIndex(
                number=self._number,
                axis=axis,
                rows=lead,
                columns=lead + 1,
                group=self._plan.grouped,
                cluster=self._plan.cluster,
                along=self._plan.along,
            )
            self._block_ids[axis] = self._builder.value(index, self._index_name(axis))
        self._builder.location = None

    def _index_axes(self) -> list[int]:
        """The axes along which the index of the tile block is wanted."""
        stored = [op.x.mut.rank for op in self._function.walk() if isinstance(op, StoreMut | StorePart)]
        said = [3] * bool(self._plan.asserts)  # with the whole index
        beside = [self._plan.along] * (self._plan.cluster > 1)  # the last of a cluster may be beyond the grid
        return sorted({*self._asked, *range(max(stored + said, default=0)), *beside})

    def _index_name(self, axis: int) -> str:
        return self._asked[axis].result.name if axis in self._asked else f"block_{axis}"

    # Numbers made from the tile block's index: under the first product, where nothing waits for them.

    def _late_values(self) -> list[Value]:
        """What is found under the first product: the tile block's index, and the numbers made from it."""
        if self._put_off is None:
            return []
        indices = [Value(TileType(i32), self._index_name(axis)) for axis in self._index_axes()]
        return [*indices, *(value for op in self._put_off for value in op.results if not isinstance(op, TileBlockId))]

    def _found(self, known: Value, values: Sequence[Value]) -> tuple[Value, ...]:
        """`values` where they are known; else they are worked out."""
        if self._put_off is None or not values:
            return ()
        builder = self._builder
        with builder.block() as then:
            builder.yield_(*values)
        with builder.block() as orelse:
            self._tile_indices()
            for op in self._put_off:
                self._operation(op)
            builder.location = None
            made = [self._map[each] for op in self._put_off if not isinstance(op, TileBlockId) for each in op.results]
            builder.yield_(*self._block_ids.values(), *made)
        results = builder.add(If(condition=known, then=then, orelse=orelse)).results
        for result, value in zip(results, values, strict=True):
            result.name = value.name
        return results

    def _settle(self, found: Sequence[Value]) -> None:
        """From here on, the numbers are these."""
        if self._put_off is None or not found:
            return
        axes = self._index_axes()
        self._block_ids = dict(zip(axes, found, strict=False))
        made = [each for op in self._put_off if not isinstance(op, TileBlockId) for each in op.results]
        self._map.update(zip(made, found[len(axes) :], strict=True))
        for op in self._put_off:
            if isinstance(op, TileBlockId):
                self._map[op.result] = self._block_ids[op.axis]


def put_off(function: Function, plan: Specialised) -> list[Op] | None:
    """What stands before the loop, and can wait until it is over: numbers made from the tile block's index.

    None where something else before it, or the loop itself, needs them.
    """
    loop, operations = plan.loop, function.body.operations
    before = [op for op in operations[: operations.index(loop)] if op not in plan.asserts]
    found: list[Op] = []
    late: set[Value] = set()
    for op in before:
        if isinstance(op, TileBlockId) or any(value in late for value in reads(op)):
            if not is_scalar_work(op):
                return None
            found.append(op)
            late.update(op.results)
        elif any(isinstance(each, LoadMut | StoreMut) for each in (op, *inside(op))):  # of this block's own tile
            return None
    return None if any(value in late for value in (*loop.operands,)) else found
