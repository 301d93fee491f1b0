"""Layouts of the results of matrix instructions, and of products.

They say which thread has which element of an accumulator in registers. The bases are those of the PTX ISA: "Matrix
Fragments for mma.m16n8k16 with floating point type" for `mma.sync`, "Register Fragments and Shared Memory Matrix
Layouts" for `wgmma`.
"""

from collections.abc import Sequence

from cutile.backend.cuda.smem_sizes import tensor_cores
from cutile.backend.gpu.layout import Layout, batched, outer_accumulator, repeats_of, round_up, with_warps
from cutile.backend.gpu.layout_assignment import LayoutAssignment
from cutile.ir.core import Function, Op
from cutile.ops.matmul import Mma


def product_layout(op: Mma, warps: int) -> Layout:
    """The layout of a product's accumulator over all warps of a block."""
    *batch, rows, columns = op.acc.tile.shape
    make = mma_accumulator if tensor_cores(op.a.tile.dtype) else outer_accumulator
    accumulator = make((rows, columns), warps)
    return batched(accumulator, batch[0]) if batch else accumulator


def assign_layouts(function: Function, warps: int, accumulators: Sequence[tuple[Op, Layout]] = ()) -> LayoutAssignment:
    """The layouts of a function's tiles, with this target's for products.

    Args:
        function, warps: the function, and the warps of a block.
        accumulators: products, and other operations, with the layouts of their results.
    """
    return LayoutAssignment(function, warps, product_layout, accumulators)


def mma_accumulator(shape: tuple[int, int], warps: int) -> Layout:
    """Layout of the result of `mma.sync.m16n8k*`.

    A lane has 4 elements of each 16 x 8: two neighbours in each of two rows, which are 8 apart.

    Example:
        >>> print(mma_accumulator((96, 80), warps=4))
        96x80: 60 each of 128 threads, core 32x16
    """
    register = ((0, 1), (8, 0))  # bit 0: the next column; bit 1: 8 rows below
    lane = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))  # bits 0, 1: column pairs of a row; bits 2 to 4: the row
    return with_warps(shape, register, lane, warps)


def group_accumulator(shape: tuple[int, int], groups: int, neighbours: int = 2) -> Layout:
    """Layout of the result of `wgmma.m64nNk*`, whose rows the warpgroups share.

    A warpgroup holds 64 rows, and each of its four warps 16 of them. Three warpgroups have the layout of four, because
    bases are powers of two: the rows of the fourth lie past the tile's edge.

    A lane has `neighbours` columns side by side: 2 in an accumulator. With 4 this is the layout of a left operand of 8
    bits in registers, and of an accumulator if the rows of the right operand are `SmemLayout.interleaved`.

    Example:
        >>> print(group_accumulator((128, 208), groups=2))
        128x208: 104 each of 256 threads, core 128x8
        >>> print(group_accumulator((192, 160), groups=3))
        192x160: 80 each of 512 threads, core 256x8
    """
    groups = round_up(groups)
    warp = tuple((16 << bit, 0) for bit in range((4 * groups).bit_length() - 1))  # each bit of the warp's number: rows
    # Bits 0, 1: which neighbours of a row; bits 2 to 4: the row.
    lane = ((0, neighbours), (0, 2 * neighbours), (1, 0), (2, 0), (4, 0))
    # The lowest bits: the column among neighbours; the highest: 8 rows below.
    register = (*((0, 1 << bit) for bit in range(neighbours.bit_length() - 1)), (8, 0))
    # Four lanes share a row of the core. Columns repeat first: registers of an accumulator count along N (PTX ISA).
    return Layout(shape, register, lane, warp, repeats_of(shape, (64 * groups, 4 * neighbours), (1, 0)))


def across_accumulator(shape: tuple[int, int], groups: int) -> Layout:
    """Layout of 64 rows of `wgmma.m64nNk*` whose columns the warpgroups share.

    Each warpgroup has neighbouring columns. The number of warpgroups is a power of two, and so is each one's number of
    columns, at least 8.

    Example:
        >>> print(across_accumulator((64, 128), groups=2))
        64x128: 32 each of 256 threads, core 64x128
    """
    own = shape[1] // groups  # columns of a warpgroup
    # Bit 0: the next column; bit 1: 8 rows below; further bits: which 8 columns of the warpgroup's.
    register = ((0, 1), (8, 0), *((0, 8 << bit) for bit in range((own // 8).bit_length() - 1)))
    lane = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))  # bits 0, 1: column pairs of a row; bits 2 to 4: the row
    # Bits 0, 1: 16 rows of the warpgroup's 64; further bits: the warpgroup, with columns of its own.
    warp = ((16, 0), (32, 0), *((0, own << bit) for bit in range(groups.bit_length() - 1)))
    return Layout(shape, register, lane, warp)
