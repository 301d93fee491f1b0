"""Reads that walk down a column of memory, in loops along rows of the result.

Each would fetch a cache line for one element, and the next row would fetch the line again: long after it has left the
cache, where rows lie a power of two apart. Such a nest runs in strips of a few rows. The strip's elements are copied to
scratch memory first, transposed in vector registers, so that each line of memory is read once, as a whole:

    for row_block:
        copy_transposed(strip, x, ...)        # strip[row, column] = x[column, row]
        for row in the block:
            for column: y[row, column] = f(strip[row, column])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cutile.backend.cpu.lowering.scope import Scope
from cutile.backend.cpu.lowering.tile_expr import Index, Loaded, Node
from cutile.backend.cpu.stage import CopyTransposed
from cutile.ir.core import Value
from cutile.ops.arith import FloorDiv

ROWS = 16
"""Of a strip: 16 elements of 32 bits are a cache line, and a vector register of AVX-512."""
COLUMNS = 256
"""Of a strip, at most: so many cache lines are read from as many places before the loops run on."""


@dataclass(frozen=True)
class TransposedRead:
    """A tile whose elements lie side by side along the outer of two loops.

    Attributes:
        leaf: the tile.
        where: its index, by the stand-ins of the root that reads it.
        column: the axis of the tile along which the inner loop runs.
    """

    leaf: Loaded
    where: Index
    column: int


def transposed_read(scope: Scope, leaf: Node, where: Index, row: Value, column: Value) -> TransposedRead | None:
    """What loops over `row` and, inside, `column` read transposed, if they do."""
    if not isinstance(leaf, Loaded) or where.count(row) != 1 or where.count(column) != 1:
        return None
    if scope.masked and not all(axis.covered for axis in leaf.axes):
        return None
    along, across = (scope.known(leaf.axes[where.index(each)].stride) for each in (row, column))
    return TransposedRead(leaf, where, where.index(column)) if along == 1 != across else None


def blocks_of(scope: Scope, count: Value, size: int) -> Value:
    """How many blocks of `size` there are in `count`."""
    raised = scope.plus(count, scope.index(size - 1))
    number = scope.known(raised)
    return (
        scope.index(number // size)
        if number is not None
        else scope.shared(("//", raised, size), FloorDiv(raised, scope.index(size)))
    )


def fill_strip(
    scope: Scope, read: TransposedRead, strip: Value, at: Mapping[Value, Value], extents: Sequence[Value], step: int
) -> None:
    """Copy what the loops over one strip read.

    Args:
        scope: where the copy goes.
        read: what is read.
        strip: scratch memory.
        at: the first index of the strip for each stand-in.
        extents: the strip's rows and columns.
        step: the elements between rows of the strip.
    """
    leaf = read.leaf
    first = leaf.offset(scope, tuple(None if i is None else at[i] for i in read.where))
    rows, columns = extents
    stride = leaf.axes[read.column].stride
    scope.builder.add(CopyTransposed(strip, leaf.tensor, first, stride, rows, columns, step=step))
