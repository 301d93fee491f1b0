"""What a thread block keeps: sums in shared memory until its end, and long rows.

Of sums, `extent` is how many elements there are; whether they fit is found out when the kernel runs. Rows lie in shared
memory as they came (`held_rows.py`), or are spread over the blocks of a cluster (`long_rows.py`).
"""

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.gpu.emitter import Intrinsic
from cutile.dtypes import i32
from cutile.ir.core import (
    ANY_TENSOR,
    ANY_TILE,
    INT_TILE,
    NUMBER_TILE,
    SCALAR_INT,
    Effect,
    Op,
    Value,
    attribute,
    operand,
    operands,
)
from cutile.ir.types import TileType, Type

__all__ = (
    "ClusterArrive",
    "ClusterRank",
    "ClusterReduce",
    "ClusterTileBlockId",
    "HeldSlice",
    "HoldRow",
    "PrivateStart",
    "PrivateUpdate",
    "PrivateEnd",
)


class PrivateStart(Op, name="cuda.private_start", effect=Effect.WRITE):
    """Set the block's sums to zero, if they fit; all threads see that."""

    extent: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class PrivateUpdate(Op, name="cuda.private_update", effect=Effect.WRITE):
    """Add to the block's sums, or to the elements themselves where sums do not fit.

    Lanes whose index is no element's add nothing. `base` is the address of the first element. Of `conditions` the first
    is, where it is `limited`, how many of the tile's first lanes add; the others are masks.
    """

    index: Value = operand(INT_TILE)
    value: Value = operand(ANY_TILE)
    base: Value = operand(SCALAR_INT)
    extent: Value = operand(SCALAR_INT)
    conditions: tuple[Value, ...] = operands(ANY_TILE)
    limited: bool = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class PrivateEnd(Op, name="cuda.private_end", effect=Effect.WRITE):
    """Add the block's sums to the elements."""

    base: Value = operand(SCALAR_INT)
    extent: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class HoldRow(Op, name="cuda.hold_row", effect=Effect.WRITE):
    """Bring the tile at a tile index to shared memory, and wait until it is there.

    It lies there in `parts` slices, each as a thread block reads it, with zeros past the tensor's edges. A thread
    brings what it reads itself, so none waits for another.

    Attributes:
        row: a number, by which slices name it.
        shape: of a slice.
        axis: along which the slices follow each other.
        at_once: by one copy, where the row is one stretch of memory.
    """

    x: Value = operand(ANY_TENSOR)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    row: int = attribute()
    shape: tuple[int, ...] = attribute()
    axis: int = attribute()
    parts: int = attribute()
    at_once: bool = attribute(default=True)

    def infer(self) -> tuple[Type, ...]:
        return ()


class HeldSlice(Op, name="cuda.held_slice", effect=Effect.READ):
    """Slice number `part` of a row of `x` in shared memory."""

    loads = True
    x: Value = operand(ANY_TENSOR)
    part: Value = operand(SCALAR_INT)
    row: int = attribute()
    shape: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.x.tensor.dtype, self.shape),)


class ClusterRank(Op, name="cuda.cluster_rank"):
    """This thread block's number in its cluster: which slice of a row it has."""

    intrinsic = Intrinsic("grid.cluster_rank")

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class ClusterTileBlockId(Op, name="cuda.cluster_tile_block_id"):
    """The tile block's index along an axis of the grid.

    `blocks` thread blocks have one tile block. `alone`: grids of a single axis are quick.
    """

    intrinsic = Intrinsic("grid.tile_block_id", ("axis",), stem="tile_block_id_{axis}", call=GRID_NAMES[1:])
    axis: int = attribute()
    blocks: int = attribute(default=1)
    alone: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class ClusterArrive(Op, name="cuda.cluster_arrive", effect=Effect.WRITE):
    """Set up a barrier for each of so many reductions, and say that this block runs.

    Others may then write to its shared memory: the first `ClusterReduce` waits for that.
    """

    reductions: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterReduce(Op, name="cuda.cluster_reduce", effect=Effect.WRITE):
    """The results of all blocks of a cluster, combined in the order of the blocks.

    Attributes:
        kind: the reduction's name.
        blocks: of the cluster.
        number: of the reductions ahead of this one. The first waits until all blocks have arrived (`ClusterArrive`).
    """

    x: Value = operand(NUMBER_TILE)
    kind: str = attribute()
    blocks: int = attribute()
    number: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)
