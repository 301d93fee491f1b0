"""Warpgroups that do not share a tile evenly.

Two with tile blocks of their own (ping-pong), or three with 192 rows.

    loads:        iterations of tile 0 | of tile 1  | of tile 2  | ...      one pipeline, whose stages one of them reads
    warpgroup 0:  multiply 0           | write 0    | multiply 2 | ...
    warpgroup 1:                       | multiply 1 | write 1    | ...

The pipeline says whose turn it is: a warpgroup begins its tile when its operands arrive, which is when the other's are
loaded. So the tensor cores have work at the end of a tile too, which counts where K is short. A thread has the sums of
a whole tile's rows, twice as many as where warpgroups share a tile. Not where a block has one tile: then half of it
does nothing.

Layouts count warps in powers of two. That of three warpgroups is that of four, of which the last would hold rows past
the tile's edge: so nothing is lost where its threads do something else, as long as every tile keeps to such a layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.layout_assignment import ELEMENTWISE, LayoutAssignment, is_tile
from cutile.backend.cuda.panels import GROUP
from cutile.backend.cuda.pipeline.accumulators import among_three, held_by_each_warpgroup
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.subtiles import cut_epilogue
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Function, Op
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Reshape

PINGPONG_WARPGROUPS = 2
"""Warpgroups that have tile blocks of their own."""
PINGPONG_WARPS = 4
"""That such a tile block has."""
NARROW_COLUMNS = 16
"""Columns for which what else follows the main loop is done at a time there, so that nothing spills."""


@dataclass(frozen=True)
class Room:
    """Sums of a thread for which there are registers.

    Attributes:
        sums: with what a conversion needs, nothing spills.
        beside_more: where more than a conversion follows the main loop, done for all columns at a time.
        apart: where products are added up apart from the sums.
    """

    sums: int
    beside_more: int
    apart: int


PINGPONG_ROOM = Room(sums=192, beside_more=112, apart=0)
THREE_ROOM = Room(sums=100, beside_more=80, apart=64)
"""Four groups of threads begin with 128 registers each, and one instruction's must fit into these; what follows has the
160 that a thread then takes over."""

_KNOWN = (Constant, Broadcast, Reshape, LoadTile, LoadMut, StoreMut, TensorDim)


def goes_narrow(function: Function, loop: For) -> bool:
    """Whether an epilogue does more than convert, and can be done in subtiles."""
    return cut_epilogue(function, loop, NARROW_COLUMNS) is not function


def why_not_pingpong(kernel: Kernel, loop: For, accumulator: Layout) -> str:
    """Why warpgroups cannot have tile blocks of their own; empty where they can."""
    sums = loop.results[0].tile.size // GROUP
    more = kernel.computes_behind(loop) and not goes_narrow(kernel.function, loop)
    return _why(
        kernel, loop, accumulator, _why_no_room("a group alone", PINGPONG_ROOM, sums, more), held_by_each_warpgroup
    )


def why_not_three(kernel: Kernel, loop: For, accumulator: Layout, *, apart: bool) -> str:
    """Why three warpgroups cannot share the tiles of a kernel; empty where they can.

    Args:
        kernel, loop: the kernel and its main loop.
        accumulator: the layout of its sums.
        apart: whether products are added up apart from the sums.
    """
    sums = loop.results[0].tile.shape[1] // 2
    why = _why_no_room("three warp groups", THREE_ROOM, sums, kernel.computes_behind(loop), apart=apart)
    return _why(kernel, loop, accumulator, why, among_three)


def _why_no_room(whose: str, room: Room, sums: int, more: bool, *, apart: bool = False) -> str:
    most = room.apart if apart else room.beside_more if more else room.sums
    beside = " beside their products" if apart else " beside what follows the loop" if more else ""
    if sums <= most:
        return ""
    return f"a thread of {whose} would hold {sums} sums, and has registers for {most}{beside}"


def _why(kernel: Kernel, loop: For, accumulator: Layout, why: str, holds: Callable[[Layout], bool]) -> str:
    """The reason that is there already.

    Or that what follows the main loop needs other threads' elements.
    """
    after = kernel.behind(loop)
    layouts = LayoutAssignment(kernel.function, accumulator.warps, ((kernel.products[0], accumulator),))
    for op in after:
        if not by_element(op):
            why = why or f"warp groups would have to work together on {op.name}"
    for op in after:
        for value in (*op.operands, *op.results):
            if is_tile(value) and not holds(layouts[value]):
                why = why or f"a tile of {value.tile.shape} is not held by these warp groups alone"
    return why


def by_element(op: Op) -> bool:
    """Whether an operation takes no element from another thread."""
    return family(type(op)) in (*ELEMENTWISE, "grid") or isinstance(op, _KNOWN)
