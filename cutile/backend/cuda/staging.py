"""What passes through shared memory: where it lies, and how many bytes it takes. Pure arithmetic on layouts."""

from __future__ import annotations

from collections.abc import Sequence
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


def spans(sizes: Sequence[int], offset: int = 0) -> list[int]:
    """Where pieces of these sizes begin, one behind the other from `offset` on, and where the last ends.

    Example:
        >>> spans([6, 16], 32)
        [32, 48, 64]
    """
    found = [offset]
    for size in sizes:
        found.append(found[-1] + -(-size // 16) * 16)
    return found


def fold_order(layout: Layout, axis: int) -> list[tuple[int, str, int]]:
    """The bits that choose along an axis, neighbours first: (how far apart, "register", "lane" or "warp", which)."""
    kinds = {"register": layout.register, "lane": layout.lane, "warp": layout.warp}
    found = [
        (basis[axis], kind, bit) for kind, bases in kinds.items() for bit, basis in enumerate(bases) if basis[axis]
    ]
    return sorted(found)


def fold_bytes(dtypes: Sequence[DTypeLike], layout: Layout, axis: int) -> int:
    """The bytes that a reduction by a function needs: none where no warp lacks another's part."""
    order = fold_order(layout, axis)
    warps = [stride for stride, kind, _ in order if kind == "warp"]
    if not warps:
        return 0
    done = sum(stride for stride, kind, _ in order if kind == "register" and stride < min(warps))
    rows = {tuple(o & ~done if a == axis else o for a, o in enumerate(each)) for each in layout.offsets}
    lanes = 1 << (LANE_BITS - lane_mask(layout, axis).bit_count())
    return spans([dtype.bits // 8 * len(rows) * layout.warps * lanes for dtype in dtypes])[-1]


def scan_bytes(dtypes: Sequence[DTypeLike], layout: Layout) -> int:
    """The bytes that a scan needs: the dense tiles."""
    return spans([move_bytes(dtype, layout) for dtype in dtypes])[-1]


def reduce_bytes(dtype: DTypeLike, layout: Layout, axis: int) -> int:
    """The bytes that a reduction along `axis` needs: none where no warp lacks another's part."""
    if not warp_mask(layout, axis):
        return 0
    lanes = 1 << (LANE_BITS - lane_mask(layout, axis).bit_count())
    size = 4 if dtype in (f16, bf16) else dtype.bits // 8
    return layout.collapse(axis).registers * layout.warps * lanes * size
