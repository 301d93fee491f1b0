"""Operations of warp specialisation, of the tile scheduler, and of split-K.

Split-K divides the K iterations of a tile among thread blocks:

    %splits = cuda.k_splits(%tiles, %start, %stop, %step) {...}             the number of thread blocks of each tile
    %tile, %split, %start, %stop = cuda.work_unit(%unit, ..., %splits)      the part that one of them does

The partial sums meet in a workspace in global memory (`Fixup`), or in the shared memory of a cluster
(`ScatterPartials`, `ReducePartials`).

Waits and `SetMaxRegisters` have `Effect.WRITE`, though they write no memory: so passes keep them, in their order.
"""

from cutile.backend.common.abi import GRID_NAMES, WORKSPACE
from cutile.backend.cuda.ops.pipeline import A_PIPELINE, BARRIERS, SCRATCH
from cutile.backend.gpu.emitter import Intrinsic
from cutile.dtypes import bool_, i32
from cutile.ir.core import NUMBER_TILE, SCALAR_INT, Block, Effect, Op, Value, attribute, operand, operands, region
from cutile.ir.types import TileType, Type

__all__ = (
    "Elected",
    "FirstIteration",
    "FirstTile",
    "Fixup",
    "GridDependencyWait",
    "KSplits",
    "NextTile",
    "ReceiveTile",
    "ReducePartials",
    "Roles",
    "ScatterPartials",
    "SendTile",
    "SetMaxRegisters",
    "TileIndex",
    "TileStep",
    "TripCount",
    "Uniform",
    "WarpgroupIndex",
    "WorkUnit",
)


class Roles(Op, name="cuda.roles"):
    """Two roles for the warps of a thread block: consumers, and the producer.

    The first `4 * warpgroups` warps are the consumers: layouts number threads from 0, and these are the threads that
    hold tiles. The last four warps are the producer. One thread issues its loads; there are four warps since
    `setmaxnreg` acts on whole warpgroups (PTX ISA, "setmaxnreg").
    """

    producer: Block = region()
    consumer: Block = region()
    warpgroups: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class GridDependencyWait(Op, name="cuda.grid_dependency_wait", effect=Effect.WRITE):
    """Programmatic dependent launch (PDL): wait for the kernels ahead.

    It also lets the next kernel start, whose own wait lasts until this one has ended. Code before this operation must
    not touch memory that the kernels ahead write.

    `most_blocks`: a grid of more thread blocks only waits, and its end lets the next kernel start. Another grid lets it
    start ahead of its own wait. 0: a grid of any size lets it start behind its own wait.
    """

    intrinsic = Intrinsic("roles.grid_dependency_wait")
    most_blocks: int = attribute(default=0)

    def infer(self) -> tuple[Type, ...]:
        return ()

    def reference(self) -> tuple[()]:
        return ()  # one kernel runs at a time


class SetMaxRegisters(Op, name="cuda.set_max_registers", effect=Effect.WRITE):
    """Set the registers of each thread to `count`.

    `grow`: the threads take more (`setmaxnreg.inc`); else they give some up (`setmaxnreg.dec`).
    """

    intrinsic = Intrinsic("roles.set_max_registers")
    count: int = attribute()
    grow: bool = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Elected(Op, name="cuda.elected"):
    """Whether this is the elected thread of the producer, which issues its loads."""

    intrinsic = Intrinsic("roles.elected", facts=("warpgroups",))
    warpgroups: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)


