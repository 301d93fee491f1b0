"""Split-K: the K iterations of a tile, divided among thread blocks.

    %splits = cuda.k_splits(%tiles, %start, %stop, %step) {...}             how many thread blocks share a tile
    %tile, %split, %first, %last = cuda.work_unit(%unit, ..., %splits)      what one of them does of it

The partial sums meet in a workspace in global memory (`Fixup`), or in the shared memory of a cluster
(`ScatterPartials`, `ReducePartials`).
"""

from __future__ import annotations

from cutile.backend.common.abi import WORKSPACE
from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import BARRIERS, SCRATCH
from cutile.dtypes import bool_, i32
from cutile.ir.core import NUMBER_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type


class KSplits(Op, name="cuda.k_splits"):
    """The number of splits of each tile's K iterations; 1 if the tiles fill the GPU.

    Each split has `least` iterations or more. With `whole` there are `most` splits or one: `most` if the launch has a
    thread block for each.
    """

    intrinsic = Intrinsic("split_k.splits", stem="k_splits")
    tiles: Value = operand(SCALAR_INT)
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    most: int = attribute()
    least: int = attribute()
    whole: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class WorkUnit(Op, name="cuda.work_unit"):
    """The tile and the split of work unit `unit`, and the split's iterations.

    Results: the tile block, the split's number, and the bounds of its iterations. The splits of a tile block are
    neighbours, and so are their iterations.
    """

    intrinsic = Intrinsic("split_k.work_unit")
    unit: Value = operand(SCALAR_INT)
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),) * 4


class Fixup(Op, name="cuda.fixup", effect=Effect.WRITE):
    """The sums of all splits of a tile block, and whether this thread block has them.

    Of one split, they are its own. Else each split is written to the workspace, and the last thread block to arrive
    adds them in the order of the splits.
    """

    intrinsic = Intrinsic("split_k.fixup", facts=("dtype", "layout"), call=("x", WORKSPACE, "tile", "piece", "pieces"))
    x: Value = operand(NUMBER_TILE)
    tile: Value = operand(SCALAR_INT)
    piece: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type, TileType(bool_))


class ScatterPartials(Op, name="cuda.scatter_partials", effect=Effect.WRITE):
    """Send partial sums to the blocks of the cluster, and wait for this block's.

    Thread block `i` of `blocks` adds up the subtiles `i`, `i + blocks` and so on of `parts`. They arrive in `place`; a
    barrier of their own counts them.
    """

    intrinsic = Intrinsic(
        "split_k_cluster.scatter", stem="scatter_partials", facts=("dtype", "layout", "parts", "blocks")
    )
    x: Value = operand(NUMBER_TILE)
    place: Value = operand(SCRATCH)
    arrived: Value = operand(BARRIERS)
    parts: int = attribute()
    blocks: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ReducePartials(Op, name="cuda.reduce_partials", effect=Effect.READ):
    """Subtile `part` of `parts` of `x`, added up over the cluster's `blocks`.

    The order is that of the splits. The partial sums are those that `ScatterPartials` sent to this block.
    """

    intrinsic = Intrinsic(
        "split_k_cluster.reduce", facts=("dtype", "source", "parts=", "blocks="), stem="reduce_partials", call=("part",)
    )
    x: Value = operand(NUMBER_TILE)
    part: Value = operand(SCALAR_INT)
    place: tuple[Value, ...] = operands(SCRATCH)
    parts: int = attribute()
    blocks: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (self.x.tile.with_shape((rows, columns // self.parts)),)
