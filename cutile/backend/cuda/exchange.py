"""Places of a tile in shared memory, on its way from one layout to another.

One thread writes an element in the first layout, and another reads it in the second one. Rows along one axis are cut
into chunks. A chunk has as many elements as the wider of the two accesses. Chunk `c` of row `r` lies at place
`c ^ (r >> shift & mask)` of its row. So threads that read across the rows find their elements in different banks. With
shift 0 and mask 3:

    row 0   c0 c1 c2 c3
    row 1   c1 c0 c3 c2
    row 2   c2 c3 c0 c1
    row 3   c3 c2 c1 c0

The axis, the shift and the mask are those that take the fewest cycles of shared memory, counted on the lanes of a warp.
A shift lets several neighbouring rows lie alike, for accesses whose lanes are that many rows apart.

All functions here are pure.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from cutile.backend.gpu.layout import LANE_BITS, Coordinate, Layout, round_up
from cutile.dtypes import DTypeLike

ACCESS_BYTES = 16
"""The widest access of one thread."""
BANKS = 32
"""Banks of shared memory."""
BANK_BYTES = 4
"""Bytes that a bank serves in a cycle."""
SECTOR_BYTES = 32
"""The smallest piece of global memory that is moved."""


@dataclass(frozen=True)
class Exchange:
    """Where each element lies.

    Attributes:
        shape: the tile's extents.
        axis: the axis along the rows.
        chunk: elements of a chunk; a power of two that divides the tile's extent along the axis.
        shift: bits by which the row's number is shifted, before it is combined with the chunk's number.
        mask: the bits of the chunk's number that change; 0 where chunks lie in their order.
        widths: elements of one write, and of one read.
        size: bytes of an element.

    Example:
        >>> Exchange((4, 8), axis=1, chunk=2, shift=0, mask=3, widths=(2, 1), size=4).place((1, 5))
        15
    """

    shape: tuple[int, ...]
    axis: int
    chunk: int
    shift: int
    mask: int
    widths: tuple[int, int]
    size: int

    @cached_property
    def pitch(self) -> int:
        """Elements from row to row.

        Rows are padded to whole groups of `mask + 1` chunks: within a group, the XOR leads to every place.
        """
        chunks = self.shape[self.axis] // self.chunk
        return self.chunk * -(-chunks // (self.mask + 1)) * (self.mask + 1)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Rows between neighbours along each axis; 0 along the rows' own axis."""
        others = [axis for axis in range(len(self.shape)) if axis != self.axis]
        return tuple(
            0 if axis == self.axis else math.prod(self.shape[other] for other in others if other > axis)
            for axis in range(len(self.shape))
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tile."""
        return math.prod(self.shape) // self.shape[self.axis] * self.pitch * self.size

    @cached_property
    def is_linear(self) -> bool:
        """Whether the place of a coordinate is the XOR of the places of its bits."""
        counts = [*self.strides, self.pitch, self.chunk]
        return all(count & (count - 1) == 0 for count in counts)

    def place(self, where: Sequence[int]) -> int:
        """The place of an element, in elements from the tile's start."""
        row = sum(coordinate * stride for coordinate, stride in zip(where, self.strides, strict=True))
        chunk, rest = divmod(where[self.axis], self.chunk)
        return row * self.pitch + (chunk ^ (row >> self.shift & self.mask)) * self.chunk + rest


@cache
def exchange_of(dtype: DTypeLike, source: Layout, target: Layout) -> Exchange:
    """The exchange from `source` to `target` with the fewest cycles, then bytes."""
    sides = [(layout.registers, lanes_of(layout)) for layout in (source, target)]

    def cost(exchange: Exchange) -> tuple[int, int]:
        """Cycles for one warp, and bytes.

        The cycles are those of its first access on each side, times the number of accesses.
        """
        both = zip(sides, exchange.widths, strict=True)
        cycles = (count // width * access_cycles(exchange, lanes, width) for (count, lanes), width in both)
        return sum(cycles), exchange.nbytes

    return min(_candidates(dtype, source, target), key=cost)


def lanes_of(layout: Layout) -> list[Coordinate]:
    """The coordinates in a tile of the first elements of a warp's lanes."""
    return [layout.coordinate(0, lane, 0) for lane in range(1 << LANE_BITS)]


def _candidates(dtype: DTypeLike, source: Layout, target: Layout) -> Iterator[Exchange]:
    """The exchanges to choose from.

    Rows run along each axis with wide accesses, or along the last axis. Chunks lie in their order, or with any swizzle.
    """
    size = dtype.bits // 8
    wide_axes = [axis for axis in range(source.rank) if max(source.vector(axis), target.vector(axis)) > 1]
    for axis in dict.fromkeys([*wide_axes, source.rank - 1]):
        widths = (_width(source, axis, size), _width(target, axis, size))
        chunk = max(widths)
        chunks = source.shape[axis] // chunk
        yield Exchange(source.shape, axis, chunk, 0, 0, widths, size)
        rows = math.prod(source.shape) // source.shape[axis]
        for bits in range(1, round_up(chunks).bit_length()):
            for shift in range(max(1, rows.bit_length() - 1)):
                yield Exchange(source.shape, axis, chunk, shift, (1 << bits) - 1, widths, size)


def _width(layout: Layout, axis: int, size: int) -> int:
    """Neighbours along an axis that a thread writes or reads at once."""
    width = min(layout.vector(axis), ACCESS_BYTES // size)
    while layout.shape[axis] % width:
        width //= 2
    return width


def access_cycles(exchange: Exchange, lanes: Sequence[Coordinate], width: int) -> int:
    """Cycles of shared memory that one access of a warp takes.

    Accesses of 16 bytes are served a quarter of a warp at a time, those of 8 bytes half a warp at a time. Each part
    takes as many cycles as it has different words in one bank.
    """
    nbytes = width * exchange.size
    at_once = min(1 << LANE_BITS, BANKS * BANK_BYTES // nbytes)
    total = 0
    for first in range(0, 1 << LANE_BITS, at_once):
        words: set[int] = set()
        for lane in range(first, first + at_once):
            begin = exchange.place(lanes[lane]) * exchange.size
            words.update(range(begin // BANK_BYTES, -(-(begin + nbytes) // BANK_BYTES)))
        total += max(Counter(word % BANKS for word in words).values())
    return total


def sectors(layout: Layout, axis: int | None, width: int, size: int) -> tuple[int, int]:
    """Sectors that an access of a warp touches, and the fewest that hold as much.

    Args:
        layout: the layout of the tile.
        axis: the axis along which neighbours are contiguous; None for single elements.
        width: elements of a thread's access.
        size: bytes of an element.
    """
    # An element by its row, which counts as contiguous and aligned, and its first byte there. Lanes may share elements.
    elements: set[tuple[tuple[int, ...], int]] = set()
    for lane in lanes_of(layout):
        row, along = list(lane), 0
        if axis is not None:
            along, row[axis] = row[axis], 0
        elements.update((tuple(row), (along + k) * size) for k in range(width))
    touched = {(row, begin // SECTOR_BYTES) for row, begin in elements}
    return len(touched), max(1, -(-len(elements) * size // SECTOR_BYTES))