class WarpgroupIndex(Op, name="cuda.warpgroup_index"):
    """The number of this warpgroup of the consumers."""

    intrinsic = Intrinsic("roles.warpgroup_index")

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class FirstTile(Op, name="cuda.first_tile"):
    """Number of the first tile block of a thread block, cluster or warpgroup.

    It is the warpgroup's in a ping-pong kernel: `pingpong` is the number of warpgroups with tile blocks of their own.
    """

    intrinsic = Intrinsic("roles.first_tile", facts=("cluster",))
    cluster: int = attribute()
    pingpong: int = attribute(default=1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileStep(Op, name="cuda.tile_step"):
    """The distance from one tile block to the next of the same warps.

    It is the number of thread blocks (or clusters) in the grid, times the number of warpgroups with tile blocks of
    their own.
    """

    intrinsic = Intrinsic("roles.tile_step", facts=("cluster",))
    cluster: int = attribute()
    pingpong: int = attribute(default=1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class NextTile(Op, name="cuda.next_tile", effect=Effect.WRITE):
    """Atomic counter of the dynamic tile scheduler: its value before the increment.

    Each thread block (or cluster) begins with the tile block of its own number. The next one is this value plus
    `TileStep`. The counter lies in the workspace and wraps to 0 after `total` increments, for the next launch: each
    thread block increments it once for each tile block that it runs.
    """

    intrinsic = Intrinsic("roles.next_tile", call=(WORKSPACE, "total"))
    total: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class Uniform(Op, name="cuda.uniform"):
    """A number of the elected thread in a uniform register.

    TMA reads its operands from uniform registers. Without this operation the compiler loops over the lanes of the warp
    around each copy. The operation has no effect, so that passes may move it within the elected thread's branch.
    """

    intrinsic = Intrinsic("roles.uniform")
    x: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class SendTile(Op, name="cuda.send_tile", effect=Effect.WRITE):
    """Wait for an empty stage, and send the number of a tile block to consumers.

    The number is stored in the stage's word of `through`. `limited`: a wait of over two seconds ends the kernel.
    """

    intrinsic = Intrinsic("roles.send_tile")
    pipeline: Value = operand(A_PIPELINE)
    through: Value = operand(SCRATCH)
    counter: Value = operand(SCALAR_INT)
    number: Value = operand(SCALAR_INT)
    limited: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ReceiveTile(Op, name="cuda.receive_tile", effect=Effect.WRITE):
    """The number of a tile block that the producer sent.

    A `PipelineWait` for its stage comes before.
    """

    intrinsic = Intrinsic("roles.receive_tile", pipeline=("stages",))
    pipeline: Value = operand(A_PIPELINE)
    through: Value = operand(SCRATCH)
    counter: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileIndex(Op, name="cuda.tile_index"):
    """The index along `axis` of tile block `number`, in rasterised order.

    Tiles that run at the same time are neighbours, so that their loads meet in the L2 cache.

    Attributes:
        axis: the axis of the grid whose index this is.
        rows, columns: the numbers of two axes of the grid; the third is the slowest.
        group: rows of tile blocks in a band, which is traversed column by column.
        cluster: blocks of a cluster, which are neighbours along the axis `along`; `number` counts clusters.
        backwards: along `axis` the last tile block comes first, since causal loops are longest there.
    """

    intrinsic = Intrinsic("roles.tile_index", facts=("axis",), stem="tile_index_{axis}", call=("number", *GRID_NAMES))
    number: Value = operand(SCALAR_INT)
    axis: int = attribute()
    rows: int = attribute()
    columns: int = attribute()
    group: int = attribute()
    cluster: int = attribute()
    along: int = attribute()
    backwards: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TripCount(Op, name="cuda.trip_count"):
    """The iterations of a main loop; none if `stop` is not beyond `start`.

    The operands are i32, and `step` is positive.
    """

    intrinsic = Intrinsic("roles.trip_count")
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class FirstIteration(Op, name="cuda.first_iteration"):
    """The first value of the stage counter of a ping-pong warpgroup.

    It is the number of main-loop iterations of the warpgroups before it. Each of them has a tile block of `iterations`
    iterations.
    """

    intrinsic = Intrinsic("roles.first_iteration")
    iterations: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class KSplits(Op, name="cuda.k_splits"):
    """The number of splits of each tile's K iterations; 1 if the tiles fill the GPU.

    Each split has `least` iterations or more. `whole`: the number is `most` or 1. It is `most` only if the launch has
    exactly one thread block for each split.
    """

    intrinsic = Intrinsic("split_k.splits", stem="k_splits")
    tiles: Value = operand(SCALAR_INT)
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    most: int = attribute()
    least: int = attribute()
    whole: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class WorkUnit(Op, name="cuda.work_unit"):
    """The tile and the split of work unit `unit`, and the split's iterations.

    The results are the numbers of the tile block and of the split, and the bounds `start` and `stop` of the split's
    iterations. The splits of a tile block are neighbours, and so are their iterations. `pieces` is the number of
    splits.
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

    With one split they are `x`. Else each split's sums are written to the workspace, and the last thread block to
    arrive adds them in the order of the splits. `piece` is the number of this split, `pieces` the number of splits.
    """

    intrinsic = Intrinsic("split_k.fixup", facts=("dtype", "layout"), call=("x", WORKSPACE, "tile", "piece", "pieces"))
    x: Value = operand(NUMBER_TILE)
    tile: Value = operand(SCALAR_INT)
    piece: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type, TileType(bool_))


class ScatterPartials(Op, name="cuda.scatter_partials", effect=Effect.WRITE):
    """Send partial sums to the blocks of the cluster, and wait for those sent here.

    Thread block `i` of `blocks` adds up the subtiles `i`, `i + blocks` and so on of `parts`. Its partial sums arrive in
    `place`, and the barrier `arrived` counts their bytes. `limited`: as of `SendTile`.
    """

    intrinsic = Intrinsic(
        "split_k_cluster.scatter", stem="scatter_partials", facts=("dtype", "layout", "parts", "blocks")
    )
    x: Value = operand(NUMBER_TILE)
    place: Value = operand(SCRATCH)
    arrived: Value = operand(BARRIERS)
    parts: int = attribute()
    blocks: int = attribute()
    limited: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ReducePartials(Op, name="cuda.reduce_partials", effect=Effect.READ):
    """Subtile `part` of `parts` of `x`, added up over the cluster's `blocks`.

    The order is that of the splits. `ScatterPartials` has sent the partial sums to this block. `x` only gives the type:
    its elements are not read. `place` is empty until the epilogue has its buffers.
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
