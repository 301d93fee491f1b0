"""Places and bytes of tiles that pass through shared memory, from layouts alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cutile.backend.cuda.smem_layout import STEP_BYTES
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.dtypes import DTypeLike, f8e4m3fn, f8e5m2, f64, i8, tf32, u8

BARRIER_BYTES = 8
"""Bytes of an mbarrier object."""
F64_STEP = 4
"""Elements along K that one instruction of f64 takes. Instructions of other dtypes take `STEP_BYTES`."""
VECTOR = 4
"""Elements of f32 that SIMT products read at once along K: 16 bytes."""

# The dtypes of 8 bits that tensor cores multiply.
EIGHTS = (i8, u8, f8e4m3fn, f8e5m2)


def tensor_cores(dtype: DTypeLike) -> bool:
    """Whether tensor cores make products of this dtype.

    They do not for f32, which they would round to tf32.
    """
    return dtype.is_half or dtype in (*EIGHTS, tf32, f64)


def step_of(dtype: DTypeLike) -> int:
    """Elements along K that one instruction multiplies; stages have whole steps."""
    if dtype is f64:
        return F64_STEP
    return STEP_BYTES * 8 // dtype.bits if tensor_cores(dtype) else VECTOR


def k_major(dtype: DTypeLike) -> bool:
    """Whether an operand must be contiguous along K.

    The instructions that read it do not transpose elements of 8 bits.
    """
    return dtype in EIGHTS


@dataclass(frozen=True)
class Stage:
    """The place of a product's operand in shared memory.

    Element (i, j) of the operand lies at `offset + (i * pitch + j) * size` bytes; with `swap` element (j, i) does,
    since the operand lies transposed. `rows` and `columns` are the extents in memory.
    """

    offset: int
    rows: int
    columns: int
    pitch: int
    dtype: DTypeLike
    swap: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the operand, with the padding of its rows."""
        return self.rows * self.pitch * self.dtype.bits // 8


