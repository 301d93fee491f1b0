"""Split-K: the K iterations of a tile divided among thread blocks.

Their partial sums are added.

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
    """Into how many pieces the turns of each of `tiles` tile blocks are divided.

    1 where these fill the GPU.

    With `whole`, into `most` or not at all: where the launch has a thread block for each.
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
    """Of unit number `unit` of the work.

    Its tile block, which piece of it, and where the piece's turns begin and end.

    The pieces of a tile block follow each other, and so do their turns.
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

    Of one piece, they are its own. Else each is written to the workspace, and who comes last adds them, in their order.
    """

    intrinsic = Intrinsic("split_k.fixup", facts=("dtype", "layout"), call=("x", WORKSPACE, "tile", "piece", "pieces"))
    x: Value = operand(NUMBER_TILE)
    tile: Value = operand(SCALAR_INT)
    piece: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type, TileType(bool_))


class ScatterPartials(Op, name="cuda.scatter_partials", effect=Effect.WRITE):
    """Send a split's sums to the cluster's thread blocks, and wait for one's own.

    Each is sent the parts that it adds up.

    Of `parts` parts of the columns, thread block `i` of `blocks` adds up number `i`, `i + blocks` and so on. They
    arrive in `place`, and are counted by a barrier of their own.
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
    """The columns of `x` that are part `part` of `parts`, added up over the cluster.

    Over its `blocks` thread blocks, in the order of the splits: what they have sent to this one.
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
