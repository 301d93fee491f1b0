"""Tile axes whose loops end at a tensor's edge, or span several tile blocks.

Axes of different values that always run together (through element-wise operations, broadcasts, carried values, ...)
form one class. A class is *free* if no operation needs the axis as a whole, as a reduction or a reshape does. No
operation then reads past the tensor's edge, so the loops of the class end there. If also every tile of the class has
the tile block's own index along one axis of the grid, neighbouring tile blocks can be computed as one larger tile:

    y.store(a * load_tile_like(x, y) + y.load())      # tiles of 256: run as one loop over 16384 elements
    acc = mma(x.load((i, k)), y.load((k, j)), acc)    # tiles of 128 x 256: run as blocks of 256 x 512

`Axes.refusals` says for each axis of the grid why its tile blocks are not joined.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cutile.analysis.structure import why_linear
from cutile.backend.cpu.stage import Gather
from cutile.ir import For, Function, If, Op, TileType, Value, While
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.create import Iota
from cutile.ops.debug import Print
from cutile.ops.grid import TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import LoadPointer, StorePointer
from cutile.ops.reduce import Folding, Reduce, Scan
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Cat, Extract, Permute, Reshape
from cutile.ops.sort import Sort, TakeAlongAxis, TopK
from cutile.ops.view import LoadView, StoreView

ELEMENTWISE = frozenset({"arith", "rounding", "math", "compare", "cast"})
# These three numbers were chosen, not measured.
MAX_ELEMENTS = 16384
"""Elements of a joined block (`Axes._factors`): enough for long loops of vectors, few enough for scratch memory to stay
in the cache."""
MAX_STREAMED_ELEMENTS = 2048
"""The same if any loop of the kernel loads tiles. The limit is meant for loops that walk along rows: the more rows such
a loop reads at once, the shorter is the piece that it reads of each."""
MMA_BLOCK = (256, 512)
"""Rows and columns of a joined block of products, which is one long call of BLAS. It has the fewest whole tiles that
reach them, so it may be larger, by less than a tile."""

Key = tuple[Value, int]


@dataclass(eq=False)
class AxisClass:
    """Axes that run together.

    Attributes:
        opaque: why the class is not free; empty if it is.
        uneven: why its tiles cannot span tile blocks, even if it is free; empty if they can.
        blocks: the axes of the grid whose block index is the index of its tiles.
        stores: the `Mut` parameters written along it, each with its axis, in order.
        extent: elements of one tile.
    """

    opaque: str = ""
    uneven: str = ""
    blocks: set[int] = field(default_factory=set[int])
    stores: list[tuple[Value, int]] = field(default_factory=list[tuple[Value, int]])
    extent: int = 1


class Axes:
    """The classes of a function's tile axes.

    Attributes:
        refusals: for each axis of the grid, why its tile blocks stay single; empty if they can be joined.
        max_joined_along: the most tile blocks that run as one along each axis of the grid.
        max_joined: the most tile blocks that run as one in all.
    """

    def __init__(self, function: Function) -> None:
        self._parent: dict[Key, Key] = {}
        self._facts: dict[Key, AxisClass] = {}
        self._made_by: dict[Value, Op] = {}
        self._raw: set[int] = set()  # axes of the grid whose block index the kernel uses for more than tiles' indices
        self._stored: list[Value] = []
        self._has_mma = False
        self._linear = why_linear(function)
        self._has_loads_in_loops = any(
            isinstance(inner, LoadTile | LoadView)
            for op in function.walk()
            if isinstance(op, For | While)
            for block in op.regions
            for inner in block.walk()
        )
        for op in function.walk():
            for value in op.results:
                self._made_by[value] = op
        for op in function.walk():
            self._visit(op)
        self.refusals = {axis: self._refusal(axis) for axis in range(3)}
        self.max_joined_along, self.max_joined = self._factors()

    def of(self, value: Value, axis: int) -> AxisClass:
        """The class of an axis of a tile value."""
        return self._facts[self._find((value, axis))]

    def _find(self, key: Key) -> Key:
        if key not in self._parent:
            self._parent[key] = key
            self._facts[key] = AxisClass(extent=key[0].tile.shape[key[1]])
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def _unify(self, a: Key, b: Key) -> None:
        """Merge the classes of two axes of the same extent."""
        a, b = self._find(a), self._find(b)
        if a == b:
            return
        self._parent[b] = a
        merged, gone = self._facts[a], self._facts.pop(b)
        assert merged.extent == gone.extent, f"axes of {merged.extent} and {gone.extent} elements run together"
        merged.opaque = merged.opaque or gone.opaque
        merged.uneven = merged.uneven or gone.uneven
        merged.blocks |= gone.blocks
        merged.stores += [each for each in gone.stores if each not in merged.stores]

    def _same(self, a: Value, b: Value) -> None:
        for axis in range(len(a.tile.shape)):
            self._unify((a, axis), (b, axis))

    def _opaque(self, value: Value, axis: int, why: str) -> None:
        facts = self.of(value, axis)
        facts.opaque = facts.opaque or why

    def _uneven(self, value: Value, axis: int, why: str) -> None:
        facts = self.of(value, axis)
        facts.uneven = facts.uneven or why

    def _visit(self, op: Op) -> None:
        if not _on_the_grid(op):
            self._raw |= {source.axis for value in op.operands if (source := self._block_id(value)) is not None}
        for value in op.results:
            self._add(value)
        match op:
            case LoadTile() | LoadView():
                self._load(op)
            case LoadMut():
                self._own_tile(op.result)
            case StoreMut():
                self._store_own(op)
            case Broadcast() | Reshape() | Permute() | Cat() | Extract() | Sort() | TopK() | TakeAlongAxis():
                self._rearrange(op)
            case Reduce():
                self._reduce(op)
            case Folding():
                self._folding(op)
            case Iota():
                self._uneven(op.result, 0, "iota counts along it")
            case Mma():
                self._mma(op)
            case For() | While() | If():
                self._control(op)
            case _ if _is_elementwise(op):
                self._elementwise(op)
            case LoadPointer() | StorePointer() | AtomicRmw() | AtomicCas() | Print():
                self._access(op)
            case StoreView():
                self._store_view(op)
            case _:
                # Nothing to note. These operations have no tile operand, or their tile is as good whole, in part or
                # joined: constants, the grid's numbers, facts and views of tensors, checks, assertions, terminators.
                # `pipeline.lower` has expanded `MmaScaled`. An operation that has tiles, and is not element-wise, needs
                # a case above: here its axes would count as free.
                pass

    def _add(self, value: Value) -> None:
        """Make a class for each axis of a tile."""
        if isinstance(value.type, TileType):
            for axis in range(len(value.tile.shape)):
                self._find((value, axis))

    def _store_own(self, op: StoreMut) -> None:
        self._own_tile(op.value)
        self._stored.append(op.x)
        for axis in range(len(op.value.tile.shape)):
            facts = self.of(op.value, axis)
            facts.stores += [(op.x, axis)] if (op.x, axis) not in facts.stores else []

    def _rearrange(self, op: Broadcast | Reshape | Permute | Cat | Extract | Sort | TopK | TakeAlongAxis) -> None:
        """Classes of an operation that moves elements, and computes none."""
        match op:
            case Broadcast():
                self._broadcast(op)
            case Reshape():
                self._reshape(op)
            case Permute():
                for to, axis in enumerate(op.axes):
                    self._unify((op.x, axis), (op.result, to))
            case Cat():
                for value in (op.x, op.y):
                    self._beside(value, op.result, [axis for axis in range(len(op.x.tile.shape)) if axis != op.axis])
            case Extract():
                pairs = zip(op.x.tile.shape, op.shape, strict=True)
                self._beside(op.x, op.result, [axis for axis, (have, part) in enumerate(pairs) if have == part])
            case Sort() | TopK() | TakeAlongAxis():
                self._order(op)

    def _reduce(self, op: Reduce) -> None:
        self._opaque(op.x, op.axis, f"{op.name} runs along it")
        rest = [axis for axis in range(len(op.x.tile.shape)) if axis != op.axis]
        for to, axis in enumerate(rest):
            self._unify((op.x, axis), (op.result, to))

    def _elementwise(self, op: Op) -> None:
        for value in op.operands:
            if isinstance(value.type, TileType):
                self._same(value, op.result)

    def _access(self, op: Op) -> None:
        """Classes of an access by address: all its lanes count, also past a tensor's edge."""
        operands = op.lanes if isinstance(op, AtomicRmw) else op.operands
        for value in (*operands, *op.results):
            for axis in range(len(value.tile.shape)):
                self._opaque(value, axis, f"{op.name} sees all of it")
        if not isinstance(op, Print):
            for value in (*operands[1:], *op.results):
                self._same(operands[0], value)

    def _store_view(self, op: StoreView) -> None:
        """Classes of a store at any index: the whole tile is written, and no more.

        The edge of a `Mut` that the same value is stored to is not the edge of this tensor. A larger tile of joined
        tile blocks would be written past the end of the tile at this index.
        """
        for axis in range(len(op.value.tile.shape)):
            self._opaque(op.value, axis, f"{op.name} writes all of it")

    def _folding(self, op: Folding) -> None:
        """Classes of a fold: tiles and results run together, but for the folded axis."""
        first = op.tiles[0]
        for value in op.tiles:
            self._same(first, value)
        self._opaque(first, op.axis, f"{op.name} runs along it")
        rest = [axis for axis in range(len(first.tile.shape)) if axis != op.axis or isinstance(op, Scan)]
        for value in op.results:
            for to, axis in enumerate(rest):
                self._unify((first, axis), (value, to))

    def _order(self, op: Sort | TopK | TakeAlongAxis) -> None:
        """Classes of a sort: rows run together; the sorted axis is seen as a whole."""
        for value in (*op.operands, *op.results):
            for axis in range(len(value.tile.shape)):
                if axis == op.axis:
                    self._opaque(value, axis, f"{op.name} sees all of it")
                else:
                    self._unify((op.operands[0], axis), (value, axis))

    def _beside(self, part: Value, whole: Value, together: Sequence[int]) -> None:
        """Join the axes of two tiles of one rank, a part and the whole.

        Only the axes in `together` have the same indices in both.
        """
        for axis in range(len(part.tile.shape)):
            if axis in together:
                self._unify((part, axis), (whole, axis))
            else:
                self._opaque(part, axis, "parts of it are read")
                self._opaque(whole, axis, "it is put together")

    def _block_id(self, value: Value) -> TileBlockId | None:
        made_by = self._made_by.get(value)
        return made_by if isinstance(made_by, TileBlockId) else None

    def _own_tile(self, value: Value) -> None:
        for axis in range(len(value.tile.shape)):
            self.of(value, axis).blocks.add(axis)

    def _load(self, op: LoadTile | LoadView) -> None:
        for axis, index in enumerate(op.index[: op.x.tensor.rank]):
            source = self._block_id(index) if _on_the_grid(op) else None
            if source is None:
                self._uneven(op.result, axis, f"{op.x.name or 'a tensor'} is loaded at another index along it")
            else:
                self.of(op.result, axis).blocks.add(source.axis)

    def _broadcast(self, op: Broadcast) -> None:
        for axis, extent in enumerate(op.x.tile.shape):
            if extent == op.shape[axis]:
                self._unify((op.x, axis), (op.result, axis))
            else:
                self._opaque(op.x, axis, "it is broadcast")

    def _reshape(self, op: Reshape) -> None:
        pairs = unit_reshape(op.x.tile.shape, op.shape)
        if pairs is None:
            for value in (op.x, op.result):
                for axis in range(len(value.tile.shape)):
                    self._opaque(value, axis, "it is reshaped")
            return
        for axis, to in pairs:
            self._unify((op.x, axis), (op.result, to))
        for value, used in ((op.x, {axis for axis, _ in pairs}), (op.result, {to for _, to in pairs})):
            for axis in set(range(len(value.tile.shape))) - used:
                self._opaque(value, axis, "an axis of extent 1 is added or dropped")

    def _mma(self, op: Mma) -> None:
        self._has_mma = True
        self._same(op.acc, op.result)
        row_axis = len(op.result.tile.shape) - 2
        column_axis = row_axis + 1
        self._unify((op.a, row_axis), (op.result, row_axis))
        self._unify((op.b, column_axis), (op.result, column_axis))
        self._unify((op.a, column_axis), (op.b, row_axis))  # K
        self._opaque(op.a, column_axis, "mma sums along it")
        has_batch = row_axis == 1
        if has_batch:
            self._unify((op.a, 0), (op.result, 0))
            self._unify((op.b, 0), (op.result, 0))
            self._opaque(op.a, 0, "it is a batch of products")

    def _control(self, op: For | While | If) -> None:
        if isinstance(op, If):
            groups: list[Sequence[Value]] = [op.then.terminator.operands, op.orelse.terminator.operands]
        elif isinstance(op, For):
            groups = [op.carried, op.body.arguments[1:], op.body.terminator.operands]
        else:
            groups = [op.carried, op.condition.arguments, op.body.arguments, op.body.terminator.operands]
        for group in groups:
            for value, result in zip(group, op.results, strict=True):
                self._same(value, result)

    def _refusal(self, grid_axis: int) -> str:
        """Why tile blocks along an axis of the grid stay single.

        Empty if they can be joined.
        """
        if self._linear:
            return self._linear
        if grid_axis in self._raw:
            return "the kernel computes with the block's index"
        if not self._stored:
            return "the kernel stores nothing"
        if any(mut.mut.rank <= grid_axis for mut in self._stored):
            return "a Mut has no such axis"
        for facts in self._facts.values():
            if grid_axis not in facts.blocks:
                continue
            if facts.opaque or facts.uneven:
                return facts.opaque or facts.uneven
            if len(facts.blocks) > 1:
                return "one axis of a tile follows two axes of the grid"
        return ""

    def _factors(self) -> tuple[tuple[int, int, int], int]:
        """The most tile blocks that run as one along each axis of the grid, and in all."""
        free = [axis for axis in range(3) if not self.refusals[axis]]
        factors = [1, 1, 1]
        if not free:
            return (1, 1, 1), 1
        tile = max((mut.mut.tile for mut in self._stored), key=len)
        if self._has_mma and len(tile) == 2:
            for axis in free:
                factors[axis] = -(-MMA_BLOCK[axis] // tile[axis])
        else:
            # Tiles of `Mut` count as a whole, since a joined block stores all of their elements. Another tile counts by
            # its longest axis: a row may be all that is in scratch memory at once (`Product.keep_from`).
            sizes = [facts.extent for facts in self._facts.values()]
            sizes += [mut.mut.tile_type.size for mut in self._stored]
            limit = MAX_STREAMED_ELEMENTS if self._has_loads_in_loops else MAX_ELEMENTS
            for axis in free:
                factors[axis] = max(1, limit // max(sizes))
            # The bound is for all axes together: `CpuKernel.joins` divides it among them for each launch.
            return (factors[0], factors[1], factors[2]), max(factors)
        return (factors[0], factors[1], factors[2]), math.prod(factors)


def _on_the_grid(op: Op) -> bool:
    """Whether a load's index counts tiles of its own shape, which lie side by side."""
    return isinstance(op, LoadTile) or (isinstance(op, LoadView) and op.is_plain)


def unit_reshape(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Pairs of axes that stay, if a reshape only adds or drops axes of extent 1.

    Otherwise None.

    Example:
        >>> unit_reshape((8,), (1, 8)), unit_reshape((8, 1), (8,)), unit_reshape((8,), (2, 4))
        ([(0, 1)], [(0, 0)], None)
    """
    pairs: list[tuple[int, int]] = []
    axis = 0
    for to, extent in enumerate(target):
        while axis < len(source) and source[axis] == 1 != extent:
            axis += 1
        if axis < len(source) and source[axis] == extent:
            pairs.append((axis, to))
            axis += 1
        elif extent != 1:
            return None
    return pairs if all(extent == 1 for extent in source[axis:]) else None


def _is_elementwise(op: Op) -> bool:
    """Whether each element of the result needs its operands at the same index only.

    Then lanes past a tensor's edge may be left out. Other accesses by address run in program order, all lanes of them
    (`accesses.is_access`). Nothing writes what a `constant` load reads, so its lanes can be read where they are used.
    """
    is_constant_load = isinstance(op, LoadPointer) and op.constant
    return isinstance(op, Gather) or is_constant_load or family(type(op)) in ELEMENTWISE


def schedule_words(facts: Mapping[str, Any]) -> str:
    """How many tile blocks of a lowered kernel run as one, for dumps and plans."""
    if facts["max_joined"] == 1:
        return "tile blocks run singly"
    along = " x ".join(map(str, facts["max_joined_along"]))
    return f"up to {facts['max_joined']} neighbouring tile blocks ({along}) run as one"
