"""What passes through shared memory: where it lies, and how many bytes it takes. Pure arithmetic on layouts."""

from __future__ import annotations

from dataclasses import dataclass

from cutile.backend.cuda.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike, bf16, f16

STEP = 16
"""Elements of K that one tensor-core instruction takes."""


def tensor_cores(dtype: DTypeLike) -> bool:
    """Whether products of this dtype go through the tensor cores."""
    return dtype in (f16, bf16)


@dataclass(frozen=True)
class Stage:
    """Where an operand of a product lies: element (i, j) at `offset + (i * pitch + j) * size` bytes.

    `swap` exchanges i and j: the left operand of outer products lies with its rows in columns.
    """

    offset: int
    rows: int
    columns: int
    pitch: int
    dtype: DTypeLike
    swap: bool = False

    @property
    def bytes(self) -> int:
        """The size."""
        return self.rows * self.pitch * self.dtype.bits // 8


def _pitch(columns: int, size: int) -> int:
    """Elements from row to row: whole 16-byte units, an odd number of them, so that eight rows meet no bank twice."""
    units = -(-columns * size // 16) | 1
    return units * 16 // size


def stages(dtype: DTypeLike, acc: DTypeLike, accumulator: Layout, k: int, offset: int = 0) -> tuple[Stage, Stage]:
    """Where the operands of a product of depth `k` lie, the left one at `offset`."""
    rows, columns = accumulator.cover
    if tensor_cores(dtype):
        depth = -(-k // STEP) * STEP
        left = Stage(offset, rows, depth, _pitch(depth, 2), dtype)
        right = Stage(offset + left.bytes, depth, columns, _pitch(columns, 2), dtype)
        return left, right
    size = acc.bits // 8
    left = Stage(offset, k, rows, _pitch(rows, size), acc, swap=True)
    return left, Stage(offset + left.bytes, k, columns, _pitch(columns, size), acc)


def product_bytes(dtype: DTypeLike, acc: DTypeLike, accumulator: Layout, k: int) -> int:
    """The bytes that a product of depth `k` needs."""
    return sum(each.bytes for each in stages(dtype, acc, accumulator, k))


def move_bytes(dtype: DTypeLike, layout: Layout) -> int:
    """The bytes that moving a tile between threads needs: the dense tile."""
    count = dtype.bits // 8
    for extent in layout.shape:
        count *= extent
    return count


def lane_mask(layout: Layout, axis: int) -> int:
    """The lane bits that choose along `axis`."""
    return sum(1 << bit for bit, basis in enumerate(layout.lane) if basis[axis])


def warp_mask(layout: Layout, axis: int) -> int:
    """The warp bits that choose along `axis`."""
    return sum(1 << bit for bit, basis in enumerate(layout.warp) if basis[axis])


def reduce_bytes(dtype: DTypeLike, layout: Layout, axis: int) -> int:
    """The bytes that a reduction along `axis` needs: none where no warp lacks another's part."""
    if not warp_mask(layout, axis):
        return 0
    lanes = 1 << (LANE_BITS - lane_mask(layout, axis).bit_count())
    size = 4 if dtype in (f16, bf16) else dtype.bits // 8
    return layout.collapse(axis).registers * layout.warps * lanes * size
