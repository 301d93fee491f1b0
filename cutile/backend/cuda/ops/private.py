"""Sums of a thread block, and long rows, in shared memory.

- `Private...`: sums that a thread block keeps until its end (`private_updates.py`). `extent` is the number of elements
  that have sums; the kernel tests when it runs whether these fit.
- `Hold...` and `Held...`: rows that stay in shared memory as they were loaded (`held_rows.py`).
- `Cluster...`: rows that are spread over the blocks of a cluster (`long_rows.py`).
"""

from dataclasses import dataclass

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
    "HeldPlace",
    "HeldSlice",
    "HoldRow",
    "PrivateStart",
    "PrivateUpdate",
    "PrivateEnd",
)


class PrivateStart(Op, name="cuda.private_start", effect=Effect.WRITE):
    """Set the block's sums to zero, if they fit; ends with a barrier of the block.

    So no thread adds before all sums are zero.
    """

    extent: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class PrivateUpdate(Op, name="cuda.private_update", effect=Effect.WRITE):
    """Add to the block's sums, or to the elements in global memory if sums do not fit.

    Attributes:
        index: of the elements; an index outside of `extent` adds nothing.
        value: the numbers that are added.
        base: the address of the first element.
        extent: the number of elements.
        conditions: masks. If `limited`, the first one is a number: so many of the tile's first elements add, and no
            others.
        limited: whether the first condition is such a number.
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
    """Add the block's sums to the elements in global memory; begins with a barrier.

    So all threads of the block have added before.
    """

    base: Value = operand(SCALAR_INT)
    extent: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class HoldRow(Op, name="cuda.hold_row", effect=Effect.WRITE):
    """Begin to copy the tile at a tile index to shared memory.

    It is cut into `parts` slices along `axis`, each laid out as the block's threads will read it, with zeros past the
    tensor's edges. Each thread copies the elements that it reads, so none waits for another. Bulk copies are the
    exception: one thread begins them for all. The first pass over the row waits for the slices.

    Attributes:
        x: the tensor.
        index: of the tile.
        row: the number by which slices name the row.
        shape: of a slice.
        axis: along which the slices follow each other.
        parts: number of slices.
        bulk_copies: number of bulk copies: 1, or `parts`; 0 for none. They need a contiguous row
            (`held_rows._is_contiguous`) and an architecture that has them. Any other row is copied by `cp.async`.
    """

    x: Value = operand(ANY_TENSOR)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    row: int = attribute()
    shape: tuple[int, ...] = attribute()
    axis: int = attribute()
    parts: int = attribute()
    bulk_copies: int = attribute(default=0)

    def infer(self) -> tuple[Type, ...]:
        return ()


@dataclass(frozen=True)
class HeldPlace:
    """Where a row is held in shared memory.

    Attributes:
        shape: of a slice.
        parts: number of slices.
        start: of the first slice, in bytes.
        nbytes: of a slice.
        barriers: where the barriers of bulk copies begin, in bytes; None for copies by `cp.async`.
        group: the number of the first slice's group among the groups of `cp.async`.
        bulk_copies: number of bulk copies; 0 for copies by `cp.async`.
    """

    shape: tuple[int, ...]
    parts: int
    start: int
    nbytes: int
    barriers: int | None = None
    group: int = 0
    bulk_copies: int = 0


class HeldSlice(Op, name="cuda.held_slice", effect=Effect.READ):
    """Slice number `part` of a row of `x` in shared memory.

    Attributes:
        x: the tensor of the row. The slice has its dtype, and a layout by its alignment and contiguous axis.
        part: the slice's number; 0 if the whole row is read.
        row: the number of the row.
        shape: of the slice, or of the whole row.
        arriving: whether its copy may be under way: then the read waits for it.
    """

    # The layout assignment lays the result out as a tile that is loaded from the first operand (`LayoutAssignment`).
    loads = True
    x: Value = operand(ANY_TENSOR)
    part: Value = operand(SCALAR_INT)
    row: int = attribute()
    shape: tuple[int, ...] = attribute()
    arriving: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.x.tensor.dtype, self.shape),)


class ClusterRank(Op, name="cuda.cluster_rank"):
    """This thread block's number in its cluster, which is also its slice's number."""

    intrinsic = Intrinsic("grid.cluster_rank")

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class ClusterTileBlockId(Op, name="cuda.cluster_tile_block_id"):
    """The tile block's index along an axis of the grid.

    Attributes:
        axis: of the grid.
        blocks: number of thread blocks that share one tile block.
        alone: whether the kernel tests for a grid of a single axis first, where the index needs no division.
    """

    intrinsic = Intrinsic("grid.tile_block_id", ("axis",), stem="tile_block_id_{axis}", call=GRID_NAMES[1:])
    axis: int = attribute()
    blocks: int = attribute(default=1)
    alone: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class ClusterArrive(Op, name="cuda.cluster_arrive", effect=Effect.WRITE):
    """Set up a barrier for each reduction, and arrive on the cluster's barrier.

    The first `ClusterReduce` waits for all blocks' arrivals: a block's shared memory exists only once that block has
    started.

    Attributes:
        reductions: number of reductions in the kernel, each by a `ClusterReduce`.
    """

    reductions: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterReduce(Op, name="cuda.cluster_reduce", effect=Effect.WRITE):
    """The results of all blocks of a cluster, combined in the order of the blocks.

    Attributes:
        kind: the reduction's name.
        blocks: number of blocks in the cluster.
        number: number of reductions ahead of this one. Number 0 waits until all blocks have arrived (`ClusterArrive`).
    """

    x: Value = operand(NUMBER_TILE)
    kind: str = attribute()
    blocks: int = attribute()
    number: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)
