"""Tile values before they are computed, as nodes.

A node appends, for an index, the operations that compute the element there. A loop pulls elements through a chain of
nodes, so that the chain is fused into the loop. The loops are those of the roots of `loop_nests.py`: stores,
reductions, and tiles that are kept in scratch memory.

An index has one entry per axis: an i64 value, or None on an axis of extent 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cutile.backend.cpu.lowering.scope import Scope
from cutile.backend.cpu.stage import INDEX, Read, ReadInside, Step
from cutile.dtypes import DTypeLike
from cutile.ir import Constant, Op, Value
from cutile.ops.arith import FloorDiv, Mod
from cutile.ops.compare import Ge, Lt, Select

Index = tuple[Value | None, ...]


@dataclass(frozen=True, eq=False)
class Extent:
    """The length of the loop along an axis.

    Attributes:
        capacity: the most elements, for the size of memory.
        count: the elements, where their number is known only at run time; else None, and there are `capacity`.
        blocks: the most tile blocks that are joined along the axis.
        grid_axis: the axis of the grid along which they are joined; without meaning where `blocks` is 1.
    """

    capacity: int
    count: Value | None = None
    blocks: int = 1
    grid_axis: int = 0

    @property
    def is_unit(self) -> bool:
        """Whether the axis needs no loop."""
        return self.capacity == 1 and self.count is None

    def same(self, other: Extent) -> bool:
        """Whether the loops along two axes are certainly equally long."""
        return self.count is other.count and (self.count is not None or self.capacity == other.capacity)

    def stop(self, scope: Scope) -> Value:
        """The number of iterations."""
        return self.count if self.count is not None else scope.index(self.capacity)


class Node:
    """A tile value. `extents` says how far each of its axes goes."""

    def __init__(self, dtype: DTypeLike, extents: Sequence[Extent], name: str = "") -> None:
        self.dtype = dtype
        self.extents = tuple(extents)
        self.name = name

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        """The nodes whose elements give the element at `index`, each with its index."""
        return iter(())

    def compute(self, scope: Scope, index: Index) -> Value:
        """Append the operations that give the element."""
        raise NotImplementedError

    def needed(self, scope: Scope, index: Index) -> Sequence[tuple[Node, Index]]:
        """The elements of other nodes that `compute` asks for, in order.

        `inputs` answers before there are loops: a new value stands for each index that has to be computed. `needed`
        appends the operations that compute it.
        """
        return tuple(self.inputs(index))

    def at(self, scope: Scope, index: Index) -> Value:
        """The element, computed once per block.

        The elements that it needs are computed first, by an explicit stack: chains may be longer than Python's stack.
        """
        value = scope.recall((self, index, scope.masked))
        if value is not None:
            return value
        opened: set[tuple[Node, Index]] = set()
        stack: list[tuple[Node, Index]] = [(self, index)]
        while stack:
            node, where = stack[-1]
            value = scope.recall((node, where, scope.masked))
            if value is None and (node, where) not in opened:
                opened.add((node, where))
                stack.extend(reversed(node.needed(scope, where)))
                continue
            if value is None:
                value = scope.remember((node, where, scope.masked), node.compute(scope, where))
            stack.pop()
        assert value is not None
        return value

    def leaves(self, index: Index) -> Iterator[tuple[Node, Index]]:
        """The leaves whose elements give the element at `index`, each with its index."""
        seen: set[tuple[Node, Index]] = set()
        stack: list[tuple[Node, Index]] = [(self, index)]
        while stack:
            node, where = stack.pop()
            if (node, where) in seen:
                continue
            seen.add((node, where))
            inner = list(node.inputs(where))
            stack.extend(inner)
            if not inner:
                yield node, where


class Scalar(Node):
    """A value that is there already, the same for every index."""

    def __init__(self, value: Value, extents: Sequence[Extent] = ()) -> None:
        super().__init__(value.tile.dtype, extents, value.name)
        self.value = value

    def compute(self, scope: Scope, index: Index) -> Value:
        return self.value


class Number(Node):
    """A constant."""

    def __init__(self, value: float, dtype: DTypeLike, extents: Sequence[Extent]) -> None:
        super().__init__(dtype, extents)
        self.value = value

    def compute(self, scope: Scope, index: Index) -> Value:
        return scope.add(Constant(value=self.value, dtype=self.dtype, shape=()))


class Element(Node):
    """An element-wise operation."""

    def __init__(self, op: Op, operands: Sequence[Node], extents: Sequence[Extent]) -> None:
        super().__init__(op.result.tile.dtype, extents, op.result.name)
        self._op = op
        self._operands = tuple(operands)

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        return ((operand, index) for operand in self._operands)

    def compute(self, scope: Scope, index: Index) -> Value:
        operands = [operand.at(scope, index) for operand in self._operands]
        scope.builder.location = self._op.location or scope.builder.location
        return scope.add(self._op.copy_with(operands, (), ()), self.name)


class Repeated(Node):
    """A broadcast: a scalar, or axes of extent 1 repeated."""

    def __init__(self, x: Node, extents: Sequence[Extent]) -> None:
        super().__init__(x.dtype, extents, x.name)
        self._x = x

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        # Not strict: a scalar has no axes.
        where = tuple(None if e.is_unit else i for e, i in zip(self._x.extents, index, strict=False))
        yield self._x, where

    def compute(self, scope: Scope, index: Index) -> Value:
        ((x, where),) = self.inputs(index)
        return x.at(scope, where)


class Permuted(Node):
    """Axes in another order."""

    def __init__(self, x: Node, axes: Sequence[int]) -> None:
        super().__init__(x.dtype, [x.extents[axis] for axis in axes], x.name)
        self._x = x
        self._axes = tuple(axes)

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        where: list[Value | None] = [None] * len(index)
        for position, axis in enumerate(self._axes):
            where[axis] = index[position]
        yield self._x, tuple(where)

    def compute(self, scope: Scope, index: Index) -> Value:
        ((x, where),) = self.inputs(index)
        return x.at(scope, where)


class Remapped(Node):
    """Axes of extent 1 added or dropped.

    `sources[k]` is the axis of the result that axis `k` of `x` became, or None if that axis is dropped.
    """

    def __init__(self, x: Node, sources: Sequence[int | None], extents: Sequence[Extent]) -> None:
        super().__init__(x.dtype, extents, x.name)
        self._x = x
        self._sources = tuple(sources)

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        yield self._x, tuple(None if to is None else index[to] for to in self._sources)

    def compute(self, scope: Scope, index: Index) -> Value:
        ((x, where),) = self.inputs(index)
        return x.at(scope, where)


class Reshaped(Node):
    """Any other reshape, through the row-major position."""

    def __init__(self, x: Node, shape: tuple[int, ...]) -> None:
        super().__init__(x.dtype, [Extent(extent) for extent in shape], x.name)
        self._x = x
        self._shape = shape

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        # New values: any element of `x` may be read.
        yield self._x, tuple(None if e.is_unit else Value(INDEX) for e in self._x.extents)

    def needed(self, scope: Scope, index: Index) -> Sequence[tuple[Node, Index]]:
        return ((self._x, self._place(scope, index)),)

    def compute(self, scope: Scope, index: Index) -> Value:
        return self._x.at(scope, self._place(scope, index))

    def _place(self, scope: Scope, index: Index) -> Index:
        """The index in `x` of the element with the row-major position of `index`."""
        position = scope.index(0)
        for extent, i in zip(self._shape, index, strict=True):
            position = scope.times(position, scope.index(extent))
            position = position if i is None else scope.plus(position, i)
        where: list[Value | None] = []
        inner = [extent.capacity for extent in self._x.extents]
        for axis, extent in enumerate(inner):
            below = math.prod(inner[axis + 1 :])
            part = position
            if below > 1:
                part = scope.shared(("//", part, below), FloorDiv(part, scope.index(below)))
            if axis > 0 and math.prod(inner[:axis]) > 1:
                part = scope.shared(("%", part, extent), Mod(part, scope.index(extent)))
            where.append(None if extent == 1 else part)
        return tuple(where)


class Joined(Node):
    """Two tiles side by side along an axis.

    Both are read, so that there is no branch: the tile that does not have the element is read at its edge.
    """

    def __init__(self, x: Node, y: Node, axis: int, extents: Sequence[Extent]) -> None:
        super().__init__(x.dtype, extents, x.name)
        self._x, self._y, self._axis = x, y, axis

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        for node in (self._x, self._y):
            # A new value: any element along the axis may be read.
            yield node, self._moved(index, None if node.extents[self._axis].is_unit else Value(INDEX))

    def _moved(self, index: Index, at: Value | None) -> Index:
        return (*index[: self._axis], at, *index[self._axis + 1 :])

    def needed(self, scope: Scope, index: Index) -> Sequence[tuple[Node, Index]]:
        at, border = index[self._axis], self._x.extents[self._axis].capacity
        assert at is not None
        first = scope.smaller(at, scope.index(border - 1)) if border > 1 else None
        single = self._y.extents[self._axis].is_unit
        second = None if single else scope.larger(scope.minus(at, scope.index(border)), scope.index(0))
        return (self._x, self._moved(index, first)), (self._y, self._moved(index, second))

    def compute(self, scope: Scope, index: Index) -> Value:
        at, border = index[self._axis], self._x.extents[self._axis].capacity
        assert at is not None
        x, y = (node.at(scope, where) for node, where in self.needed(scope, index))
        in_first = scope.shared(("<", at, border), Lt(at, scope.index(border)))
        return scope.add(Select(condition=in_first, x=x, y=y), self.name)


class Part(Node):
    """A part of a tile, from `starts` on."""

    def __init__(self, x: Node, starts: Sequence[Value], extents: Sequence[Extent]) -> None:
        super().__init__(x.dtype, extents, x.name)
        self._x, self._starts = x, tuple(starts)

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        moved = zip(self._x.extents, self.extents, index, strict=True)
        yield self._x, tuple(None if x.is_unit else i if x.same(e) else Value(INDEX) for x, e, i in moved)

    def needed(self, scope: Scope, index: Index) -> Sequence[tuple[Node, Index]]:
        where: list[Value | None] = []
        for extent, start, i in zip(self._x.extents, self._starts, index, strict=True):
            where.append(None if extent.is_unit else start if i is None else scope.plus(start, i))
        return ((self._x, tuple(where)),)

    def compute(self, scope: Scope, index: Index) -> Value:
        ((x, where),) = self.needed(scope, index)
        return x.at(scope, where)


class Taken(Node):
    """Elements at places along an axis; a place outside is clamped."""

    def __init__(self, x: Node, places: Node, axis: int, extents: Sequence[Extent]) -> None:
        super().__init__(x.dtype, extents, x.name)
        self._x, self._places, self._axis = x, places, axis

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        yield self._places, index
        place = None if self._x.extents[self._axis].is_unit else Value(INDEX)
        yield self._x, (*index[: self._axis], place, *index[self._axis + 1 :])

    def needed(self, scope: Scope, index: Index) -> Sequence[tuple[Node, Index]]:
        return ((self._places, index),)  # without `x`: its index is the element of `places`

    def compute(self, scope: Scope, index: Index) -> Value:
        extent = self._x.extents[self._axis]
        place = None
        if not extent.is_unit:
            near = scope.larger(scope.as_index(self._places.at(scope, index)), scope.index(0))
            place = scope.smaller(near, scope.index(extent.capacity - 1))
        return self._x.at(scope, (*index[: self._axis], place, *index[self._axis + 1 :]))


class Counting(Node):
    """`iota`."""

    def compute(self, scope: Scope, index: Index) -> Value:
        (i,) = index
        return scope.number(0, self.dtype) if i is None else scope.cast(i, self.dtype)


class Squeezed(Node):
    """A reduction over an axis of extent 1: the same elements without the axis."""

    def __init__(self, x: Node, axis: int) -> None:
        super().__init__(x.dtype, x.extents[:axis] + x.extents[axis + 1 :], x.name)
        self._x = x
        self._axis = axis

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        yield self._x, (*index[: self._axis], None, *index[self._axis :])

    def compute(self, scope: Scope, index: Index) -> Value:
        ((x, where),) = self.inputs(index)
        return x.at(scope, where)


@dataclass(frozen=True)
class TensorAxis:
    """One axis of a tile in a tensor.

    Attributes:
        start: the index in the tensor of the tile's first element.
        size: the tensor's extent.
        stride: the tensor's stride, in elements.
        covered: whether indices along the axis need no check, since the loops stop at this tensor's own edge.
        may_be_negative: whether `start` may be negative.
        whole: whether all of a tile counts as outside if it begins before the tensor.
    """

    start: Value
    size: Value
    stride: Value
    covered: bool
    may_be_negative: bool
    whole: bool = False


class Loaded(Node):
    """A tile in a tensor, read where it is needed; `padding` past the edges.

    `base` is the offset in the tensor of the tile's first element.
    """

    def __init__(
        self,
        tensor: Value,
        axes: Sequence[TensorAxis],
        base: Value,
        extents: Sequence[Extent],
        padding: float = 0,
    ) -> None:
        super().__init__(tensor.tensor.dtype, extents, tensor.name)
        self.tensor = tensor
        self.padding = padding
        self.axes = tuple(axes)
        self.base = base

    def offset(self, scope: Scope, index: Index) -> Value:
        """The element's offset in the tensor."""
        offset = self.base
        for axis, i in zip(self.axes, index, strict=True):
            if i is not None:
                offset = scope.plus(offset, scope.times(i, axis.stride))
        return offset

    def inside(self, scope: Scope, index: Index) -> Value | None:
        """Whether the element is in the tensor; None if it certainly is."""
        bits: list[Value] = []
        for axis, i in zip(self.axes, index, strict=True):
            if axis.covered:
                continue
            position = axis.start if i is None else scope.plus(axis.start, i)
            bits.append(scope.shared(("<", position, axis.size), Lt(position, axis.size)))
            if axis.may_be_negative:
                position = axis.start if axis.whole else position
                bits.append(scope.shared(("0<=", position), Ge(position, scope.index(0))))
        bit = scope.all_of(bits)
        if bit is not None:
            bit.name = bit.name or "inside"
        return bit

    def covers(self, scope: Scope, stops: Sequence[Value | None]) -> list[Value]:
        """Bits that are all true where loops up to `stops` stay in the tensor.

        A stop is None for an axis without a loop.
        """
        bits: list[Value] = []
        for axis, stop in zip(self.axes, stops, strict=True):
            if axis.covered:
                continue
            last = scope.plus(axis.start, scope.index(1) if stop is None else stop)
            bits.append(scope.shared((">=", axis.size, last), Ge(axis.size, last)))
            if axis.may_be_negative:
                bits.append(scope.shared(("0<=", axis.start), Ge(axis.start, scope.index(0))))
        return bits

    def compute(self, scope: Scope, index: Index) -> Value:
        inside = self.inside(scope, index) if scope.masked else None
        offset = self.offset(scope, index)
        if inside is None:
            return scope.add(Read(self.tensor, offset), self.name)
        return scope.add(ReadInside(self.tensor, offset, inside, self.padding), self.name)


