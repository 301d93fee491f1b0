"""Two warp groups of a block that have tile blocks of their own: one multiplies while the other writes its result.

    loads:    turns of tile 0 | turns of tile 1 | turns of tile 2 | ...      one ring, whose slots one group reads
    group 0:  multiply 0      | write 0         | multiply 2      | ...
    group 1:                  | multiply 1      | write 1         | ...

The ring says whose turn it is: a group begins its tile when its operands arrive, which is when the other's are loaded.
So the tensor cores have work at the end of a tile too, which counts where K is short. A thread has the sums of a whole
tile's rows, twice as many as where groups share a tile. Not where a block has one tile: then half of it does nothing.
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Layout, group_accumulator
from cutile.backend.cuda.panels import GROUP
from cutile.backend.cuda.placement import Placement, is_tile
from cutile.backend.cuda.specialised.epilogue import cut
from cutile.backend.cuda.specialised.thirds import by_element
from cutile.ir.control import For
from cutile.ir.core import Function
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma

GROUPS = 2
WARPS = 4
"""That a tile block has."""
MOST_SUMS = 192
"""Of a thread; with these and what a conversion needs, nothing spills."""
NARROW = 16
"""Columns for which what else follows the loop is done at a time, so that nothing spills there either."""
MOST_BESIDE_MORE = 112
"""Sums of a thread where it cannot be done so."""


def alone_accumulator(shape: tuple[int, int]) -> Layout:
    """Where the sums of a tile are that one group has: whichever of the groups, its threads hold the same places.

    Example:
        >>> print(alone_accumulator((128, 192)))
        128x192: 192 each of 256 threads, core 64x8
    """
    one = group_accumulator(shape, 1)
    return Layout(shape, one.register, one.lane, (*one.warp, (0, 0)), one.repeat)


def goes_narrow(function: Function, loop: For) -> bool:
    """Whether more than a conversion follows the loop of products, and can be done for a few columns at a time."""
    return cut(function, loop, NARROW) is not function


def why_not_alone(function: Function, loop: For, product: Mma, accumulator: Layout) -> str | None:
    """Why groups cannot have tile blocks of their own; None where they can."""
    after = function.body.operations[function.body.operations.index(loop) + 1 :]
    rows, columns = product.acc.tile.shape
    sums = rows * columns // GROUP
    more = any(op.results and is_tile(op.result) and not isinstance(op, Convert) for op in after)
    whole = more and not goes_narrow(function, loop)
    most = MOST_BESIDE_MORE if whole else MOST_SUMS
    if sums > most:
        beside = " beside what follows the loop" if whole else ""
        return f"a thread of a group alone would hold {sums} sums, and has registers for {most}{beside}"
    for op in after:
        if not by_element(op):
            return f"warp groups would have to work together on {op.name}"
    placement = Placement(function, accumulator.warps, ((product, accumulator),))
    for op in after:
        for value in (*op.operands, *op.results):
            if is_tile(value) and any(any(basis) for basis in placement[value].warp[2:]):
                return f"a group alone does not hold a tile of {value.tile.shape}"
    return None
