"""The schedule of tile blocks.

It says which warps and thread blocks work on a tile block, which tile blocks run beside each other, and in which order.

Thread blocks of a cluster are neighbours in the grid, and share tiles that they load.

Some tile blocks may have longer loops than others. The operations that compute a loop's bounds tell whether tile blocks
differ, and whether their loops grow along an axis of the grid. If they differ, a free thread block takes the next tile
block, the longest first, so that the last ones are short. Causal attention then runs 1.01 to 1.09 times as fast as with
tile blocks dealt out in turn (`docs/benchmarks/loops`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cutile.backend.gpu.op_facts import constant_of, work_of
from cutile.ir import Constant, For, If, Op, Value, While
from cutile.ops.arith import Add, DivCeil, DivTrunc, FloorDiv, Max, Min, Mul, Neg, Sub
from cutile.ops.cast import Convert
from cutile.ops.grid import TileBlockId

NUM_SMS = 132
"""Tile blocks that are at work at one time: the multiprocessors of an H100 or H200."""


@dataclass(frozen=True)
class Order:
    """The order of the tile blocks.

    Attributes:
        taken: whether a thread block that is free takes the next tile block; else they are dealt out in turn.
        backwards: axes of the grid along which the last tile block comes first, since it has the longest loops.
    """

    taken: bool = False
    backwards: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cooperative:
    """Warpgroups share a tile block, and one thread block does all its iterations.

    Attributes:
        undivided: why the iterations are not divided among several thread blocks.
        divisible: whether they could be divided, if the options asked for it.
        delayed: whether a result is stored under the next tile block's products (`epilogue.py`).
    """

    undivided: str = "the kernel does more than multiply in a loop"
    divisible: bool = False
    delayed: bool = False


@dataclass(frozen=True)
class PingPong:
    """Each warpgroup has tile blocks of its own (`mainloop_rules.py`)."""

    undivided: str = "warp groups have tile blocks of their own"


@dataclass(frozen=True)
class SplitK:
    """Several thread blocks may share a tile block's iterations (`split_k.py`).

    Attributes:
        pieces: the number of pieces into which the iterations may be divided.
        parts: parts of a tile's columns that the thread blocks of a cluster add up; 0 where a workspace is used.
    """

    pieces: int
    parts: int = 0


Schedule = Cooperative | PingPong | SplitK
"""The division of a tile block's work among warpgroups and thread blocks."""


@dataclass(frozen=True)
class Tiles:
    """The way of a kernel through its tile blocks.

    Attributes:
        cluster: thread blocks that share tiles that they load; 1 for none.
        along: the axis of the grid along which a cluster's blocks are neighbours.
        rows, columns: the axes of the grid that go along the rows and columns of a result.
        grouped: rows of tile blocks (or of clusters) in a group of the rasterisation. The tile blocks at work cover
            about a square of the result, so that they read as little as possible.
        schedule: the division of a tile block's work.
        order: the order of the tile blocks.
    """

    cluster: int = 1
    along: int = 0
    rows: int = 0
    columns: int = 1
    grouped: int = 1
    schedule: Schedule = field(default_factory=Cooperative)
    order: Order = field(default_factory=Order)


def square_group(rows: int, columns: int, together: int = 1) -> int:
    """Rows of tile blocks (or clusters) for which the blocks at work cover a square.

    Args:
        rows, columns: extents of a tile.
        together: tile blocks of a cluster that lie below each other.

    Example:
        >>> square_group(128, 128), square_group(128, 256), square_group(128, 256, together=2)
        (11, 16, 8)
    """
    return max(1, round(math.sqrt(NUM_SMS * columns / rows) / together))


def order_of(nests: Iterable[Op], definitions: Mapping[Value, Op]) -> Order:
    """The order for a kernel with these loops and branches around its loads."""
    nests = list(nests)
    loops = {op.induction: op for op in nests if isinstance(op, For)}
    slopes = _Slopes(definitions, loops)
    axes = [{slopes.of_nest(op, axis) for op in nests} for axis in range(3)]
    return Order(
        taken=any(growth != 0 for growths in axes for growth in growths),
        backwards=tuple(axis for axis, growths in enumerate(axes) if growths - {None, 0} == {1}),
    )