def _pitch(columns: int, dtype: DTypeLike, single: bool) -> int:
    """Elements from row to row, so that there are no bank conflicts.

    Rows are whole units of 16 bytes. The number of units is odd for accesses to 16 bytes of each of eight rows. Where
    threads load `single` elements, a warp accesses 32 bytes of each of four rows: the number of units is then 2 more
    than a multiple of 8.
    """
    size = dtype.bits // 8
    units = -(-columns * size // 16)
    units = units + (2 - units) % 8 if single else units | 1
    return units * 16 // size


Swaps = tuple[bool, bool]
"""Whether the left operand lies transposed, and whether the right one does."""


def usual_swaps(dtype: DTypeLike) -> Swaps:
    """How operands from registers are staged: the left one as M x K.

    The right one is staged as K x N, or as N x K where it must be contiguous along K.
    """
    return False, k_major(dtype)


def one_product(accumulator: Layout) -> Layout:
    """The layout of one of a batch of products."""
    return accumulator.collapse(0).drop(0) if accumulator.rank == 3 else accumulator


def stages(
    dtype: DTypeLike,
    accumulator: Layout,
    k: int,
    offset: int = 0,
    *,
    right: DTypeLike | None = None,
    swaps: Swaps | None = None,
) -> tuple[Stage, Stage]:
    """The places of the operands of a product, or of the first product of a batch.

    Args:
        dtype: the left operand's dtype.
        accumulator: the layout of the result.
        k: the depth of the product.
        offset: the left operand's first byte; the right operand follows.
        right: the right operand's dtype, where it is another of the same size.
        swaps: whether each lies transposed; by default `usual_swaps`.
    """
    rows, columns = one_product(accumulator).cover
    step = step_of(dtype)
    depth = -(-k // step) * step

    def place(shape: tuple[int, int], swap: bool, at: int, element: DTypeLike, by_k: bool) -> Stage:
        """`by_k`: whether its rows in memory go along K, one for each k."""
        down, across = reversed(shape) if swap else shape
        single = dtype is f64 or (dtype is tf32 and by_k)
        return Stage(at, down, across, _pitch(across, element, single), element, swap)

    left_swap, right_swap = swaps or usual_swaps(dtype)
    left = place((rows, depth), left_swap, offset, dtype, left_swap)
    return left, place((depth, columns), right_swap, offset + left.bytes, right or dtype, not right_swap)


def widest(layout: Layout, axis: int, strides: Sequence[int], dtype: DTypeLike) -> int:
    """Elements along `axis` that a thread reads at once, up to 16 bytes.

    `strides` are those of the tile.
    """
    width = min(layout.vector(axis), 128 // dtype.bits)
    rest = [layout.shape[axis], *(stride for other, stride in enumerate(strides) if other != axis)]
    while any(extent % width for extent in rest):
        width //= 2
    return width


def product_bytes(dtype: DTypeLike, accumulator: Layout, k: int) -> int:
    """The bytes that a product of depth `k` needs, or a whole batch of products."""
    batch = accumulator.shape[0] if accumulator.rank == 3 else 1
    return batch * sum(stage.bytes for stage in stages(dtype, accumulator, k))


def move_bytes(dtype: DTypeLike, layout: Layout) -> int:
    """The bytes that moving a tile between threads needs: the dense tile."""
    return dtype.bits // 8 * math.prod(layout.shape)


def lane_mask(layout: Layout, axis: int) -> int:
    """The bits of a lane's number that change the coordinate along `axis`."""
    return sum(1 << bit for bit, basis in enumerate(layout.lane) if basis[axis])


def warp_mask(layout: Layout, axis: int) -> int:
    """The bits of a warp's number that change the coordinate along `axis`."""
    return sum(1 << bit for bit, basis in enumerate(layout.warp) if basis[axis])


def spans(sizes: Sequence[int], offset: int = 0) -> list[int]:
    """The offsets of parts of these sizes, at multiples of 16, and their end.

    The parts follow each other from `offset` on.

    Example:
        >>> spans([6, 16], 32)
        [32, 48, 64]
    """
    starts = [offset]
    for size in sizes:
        starts.append(starts[-1] + -(-size // 16) * 16)
    return starts


def fold_order(layout: Layout, axis: int) -> list[tuple[int, str, int]]:
    """The bits that change the coordinate along an axis, the smallest step first.

    Each is a triple: the step; "register", "lane" or "warp"; the bit of that number.
    """
    kinds = {"register": layout.register, "lane": layout.lane, "warp": layout.warp}
    bits = [(basis[axis], kind, bit) for kind, bases in kinds.items() for bit, basis in enumerate(bases) if basis[axis]]
    return sorted(bits)


def fold_bytes(dtypes: Sequence[DTypeLike], layout: Layout, axis: int) -> int:
    """The bytes that a reduction by a function needs; 0 where no row crosses warps."""
    order = fold_order(layout, axis)
    warps = [stride for stride, kind, _ in order if kind == "warp"]
    if not warps:
        return 0
    # Bits of a register's number below those of a warp's are folded in the thread.
    folded = sum(stride for stride, kind, _ in order if kind == "register" and stride < min(warps))
    rows = {tuple(o & ~folded if a == axis else o for a, o in enumerate(offset)) for offset in layout.offsets}
    return totals_bytes(dtypes, layout, axis, len(rows))


@dataclass(frozen=True)
class Run:
    """Neighbouring bits of a coordinate that belong to numbers of one kind.

    Attributes:
        kind: the kind of the number: "register", "lane" or "warp".
        bits: the bits of that number, the smallest step first. In a run of lanes the bits are consecutive.
        mask: the bits of the coordinate.
    """

    kind: str
    bits: tuple[int, ...]
    mask: int


def fold_runs(layout: Layout, axis: int) -> list[Run]:
    """The bits of `fold_order`, in runs."""
    runs: list[Run] = []
    for stride, kind, bit in fold_order(layout, axis):
        last = runs[-1] if runs else None
        if last is None or last.kind != kind or (kind == "lane" and last.bits[-1] + 1 != bit):
            runs.append(Run(kind, (bit,), stride))
        else:
            runs[-1] = Run(kind, (*last.bits, bit), last.mask | stride)
    return runs


def totals_bytes(dtypes: Sequence[DTypeLike], layout: Layout, axis: int, count: int) -> int:
    """The bytes to show `count` results of each thread to all warps."""
    lanes = 1 << (LANE_BITS - lane_mask(layout, axis).bit_count())
    return spans([dtype.bits // 8 * count * layout.warps * lanes for dtype in dtypes])[-1]


def scan_bytes(dtypes: Sequence[DTypeLike], layout: Layout, axis: int) -> int:
    """The bytes that a scan needs; 0 where no row crosses warps."""
    count, total = layout.registers, 0
    for run in fold_runs(layout, axis):
        if run.kind == "register":
            count >>= len(run.bits)
        elif run.kind == "warp":
            total += totals_bytes(dtypes, layout, axis, count)
    return total


def reduce_bytes(dtype: DTypeLike, layout: Layout, axis: int) -> int:
    """The bytes that a reduction along `axis` needs; 0 where no row crosses warps."""
    if not warp_mask(layout, axis):
        return 0
    lanes = 1 << (LANE_BITS - lane_mask(layout, axis).bit_count())
    size = 4 if dtype.is_half else dtype.bits // 8  # halves are reduced in f32
    return layout.collapse(axis).registers * layout.warps * lanes * size