class Gathered(Node):
    """Elements at the offsets `at` in a tensor, or `padding` where not `inside`."""

    def __init__(self, tensor: Value, at: Node, inside: Node, padding: float, extents: Sequence[Extent]) -> None:
        super().__init__(tensor.tensor.dtype, extents, tensor.name)
        self._tensor, self._at, self._inside, self._padding = tensor, at, inside, padding

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        yield self._at, index
        yield self._inside, index

    def compute(self, scope: Scope, index: Index) -> Value:
        at, inside = (node.at(scope, where) for node, where in self.inputs(index))
        return scope.add(ReadInside(self._tensor, at, inside, self._padding), self.name)


class Buffer:
    """Scratch memory for the trailing axes of a tile, row by row.

    Args:
        memory: the scratch memory; `size_of` gives its elements.
        extents: all extents of the tile.
        leading: the number of first axes that it lacks, since their loops are open wherever the buffer is used.
        joined: the most tile blocks that run as one, along all axes of the grid together.
    """

    def __init__(self, memory: Value, extents: Sequence[Extent], leading: int, joined: int) -> None:
        self.memory = memory
        self.leading = leading
        self._extents = extents[leading:]
        # Tile blocks may be joined along any of several axes, but not along all of them at once. So the memory has no
        # room for the greatest length of each axis: the rows are then as long as in this run, without gaps.
        self._dense = self.size_of(self._extents, joined) < _capacity(self._extents)

    @staticmethod
    def size_of(extents: Sequence[Extent], joined: int) -> int:
        """The most elements that a tile has.

        Example:
            >>> Buffer.size_of([Extent(64, blocks=8), Extent(32, blocks=8, grid_axis=1)], joined=8)
            256
        """
        along = [extent.grid_axis for extent in extents if extent.blocks > 1]
        single = math.prod(extent.capacity // extent.blocks for extent in extents)
        # If two axes of a tile follow one axis of the grid, each of them grows with the blocks joined along it.
        together = max((along.count(axis) for axis in along), default=0)
        return min(_capacity(extents), single * joined**together)

    def step(self, scope: Scope, axis: int) -> Value:
        """The elements between neighbours along an axis of the tile."""
        below = self._extents[axis - self.leading + 1 :]
        if not self._dense:
            return scope.index(_capacity(below))
        step = scope.index(1)
        for extent in below:
            step = scope.times(step, extent.stop(scope))
        return step

    def offset(self, scope: Scope, index: Index) -> Value:
        """The offset of an element."""
        offset = scope.index(0)
        for axis, i in enumerate(index[self.leading :], self.leading):
            if i is not None:
                offset = scope.plus(offset, scope.times(i, self.step(scope, axis)))
        return offset


def _capacity(extents: Sequence[Extent]) -> int:
    return math.prod(extent.capacity for extent in extents)


class Product(Node):
    """The result of a root; not a product of matrices.

    It is in scratch memory (`buffer`), or in a scalar (`local`) while its loops are open.
    """

    def __init__(self, dtype: DTypeLike, extents: Sequence[Extent], name: str = "") -> None:
        super().__init__(dtype, extents, name)
        self.buffer: Buffer | None = None
        self.local: Value | None = None
        self.keep_from = 0  # axes before this one need no memory: every use is inside the loops over them

    def compute(self, scope: Scope, index: Index) -> Value:
        if self.local is not None:
            return self.local
        assert self.buffer is not None, f"{self.name or 'a tile'} is used before it is computed"
        return scope.add(Read(self.buffer.memory, self.buffer.offset(scope, index)), self.name)


class Accumulated(Node):
    """A step of a reduction whose accumulators are in memory.

    Its element is `kind(product[index without axis], x[index])`.
    """

    def __init__(self, product: Product, x: Node, kind: str, axis: int) -> None:
        super().__init__(product.dtype, x.extents, product.name)
        self._product, self._x, self._kind, self._axis = product, x, kind, axis

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        yield self._product, (*index[: self._axis], *index[self._axis + 1 :])
        yield self._x, index

    def compute(self, scope: Scope, index: Index) -> Value:
        (product, where), (x, place) = self.inputs(index)
        value = scope.cast(x.at(scope, place), self.dtype)
        return scope.add(Step(product.at(scope, where), value, kind=self._kind))


class Cast(Node):
    """The elements as another dtype."""

    def __init__(self, x: Node, dtype: DTypeLike) -> None:
        super().__init__(dtype, x.extents, x.name)
        self.x = x

    def inputs(self, index: Index) -> Iterator[tuple[Node, Index]]:
        yield self.x, index

    def compute(self, scope: Scope, index: Index) -> Value:
        return scope.cast(self.x.at(scope, index), self.dtype)
