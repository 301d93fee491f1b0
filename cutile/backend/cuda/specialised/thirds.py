"""Three warp groups that share a tile of 192 rows: what may follow their loop of products, and how many sums they hold.

Layouts count warps in powers of two. That of three groups is that of four, of which the last would hold rows past the
tile's edge: so nothing is lost where its threads do something else, as long as every tile keeps to such a layout.
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.panels import ROWS
from cutile.backend.cuda.placement import ELEMENTWISE, Placement, is_tile
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Function, Op
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Reshape

GROUPS = 3
TALL = GROUPS * ROWS
"""Rows of a tile that three groups share."""
MOST_SUMS = 100
"""Of a thread: four groups of threads begin with 128 registers each, and one instruction's must fit into these."""
MOST_BESIDE_MORE = 80
"""The same where more than a conversion follows: it has the registers that a thread then takes over, 160 in all."""
MOST_APART = 64
"""The same where products are added up apart from the sums: a thread has both."""

_WARPS = 4 * GROUPS
_KNOWN = (Constant, Broadcast, Reshape, LoadTile, LoadMut, StoreMut, TensorDim)


def why_not_thirds(function: Function, loop: For, product: Mma, accumulator: Layout, *, apart: bool) -> str | None:
    """Why a kernel cannot have three groups; None where it can.

    Args:
        function, loop, product: the kernel.
        accumulator: the layout of its sums.
        apart: whether products are added up apart from the sums.
    """
    after = function.body.operations[function.body.operations.index(loop) + 1 :]
    sums = product.acc.tile.shape[1] // 2
    more = [op for op in after if op.results and is_tile(op.result) and not isinstance(op, Convert)]
    most = MOST_APART if apart else MOST_BESIDE_MORE if more else MOST_SUMS
    if sums > most:
        beside = " beside their products" if apart else " beside what follows the loop" if more else ""
        return f"a thread of three warp groups would hold {sums} sums, and has registers for {most}{beside}"
    for op in after:
        if not by_element(op):
            return f"three warp groups do not work together on {op.name}"
    placement = Placement(function, accumulator.warps, ((product, accumulator),))
    for op in after:
        for value in (*op.operands, *op.results):
            if is_tile(value) and not _without_the_last(placement[value]):
                return f"three warp groups do not hold a tile of {value.tile.shape} alone"
    return None


def by_element(op: Op) -> bool:
    """Whether an operation takes no element from another thread."""
    return family(type(op)) in (*ELEMENTWISE, "grid") or isinstance(op, _KNOWN)


def _without_the_last(layout: Layout) -> bool:
    """Whether three groups of threads hold every element of a tile."""
    if not any(any(basis) for basis in layout.warp[2:]):
        return True  # all groups hold the same
    missing = (layout.thread_coordinate(0, warp) for warp in range(_WARPS, layout.warps))
    return all(any(at >= extent for at, extent in zip(where, layout.shape, strict=True)) for where in missing)