class _Slopes:
    """The slopes of numbers along an axis of the grid.

    A number grows with the tile block's index there (1), shrinks (-1), or does not depend on it (0). None where that is
    not known, as for numbers from memory.
    """

    def __init__(self, definitions: Mapping[Value, Op], loops: Mapping[Value, For]) -> None:
        self._definitions = definitions
        self._loops = loops
        self._slopes: dict[tuple[Value, int], int | None] = {}

    def of_nest(self, op: Op, axis: int) -> int | None:
        """The slope of a loop's length, or of the work in a branch: 0 or None."""
        if isinstance(op, If):
            return 0 if self._of(op.condition, axis) == 0 else None
        if not isinstance(op, For):
            return None
        start, stop, step = (self._of(value, axis) for value in op.bounds)
        if step != 0 or start is None or stop is None or start * stop > 0:
            return None
        return stop or -start

    def _of(self, value: Value, axis: int) -> int | None:
        """The slope of a number, computed once: it may be an operand of many."""
        if (value, axis) not in self._slopes:
            self._slopes[value, axis] = self._slope(value, axis)
        return self._slopes[value, axis]

    def _slope(self, value: Value, axis: int) -> int | None:
        if value in self._loops:
            loop = self._loops[value]
            return 0 if all(self._of(bound, axis) == 0 for bound in loop.bounds) else None
        op = self._definitions.get(value)
        if op is None or isinstance(op, Constant):
            return 0  # a constant, or a parameter of the kernel
        if isinstance(op, TileBlockId):
            return int(op.axis == axis)
        slopes = [self._of(operand, axis) for operand in op.operands]
        if op.regions or None in slopes:
            return None
        signs = [slope for slope in slopes if slope is not None]
        if not any(signs):
            return 0
        if isinstance(op, Sub | Neg):
            signs[-1] = -signs[-1]
        monotonic = isinstance(op, Add | Sub | Neg | Min | Max | Convert)
        # Either factor of a product, but only the divisor: a quotient shrinks as its divisor grows.
        factors = [constant_of(x, self._definitions) or 0 for x in op.operands[0 if isinstance(op, Mul) else 1 :]]
        scaled = isinstance(op, Mul | FloorDiv | DivCeil | DivTrunc) and any(factor > 0 for factor in factors)
        return max(signs, key=abs) if (monotonic or scaled) and max(signs) * min(signs) >= 0 else None


def block_axes(values: Sequence[Value], definitions: Mapping[Value, Op]) -> frozenset[int]:
    """The axes of the grid along which these numbers differ from block to block."""
    return frozenset(op.axis for op in work_of(values, definitions) if isinstance(op, TileBlockId))


def shared_along(
    index: Sequence[Value], loops: Iterable[For | While], definitions: Mapping[Value, Op]
) -> tuple[int, ...] | None:
    """The axes of the grid along which tile blocks load the same tile.

    None where one tile block may load a tile twice: the tile's index lacks the variable of some loop, or has a computed
    number, which may be the same in two iterations.

    Args:
        index: the index of the tile.
        loops: the loops around the load.
        definitions: the operation of each value.

    Example:
        `ct.load_tile(w, (64, 256), (j, k))` in a loop over k, with j the tile block's second index: (0, 2).
    """
    loops = list(loops)
    inductions = [loop.induction for loop in loops if isinstance(loop, For)]
    named = [value for value in index if not isinstance(definitions.get(value), Constant)]
    blocks = [op.axis for value in named if isinstance(op := definitions.get(value), TileBlockId)]
    plain = len(blocks) + sum(value in inductions for value in named) == len(named)
    if not plain or len(inductions) < len(loops) or not set(inductions) <= set(named):
        return None
    return tuple(axis for axis in range(3) if axis not in blocks)
